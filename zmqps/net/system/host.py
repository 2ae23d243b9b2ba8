"""Identifies a host among others that share files with it: a home, or a directory for temporary files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from zmqps.files import read_kernel

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NETWORK = "/proc/self/ns/net"


def boot() -> str:
    """Return an identifier of the clock: processes of one host share it, until it reboots."""
    # psutil's boot_time moves when the clock is set
    return read_kernel(BOOT_ID).strip() if BOOT_ID.exists() else os.uname().nodename


def host_id() -> str:
    """Return an identifier shared by exactly the processes of one host: its kernel's life, and its network.

    Containers with their own networks are separate hosts. The number of a namespace alone is the same on most machines.
    """
    return f"{boot()}-{os.stat(NETWORK).st_ino if os.path.exists(NETWORK) else 0}"


def host_tag(*facts: str) -> str:
    """Return a name for files of this host, and for facts about it."""
    return hashlib.sha256("\0".join((host_id(), *facts)).encode()).hexdigest()[:32]
