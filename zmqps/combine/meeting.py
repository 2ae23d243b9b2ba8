"""Where processes of one user on one host find each other, and a member's connection to the leader of its group.

They meet at a socket in a directory that is the user's alone. The first that looks for a name listens there, the others
connect. A host is a network namespace, as for the lane: so containers with separate networks are separate hosts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import selectors
import socket
import stat
import struct
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zmqps.combine.messages import (
    MAX_NBYTES,
    Alive,
    HostMessage,
    HostWaiting,
    Joined,
    JoinGroup,
    Pushing,
    decode,
    encode,
)
from zmqps.errors import ConfigurationError, DeadlineError, ProtocolError
from zmqps.net.loops import AwakeSelector, Deadline
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
            f"{path} is not a directory that this user alone can read: remove it, or set XDG_RUNTIME_DIR to one that is"
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
        raise ConfigurationError(f"{path} vanished while it was being made: does something clean up there?")
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


#: Seconds between signs of life until the leader has said how many.
INTERVAL_S = 1.0


class LeaderGoneError(Exception):
    """The leader has left, or is silent; ``pushing``: it may have pushed what it was given."""

    def __init__(self, *, pushing: bool) -> None:
        super().__init__()
        self.pushing = pushing


class Membership:
    """Asks the leader, one question at a time, and says that this process lives.

    Parameters
    ----------
    met
        With the connection.
    title
        This process's identity.
    pid
        Its process.
    step
        Of its next gradients.
    timeout
        Seconds of silence after which the leader is taken for lost, until it has said how many.
    """

    def __init__(self, met: Met, title: str, pid: int, step: int, timeout: float) -> None:
        self.met = met
        self.step = step  # asynchronous: the next round
        self.leader = "the leader of this host's workers"
        self.waiting = self.leader
        self._pushing = False
        self._interval, self._timeout = INTERVAL_S, timeout
        self._answers: queue.SimpleQueue[HostMessage | None] = queue.SimpleQueue()  # a few for each question
        self._closed = False
        met.connection.settimeout(INTERVAL_S)
        self.tell(JoinGroup(title, pid, step))
        self._thread = threading.Thread(target=self._main, name="zmqps-host-member", daemon=True)
        self._thread.start()

    def tell(self, message: HostMessage) -> None:
        """Say something that is not answered, or not yet."""
        with contextlib.suppress(OSError):  # the thread notices
            self.met.connection.send(encode(message))

    def ask(self, message: HostMessage | None, timeout: float) -> HostMessage | None:
        """Ask, and return the answer; None: none came in that many seconds.

        Raises
        ------
        LeaderGoneError
            The leader is.
        """
        self._pushing = False
        if message is not None:
            self.tell(message)
        deadline = Deadline(timeout)
        while True:
            wait_s = deadline.wait_s()
            try:
                answer = self._answers.get(timeout=wait_s)
            except queue.Empty:
                if wait_s:
                    continue
                return None
            if answer is None:
                self._answers.put(None)  # for the next caller
                raise LeaderGoneError(pushing=self._pushing)
            if isinstance(answer, HostWaiting):
                self.waiting = answer.text
            elif isinstance(answer, Pushing):
                self._pushing, self.waiting = True, "the servers' acknowledgements of this host's push"
            else:
                return answer

    def close(self) -> None:
        """Leave the group."""
        self._closed = True
        with contextlib.suppress(OSError):
            self.met.connection.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def disown(self) -> None:
        """Close, in a forked child, what is the parent's."""
        self.met.connection.close()

    def _main(self) -> None:
        with AwakeSelector() as selector:
            selector.register(self.met.connection, selectors.EVENT_READ)
            with contextlib.suppress(OSError, ProtocolError):
                self._listen(selector)
        self._read_rest()
        self.met.connection.close()
        self._answers.put(None)

    def _read_rest(self) -> None:
        """Let the leader say nothing more, and take what it has said by now.

        One that was asleep may push just now what it was brought, and has said so first: that is read here, or could
        not be sent, and then this member is left out.
        """
        connection = self.met.connection
        with contextlib.suppress(OSError, ProtocolError):
            connection.shutdown(socket.SHUT_RDWR)  # from here on the leader's messages are refused
            while data := connection.recv(MAX_NBYTES + 1):
                self._take(decode(data))

    def _take(self, message: HostMessage) -> None:
        if isinstance(message, Joined):
            self._interval, self._timeout, self.step = message.interval, message.timeout, message.step
            self.leader = message.name
        if not isinstance(message, Alive):
            self._answers.put(message)

    def _listen(self, selector: AwakeSelector) -> None:
        """Take what the leader says, until it leaves or is silent."""
        connection = self.met.connection
        heard_at = beat_at = selector.time()
        while not self._closed:
            if selector.select(self._interval / 2):
                data = connection.recv(MAX_NBYTES + 1)
                if not data:
                    return
                heard_at = selector.time()
                self._take(decode(data))
            elif selector.time() - heard_at > self._timeout:
                return
            if selector.time() - beat_at >= self._interval / 2:
                beat_at = selector.time()
                self.tell(Alive())
