"""How much memory a process can still have: of its host, or of its container."""

from __future__ import annotations

from pathlib import Path

from zmqps.files import read_kernel

#: What a container may use, what it uses, and what of that are files it has read, whose memory can be had at once;
#: psutil tells of the whole host only.
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_USED = Path("/sys/fs/cgroup/memory.current")
CGROUP_USES = Path("/sys/fs/cgroup/memory.stat")


#: What the host said last: of what is asked in each heartbeat nothing can be read while descriptors are short.
_said: dict[str, int] = {}


def _of_host(name: str) -> int:
    """Return a field of `psutil.virtual_memory`, or what it was."""
    import psutil

    try:
        _said[name] = int(getattr(psutil.virtual_memory(), name))
    except OSError:
        if name not in _said:
            raise
    return _said[name]


def available_nbytes() -> int:
    """Return the bytes of memory that can be had without swapping, in a container those it may still use.

    Raises
    ------
    OSError
        The system does not say, and has not said before.
    """
    available = _of_host("available")
    try:
        uses = dict(line.split() for line in read_kernel(CGROUP_USES).splitlines())
        files = int(uses.get("inactive_file", 0)) + int(uses.get("slab_reclaimable", 0))
        return min(available, max(0, int(read_kernel(CGROUP_LIMIT)) - int(read_kernel(CGROUP_USED)) + files))
    except (OSError, ValueError):  # no container, or one without a limit
        return available


def total_nbytes() -> int:
    """Return the bytes of memory that this host has, or this container may use; errors as of `available_nbytes`."""
    total = _of_host("total")
    try:
        return min(total, int(read_kernel(CGROUP_LIMIT)))
    except (OSError, ValueError):
        return total
