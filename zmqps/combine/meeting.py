"""Where processes of one user on one host find each other: a socket in a directory that is the user's alone.

The first that looks for a name listens there, the others connect. A host is a network namespace, as for the lane: so
containers with separate networks are separate hosts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zmqps.errors import ConfigurationError, DeadlineError
from zmqps.net.loops import Deadline
from zmqps.net.system.host import host_tag

#: Connections that may wait to be accepted.
BACKLOG = 256
#: Seconds between attempts to take the election's lock; an election takes microseconds.
LOOK_S = 0.005
#: The longest path of a socket that Linux takes.
MOST_PATH_BYTES = 107
_CREDENTIALS = struct.Struct("3i")


@dataclass(slots=True)
class Met:
    """How a process takes part: over a connection, and if it came first by listening, too.

    Attributes
    ----------
    connection
        The connection to the listener, maybe this process itself.
    listener
        None: another process listens.
    file
        The number of the socket's file, by which it is known that it is still the same.
    """

    connection: socket.socket
    listener: socket.socket | None
    file: int


def path_of(*facts: str) -> Path:
    """Return the socket path shared by processes that agree on some facts."""
    path = directory() / host_tag(*facts)
    if len(os.fsencode(path)) > MOST_PATH_BYTES:
        raise ConfigurationError(
            f"{path.parent} is too long for the path of a socket: set XDG_RUNTIME_DIR or TMPDIR to a shorter directory"
        )
    return path


def directory() -> Path:
    """Return the directory of sockets, which no other user can read or write.

    Raises
    ------
    ConfigurationError
        There is something else in its place.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    path = (Path(base) if base and os.path.isdir(base) else Path(tempfile.gettempdir())) / f"zmqps-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise ConfigurationError(
            f"{path} is no directory that this user alone can read: remove it, or set XDG_RUNTIME_DIR to one that is"
        )
    return path


def meet(path: Path, timeout: float, *, stale: int | None = None) -> Met:
    """Connect to the listener at a path, or listen there.

    Parameters
    ----------
    path
        From `path_of`.
    timeout
        Seconds to wait for others that are choosing.
    stale
        The socket file of a dead listener: it is not connected to.

    Raises
    ------
    DeadlineError
        Another process has held the election's lock for as long.
    ConfigurationError
        Another user listens there.
    """
    listener: socket.socket | None = None
    with _choosing(path.parent, timeout):
        if stale is not None and _number(path) == stale:
            path.unlink()
        connection = _connect(path)
        if connection is None:
            path.unlink(missing_ok=True)  # left behind by a process that was killed
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                listener.bind(os.fspath(path))
                listener.listen(BACKLOG)
            except OSError as error:
                listener.close()
                raise ConfigurationError(f"cannot listen at {path}: {error.strerror}") from error
            connection = _connect(path)
        number = _number(path)
    if connection is None or number is None:
        raise ConfigurationError(f"{path} vanished while it was made: does something clean up there?")
    return Met(connection, listener, number)


def end(listener: socket.socket, path: Path, number: int) -> None:
    """Stop listening, and remove the file if it still belongs to this listener."""
    with contextlib.suppress(OSError, DeadlineError), _choosing(path.parent, 1.0):
        if _number(path) == number:
            path.unlink()
    listener.close()


def check_peer_user(connection: socket.socket) -> None:
    """Raise `ConfigurationError` unless the other end of a connection is a process of this user."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user = _CREDENTIALS.unpack(raw)[1]
    if user != os.geteuid():
        raise ConfigurationError(f"the other end of a socket of this user is a process of user {user}")


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    try:
        connection.connect(os.fspath(path))
        check_peer_user(connection)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except BlockingIOError:  # more wait there than may: it does not accept
        connection.close()
        raise ConfigurationError(f"the listener at {path} takes no more connections; is it stopped?") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _number(path: Path) -> int | None:
    try:
        facts = path.lstat()
        return facts.st_ino << 64 | facts.st_ctime_ns  # numbers of files are used again
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _choosing(directory: Path, timeout: float) -> Iterator[None]:
    """Be the only process that connects, or begins to listen; the kernel ends it with the process."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = Deadline(timeout)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not (wait_s := deadline.wait_s(LOOK_S)):
                    raise DeadlineError(
                        operation="to find the workers of this host", seconds=timeout,
                        waiting_for=f"a process that holds the lock of {directory}; is it stopped?",
                    ) from None  # fmt: skip
                threading.Event().wait(wait_s)  # the kernel offers no lock with a timeout
        yield
    finally:
        os.close(fd)
