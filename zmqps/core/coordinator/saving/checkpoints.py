"""Checkpoints of jobs: when to make one, what servers and workers do for it, and its publication as a whole.

One is made at a time. Where a step is one for all, servers keep the version that all of them have at its end. Elsewhere
workers begin no push for a moment, so that there is a cut between pushes: until those under way are acknowledged, and
every server has said that it keeps what it has. A checkpoint that fails changes nothing: training continues, and the
one before stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from zmqps.core.coordinator.jobs import Saver
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.run import JobRun
from zmqps.core.coordinator.saving.files import Store
from zmqps.core.coordinator.saving.making import (
    CLOSED,
    MAX_WAITING,
    TORN,
    Cadence,
    Chains,
    Making,
    MakingStage,
    PushCut,
    SavePart,
    StoreTask,
    Storing,
    Wish,
    Wishes,
    last_wish,
    try_again,
    unbegun,
    unsaved,
)
from zmqps.core.node.timers import Wheel
from zmqps.core.protocol.events import Action, Log, Run, Send
from zmqps.core.protocol.messages import Checkpointed, Error, Hold, Holding, Save, Saved, Unsave
from zmqps.core.protocol.messages.saving import SaveStage
from zmqps.errors import (
    CheckpointFailedError,
    ConfigurationError,
    JobError,
    PSError,
    listed,
    printable,
)

#: A cut is made within so long, or given up. A worker that has paused continues by itself after 15 s, or once it has
#: heard nothing for the heartbeat timeout; what it pushes then may reach a server before its `Save`, another after it.
HOLD_S = 10.0
#: How often an unanswered request is repeated: a connection that broke may have lost it.
AGAIN_S = 2.0
#: A server, or the store, that has written nothing for so long is given up.
STUCK_S = 600.0
#: How many workers that did not hold an error names.
MOST_NAMED = 8
MAX_WHY_CHARS = 300


@dataclass(slots=True)
class JobSaves:
    """What is known of the checkpoints of one job."""

    begun: tuple[float, int] | None = None  # when the last one began, and at which clock
    done: tuple[float, Mapping[str, Any]] | None = None  # since when the newest is there, and what it is
    failure: str = ""  # why there is no newer one
    soon: bool = False  # the next one is due whatever the cadence says


class Checkpoints(Saver):
    """The checkpoints of a cluster's jobs."""

    is_on = True

    def __init__(
        self,
        runs: Mapping[str, JobRun],
        members: Mapping[bytes, MemberInfo],
        store: Store | None,  # where checkpoints are; None: nowhere
        cadence: Cadence,
        wheel: Wheel,
        heartbeat_timeout: float = HOLD_S,  # workers are held no longer
        touch: Callable[[str], None] = lambda job: None,  # called with a job whose state to save changes
    ) -> None:
        self._timer = wheel.timer("checkpoints", self.next_deadline, self.on_deadline)
        self._runs = runs
        self._on_touch = touch
        self._store = store
        self._hold_s = min(HOLD_S, heartbeat_timeout)
        self._chains = Chains(cadence.full_every)
        self.on_unsaved: Callable[[str], None] = lambda job: None  # called when a job ends without its last one
        # None: no job is saved without being asked, so that `look` has nothing to do unless some wait
        self.cadence = cadence if store is not None and (cadence.seconds, cadence.steps) != (None, None) else None
        self.waiting = Wishes(members)
        self._making: Making | None = None
        self.numbers = count(1)
        self._saves: defaultdict[str, JobSaves] = defaultdict(JobSaves)  # by job

    def _touch(self, job: str) -> None:
        self._timer.touch()
        self._on_touch(job)

    # --- requests -----------------------------------------------------------------------------

    def ask(self, wish: Wish, now: float) -> list[Action]:
        """Handle a request for a checkpoint; the answer comes when it is published, or has failed.

        Raises `PSError`: none can be made.
        """
        if told := self.waiting.answered(wish):
            return told  # it was lost
        if self._store is None:
            raise ConfigurationError(
                "this cluster was started without a place for checkpoints: start it with --checkpoint DIR"
            )
        run = self._runs.get(wish.job)
        if run is None or not run.startup.ready:
            raise JobError(f"the job {wish.job!r} is not being trained, so there is nothing to save yet")
        if run.lost_shard is not None:
            raise run.lost_shard.again()
        if not run.is_whole:
            raise JobError(f"{run.startup.held}; there is nothing to save until then")
        for other in [*self.waiting, *([self._making.wish] if self._making else [])]:
            if set(wish.askers) & set(other.askers):
                return []  # sent again
        self.waiting.ask(wish, now)
        self._touch(wish.job)
        return self._next(now)

    def last(self, run: JobRun, now: float) -> list[Action]:
        """Save a job once more, which is about to end, unless nothing was trained since; see `saves_last`."""
        if self._store is None or not run.startup.ready:
            return []
        making = self._making if self._making is not None and self._making.stage == MakingStage.OPENED else None
        for other in [*self.waiting, *([making.wish] if making is not None else [])]:
            if other.is_last and other.job == run.name:  # its cut is still to come
                return []
        if (wish := last_wish(run, now)) is None:
            return []
        self.waiting.append(wish)
        self._touch(wish.job)
        return self._next(now)

    def saves_last(self, name: str) -> bool:
        """Whether the last checkpoint of a job is being made, or waits for its turn."""
        making = [self._making.wish] if self._making is not None else []
        return any(wish.is_last and wish.job == name for wish in (*making, *self.waiting))

    def _next(self, now: float) -> list[Action]:
        while self._making is None and (wish := self._next_wish()) is not None and self._store is not None:
            run, why = self._runs.get(wish.job), self.waiting.why_not(wish)
            self.waiting.take(wish)
            self._touch(wish.job)
            if why or run is None or not run.is_whole:
                return [*self._unbegun(wish, why or TORN), *self._next(now)]
            wish.state = wish.state or (run.fallback.good[-1].state if run.fallback.good else {})
            making = self._making = Making(wish, run, next(self.numbers), now)
            self._saves[run.name].begun = now, self._steps_of(run)
            return [Run(Storing(making.number, StoreTask.BEGIN), partial(self._store.begin, run.name, run.steps.clock))]
        return []

    def _next_wish(self) -> Wish | None:
        """Return the first request that need not wait for a recut of its job."""
        runs = self._runs
        may = (w for w in self.waiting if w.job not in runs or not runs[w.job].replication.recuts.is_cutting)
        return next(may, None)

    # --- how it is made -----------------------------------------------------------------------

    def returned(self, tag: Storing, value: Any, now: float) -> list[Action]:
        """The store has done something, or failed at it."""
        self._timer.touch()
        making = self._making
        if making is None or tag.number != making.number:
            if self._store is None or tag.what != StoreTask.BEGIN or not isinstance(value, str):
                return []
            return [Run(Storing(0, StoreTask.ABANDON), partial(self._store.abandon, value))]  # it comes too late
        if isinstance(value, Exception):
            why = str(value) if isinstance(value, PSError) else repr(value)
            return self._unpublished(making, why, now) if tag.what == StoreTask.PUBLISH else self._fail(why, now)
        if tag.what == StoreTask.BEGIN:
            making.target.path = value
            return self._hold(making, now) if self._needs_hold(making) else self._save(making, now)
        assert tag.what == StoreTask.PUBLISH
        path, nbytes, making.target.version = value
        return self._published(making, path, nbytes, now)

    def _needs_hold(self, making: Making) -> bool:
        mode, wish = making.run.mode, making.wish
        return wish.pauses and (mode == "bounded" or (mode == "async" and wish.consistent))

    def _hold(self, making: Making, now: float) -> list[Action]:
        """Let workers begin no push, those as well that come meanwhile; once none does, the cut is made."""
        cut = making.cut
        if cut.by is None:
            cut.by = now + self._hold_s
        workers = {worker.incarnation: worker for worker in making.newcomers()}
        if not workers:
            return self._save(making, now)
        making.stage, making.again_at = MakingStage.HELD, now + AGAIN_S
        cut.held |= workers
        cut.awaited |= workers.keys()
        return [Send(worker.peer, Hold(making.number)) for worker in workers.values()]

    def holds(self, member: MemberInfo, message: Holding, now: float) -> list[Action]:
        """A worker has no push under way, and begins none."""
        self._timer.touch()
        making = self._making
        if making is None or message.number != making.number or member.incarnation not in making.cut.held:
            return [Send(member.peer, Hold(message.number, ends=1))]
        return self._held(making, member, now)

    def _held(self, making: Making, member: MemberInfo, now: float) -> list[Action]:
        """Stop waiting for a worker; continue if it was the last one."""
        awaited = making.cut.awaited
        if member.incarnation not in awaited:
            return []
        awaited.discard(member.incarnation)
        return [] if awaited else self._hold(making, now)

    def _save(self, making: Making, now: float) -> list[Action]:
        """Let all servers keep what they have: in the synchronous mode, what they have at the end of the last step."""
        run, target = making.run, making.target
        if making.is_moot:
            return self._fail("its job goes back to an earlier one", now)
        exact = run.mode == "sync"
        making.stage, making.again_at, target.version = MakingStage.SAVED, now + AGAIN_S, run.steps.clock
        making.parts = {
            epoch: SavePart(shard=shard, server=server, heard_at=now, moved_at=now)
            for shard, epoch, server in run.startup.leaders()
        }
        target.base = self._chains.base(run.name, making.shards)
        target.manifest = {
            **run.saved(),
            "version": target.version,
            "consistent": exact or self._needs_hold(making),
            "state": dict(making.wish.state),
            "base": target.base.path if target.base is not None else None,
        }
        return [Send(server.peer, self._order(making, epoch)) for epoch, server in making.servers]

    def _order(self, making: Making, epoch: int) -> Save:
        target = making.target
        base = target.base.number if target.base is not None else 0
        return Save(epoch, making.number, int(making.run.mode == "sync"), target.version, target.path, base)

    def saved(self, server: MemberInfo, message: Saved, now: float) -> list[Action]:
        """A server says how far it is."""
        self._timer.touch()
        making = self._making
        part = making.parts.get(message.epoch) if making is not None and message.number == making.number else None
        if making is None or part is None or part.server is None:
            late = message.stage != SaveStage.FAILED
            return [Send(server.peer, Unsave(message.epoch, message.number))] if late else []
        nbytes = found if type(found := message.facts.get("nbytes", 0)) is int else 0
        part.heard_at, part.moved_at = now, part.moved_at if part.nbytes == nbytes else now
        part.nbytes = nbytes
        if message.stage == SaveStage.FAILED:
            return self._fail(f"{server.title}: {printable(str(message.facts.get('why', ''))[:MAX_WHY_CHARS])}", now)
        actions: list[Action] = []
        part.kept = True
        if making.cut.by is not None and all(making.parts[epoch].kept for epoch, _ in making.servers):
            if making.newcomers():  # they may have pushed between what two servers keep
                return self._again(now)
            actions += self._let_go(making)
        if message.stage == SaveStage.WRITTEN:
            part.written = message.facts
            if not making.unwritten and making.stage == MakingStage.SAVED:
                making.stage, making.moved_at = MakingStage.PUBLISHED, now
                shards = [part.written for part in sorted(making.parts.values(), key=lambda part: part.shard)]
                assert self._store is not None
                work = partial(self._store.publish, making.target.path, {**making.target.manifest, "shards": shards})
                actions.append(Run(Storing(making.number, StoreTask.PUBLISH), work))
        return actions

    def _let_go(self, making: Making) -> list[Action]:
        told: list[Action] = [Send(worker.peer, Hold(making.number, ends=1)) for worker in making.cut.held.values()]
        making.cut = PushCut(gone=making.cut.gone)
        return told

    def _again(self, now: float) -> list[Action]:
        """No cut was made, but for no fault: try once more."""
        making = self._making
        assert making is not None
        self.waiting.appendleft(making.wish)
        return [*self._drop(making), *self._next(now)]

    def _published(self, making: Making, path: str, nbytes: int, now: float) -> list[Action]:
        seconds, name, target = now - making.begun_at, making.run.name, making.target
        self._making = None
        self._touch(name)
        if self._runs.get(name) is making.run:  # it may have ended meanwhile
            done = {"path": path, "version": target.version, "seconds": round(seconds, 3), "nbytes": nbytes}
            done |= {"base": target.base.path} if target.base is not None else {}
            self._saves[name].done, self._saves[name].failure = (now, done), ""
            if making.run.has_tables:
                self._chains.published(name, making.number, path, making.shards, nbytes, target.base)
            read_at = path if self._store is None else self._store.read_at(path)
            making.run.fallback.keep(path, read_at, target.version, target.manifest)
        told = [
            self.waiting.answer(who, peer, n, Checkpointed(n, path, target.version, seconds, nbytes))
            for (who, n), peer in making.wish.askers.items()
        ]
        last = "last " if making.wish.is_last else ""
        text = f"job {name!r}: {last}checkpoint of version {target.version}, {nbytes / 1e6:.1f} MB in {seconds:.2f} s"
        text += f": {path}"
        text += f", with the rows that have changed since {target.base.path}" if target.base is not None else ""
        return [Log("info", text, "checkpoint", job=name), *told, *self._next(now)]

    def _unpublished(self, making: Making, why: str, now: float) -> list[Action]:
        """The store could not publish the checkpoint; if it builds upon another one, try once more without.

        The other one may be damaged, or was removed.
        """
        if (base := making.target.base) is None:
            return self._fail(why, now)
        text = f"job {making.run.name!r}: its checkpoint, which builds upon {base.path}, is made again as a whole"
        self._chains.forget(making.run.name)
        return [Log("warning", f"{text}: {why}", job=making.run.name), *self._again(now)]

    def _fail(self, why: str, now: float) -> list[Action]:
        making = self._making
        assert making is not None
        error = CheckpointFailedError(job=making.run.name, why=why)
        if making.stage == MakingStage.PUBLISHED:  # it may or may not be there
            self._chains.forget(making.run.name)
        if self._runs.get(making.run.name) is making.run and try_again(making):
            text = f"job {making.run.name!r}: its last checkpoint is tried once more: {why}"
            return [Log("warning", text, job=making.run.name), *self._again(now)]
        if self._runs.get(making.run.name) is making.run:
            self._saves[making.run.name].failure = why
        said = Log("error", str(error), "checkpoint failed", job=making.run.name, error=error.number)
        said = self._unsaved(making.run.name, why) if making.wish.is_last else said
        return [said, *self._drop(making), *self._tell(making.wish, error), *self._next(now)]

    def _unbegun(self, wish: Wish, why: str) -> list[Action]:
        """Give up what has not begun: there is nothing to save any more, or it has waited too long."""
        return [self._unsaved(wish.job, why)] if wish.is_last else self._tell(wish, unbegun(wish.job, why))

    def _give_up(self, jobs: Container[str], why: str, now: float) -> list[Action]:
        """Make no more checkpoints of some jobs that end, not as a failure; what is written already is published."""
        actions: list[Action] = []
        for wish in [wish for wish in self.waiting if wish.job in jobs]:
            self.waiting.remove(wish)
            self._touch(wish.job)
            actions += self._unbegun(wish, why)
        making = self._making
        if making is not None and making.run.name in jobs and making.stage != MakingStage.PUBLISHED:
            said = [self._unsaved(making.run.name, why)] if making.wish.is_last else []
            error = CheckpointFailedError(job=making.run.name, why=why)
            actions += [*said, *self._drop(making), *self._tell(making.wish, error)]
        return [*actions, *self._next(now)]

    def _unsaved(self, job: str, why: str) -> Log:
        """A job ends without its last checkpoint."""
        self.on_unsaved(job)
        return unsaved(job, why)

    def _drop(self, making: Making) -> list[Action]:
        """Abandon a checkpoint on every node, and remove all of it."""
        self._making = None
        self._touch(making.run.name)
        actions = self._let_go(making)
        actions += [Send(s.peer, Unsave(epoch, making.number)) for epoch, s in making.servers]
        if making.target.path and self._store is not None:
            actions.append(Run(Storing(0, StoreTask.ABANDON), partial(self._store.abandon, making.target.path)))
        return actions

    def _tell(self, wish: Wish, error: PSError) -> list[Action]:
        return [self.waiting.answer(who, peer, n, Error.of(n, error)) for (who, n), peer in wish.askers.items()]

    # --- departures, and time -----------------------------------------------------------------

    def gone(self, member: MemberInfo, now: float) -> list[Action]:
        """Remove a member's requests, and fail a checkpoint that needs the member."""
        for wish in [*self.waiting, *([self._making.wish] if self._making else [])]:
            for key in [key for key in wish.askers if key[0] == member.incarnation]:
                del wish.askers[key]
        self._timer.touch()
        making = self._making
        if making is None:
            return []
        begins = making.stage in (MakingStage.OPENED, MakingStage.HELD) and making.run.is_on(member)
        if begins or any(server.incarnation == member.incarnation for _, server in making.unwritten):
            return self._fail(f"{member.title} left before it had written its part", now)
        for part in making.parts.values():
            if part.server is not None and part.server.incarnation == member.incarnation:
                part.server = None  # what it has written stays
        if making.cut.by is not None and any(w.incarnation == member.incarnation for w in making.newcomers()):
            return self._again(now)  # it may have pushed
        making.cut.gone.add(member.incarnation)
        making.cut.held.pop(member.incarnation, None)
        return self._held(making, member, now)

    def ended(self, run: JobRun, now: float) -> list[Action]:
        """A job has ended: nothing more is saved of it, but what is written already."""
        actions = self._give_up({run.name}, str(run.lost_shard or "it has ended"), now)
        self._saves.pop(run.name, None)
        self._chains.forget(run.name)
        self.waiting.forget(run.name)
        return actions

    def close(self, now: float) -> list[Action]:
        """The cluster ends, and its servers leave: nothing more is saved of any job, but what is written already."""
        self.waiting.closed = True
        for name in self._runs:
            self._touch(name)
        return self._give_up(self._runs, CLOSED, now)

    def new_number(self) -> int:
        """Return the number of a pause of pushes that is for no checkpoint."""
        return next(self.numbers)

    def soon(self, name: str) -> None:
        """Make the next checkpoint of a job now, if any are made by themselves: those before are of other shards."""
        if self._store is not None:
            self._saves[name].soon = True
            self._touch(name)

    def is_saving(self, run: JobRun) -> bool:
        """Whether servers keep their shards of a job as they are, or are about to."""
        return self._making is not None and self._making.run is run

    def _steps_of(self, run: JobRun) -> int:
        """Return how many steps a job has made, as far as the coordinator knows: clocks, or pushes of its workers."""
        return run.steps.clock if run.mode != "async" else sum(worker.reported.num_pushes for worker in run.workers)

    def due_at(self, run: JobRun) -> float | None:
        """Return when to save a job without a request; None: that depends on its steps."""
        if self.cadence is None or self.cadence.seconds is None or not self._wants(run):
            return None
        begun = self._saves[run.name].begun
        return begun[0] + self.cadence.seconds if begun is not None else None

    def _wants(self, run: JobRun) -> bool:
        """Whether a job can be saved, and is not about to be."""
        waiting = any(wish.job == run.name for wish in self.waiting)
        over = self.waiting.closed or run.name in self.waiting.over
        making = self._making is not None and self._making.run is run
        return run.is_whole and bool(run.members) and not (waiting or making or over)

    def look(self, runs: Iterable[JobRun], now: float, *, first: bool = False) -> list[Action]:
        """Begin what is due of some jobs by time or by steps; called after every event that may make it so.

        ``first``: of one that was never looked at time and steps count from now on, for all that its workers have done
        before may just have become known.
        """
        cadence = self.cadence
        if cadence is None and not self.waiting:
            return []
        for run in runs:
            if (
                cadence is None
                or not self._wants(run)
                or ((saves := self._saves[run.name]).begun is None and not first)
            ):
                continue
            there = self._steps_of(run)
            if saves.begun is None:
                saves.begun = now, there
                self._touch(run.name)
            begun_at, steps = saves.begun[0], min(saves.begun[1], there)  # members with the most steps may have left
            saves.begun = begun_at, steps
            by_time = cadence.seconds is not None and now >= begun_at + cadence.seconds
            by_steps = cadence.steps is not None and there >= steps + cadence.steps
            if by_time or by_steps or saves.soon:
                saves.soon = False
                self.waiting.append(Wish(job=run.name, consistent=run.mode != "async"))
                self._touch(run.name)
        return self._next(now)

    def next_deadline(self) -> float | None:
        """Return when something of the one that is made is due, or of those that wait."""
        dues, making = list[float](), self._making
        if making is not None and making.stage in (MakingStage.HELD, MakingStage.SAVED):
            dues += [
                making.again_at,
                *(making.parts[epoch].moved_at + STUCK_S for epoch, _ in making.unwritten),
            ]
            if making.cut.by is not None:
                dues.append(making.cut.by)
        elif making is not None:
            dues.append(making.moved_at + STUCK_S)
        else:
            dues += [wish.begin_by for wish in self.waiting if wish.is_last]
        return min(dues, default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Give up what takes too long, and ask again."""
        making, actions = self._making, list[Action]()
        if making is not None and making.cut.by is not None and now >= making.cut.by:
            workers = [worker for who, worker in making.cut.held.items() if who in making.cut.awaited]
            servers = [server for epoch, server in making.servers if not making.parts[epoch].kept]
            names = listed([member.title for member in workers or servers], MOST_NAMED)
            actions = self._fail(f"{names} did not pause for it in {self._hold_s:g} s", now)
        elif making is not None and making.stage in (MakingStage.HELD, MakingStage.SAVED):
            actions = self._chase(making, now)
        elif making is not None and now >= making.moved_at + STUCK_S:
            actions = self._fail(f"the coordinator's disk has not answered for {STUCK_S:g} s", now)
        elif making is None:
            for wish in [wish for wish in self.waiting if now >= wish.begin_by]:
                self.waiting.remove(wish)
                self._touch(wish.job)
                actions += self._unbegun(wish, "its shards are still being recut")
        return [*actions, *self._next(now)]

    def _chase(self, making: Making, now: float) -> list[Action]:
        """Repeat unanswered requests; give up nodes that make no progress."""
        if making.is_moot:
            return self._fail("its job goes back to an earlier one", now)
        stuck = [s.title for epoch, s in making.unwritten if now >= making.parts[epoch].moved_at + STUCK_S]
        if stuck:
            return self._fail(f"{listed(stuck, MOST_NAMED)} got no further with it for {STUCK_S:g} s", now)
        if now < making.again_at:
            return []
        making.again_at = now + AGAIN_S
        silent = [(e, s) for e, s in making.unwritten if now >= making.parts[e].heard_at + AGAIN_S]
        return [
            *(Send(w.peer, Hold(making.number)) for who, w in making.cut.held.items() if who in making.cut.awaited),
            *(Send(server.peer, self._order(making, epoch)) for epoch, server in silent),
        ]

    # --- what others may look at ---------------------------------------------------------------

    def status(self, run: JobRun, now: float) -> Mapping[str, Any]:
        """Return what the status shows of a job's checkpoints."""
        shown: dict[str, Any] = {}
        saves = self._saves.get(run.name, JobSaves())
        if saves.done is not None:
            shown["last"] = {**saves.done[1], "ago_s": round(now - saves.done[0], 3)}
        if saves.failure:
            shown["failed"] = saves.failure
        if self._making is not None and self._making.run is run:
            shown["under_way"] = self._making.status(now)
        return shown

    def validate(self) -> None:
        """Assert that what is being made is of a job that is there."""
        making = self._making
        if making is not None:
            assert self._runs.get(making.run.name) is making.run or making.stage == MakingStage.PUBLISHED
            assert making.cut.awaited <= set(making.cut.held) <= set(making.run.members)
            assert not making.cut.held or making.cut.by is not None
            assert {server.incarnation for _, server in making.servers} <= set(self.waiting.members)
            assert making.stage == MakingStage.PUBLISHED or not self.waiting.why_not(making.wish)
        assert len(self.waiting) <= 2 * MAX_WAITING + 2 * len(self._runs)  # by cadence, and the last one
        self._chains.validate(self._runs)
        assert set(self._saves) <= set(self._runs)
