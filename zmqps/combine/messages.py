"""What the members of a host group and its leader say to each other, over a socket of their host; and its events.

They run the same version of this package as the same user, so there is no version and no proof in here. What comes is
checked all the same: it may be damaged, or written by something else of this user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from zmqps.core.protocol.plain import pack, unpack
from zmqps.errors import ProtocolError, PSError

#: Of one message; the longest names how often each of many parameters counts.
MAX_NBYTES = 128 << 10
#: Whole numbers on the way: none is larger.
MOST = (1 << 63) - 1

#: An arena as others map it (`zmqps.net.lane.arena.Description`): process, file descriptor, bytes, key.
Place = tuple[int, int, int, bytes]


@dataclass(frozen=True, slots=True)
class HostMessage:
    """Base of all of them; ``kind`` is its number on the way."""

    kind: ClassVar[int] = 0


# --- of a member ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinGroup(HostMessage):
    """I am ``name``, and my next gradients are of step ``step``; asynchronous: whatever round is next."""

    kind: ClassVar[int] = 1
    name: str
    pid: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGradients(HostMessage):
    """My gradients of a step are in ``places``, one for each table of the key space.

    ``counts`` says how many examples they are the sum of, as runs of parameters: first, one past the last, count. A
    parameter that is in none has no gradient. ``examples`` is the worker's weight in the step's mean; 0: it skips
    it, and with ``for_all`` no gradient of it is applied. ``codec`` is empty where the job's is meant.
    """

    kind: ClassVar[int] = 2
    step: int
    places: Sequence[Place]
    counts: Sequence[tuple[int, int, int]]
    examples: int = 1
    for_all: bool = False
    codec: str = ""
    atomic: bool = False


@dataclass(frozen=True, slots=True)
class Want(HostMessage):
    """Values for a read at a step; ``fresh``: read from the servers after this was asked."""

    kind: ClassVar[int] = 3
    step: int
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Got(HostMessage):
    """I have read the values of a number, and their memory may be written again."""

    kind: ClassVar[int] = 4
    number: int


@dataclass(frozen=True, slots=True)
class Away(HostMessage):
    """I am in a barrier, or ask for examples: no round waits for me."""

    kind: ClassVar[int] = 5


@dataclass(frozen=True, slots=True)
class Here(HostMessage):
    """I am back, and my next gradients are of a step."""

    kind: ClassVar[int] = 6
    step: int


@dataclass(frozen=True, slots=True)
class Alive(HostMessage):
    """A sign of life, both ways."""

    kind: ClassVar[int] = 7


# --- of the leader ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined(HostMessage):
    """You are in; ``name`` leads, and ``step`` is the next round. Say that you live every ``interval`` seconds."""

    kind: ClassVar[int] = 16
    name: str
    step: int
    interval: float
    timeout: float


@dataclass(frozen=True, slots=True)
class Pushing(HostMessage):
    """The gradients of a step leave this host now: until the answer it is unknown whether they count."""

    kind: ClassVar[int] = 17
    step: int


@dataclass(frozen=True, slots=True)
class Done(HostMessage):
    """The gradients of a step are with the servers."""

    kind: ClassVar[int] = 18
    step: int


@dataclass(frozen=True, slots=True)
class Alone(HostMessage):
    """Do it yourself: push the gradients of this step, or read; nothing was done with what you brought."""

    kind: ClassVar[int] = 19
    reads: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(HostMessage):
    """The push of a round, or a read, has failed, for all alike."""

    kind: ClassVar[int] = 20
    reads: bool
    code: int
    text: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HostValues(HostMessage):
    """The requested values are in ``places``; answer `Got` when you have read them."""

    kind: ClassVar[int] = 21
    number: int
    version: int
    places: Sequence[Place]


@dataclass(frozen=True, slots=True)
class HostWaiting(HostMessage):
    """The workers that the round waits for."""

    kind: ClassVar[int] = 22
    text: str


@dataclass(frozen=True, slots=True)
class Dropped(HostMessage):
    """You were silent for too long: the others continue without you."""

    kind: ClassVar[int] = 23
    silent_s: float


_FROM_MEMBERS = (JoinGroup, HostGradients, Want, Got, Away, Here, Alive)
_FROM_LEADERS = (Joined, Pushing, Done, Alone, Failed, HostValues, HostWaiting, Dropped)
KINDS: dict[int, type[HostMessage]] = {cls.kind: cls for cls in (*_FROM_MEMBERS, *_FROM_LEADERS)}


def encode(message: HostMessage) -> bytes:
    """Return a message in bytes.

    Raises
    ------
    ProtocolError
        It is too long.
    """
    data = pack([message.kind, *(getattr(message, field.name) for field in fields(message))])
    if len(data) > MAX_NBYTES:
        raise ProtocolError(f"a message of {len(data)} bytes to the workers of this host; {MAX_NBYTES} is the most")
    return data


def decode(data: bytes) -> HostMessage:
    """Return the message in some bytes.

    Raises
    ------
    ProtocolError
        There is none.
    """
    entries = unpack(data)
    cls = KINDS.get(entries[0]) if type(entries) is list and entries and type(entries[0]) is int else None
    if cls is None or len(entries) != 1 + len(fields(cls)):
        raise ProtocolError("that is not a message of a host group")
    for field, value in zip(fields(cls), entries[1:], strict=True):
        if not _CHECKS[field.name](value):
            raise ProtocolError(f"a {cls.__name__} with a {field.name} of {value!r:.40}")
    return cls(**{field.name: value for field, value in zip(fields(cls), entries[1:], strict=True)})


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _are_places(value: Any) -> bool:
    return type(value) is list and all(
        type(entry) is list
        and len(entry) == 4
        and all(_is_whole(number) for number in entry[:3])
        and type(entry[3]) is bytes
        for entry in value
    )


def _are_counts(value: Any) -> bool:
    if type(value) is not list:
        return False
    end = 0
    for run in value:
        if type(run) is not list or len(run) != 3 or not all(_is_whole(number) for number in run):
            return False
        if not end <= run[0] < run[1] or not run[2]:
            return False
        end = run[1]
    return True


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_seconds(value: Any) -> bool:
    return type(value) is float and value >= 0.0


_CHECKS = {
    "name": _is_text, "pid": _is_whole, "step": _is_whole, "places": _are_places, "counts": _are_counts,
    "examples": _is_whole, "for_all": _is_flag,
    "codec": _is_text, "atomic": _is_flag, "fresh": _is_flag, "number": _is_whole, "interval": _is_seconds,
    "timeout": _is_seconds, "reads": _is_flag, "code": _is_whole, "text": _is_text,
    "facts": lambda value: type(value) is dict and all(type(name) is str for name in value),
    "version": _is_whole, "silent_s": _is_seconds,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Heard:
    """A member, by the number of its connection, has said something."""

    member: int
    message: HostMessage


@dataclass(frozen=True, slots=True)
class ConnectionEnded:
    """A connection has ended, at either end; also if a message could not be sent over it."""

    member: int


@dataclass(frozen=True, slots=True)
class RoundPushed:
    """The round under way is with the servers, or the push has failed; ``alone``: nothing was sent, nor can be."""

    error: PSError | None = None
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Fetched:
    """Values have arrived, or failed to; they were requested at a step, -1 for values that no worker can use."""

    number: int
    step: int
    version: int = 0
    error: PSError | None = None


@dataclass(frozen=True, slots=True)
class Rewound:
    """The job went back to a checkpoint: what was read before is invalid."""


HostEvent = Heard | ConnectionEnded | RoundPushed | Fetched | Rewound


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to a member."""

    member: int
    message: HostMessage


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close a connection, once all that was said before has left."""

    member: int


@dataclass(frozen=True, slots=True)
class PushRound:
    """Add up what members have brought to a step, push it, and end the leader's step; answered by `RoundPushed`.

    Leave out workers to which `Pushing`, sent right before, could not be delivered: they push again elsewhere.
    """

    step: int
    brought: Mapping[int, HostGradients]


@dataclass(frozen=True, slots=True)
class FetchValues:
    """Pull into one of the places for values; answered by `Fetched`, asynchronous: with this step.

    Synchronous: unless the leader is at a later step, whose values may await the readers.
    """

    number: int
    place: int
    step: int


@dataclass(frozen=True, slots=True)
class Say:
    """Write a line to the log."""

    level: str
    text: str


HostAction = Tell | CloseConnection | PushRound | FetchValues | Say
