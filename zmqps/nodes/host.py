"""What the host of a server has to give."""

from __future__ import annotations

from pathlib import Path

#: What a container may use, and what it uses; psutil tells of the whole host only.
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_USED = Path("/sys/fs/cgroup/memory.current")


def available_nbytes() -> int:
    """Return the bytes of memory that can be had without swapping, in a container those it may still use."""
    import psutil

    available = int(psutil.virtual_memory().available)
    try:
        return min(available, max(0, int(CGROUP_LIMIT.read_text()) - int(CGROUP_USED.read_text())))
    except (OSError, ValueError):  # no container, or one without a limit
        return available
