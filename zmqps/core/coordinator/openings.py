"""Large messages of clients: decoded and read in the background, one at a time."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from zmqps.core.coordinator.described import Described, Rival
from zmqps.core.coordinator.members.membership import MemberInfo, Membership
from zmqps.core.node.timers import Wheel
from zmqps.core.protocol.events import Action, Peer, Received, Run
from zmqps.core.protocol.messages import Checkpoint, Error, Heartbeat, Init, Message, Saved
from zmqps.core.protocol.messages.large import Large
from zmqps.errors import ProtocolError, PSError

if TYPE_CHECKING:
    from zmqps.core.coordinator.kernel.run import JobKernel

#: The most that wait; further senders repeat their message by themselves. None has more bytes than an `Init`.
MAX_WAITING = 16
#: Reading takes at most a share of the time: after each one the next waits this many times as long as it took.
SHARE = 3.0
#: And at least this long, so that the reading thread is idle again.
LEAST_S = 0.05
#: Which roles' large messages are opened in the background, and which at once, because they come from nodes of the
#: cluster. No other role has a reason to send one, and nodes must not take places that workers may need.
ASIDE: dict[str, tuple[type[Message], ...]] = {"worker": (Init, Checkpoint)}
AT_ONCE: dict[str, tuple[type[Message], ...]] = {"server": (Heartbeat, Error, Saved)}


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """Tag of a message that is opened in the background."""

    event: Received
    large: Large


class Openings:
    """The messages that wait to be opened, or are being opened."""

    def __init__(self, runs: Mapping[str, JobKernel], membership: Membership, wheel: Wheel) -> None:
        self._timer = wheel.timer("reading large messages", self.next_deadline, self.on_deadline)
        self._runs = runs
        self._membership = membership
        self._waiting: OrderedDict[tuple[Peer, type[Message]], Opening] = OrderedDict()
        self._began_at: float | None = None  # when the first of them was started; None: it was not
        self._not_before = -math.inf

    def take(self, event: Received, large: Large, member: MemberInfo | None, now: float) -> Message | list[Action]:
        """Return a decoded message, or one of a node of the cluster; others are opened in their turn.

        One of a kind of each sender is opened at a time; if there are too many the sender repeats it.

        Raises `ProtocolError`: no message of this role is as large.
        """
        role = "" if member is None else member.role
        if large.cls in AT_ONCE.get(role, ()):
            return large.opened()
        if large.cls not in ASIDE.get(role, ()):
            sender = "a peer that has not joined" if member is None else member.title
            raise ProtocolError(
                f"the coordinator takes no {large.cls.__name__} of {large.nbytes:,} bytes from {sender}"
            )
        if member is not None:
            self._membership.heard(member, now)
            if (known := self._runs[member.job].startup.known(large)) is not None:
                return known
        return self._ask(event, large, now)

    def _ask(self, event: Received, large: Large, now: float) -> list[Action]:
        key = event.peer, large.cls
        if key not in self._waiting and len(self._waiting) < MAX_WAITING:
            self._waiting[key] = Opening(event, large)
        self._timer.touch()
        return self.on_deadline(now)

    def next(self, now: float) -> None:
        """The first one is open."""
        assert self._began_at is not None
        self._timer.touch()
        self._waiting.popitem(last=False)
        self._not_before, self._began_at = now + max(LEAST_S, SHARE * (now - self._began_at)), None

    def next_deadline(self) -> float | None:
        return self._not_before if self._waiting and self._began_at is None else None

    def on_deadline(self, now: float) -> list[Action]:
        """Start the next one of a member that is still here, if it is time."""
        if self._began_at is not None or now < self._not_before:
            return []
        while self._waiting and self._membership.find(next(iter(self._waiting))[0]) is None:
            self._waiting.popitem(last=False)
        if not self._waiting:
            return []
        self._began_at, first = now, next(iter(self._waiting.values()))
        against = self._against(self._membership.find(first.event.peer))
        return [Run(first, partial(opened, first.large, *against), first.large.nbytes)]

    def again(self, opening: Opening, message: Message, member: MemberInfo | None, now: float) -> list[Action] | None:
        """Compare a described job with another one than before, if there is another now; None: there is not."""
        if not isinstance(message, Init) or not isinstance(message.job, Described):
            return None
        return None if message.job.rival is self._against(member)[0] else self._ask(opening.event, opening.large, now)

    def _against(self, member: MemberInfo | None) -> tuple[Rival, str, str]:
        """Return what a described job is compared with, its owner, and its name."""
        run = None if member is None else self._runs.get(member.job)
        return (None, "", "") if run is None else (run.startup.rival, run.startup.owner, run.name)

    def validate(self) -> None:
        assert len(self._waiting) <= MAX_WAITING
        assert self._began_at is None or self._waiting


def opened(large: Large, rival: Rival, owner: str, name: str) -> Message | PSError:
    """Return a message with its description read, or the error; runs in another thread."""
    try:
        message = large.opened()
        if isinstance(message, Init) and message.job:
            return Init(message.request, Described.of(message.job, rival, owner, name))
    except PSError as error:
        # the decoded objects are freed here: the error refers to them, and it takes long
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return error
    return message
