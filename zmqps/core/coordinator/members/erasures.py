"""What servers must erase and have not confirmed yet: ended jobs, departed members."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field

from zmqps.core.coordinator.journal import Plain
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.node.timers import Wheel
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import Departed, Discard
from zmqps.core.protocol.messages.membership import DepartureCause

#: A server answers within milliseconds; without an answer it may not have received the request.
RETRY_S = 1.0
#: This much is resent at a time, and the next so much later: other messages go in between.
MOST_AGAIN = 64
PIECE_S = 0.005
#: Departures that wait for a server: it remembers no more departed members, and the end of a job makes them obsolete.
MAX_DEPARTURES = 4096
#: What servers are informed of members that have not left by themselves.
EVICTED = {DepartureCause.LOST: 1, DepartureCause.RESTARTED: 1, DepartureCause.REVOKED: 2}


@dataclass(slots=True)
class _Departure:
    message: Departed
    epochs: Set[int]
    due: float


@dataclass(slots=True)
class _Awaited:
    """What one server has not confirmed, the earliest deadline first."""

    server: MemberInfo
    jobs: OrderedDict[int, float] = field(default_factory=OrderedDict)  # epoch -> when to repeat the request
    members: OrderedDict[bytes, _Departure] = field(default_factory=OrderedDict)  # by incarnation

    @property
    def due(self) -> float:
        jobs, members = next(iter(self.jobs.values()), None), next(iter(self.members.values()), None)
        return min(float("inf") if jobs is None else jobs, float("inf") if members is None else members.due)


class Erasures:
    """Asks servers to erase a job or a member, and repeats it until they have."""

    def __init__(self, wheel: Wheel, changed: Callable[[bytes], None] = lambda server: None) -> None:
        self._timer = wheel.timer("erasing", self.next_deadline, self.on_deadline)
        self._changed = changed  # called with a server's incarnation
        self._awaited: dict[bytes, _Awaited] = {}  # by server; none is empty
        self._moved: set[int] = set()  # epochs of replaced copies
        self._not_before = 0.0

    def discard(self, epoch: int, server: MemberInfo, now: float, *, moved: bool = False) -> list[Action]:
        """A copy of a shard is not needed any more; members that had left the job are erased with its last one.

        ``moved``: the job continues, and another copy answers for the shard.
        """
        self._of(server).jobs[epoch] = now + RETRY_S
        self._changed(server.incarnation)
        if moved:
            self._moved.add(epoch)
        return [Send(server.peer, Discard(epoch, int(moved)))]

    def depart(
        self, incarnation: bytes, servers: Iterable[tuple[MemberInfo, Set[int]]], now: float, how: DepartureCause
    ) -> list[Action]:
        """A member of a job has left or was lost; later messages may depend on that.

        ``servers`` come with the epochs of their copies of that job.
        """
        message, actions = Departed(incarnation, EVICTED.get(how, 0)), list[Action]()
        for server, epochs in servers:
            members = self._of(server).members
            members[incarnation] = _Departure(message, epochs, now + RETRY_S)
            if len(members) > MAX_DEPARTURES:
                members.popitem(last=False)
            self._changed(server.incarnation)
            actions.append(Send(server.peer, message))
        return actions

    def _of(self, server: MemberInfo) -> _Awaited:
        self._timer.touch()
        return self._awaited.setdefault(server.incarnation, _Awaited(server))

    def discarded(self, server: MemberInfo, epoch: int) -> None:
        """A server has erased a job."""
        if (awaited := self._awaited.get(server.incarnation)) is not None:
            awaited.jobs.pop(epoch, None)
            self._moved.discard(epoch)
            self._changed(server.incarnation)
            self._tidy(awaited)

    def forgotten(self, server: MemberInfo, incarnation: bytes) -> None:
        """A server has erased a member."""
        if (awaited := self._awaited.get(server.incarnation)) is not None:
            awaited.members.pop(incarnation, None)
            self._changed(server.incarnation)
            self._tidy(awaited)

    def awaits(self, server: MemberInfo) -> bool:
        """Whether a server has still to confirm something."""
        return server.incarnation in self._awaited

    def leave(self, server: MemberInfo) -> None:
        """A server has departed, with everything on it."""
        self._timer.touch()
        if (awaited := self._awaited.pop(server.incarnation, None)) is not None:
            self._moved.difference_update(awaited.jobs)
        self._changed(server.incarnation)

    def _tidy(self, awaited: _Awaited) -> None:
        self._timer.touch()
        if not awaited.jobs and not awaited.members:
            del self._awaited[awaited.server.incarnation]

    def next_deadline(self) -> float | None:
        due = min([awaited.due for awaited in self._awaited.values()], default=None)
        return None if due is None else max(due, self._not_before)

    def on_deadline(self, now: float) -> list[Action]:
        """Repeat some of the due requests."""
        actions: list[Action] = []
        for awaited in list(self._awaited.values()) if now >= self._not_before else ():
            while awaited.due <= now and len(actions) < MOST_AGAIN:
                actions += self._again(awaited, now)
            self._tidy(awaited)
        if actions:
            self._not_before = now + PIECE_S
        return actions

    def _again(self, awaited: _Awaited, now: float) -> list[Action]:
        """Repeat a server's first due requests; none, if they are obsolete with their job."""
        peer = awaited.server.peer
        epoch, due = next(iter(awaited.jobs.items()), (0, float("inf")))
        if due <= now:
            awaited.jobs[epoch] = now + RETRY_S
            awaited.jobs.move_to_end(epoch)
            return [Send(peer, Discard(epoch, int(epoch in self._moved)))]
        incarnation, departure = awaited.members.popitem(last=False)
        if departure.epochs <= awaited.jobs.keys():
            self._changed(awaited.server.incarnation)
            return []
        departure.due = now + RETRY_S
        awaited.members[incarnation] = departure
        return [Send(peer, departure.message)]

    def dump(self, server: bytes) -> Plain:
        """Return a server's unconfirmed requests; None for none."""
        if (awaited := self._awaited.get(server)) is None:
            return None
        departures = [[who, d.message.evicted, sorted(d.epochs)] for who, d in awaited.members.items()]
        return [[[epoch, epoch in self._moved] for epoch in sorted(awaited.jobs)], sorted(departures)]

    def restore(self, server: MemberInfo, kept: Plain, now: float) -> None:
        """Repeat a server's journaled requests, when it is back, or soon."""
        jobs, departures = kept
        awaited = self._of(server)
        awaited.jobs.update((epoch, now) for epoch, _ in jobs)
        self._moved.update(epoch for epoch, moved in jobs if moved)
        for who, evicted, epochs in departures:
            awaited.members[who] = _Departure(Departed(who, evicted), frozenset(epochs), now)

    def again(self, server: MemberInfo, now: float) -> list[Action]:
        """A server is back: repeat its requests at once, before it learns of steps that depend on them."""
        if (awaited := self._awaited.get(server.incarnation)) is None:
            return []
        self._timer.touch()
        actions: list[Action] = []
        for epoch in awaited.jobs:
            awaited.jobs[epoch] = now + RETRY_S
            actions.append(Send(server.peer, Discard(epoch, int(epoch in self._moved))))
        for departure in awaited.members.values():
            departure.due = now + RETRY_S
            actions.append(Send(server.peer, departure.message))
        return actions

    def validate(self) -> None:
        """Assert that all requests are in the order of their deadlines, and bounded."""
        assert self._moved <= {epoch for awaited in self._awaited.values() for epoch in awaited.jobs}
        for who, awaited in self._awaited.items():
            assert awaited.server.incarnation == who
            assert awaited.jobs or awaited.members
            assert len(awaited.members) <= MAX_DEPARTURES
            for dues in ([*awaited.jobs.values()], [departure.due for departure in awaited.members.values()]):
                assert dues == sorted(dues)
