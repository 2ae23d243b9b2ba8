"""The right to end jobs of a cluster without a job secret: for the user that runs its coordinator, on the same host.

The coordinator makes a key for the life of its cluster and keeps it in a file that no other user can read. To end a job
a process proves that it has read the file. So does a server of a cluster that takes no others.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from zmqps.core.protocol.endpoints import host_of, is_loopback
from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.errors import UnsafeFileError
from zmqps.folder import Folder
from zmqps.net.system.addresses import split
from zmqps.net.system.host import host_tag

SUFFIX = ".key"
#: A file may be taken for left behind in the moment before it is locked.
ATTEMPTS = 8

log = logging.getLogger("zmqps.coordinator")


def new_end_key() -> bytes:
    """Return a new key."""
    return secrets.token_bytes(KEY_NBYTES)


@contextlib.contextmanager
def offer_end_key(endpoint: str, key: bytes) -> Iterator[bytes]:
    """Offer the key of the coordinator at an endpoint; this user can read it for so long, if it can be kept at all."""
    name = _name(endpoint)
    try:
        with _folder(make=True) as folder:
            _sweep(folder)
            file = _begin(folder, name)
            file.write(key)
    except (OSError, UnsafeFileError) as error:
        log.warning("no job of this cluster can be ended from outside: %s", error)
        yield key
        return
    try:
        yield key
    finally:
        with file, contextlib.suppress(OSError, UnsafeFileError), _folder() as folder:
            if _is(folder, name, file.fileno()):
                folder.remove(name)


def find_end_key(endpoint: str) -> bytes:
    """Return the key of the coordinator at an endpoint; empty where this user runs none there on this host.

    Raises
    ------
    UnsafeFileError
        Another user may have put it there.
    """
    try:
        with _folder() as folder:
            names = [name for name in os.listdir(folder.fd) if name.startswith(_beginning(endpoint))]
            name = _name(endpoint)
            if name not in names and len(names) == 1:
                (name,) = names  # a coordinator is reached under several names
            with open(folder.open(name, os.O_RDONLY), "rb") as file:
                return file.read(KEY_NBYTES)
    except FileNotFoundError:
        return b""


def kept(endpoint: str, key: bytes) -> bool:
    """Whether the key of the coordinator at an endpoint could be kept where this user's processes find it."""
    try:
        return find_end_key(endpoint) == key
    except (OSError, UnsafeFileError):
        return False


def server_key(coordinator: str) -> bytes:
    """Return what shows a coordinator on this host that a server is of its user; empty where nothing does."""
    if coordinator.startswith("tcp://") and not is_loopback(host_of(coordinator)):
        return b""  # the key of this port is not of that coordinator
    try:
        return find_end_key(coordinator)
    except (OSError, UnsafeFileError) as error:
        log.warning("cannot read the key of the coordinator at %s: %s", coordinator, error)
        return b""


def _folder(*, make: bool = False) -> Folder:
    return Folder(Path(tempfile.gettempdir()), f"zmqps-{os.geteuid()}", make=make)


def _beginning(endpoint: str) -> str:
    """Return how the names of files begin that are of this host and a port."""
    return f"{host_tag()}-{split(endpoint)[1] if endpoint.startswith('tcp://') else 'ipc'}-"


def _name(endpoint: str) -> str:
    """Return the name of the file: other hosts may share the folder, and other coordinators of this one the port."""
    place = host_of(endpoint) if endpoint.startswith("tcp://") else endpoint
    return f"{_beginning(endpoint)}{hashlib.sha256(place.encode()).hexdigest()[:16]}{SUFFIX}"


def _begin(folder: Folder, name: str) -> IO[bytes]:
    """Return a new file, locked for as long as it is open: so it is known whether its coordinator lives."""
    for _ in range(ATTEMPTS):
        file = folder.begin(name)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()  # another process takes it for a leftover, and removes it
            continue
        except OSError as error:  # a file system without locks
            log.info("the file of the end key cannot be locked: %s", error)
        if _is(folder, name, file.fileno()):
            return file
        file.close()
    raise UnsafeFileError(path=str(folder.path / name), why="it vanishes", advice="see what cleans up there")


def _is(folder: Folder, name: str, fd: int) -> bool:
    """Whether a name is still that of an open file."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=folder.fd, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def _sweep(folder: Folder) -> None:
    """Remove the keys of coordinators of this host that were killed; what others have made is theirs."""
    for name in os.listdir(folder.fd):
        if not (name.startswith(host_tag()) and name.endswith(SUFFIX)):
            continue
        with contextlib.suppress(OSError, UnsafeFileError), open(folder.open(name, os.O_RDWR), "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(folder, name, file.fileno()):
                folder.remove(name)
