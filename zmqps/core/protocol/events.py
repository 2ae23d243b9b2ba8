"""The inputs and outputs of a machine; the driver loop moves both.

A *peer* is named by the transport: ``COORDINATOR`` or ``server_peer(rank)`` for a connection that this node opened, the
routing id for an incoming one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, field
from typing import Any, Protocol

from zmqps.core.protocol.message import Immutable, immutable
from zmqps.core.protocol.messages import Message
from zmqps.core.protocol.security.roles import KeyHolder
from zmqps.errors import PSError

Peer = bytes
COORDINATOR: Peer = b"coordinator"


def server_peer(rank: int) -> Peer:
    """Return the name of the connection to the server of this rank."""
    return b"server-%d" % rank


class Reader(Protocol):
    """An object that still reads a buffer: a message that the transport has not fully written."""

    @property
    def done(self) -> bool:
        """Whether the buffer is free again; once True, always True."""


class Pending(Protocol):
    """Work still in progress on a device."""

    def wait(self) -> None:
        """Block until it is done."""


# --- into a machine ---------------------------------------------------------------------------


@immutable
class Received(Immutable):
    """A message has arrived, with the transport's facts about a `Hello`, and about strangers that ask to end a job.

    ``origin``: the address of the other host that it comes from, empty for this one. ``holder``: with keys, the key
    that was shown.
    """

    peer: Peer
    message: Message
    origin: str = ""
    holder: KeyHolder | None = None


@immutable
class Undecodable(Immutable):
    """Data that is not a message has arrived."""

    peer: Peer
    error: PSError


@immutable
class Unreachable(Immutable):
    """A requested connection cannot be made, now or later; or a peer's connection is no longer allowed."""

    peer: Peer
    error: PSError


@immutable
class Connected(Immutable):
    """A connection that this node opens is open, perhaps again: earlier messages may be lost."""

    peer: Peer


@immutable
class Disconnected(Immutable):
    """A connection that this node opened, or a welcomed peer's, has ended; it may come back.

    The peer keeps its name.
    """

    peer: Peer


@immutable
class Stop(Immutable):
    """The process was asked to end (a signal, ``close()``); its data may be moved to others for ``drain_s``."""

    reason: str
    drain_s: float = 0.0


@immutable
class Returned(Immutable):
    """The work of a `Run` is done; ``value`` is its result or the exception it raised."""

    tag: Any
    value: Any


@immutable
class Looked(Immutable):
    """The answer to a `Look`: why a peer does not answer, in words."""

    peer: Peer
    why: str


#: Events of a transport.
NetworkEvent = Received | Undecodable | Unreachable | Connected | Disconnected | Looked


# --- out of a machine -------------------------------------------------------------------------


@immutable
class Send(Immutable):
    """Send a message.

    ``readers``: a list for each of the payload's buffers, or none. The transport appends a `Reader` to those of buffers
    that it keeps reading after the send; a buffer must not be written to before all of its readers are done. ``after``:
    the payload is complete only when this is done, so the message is sent after it, and later ones may overtake it.
    """

    peer: Peer
    message: Message
    readers: Sequence[list[Reader]] = ()
    after: Pending | None = None


@immutable
class Connect(Immutable):
    """Open a connection, named ``peer`` from now on."""

    peer: Peer
    endpoint: str


@immutable
class Disconnect(Immutable):
    """Close a connection that this node has opened; it delivers nothing any more, and its end is not reported."""

    peer: Peer


@immutable
class Look(Immutable):
    """Find out why an endpoint does not answer; `Looked` follows at some time."""

    peer: Peer
    endpoint: str


@immutable
class Log(Immutable):
    """Log a line; ``level`` is debug, info, warning or error.

    ``kind`` names an event for watchers of the cluster: joined, left, lost, began, … ``job``, ``peer`` (the name of a
    node) and ``error`` (the number of an error) are for searching: the text contains them as well, and two lines are
    compared only by their texts.
    """

    level: str
    text: str
    kind: str = field(default="", compare=False)
    _: KW_ONLY
    job: str = field(default="", compare=False)
    peer: str = field(default="", compare=False)
    error: str = field(default="", compare=False)

    def about(self) -> dict[str, str]:
        """Return its subject."""
        about = {"job": self.job, "peer": self.peer, "error": self.error}
        return {name: value for name, value in about.items() if value}


@immutable
class Record(Immutable):
    """Store or delete a record under a key of this node's journal, before any later action is carried out.

    ``data`` is plain: maps, lists, texts, bytes, numbers. Consecutive records are stored all together, or not at all.
    """

    key: str
    data: Any


@immutable
class Exit(Immutable):
    """The node's work is over; see `zmqps.core.protocol.exits` for the codes.

    ``done``: everything requested is done, so the signal that asked for the end has done no harm.
    """

    code: int
    reason: str
    done: bool = False


@immutable
class Run(Immutable):
    """Work that takes longer than a heartbeat; done in the background, with the result in `Returned`.

    ``nbytes``: size of the message that it reads; 0: none. The many objects made from one are freed for good.
    """

    tag: Any
    work: Callable[[], Any]
    nbytes: int = 0


@immutable
class Resolve(Immutable):
    """An operation of the user is done; ``value`` is its result or the exception to raise."""

    operation: Any
    value: Any


@immutable
class Landed(Immutable):
    """Some parameters of a pull, by number, are in place while others are still awaited."""

    operation: Any
    parameters: tuple[int, ...]


@immutable
class Notify(Immutable):
    """An event that the user may want to know, without having asked."""

    event: Any


Action = Landed | Send | Connect | Disconnect | Look | Log | Record | Exit | Run | Resolve | Notify


class Machine(Protocol):
    """The one door of every state machine of the core."""

    @property
    def title(self) -> str:
        """This node's identity, for errors."""

    def handle(self, event: Any, now: float) -> list[Action]:
        """Process an event at time ``now`` (seconds of a monotonic clock) and return the actions."""

    def next_deadline(self) -> float | None:
        """Return when to call `on_deadline`, or None."""

    def on_deadline(self, now: float) -> list[Action]:
        """Do what is due by ``now``."""

    def validate(self) -> None:
        """Assert the invariants; called by tests after every event."""
