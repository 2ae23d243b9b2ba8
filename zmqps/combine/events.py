"""What happens to the leader of a host group, and what it wants done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zmqps.combine.messages import HostGradients, HostMessage
from zmqps.errors import PSError


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
