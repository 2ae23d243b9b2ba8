"""Who may end the jobs of a cluster without a job secret: the user that runs its coordinator, on the same host.

The coordinator makes a key for the life of its cluster and keeps it in a file that nobody else can read; who wants to
end a job proves that it has read the file. So does a server of a cluster that takes no others.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zmqps.core.protocol.endpoints import host_of, is_loopback
from zmqps.core.protocol.keys import KEY_NBYTES
from zmqps.errors import UnsafeFileError
from zmqps.net.addresses import split
from zmqps.nodes.files import Folder

log = logging.getLogger("zmqps.coordinator")


def new_end_key() -> bytes:
    """Return a key that nobody has had."""
    return secrets.token_bytes(KEY_NBYTES)


@contextlib.contextmanager
def offer_end_key(endpoint: str, key: bytes) -> Iterator[bytes]:
    """Offer the key of the coordinator at an endpoint; this user can read it for so long, if it can be kept at all."""
    name = _name(endpoint)
    try:
        with _folder(make=True) as folder:
            _sweep(folder)
            with folder.begin(name) as file:
                file.write(os.getpid().to_bytes(8, "little") + key)
    except (OSError, UnsafeFileError) as error:
        log.warning("no job of this cluster can be ended from outside: %s", error)
        yield key
        return
    try:
        yield key
    finally:
        with contextlib.suppress(OSError, UnsafeFileError), _folder() as folder:
            if _read(folder, name)[1] == key:  # a later one at another interface may have the same port
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
            return _read(folder, _name(endpoint))[1]
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
        return b""  # the key of this port is not that one's
    try:
        return find_end_key(coordinator)
    except (OSError, UnsafeFileError) as error:
        log.warning("cannot read the key of the coordinator at %s: %s", coordinator, error)
        return b""


def _folder(*, make: bool = False) -> Folder:
    return Folder(Path(tempfile.gettempdir()), f"zmqps-{os.geteuid()}", make=make)


def _name(endpoint: str) -> str:
    """Return the name of the file: by the port, for a coordinator is reached under several names."""
    place = str(split(endpoint)[1]) if endpoint.startswith("tcp://") else endpoint
    return f"{hashlib.sha256(place.encode()).hexdigest()[:32]}.key"


def _read(folder: Folder, name: str) -> tuple[int, bytes]:
    """Return a coordinator's process id and its key."""
    with open(folder.open(name, os.O_RDONLY), "rb") as file:
        data = file.read(8 + KEY_NBYTES)
    return int.from_bytes(data[:8], "little"), data[8:]


def _sweep(folder: Folder) -> None:
    """Remove the keys of coordinators that were killed."""
    for name in os.listdir(folder.fd):
        with contextlib.suppress(OSError, OverflowError, UnsafeFileError):
            pid, key = _read(folder, name)
            if len(key) == KEY_NBYTES and not _lives(pid):
                folder.remove(name)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
