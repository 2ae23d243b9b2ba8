"""What goes into a machine and what comes out of it; the driver loop moves both.

A *peer* is named by the transport: ``COORDINATOR`` or ``server_peer(rank)`` for a connection this
node opened, the routing id for one that was opened to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, field
from typing import Any, Protocol

from zmqps.core.protocol.immutable import Immutable, immutable
from zmqps.core.protocol.messages import Message
from zmqps.core.protocol.security.roles import KeyHolder
from zmqps.errors import PSError

Peer = bytes
COORDINATOR: Peer = b"coordinator"


def server_peer(rank: int) -> Peer:
    """Return the name of the connection to the server of this rank."""
    return b"server-%d" % rank


class Reader(Protocol):
    """Something that still reads a buffer: a message that the transport has not fully written."""

    @property
    def done(self) -> bool:
        """Whether the buffer is free again; once True, always True."""


class Pending(Protocol):
    """Something that is still being done aside, by a device."""

    def wait(self) -> None:
        """Block until it is done."""


# --- into a machine ---------------------------------------------------------------------------


@immutable
class Received(Immutable):
    """A message came; the transport says more of a `Hello`, and of who asks unknown for the end of a job.

    ``origin``: the address of the other host that it comes from, empty for this one. ``holder``: where there are keys,
    whose it is.
    """

    peer: Peer
    message: Message
    origin: str = ""
    holder: KeyHolder | None = None


@immutable
class Undecodable(Immutable):
    """Something that is not a message came."""

    peer: Peer
    error: PSError


@immutable
class Unreachable(Immutable):
    """A requested connection cannot be made, now or later; or a peer that had one may have none any more."""

    peer: Peer
    error: PSError


@immutable
class Connected(Immutable):
    """A connection that this node opens is there, perhaps again: what was sent before may be lost."""

    peer: Peer


@immutable
class Disconnected(Immutable):
    """A connection has ended that this node opened, or over which a peer was welcomed; it may come back.

    The peer has the same name then.
    """

    peer: Peer


@immutable
class Stop(Immutable):
    """The process was asked to end (a signal, ``close()``); what others can take may be handed over for ``drain_s``."""

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


#: What a transport tells.
NetworkEvent = Received | Undecodable | Unreachable | Connected | Disconnected | Looked


# --- out of a machine -------------------------------------------------------------------------


@immutable
class Send(Immutable):
    """Send a message.

    ``readers``: a list for each of the payload's buffers, or none. The transport appends a `Reader` to
    those of buffers that it keeps reading after the send; nobody writes to a buffer before all of its are done.
    ``after``: the payload is whole only when this is done, so the message leaves after it, and later
    ones may overtake it.
    """

    peer: Peer
    message: Message
    readers: Sequence[list[Reader]] = ()
    after: Pending | None = None


@immutable
class Connect(Immutable):
    """Open a connection and call it ``peer`` from now on."""

    peer: Peer
    endpoint: str


@immutable
class Disconnect(Immutable):
    """Close a connection that this node has opened; nothing comes over it any more, and nobody tells of its end."""

    peer: Peer


@immutable
class Look(Immutable):
    """Find out why nobody answers at an endpoint; `Looked` comes back, some time."""

    peer: Peer
    endpoint: str


@immutable
class Log(Immutable):
    """Say something; ``level`` is debug, info, warning or error.

    ``kind`` names what has happened where those who watch the cluster are to see it: joined, left, lost, began, …
    ``job``, ``peer`` (the name of a node) and ``error`` (the number of an error) are what it is about, for those who
    look for it: the text says so as well, and is all that counts where two are compared.
    """

    level: str
    text: str
    kind: str = field(default="", compare=False)
    _: KW_ONLY
    job: str = field(default="", compare=False)
    peer: str = field(default="", compare=False)
    error: str = field(default="", compare=False)

    def about(self) -> dict[str, str]:
        """Return what it is about."""
        about = {"job": self.job, "peer": self.peer, "error": self.error}
        return {name: value for name, value in about.items() if value}


@immutable
class Record(Immutable):
    """Keep something under a key of this node's journal, or nothing any more, before anything that follows is done.

    ``data`` is plain: maps, lists, texts, bytes, numbers. Records one after the other are kept all together, or none.
    """

    key: str
    data: Any


@immutable
class Exit(Immutable):
    """The node's work is over; see `zmqps.core.protocol.exits` for the codes.

    ``done``: all is done that was asked for, so that a signal that asked for it has done no harm.
    """

    code: int
    reason: str
    done: bool = False


@immutable
class Run(Immutable):
    """Work that takes longer than a heartbeat; done aside, its outcome comes back as `Returned`.

    ``nbytes``: size of the message that it reads; 0: it reads none. The many objects that are made of one are freed
    for good.
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
    """Some parameters of a pull, by number, are where they belong while others are still awaited."""

    operation: Any
    parameters: tuple[int, ...]


@immutable
class Notify(Immutable):
    """Something has happened that the user may want to know, and has not asked for."""

    event: Any


Action = Landed | Send | Connect | Disconnect | Look | Log | Record | Exit | Run | Resolve | Notify


class Machine(Protocol):
    """The one door of every state machine of the core."""

    @property
    def title(self) -> str:
        """Who this node is, for errors."""

    def handle(self, event: Any, now: float) -> list[Action]:
        """Take an event at time ``now`` (seconds of a monotonic clock) and say what to do."""

    def next_deadline(self) -> float | None:
        """Return when `on_deadline` wants to be called, or None."""

    def on_deadline(self, now: float) -> list[Action]:
        """Do what was due by ``now``."""

    def validate(self) -> None:
        """Assert the invariants; called by tests after every event."""
