"""What the parts of a session need of it, and where its extensions take part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from zmqps.core.node.member import Member
from zmqps.core.protocol.events import Action
from zmqps.core.worker.operations import Advance, Attached, Exchange, Operation
from zmqps.core.worker.questions import Questions
from zmqps.core.worker.transfer import AnyTransfer, PushTransfer
from zmqps.errors import PSError

Listener = TypeVar("Listener")
Turn = Callable[[float], list[Action]]


@dataclass(slots=True, eq=False, kw_only=True)
class SessionHooks:
    """What extensions do in a session; `zmqps.core.worker.extensions` enters it, and where they are off it is empty."""

    #: The job is another one; it travels with its placement.
    attached: list[Callable[[Attached, Mapping[str, Any]], None]] = field(default_factory=list)
    #: Operations on the session's own behalf, by their types: one has ended, with this value.
    ended: dict[type[Operation], Callable[[Any, Any], list[Action]]] = field(default_factory=dict)
    #: The coordinator is back, and may have lost what it was told last.
    back: list[Turn] = field(default_factory=list)
    #: The worker finishes, as soon as it may.
    finishing: list[Turn] = field(default_factory=list)
    #: Whether it may not yet.
    staying: list[Callable[[float], bool]] = field(default_factory=list)
    #: The goodbye leaves behind this.
    leaving: list[Turn] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class TransferHooks:
    """What extensions do about transfers, likewise."""

    #: An operation is to begin; return whether it is over by that, for what it brings is of no use any more.
    dropping: list[Callable[[Exchange | Advance], bool]] = field(default_factory=list)
    #: A transfer is to leave.
    starting: list[Callable[[AnyTransfer], None]] = field(default_factory=list)
    #: All servers have a push.
    pushed: list[Callable[[PushTransfer, Operation, float], None]] = field(default_factory=list)
    #: The worker has arrived, and operations wait for the answer to that.
    arrived: list[Turn] = field(default_factory=list)
    #: That has come.
    proceeded: list[Callable[[float], None]] = field(default_factory=list)
    #: Whether the coordinator will say more of what a server says of no request in particular.
    excusing: list[Callable[[PSError], bool]] = field(default_factory=list)


def listen(listeners: list[Listener], listener: Listener, *, wanted: bool = True) -> None:
    """Enter a listener once, or take it out."""
    if wanted and listener not in listeners:
        listeners.append(listener)
    elif not wanted and listener in listeners:
        listeners.remove(listener)


def tell(listeners: Iterable[Turn], now: float) -> list[Action]:
    """Tell all of them."""
    return [action for listener in listeners for action in listener(now)]


class SessionHost(Protocol):
    """What the parts of a session need of it."""

    now: float
    member: Member
    attached: Attached | None
    operations: dict[Operation, None]
    hooks: SessionHooks

    @property
    def questions(self) -> Questions:
        """What it has asked the coordinator."""

    def resolve(self, operation: Operation, value: Any) -> list[Action]:
        """An operation is done."""

    def coordinator_lost(self, now: float) -> PSError | None:
        """Return the error for what only the coordinator can allow, if it is gone."""
