"""Messages that any node sends: to join, show signs of life, leave, return to a restarted coordinator; errors."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.message import MAX_FACT_CHARS, Message, immutable

if TYPE_CHECKING:
    from zmqps.core.protocol.message import (
        U8,
        U32,
        U64,
        Facts,
        Incarnation,
        Key,
        Plain,
        Seconds,
        Terms,
        Text,
        Texts,
    )
    from zmqps.errors import PSError


@immutable
class Hello(Message):
    """First message on every connection; its fields never change, later versions append theirs.

    ``job`` names the job that a worker trains or an observer looks at; a server has none of its own. ``secret``
    is known to the sender and, from then on, the receiver alone; to a server it is the ticket of ``epoch``'s `Job`.
    ``guard`` proves that the sender knows the cluster's job secret. ``claim`` is the same in all lives of a worker that
    its supervisor starts again, which ``life`` numbers. ``wish`` is one more than the number that the sender's launcher
    has given it, which it wants as its rank; 0: it has none. ``process`` is made of the token of the process that a
    supervisor has started and with which the sender ends, see `Exited`; empty where there is none.
    """

    kind: ClassVar[int] = 1
    magic: Text
    version: U32
    role: Text
    incarnation: Incarnation
    name: Text
    host: Text
    pid: U32
    endpoint: Text = ""
    capabilities: Texts = ()
    job: Text = ""
    secret: Key = field(default=b"", repr=False)
    epoch: U32 = 0
    guard: Key = field(default=b"", repr=False)
    claim: Key = field(default=b"", repr=False)
    life: U32 = 0
    wish: U32 = 0
    process: Key = b""


@immutable
class Welcome(Message):
    """Answer to `Hello`; ``rank`` is the receiver's, the other facts are the sender's.

    ``proof`` shows that the sender is the server, or the coordinator, that the receiver is looking for. ``patience``:
    so long the coordinator may be away, and is back; 0: if it is silent for the heartbeat timeout it is lost.
    """

    kind: ClassVar[int] = 2
    version: U32
    incarnation: Incarnation
    name: Text
    rank: U32
    heartbeat_interval: Seconds
    heartbeat_timeout: Seconds
    num_workers: U32
    num_servers: U32
    capabilities: Texts = ()
    proof: Key = field(default=b"", repr=False)
    patience: Seconds = 0.0


@immutable
class Heartbeat(Message):
    """Sign of life to the coordinator, with the sender's counters for the status."""

    kind: ClassVar[int] = 3
    counters: Plain


@immutable
class HeartbeatAck(Message):
    """The coordinator's sign of life; also sent when what it says has changed.

    ``chief``: whether the receiver is that of its job; ``terms``: the numbers that this one has set.
    """

    kind: ClassVar[int] = 4
    num_workers: U32
    chief: U8 = 0
    terms: Terms = ()


class DepartureCause(StrEnum):
    """Why a member is not there any more.

    It has said so: it has finished, was closed, or was drained. It was silent for too long, was started again, or its
    key was revoked. Its job has ended, or it continued with another job of the same name.
    """

    FINISHED, CLOSED, DRAINED = "finished", "closed", "drained"
    LOST, RESTARTED, REVOKED = "lost", "restarted", "revoked"
    ENDED, MOVED = "ended", "moved"

    @classmethod
    def said(cls, reason: str) -> DepartureCause:
        """Return the cause in a member's own words; it is closed whatever else it says."""
        return cls(reason) if reason in (cls.FINISHED, cls.DRAINED) else cls.CLOSED


@immutable
class Leave(Message):
    """A member says goodbye; ``reason`` is ``finished``, ``drained``, or anything else for ``closed``."""

    kind: ClassVar[int] = 5
    reason: Text


@immutable
class Left(Message):
    """Answer to `Leave`."""

    kind: ClassVar[int] = 6


@immutable
class Error(Message):
    """A request (0: none in particular) failed; see `zmqps.errors` for codes and facts.

    Of a server to the coordinator, ``request`` is the epoch of the `Assign` that failed.
    """

    kind: ClassVar[int] = 7
    request: U64
    code: U32
    text: Text
    facts: Facts

    @classmethod
    def of(cls, request: int, error: PSError) -> Error:
        """Return the message that raises an error again at the other end."""
        facts = {name: fact[:MAX_FACT_CHARS] if isinstance(fact, str) else fact for name, fact in error.facts().items()}
        return cls(request, error.code, str(error), facts)


@immutable
class Lost(Message):
    """The coordinator noticed that a member vanished."""

    kind: ClassVar[int] = 8
    role: Text
    rank: U32
    name: Text
    incarnation: Incarnation
    silent_s: Seconds


@immutable
class Exited(Message):
    """A supervisor saw a process end: all members in it are lost. The supervisor need not join.

    ``token`` is known to that process and its supervisor alone, and so proves that the sender may report this; `Hello`
    has only a hash of it. ``how`` says in words how it ended. ``request`` 0 is not answered.
    """

    kind: ClassVar[int] = 107
    request: U32
    token: Key = field(repr=False)
    how: Text = ""


@immutable
class ExitNoted(Message):
    """Answer to `Exited`: which of its members had not said goodbye, and so are lost."""

    kind: ClassVar[int] = 108
    request: U32
    lost: Texts = ()


@immutable
class Shutdown(Message):
    """The coordinator ends the cluster."""

    kind: ClassVar[int] = 9
    reason: Text


@immutable
class Departed(Message):
    """A worker or observer has left for good; ``evicted`` is 1 if it was lost, 2 if its key was revoked."""

    kind: ClassVar[int] = 30
    incarnation: Incarnation
    evicted: U8


@immutable
class Forgotten(Message):
    """A server has forgotten a departed member, and ignores its messages."""

    kind: ClassVar[int] = 31
    incarnation: Incarnation


@immutable
class Back(Message):
    """The coordinator restarted and knows its members from its journal, but not which one uses this connection.

    ``incarnation`` is the coordinator's: a member that joined this one says `Hello` again; one that joined another
    has lost it.
    """

    kind: ClassVar[int] = 70
    incarnation: Incarnation


@immutable
class Farewell(Message):
    """`Leave` to a restarted coordinator that does not know the connection: which member leaves, and why."""

    kind: ClassVar[int] = 71
    incarnation: Incarnation
    secret: Key = field(repr=False)
    reason: Text


@immutable
class Resumed(Message):
    """A worker or observer has asked again all that it waits for, and is at ``clock``."""

    kind: ClassVar[int] = 72
    clock: U64
