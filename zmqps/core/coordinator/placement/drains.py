"""Draining servers: they get no new copies, theirs move to other servers, and then they end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zmqps.core.coordinator.journal import Changed, KeptDict, Plain, nothing
from zmqps.core.coordinator.members.erasures import Erasures
from zmqps.core.coordinator.members.membership import Fleet, LeavingState, MemberInfo
from zmqps.core.coordinator.members.naming import find_named
from zmqps.core.coordinator.placement.endings import MAX_ASKED, Endings
from zmqps.core.coordinator.run import JobRun
from zmqps.core.coordinator.saving.checkpoints import Checkpoints
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages import Drain, Draining
from zmqps.core.protocol.messages.resizing import DrainState
from zmqps.errors import DrainError, PSError, counted, listed

#: A server that may go says so within milliseconds; one that did not may not have received it.
RETRY_S = 1.0
#: Of what moves a text names so much.
MOST_NAMED = 6
ADVICE = "start another server, as a spare (zmqps server --spare), and drain this one then"


@dataclass(slots=True, eq=False, kw_only=True)
class _Drain:
    """A server that is draining."""

    server: MemberInfo
    since: float
    nonces: set[bytes] = field(default_factory=set)  # of the operators that asked for it
    moved: int = 0  # copies of shards that it had
    told_at: float | None = None  # when it was last informed that nothing is left


class Drains:
    """The draining servers of a cluster, by incarnation (``going``)."""

    def __init__(
        self,
        fleet: Fleet,
        runs: Mapping[str, JobRun],
        erasures: Erasures,
        checkpoints: Checkpoints,
        changed: Changed = nothing,
    ) -> None:
        self._fleet = fleet
        self._runs = runs
        self._erasures = erasures
        self._checkpoints = checkpoints
        self._changed = changed
        self.going: dict[bytes, _Drain] = KeptDict(changed)
        self._ended = Endings()

    # --- requests ------------------------------------------------------------------------------

    def ask(self, server: MemberInfo | None, message: Drain, now: float) -> tuple[Draining, list[Action]]:
        """Begin to drain a server, or report how far that is; ``server`` asks for itself.

        Raises `DrainError`: no other server can take its copies; `JobError`: there is no such server;
        `AmbiguousNodeError`: there are several.
        """
        if message.nonce and (ended := self._ended.answer(message.nonce, message.request)) is not None:
            return ended, []
        found = server or find_named(message.server, list(self._fleet), "server")
        drain = self.going.get(found.incarnation)
        if message.stay:
            actions = [] if drain is None else self._keep(drain, "it was asked to stay", now)
            return Draining(message.request, DrainState.STAYS, f"{found.title} stays"), actions
        if drain is None:
            drain = self._begin(found, now)
        self._changed()
        if server is not None:
            found.leaving = LeavingState.MUST_GO
        if message.nonce and len(drain.nonces) < MAX_ASKED:
            drain.nonces.add(message.nonce)
        actions = self.look(now)
        if server is not None and found.incarnation not in self.going:
            return Draining(message.request, DrainState.STAYS, "no other server can take what it has"), actions
        if message.nonce in self._ended.by_nonce:
            answer, more = self.ask(server, message, now)
            return answer, [*actions, *more]
        return Draining(message.request, DrainState.GOING, self._text(drain)), actions

    def ask_own(self, server: MemberInfo, message: Drain, now: float) -> list[Action]:
        """A server asks to go: one that cannot be let go ends then, as it would have without asking."""
        try:
            answer, actions = self.ask(server, message, now)
        except PSError as error:
            said = Log("warning", str(error), peer=server.hello.name, error=error.number)
            return [said, Send(server.peer, Draining(message.request, DrainState.STAYS, str(error)))]
        return [*actions, Send(server.peer, answer)]

    def let_go(self, server: MemberInfo, now: float) -> list[Action]:
        """Let a server go that is not needed any more."""
        if server.incarnation not in self.going:
            self._begin(server, now)
        return self.look(now)

    def note_fleet(self) -> None:
        """Another number of servers is wanted."""
        self._changed()

    def _begin(self, server: MemberInfo, now: float) -> _Drain:
        """Begin, unless it is clear already that it cannot be."""
        if not any(other is not server for other in self._fleet.staying):
            raise DrainError(server=server.title, why="there is no other server that stays", advice=ADVICE)
        server.leaving = LeavingState.GOES
        self._fleet.shrink()
        drain = self.going[server.incarnation] = _Drain(server=server, since=now)
        drain.moved = sum(len(run.startup.copies.of(server)) for run in self._runs.values())
        return drain

    # --- how it goes ---------------------------------------------------------------------------

    def look(self, now: float) -> list[Action]:
        """Move what can move now; called after every event while something should move."""
        actions: list[Action] = []
        for run in self._runs.values():
            actions += run.move(now, may_cut=not self._checkpoints.is_saving(run))
        for drain in list(self.going.values()):
            if why := self._stuck(drain.server):
                actions += self._keep(drain, why, now)
            elif self._is_free(drain.server) if drain.told_at is None else now >= drain.told_at + RETRY_S:
                drain.told_at = now
                actions.append(Send(drain.server.peer, Draining(0, DrainState.GONE, self._farewell(drain, now))))
        return actions

    def _stuck(self, server: MemberInfo) -> str:
        """Say why something of a server cannot move; empty: all can."""
        whys = (run.replication.handovers.stuck for run in self._runs.values())
        of = {copy.epoch for run in self._runs.values() for copy in run.startup.copies.of(server)}
        return next((why for stuck in whys for epoch, why in stuck.items() if epoch in of), "")

    def _is_free(self, server: MemberInfo) -> bool:
        """Whether a server has nothing left, and no member has yet to learn that."""
        runs = self._runs.values()
        has = any(run.is_on(server) for run in runs) or self._erasures.awaits(server)
        return not has and all(run.replication.views.all_followed for run in runs)

    def _keep(self, drain: _Drain, why: str, now: float) -> list[Action]:
        """Stop draining a server, because its copies fit nowhere else or because it was asked to stay."""
        server = drain.server
        error = DrainError(server=server.title, why=why, advice=ADVICE)
        del self.going[server.incarnation]
        server.leaving = LeavingState.STAYS
        self._fleet.joined()
        self._ended.note(drain.nonces, error)
        told = Send(server.peer, Draining(0, DrainState.STAYS, why))
        actions: list[Action] = [Log("warning", str(error), peer=server.hello.name, error=error.number), told]
        for run in self._runs.values():
            actions += run.move(now, may_cut=False)
        return actions

    def left(self, server: MemberInfo, now: float) -> tuple[bool, list[Action]]:
        """A server reports that it has left as requested; return whether that is so, and all its shards have moved."""
        drain = self.going.get(server.incarnation)
        if drain is None or any(run.is_on(server) for run in self._runs.values()):
            return False, []
        del self.going[server.incarnation]
        self._ended.note(drain.nonces, text := self._farewell(drain, now))
        return True, [Log("info", text, peer=server.hello.name)]

    def lost(self, server: MemberInfo) -> None:
        """Handle the loss of a draining server."""
        drain = self.going.pop(server.incarnation, None)
        if drain is None:
            return
        if drain.told_at is not None:  # nothing was lost with it
            self._ended.note(drain.nonces, f"{server.title} was already empty when it was lost")
            return
        why = "it was lost before all its copies had moved"
        advice = "what has become of that is in the status (zmqps status)"
        self._ended.note(drain.nonces, DrainError(server=server.title, why=why, advice=advice))

    def stop(self, now: float) -> list[Action]:
        """The cluster ends: nothing moves any more, and steps continue until what is trained is saved."""
        for drain in self.going.values():
            drain.server.leaving = LeavingState.STAYS
        self.going.clear()
        return [action for run in self._runs.values() for action in run.replication.handovers.take_back(now)]

    def next_deadline(self) -> float | None:
        """Return the latest time for the next call of `look`."""
        return min([d.told_at + RETRY_S for d in self.going.values() if d.told_at is not None], default=None)

    # --- a coordinator that was away -----------------------------------------------------------

    def dump(self) -> Plain:
        """Return which servers should leave, the results for others, and the requested number; None for none."""
        going = [
            [who, drain.server.leaving is LeavingState.MUST_GO, drain.since, drain.moved, sorted(drain.nonces)]
            for who, drain in self.going.items()
        ]
        ended = self._ended.dump()
        fleet = self._fleet
        return [going, ended, fleet.wanted] if going or ended or fleet.wanted != fleet.most else None

    def restore(self, kept: Plain, now: float) -> None:
        """Continue with what was kept."""
        going, ended, self._fleet.wanted = kept
        there = {server.incarnation: server for server in self._fleet}
        for who, must_leave, since, moved, nonces in going:
            server = there[who]
            server.leaving = LeavingState.MUST_GO if must_leave else LeavingState.GOES
            self.going[who] = _Drain(server=server, since=min(since, now), moved=moved, nonces=set(nonces))
        self._ended.restore(ended)

    # --- what others may look at ---------------------------------------------------------------

    def _text(self, drain: _Drain) -> str:
        server = drain.server
        moving = [text for run in self._runs.values() for text in run.replication.handovers.texts(server)]
        starting = [run.name for run in self._runs.values() if run.is_on(server) and not run.startup.ready]
        moving += [f"job {name!r} must start first" for name in starting]
        what = listed(moving, MOST_NAMED) if moving else "it is empty"
        return f"{server.hello.name} is being drained: {what}"

    def _farewell(self, drain: _Drain, now: float) -> str:
        moved = counted(drain.moved, "shard")
        return f"{drain.server.hello.name} is empty: {moved} moved in {now - drain.since:.1f} s"

    def texts(self) -> Iterator[str]:
        """Yield which servers should leave, and the progress."""
        return (self._text(drain) for drain in self.going.values())

    def status(self) -> list[dict[str, Any]]:
        """Return the same as plain data, for the status."""
        return [{"server": drain.server.hello.name, "text": self._text(drain)} for drain in self.going.values()]

    def validate(self) -> None:
        """Assert that exactly the draining servers of the fleet are here."""
        assert {server.incarnation for server in self._fleet if server.leaving} == set(self.going)
        self._ended.validate()
