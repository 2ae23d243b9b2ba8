"""Which process holds a TCP port (Linux), for the text of an error."""

from __future__ import annotations

import os
from pathlib import Path

LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


def owner_of(port: int) -> str:
    """Return who listens on a port, as far as this user may know."""
    inodes = _listening_inodes(port)
    if inodes:
        for directory in Path("/proc").glob("[0-9]*"):
            if _holds(directory, inodes):
                name = _read(directory / "comm").strip()
                return f"{name or 'a process'} (pid {directory.name})"
    return "another process"


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _read(Path(table)).splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _holds(directory: Path, inodes: set[str]) -> bool:
    try:
        entries = os.listdir(directory / "fd")
    except OSError:  # not ours to look at, or gone
        return False
    links = (_link(directory / "fd" / entry) for entry in entries)
    return any(link.removeprefix("socket:[").removesuffix("]") in inodes for link in links)


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile, as is the one that listed them
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
