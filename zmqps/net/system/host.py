"""What tells one host from another that shares files with it: a home, or a directory for temporary files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from zmqps.files import read_kernel

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NETWORK = "/proc/self/ns/net"


def boot() -> str:
    """Return what tells clocks apart: processes of one host share one, until it starts anew."""
    # psutil's boot_time moves when somebody sets the clock
    return read_kernel(BOOT_ID).strip() if BOOT_ID.exists() else os.uname().nodename


def host_id() -> str:
    """Return what processes of one host have in common, and no others: its kernel's life, and its network.

    Containers with networks of their own are hosts of their own. The number of a namespace alone is the same on most
    machines.
    """
    return f"{boot()}-{os.stat(NETWORK).st_ino if os.path.exists(NETWORK) else 0}"


def host_tag(*facts: str) -> str:
    """Return a name for files of this host, and of what is said of it."""
    return hashlib.sha256("\0".join((host_id(), *facts)).encode()).hexdigest()[:32]
