"""A follower: answers lookups from its copy of a table, and no other message."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from zmqps.core.node.member import Identity
from zmqps.core.node.throttle import Throttle
from zmqps.core.protocol import exits
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import RAW, check_for_values, choose, compress
from zmqps.core.protocol.events import Action, Disconnected, Exit, Log, Peer, Received, Resolve, Send, Stop, Undecodable
from zmqps.core.protocol.messages.hello import check_hello
from zmqps.core.protocol.security.roles import OBSERVER, check_client
from zmqps.core.server.tables.arrays import ID_DTYPE
from zmqps.core.server.tables.rows import MAX_ANSWER_NBYTES, Rows
from zmqps.errors import LimitError, NotJoinedError, ProtocolError, PSError
from zmqps.follow.copies import TableCopy

#: Begins the capability that says how long rows are.
DIM = "dim="
ROLES = ("observer", "worker")


@dataclass(slots=True, eq=False)
class Changed:
    """A part of what has changed, for the copy; resolved once it is there."""

    gone: Array
    ids: Array
    rows: Array
    future: Any = None


@dataclass(slots=True, eq=False)
class Caught:
    """The copy has all updates up to a version; perhaps another copy than before."""

    copy: TableCopy
    version: int
    future: Any = None


def resolve(operation: Any, value: Any) -> None:
    """Let the future of an event that a thread has handed to a machine have its outcome; the driver calls this."""
    if isinstance(value, BaseException):
        operation.future.set_exception(value)
    else:
        operation.future.set_result(value)


class FollowerMachine:
    """A follower without its sockets.

    Until it has a copy it welcomes no reader, and readers ask again.
    """

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.copy: TableCopy | None = None
        self.version = 0
        self.counters: Counter[str] = Counter()
        self._readers: set[Peer] = set()
        self._throttle = Throttle()

    @property
    def title(self) -> str:
        """Its name in errors."""
        return f"follower {self.identity.name}"

    def start(self, now: float) -> list[Action]:
        """Wait for readers."""
        return []

    def handle(self, event: Any, now: float) -> list[Action]:
        """Take an event; every failure becomes an `Error` to its sender, never an exception."""
        if isinstance(event, Received):
            request = getattr(event.message, "request", 0)
            try:
                return self._received(event)
            except PSError as error:
                return self._refuse(event.peer, request, error, now)
        if isinstance(event, Changed):
            assert self.copy is not None
            try:
                self.copy.change(event.gone, event.ids, event.rows)
            except Exception as error:  # such as a lack of memory: the poll is repeated
                return [Resolve(event, error)]
            return [Resolve(event, None)]
        if isinstance(event, Caught):
            if self.copy is not None and self.copy.dim != event.copy.dim:
                self._readers.clear()  # they say Hello again, and learn how long rows are now
            self.copy, self.version = event.copy, event.version
            return [Resolve(event, None)]
        if isinstance(event, Disconnected):
            self._readers.discard(event.peer)
        if isinstance(event, Undecodable):
            return self._refuse(event.peer, 0, event.error, now)
        return [Exit(exits.OK, event.reason)] if isinstance(event, Stop) else []

    def _received(self, event: Received) -> list[Action]:
        message = event.message
        if isinstance(message, m.Hello):
            return self._hello(event.peer, message)
        if event.peer not in self._readers:
            raise NotJoinedError(f"{type(message).__name__} before Hello")
        check_client(message, OBSERVER)
        if isinstance(message, m.PullRows):
            return [self._rows(event.peer, message)]
        if isinstance(message, m.Leave):
            self._readers.discard(event.peer)
            return [Send(event.peer, m.Left())]
        if isinstance(message, m.Withdraw):
            return []  # it is answered already
        raise ProtocolError(f"a follower takes no {type(message).__name__}")

    def _hello(self, peer: Peer, hello: m.Hello) -> list[Action]:
        check_hello(hello, ROLES)
        if self.copy is None:
            return []
        self._readers.add(peer)
        identity = self.identity
        welcome = m.Welcome(
            m.PROTOCOL_VERSION, identity.incarnation, identity.name, 0, 0.0, 0.0, 0, 0,
            capabilities=(f"{DIM}{self.copy.dim}",),
        )  # fmt: skip
        return [Send(peer, welcome)]

    def largest_nbytes(self) -> int:
        """Return the bytes of the ids of the largest lookup."""
        return 0 if self.copy is None else ID_DTYPE.itemsize * (MAX_ANSWER_NBYTES // (4 * self.copy.dim))

    def _rows(self, peer: Peer, message: m.PullRows) -> Action:
        copy = self.copy
        assert copy is not None
        check_for_values(message.codec)
        ids = Rows.wanted(message)  # not before: what a message says that it has may be any number
        nbytes = 4 * copy.dim * ids.size
        if nbytes > MAX_ANSWER_NBYTES:
            raise LimitError(what="bytes of the rows of one lookup", got=nbytes, limit=MAX_ANSWER_NBYTES)
        rows = copy.read(ids).reshape(-1)
        codec = None if message.codec == RAW else choose(message.codec, nbytes)
        payload = [rows] if codec is None else compress(codec, [[rows]])
        self.counters["lookups"] += 1
        self.counters["rows"] += message.count
        text = RAW if codec is None else codec.spec
        return Send(peer, m.Values(message.request, text, (self.version,), (), payload))

    def _refuse(self, peer: Peer, request: int, error: PSError, now: float) -> list[Action]:
        self.counters["refused"] += 1
        answer = Send(peer, m.Error.of(request, error))
        line = self._throttle.admit(f"refused a request of a reader: {error}", now, peer)
        return [Log("warning", line, error=error.number), answer] if line else [answer]

    def next_deadline(self) -> float | None:
        """Nothing is ever due."""
        return None

    def on_deadline(self, now: float) -> list[Action]:
        """Do nothing."""
        return []

    def validate(self) -> None:
        """Assert the invariants."""
        assert self.copy is not None or not self._readers
