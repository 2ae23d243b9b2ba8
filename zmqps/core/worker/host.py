"""What the parts of a session require of it, and the hooks of its extensions."""

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
    """The hooks of extensions in a session, registered by `zmqps.core.worker.extensions`; empty without extensions."""

    #: The job has changed; called with its placement.
    attached: list[Callable[[Attached, Mapping[str, Any]], None]] = field(default_factory=list)
    #: The session's own operations, by their types: one has ended, with this value.
    ended: dict[type[Operation], Callable[[Any, Any], list[Action]]] = field(default_factory=dict)
    #: The coordinator is back, and may have lost the last messages.
    back: list[Turn] = field(default_factory=list)
    #: The worker finishes, as soon as it may.
    finishing: list[Turn] = field(default_factory=list)
    #: Whether it may not yet.
    staying: list[Callable[[float], bool]] = field(default_factory=list)
    #: The goodbye is sent after this.
    leaving: list[Turn] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class TransferHooks:
    """The hooks of extensions in transfers, likewise."""

    #: An operation is about to start; return whether that completes it, because its content is obsolete.
    dropping: list[Callable[[Exchange | Advance], bool]] = field(default_factory=list)
    #: A transfer is about to be sent.
    starting: list[Callable[[AnyTransfer], None]] = field(default_factory=list)
    #: All servers have a push.
    pushed: list[Callable[[PushTransfer, Operation, float], None]] = field(default_factory=list)
    #: The worker has arrived, and operations wait for the answer to that.
    arrived: list[Turn] = field(default_factory=list)
    #: That has come.
    proceeded: list[Callable[[float], None]] = field(default_factory=list)
    #: Whether the coordinator will explain a server's error without a request.
    excusing: list[Callable[[PSError], bool]] = field(default_factory=list)


def listen(listeners: list[Listener], listener: Listener, *, wanted: bool = True) -> None:
    """Add a listener once, or remove it."""
    if wanted and listener not in listeners:
        listeners.append(listener)
    elif not wanted and listener in listeners:
        listeners.remove(listener)


def tell(listeners: Iterable[Turn], now: float) -> list[Action]:
    """Call all of them."""
    return [action for listener in listeners for action in listener(now)]


class SessionHost(Protocol):
    """What the parts of a session require of it."""

    now: float
    member: Member
    attached: Attached | None
    operations: dict[Operation, None]
    hooks: SessionHooks

    @property
    def questions(self) -> Questions:
        """Its requests to the coordinator."""

    def resolve(self, operation: Operation, value: Any) -> list[Action]:
        """Complete an operation."""

    def coordinator_lost(self, now: float) -> PSError | None:
        """Return the error of requests to the coordinator, if it is lost."""
