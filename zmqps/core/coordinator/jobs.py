"""The jobs of a cluster by name: their start, replacement and end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from zmqps.core.coordinator.described import difference, read
from zmqps.core.coordinator.journal import DirtyKeys, KeptRecord, Plain
from zmqps.core.coordinator.kernel.run import JobKernel
from zmqps.core.coordinator.members.cluster_end import ClusterEnd
from zmqps.core.coordinator.members.erasures import Erasures
from zmqps.core.coordinator.members.membership import MemberInfo, Membership
from zmqps.core.coordinator.members.places import ASKED, DOWN, end_of_cluster
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.placement.resumption import Resumption, Resumptions
from zmqps.core.node.timers import Timer, Wheel
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import Action, Exit, Log, Peer, Send
from zmqps.core.protocol.messages import EndJob, Error, Init, JobEnded, Waiting
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.errors import JobEndedError, JobError, LimitError, PSError, listed

#: A job with its extensions.
Run = TypeVar("Run", bound=JobKernel)

#: Jobs at the same time; each has a shard on every server.
MAX_JOBS = 256
#: The status shows this many ended jobs; older ones are forgotten.
MAX_ENDED = 256


class Ended(NamedTuple):
    """An ended job."""

    how: str
    at: float
    epoch: int


class EndedJobs:
    """The last ended job of each name; the oldest are forgotten."""

    def __init__(self, changed: Callable[[str], None] = lambda name: None) -> None:
        self._changed = changed  # called with the name of a new or forgotten one
        self.by_name: OrderedDict[str, Ended] = OrderedDict()
        self._answers: OrderedDict[tuple[bytes, int, str], JobEnded] = OrderedDict()  # by nonce, to the client

    def add(self, name: str, how: str, epoch: int, now: float) -> None:
        self.by_name[name] = Ended(how, now, epoch)
        self.by_name.move_to_end(name)
        self._changed(name)
        while len(self.by_name) > MAX_ENDED:
            self._changed(self.by_name.popitem(last=False)[0])

    def dump(self, name: str) -> Plain:
        return list(self.by_name[name]) if name in self.by_name else None

    def restore(self, kept: dict[str, Plain], now: float) -> None:
        """Restore the journaled ones, by name; their times may be ahead of a clock that has restarted."""
        for name, (how, at, epoch) in sorted(kept.items(), key=lambda item: item[1][1]):
            self.by_name[name] = Ended(how, min(at, now), epoch)

    def how(self, name: str) -> str:
        """Return how the job of this name has ended; empty without one."""
        ended = self.by_name.get(name)
        return "" if ended is None else ended.how

    def describe(self, name: str, now: float) -> str:
        """Return that, how and when a job had ended; empty without one."""
        ended = self.by_name.get(name)
        return "" if ended is None else f"job {name!r} had ended {now - ended.at:.0f} s ago: {ended.how}"

    def answered(self, peer: Peer, message: EndJob) -> JobEnded | None:
        """Return the earlier answer to this request to end a job."""
        return self._answers.get((message.nonce or peer, message.request, message.job))

    def answer(self, peer: Peer, message: EndJob, text: str) -> JobEnded:
        """Return the answer to a request to end a job, remembered in case it is lost: a repetition ends no other."""
        answer = self._answers[message.nonce or peer, message.request, message.job] = JobEnded(message.request, text)
        while len(self._answers) > MAX_ENDED:
            self._answers.popitem(last=False)
        return answer

    def status(self, now: float) -> list[dict[str, Any]]:
        """Return them for the status, the latest end last."""
        return [{"job": n, "how": how, "ago_s": round(now - at, 3)} for n, (how, at, _) in self.by_name.items()]


def unknown_job(name: str, running: Iterable[str]) -> JobError:
    """Return the error for an unknown job; it names the existing ones."""
    names = listed(sorted(map(repr, running)), 8)
    return JobError(f"there is no job {name[:100]!r}; {f'running: {names}' if names else 'none is running'}")


@dataclass(slots=True)
class Closing:
    """The end of a job that is saved once more first."""

    how: str
    moves: bool  # whether workers that have joined meanwhile continue with another job of its name
    parked: dict[bytes, Init] = field(default_factory=dict)  # their pending Inits, by incarnation
    askers: dict[tuple[Any, int], tuple[Peer, EndJob]] = field(default_factory=dict)  # the clients to inform of its end


class Saver:
    """Saves jobs, and once more before they end; this default saves none."""

    is_on = False

    def look(self, runs: Iterable[Any], now: float, *, first: bool = False) -> list[Action]:
        """Start the due checkpoints of some jobs."""
        return []

    def last(self, run: Any, now: float) -> list[Action]:
        """Save a job once more, which is about to end."""
        return []

    def saves_last(self, name: str) -> bool:
        """Whether that is still in progress."""
        return False

    def ended(self, run: Any, now: float) -> list[Action]:
        """A job has ended: it is not saved any more."""
        return []


class TouchedJobs(Generic[Run]):
    """Which jobs an event has touched: other jobs are not checked afterwards, not even their deadlines.

    Code that changes a job touches it; `validate` notices a missing touch.
    """

    def __init__(self, runs: Mapping[str, Run], wheel: Wheel) -> None:
        self.names: dict[str, bool] = {}  # whether more than its timer: what members wait for may have changed
        self.moving: set[str] = set()  # those with copies that move between servers
        self.spare: set[str] = set()  # those with more copies than they should have
        self.due_of: Callable[[str], float | None] = lambda name: runs[name].next_deadline()
        self.ring: Callable[[str, float], list[Action]] = lambda name, now: []
        self._runs = runs
        self._wheel = wheel
        self._touched = wheel.touched  # inline, for each job of each event
        self._timers: dict[str, Timer] = {}
        self._seen: dict[str, int] = {}  # by job: the revision of its copies

    def add(self, name: str) -> None:
        """An event touches a job, if there is one of this name."""
        if name in self._runs:
            if name not in self._timers:
                due_of, ring = partial(self.due_of, name), partial(self._ring, name)
                self._timers[name] = self._wheel.timer(f"job {name!r}", due_of, ring)
            self._touched[self._timers[name].number] = self._timers[name]
            self.names[name] = True

    def add_all(self) -> None:
        """An event may touch any job."""
        for name in self._runs:
            self.add(name)

    def note(self) -> list[Run]:
        """Return the touched ones; note which of them move copies, or have too many."""
        runs = []
        for name in self.names:
            runs.append(run := self._runs[name])
            if bool(run.moving) != (name in self.moving):
                self.moving ^= {name}
            if self._seen.get(name) != (revision := run.startup.copies.revision):
                self._seen[name] = revision
                if run.has_spare != (name in self.spare):
                    self.spare ^= {name}
        return runs

    def settle(self) -> None:
        """The event is over."""
        self.note()
        for name in self.names:
            self._touched[self._timers[name].number] = self._timers[name]  # again: it may have been checked since
        self.names.clear()

    def forget(self, name: str) -> None:
        self.names.pop(name, None)
        self.moving.discard(name)
        self.spare.discard(name)
        self._seen.pop(name, None)
        if (timer := self._timers.pop(name, None)) is not None:
            self._wheel.drop(timer)

    def _ring(self, name: str, now: float) -> list[Action]:
        self.names.setdefault(name, False)
        return self.ring(name, now)

    def validate(self) -> None:
        """Assert that no job has changed without a touch."""
        assert set(self._timers) == set(self._runs)
        assert {*self.names, *self.moving, *self.spare} <= set(self._runs)
        for name, run in self._runs.items():
            if name in self.names:
                continue
            assert (name in self.moving, name in self.spare) == (
                bool(run.moving),
                run.has_spare,
            ), f"it was forgotten that copies of job {name!r} move, or are too many"
            assert not run.startup.given_up, f"it was forgotten that servers have something of job {name!r}"


class Epochs(KeptRecord):
    """The numbers of copies of shards: each is unique."""

    kept: ClassVar = {"next": "cluster"}

    def __init__(self, changed: Callable[[str], None]) -> None:
        self.changed = changed
        self.next = 1

    def take(self) -> int:
        self.next += 1
        return self.next - 1


class Jobs(Generic[Run]):
    """The running jobs, and those that have ended."""

    def __init__(
        self,
        options: CoordinatorOptions,
        membership: Membership,
        erasures: Erasures,  # frees a job's memory on servers
        cluster_end: ClusterEnd,  # a cluster started for one job ends with it
        new_run: Callable[[str, str, Resumption | None], Run],  # name, how the previous one has ended, checkpoint
        changes: DirtyKeys,
        wheel: Wheel,
        resumptions: Resumptions,  # the checkpoints that jobs of some names start from, the first time
    ) -> None:
        self.runs: dict[str, Run] = {}
        self.touched = TouchedJobs(self.runs, wheel)
        self.ended = EndedJobs(lambda name: changes.add("ended", name))
        self._changes = changes
        self._options = options
        self._membership = membership
        self._erasures = erasures
        self._cluster_end = cluster_end
        self._new_run = new_run
        self.resumptions = resumptions
        self.closing: dict[str, Closing] = {}  # those that end as soon as they are saved once more
        self.saver = Saver()

    def named(self, name: str) -> Run:
        """Return the job of this name, or a new one for its first member.

        Raises `LimitError`: there are too many already.
        """
        if name in self.runs:
            return self.runs[name]
        if len(self.runs) >= MAX_JOBS:
            raise LimitError(what="number of jobs", got=len(self.runs) + 1, limit=MAX_JOBS)
        before = self.ended.how(name)
        return self._new_run(name, before, self.resumptions.of(name))

    def of_epoch(self, epoch: int, server: MemberInfo) -> Run | None:
        """Return the job of the copy with this number on a server, and touch it."""
        for run in self.runs.values():
            if (copy := run.startup.copies.find(epoch)) is not None:
                self.touched.add(run.name)
                return run if copy.server is server else None
        return None

    def close(self, run: Run, how: str, now: float, *, moved: bool = False) -> list[Action]:
        """End a job as soon as it is saved once more; ``moved``: its members continue with another one of its name."""
        if run.name in self.closing:
            return []
        self.closing[run.name], run.occupancy.is_closing = Closing(how, moved or not run.members), True
        self.touched.add(run.name)
        return [*self._save_last(run, now), *self.look(now)]

    def save_all(self, now: float) -> list[Action]:
        """Save all jobs once more, because the cluster ends."""
        return [action for run in self.runs.values() for action in self._save_last(run, now)]

    def _save_last(self, run: Run, now: float) -> list[Action]:
        return self.saver.last(run, now) if self._options.checkpoint_at_end else []

    @property
    def is_saving(self) -> bool:
        """Whether one of them is being saved before it ends."""
        return bool(self.closing) or any(self.saver.saves_last(name) for name in self.runs)

    def look(self, now: float) -> list[Action]:
        """End jobs whose last save is done; called after every event while there are any."""
        actions: list[Action] = []
        for name in [name for name in self.closing if not self.saver.saves_last(name)]:
            run, closing = self.runs[name], self.closing[name]
            moves = closing.moves and bool(len(run.workers)) and not self._options.once
            actions += self._succeed(run, closing, now) if moves else self.end(run, closing.how, now)
            self._cluster_end.note_idle(now)
        return actions

    def park(self, member: MemberInfo, message: Init) -> Action | None:
        """Let a member wait that joined a job which is being saved before it ends; None: it need not."""
        closing, run = self.closing.get(member.job), self.runs[member.job]
        if closing is None or member.incarnation in run.occupancy.training:
            return None
        closing.parked[member.incarnation] = message
        text = f"the last checkpoint of the job {member.job!r} that was there before, which has ended: {closing.how}"
        return Send(member.peer, Waiting(message.request, text))

    def end(self, run: Run, how: str, now: float, *, moved: bool = False) -> list[Action]:
        """End a job: inform its members, free its shards; ``moved``: another one has begun."""
        actions = self.saver.ended(run, now)
        closing = self.closing.pop(run.name, None)
        del self.runs[run.name]
        self.touched.forget(run.name)
        run.forget()
        trained = run.startup.placement is not None
        if run.startup.ready:
            self.resumptions.use_up(run.name)  # the checkpoint has been trained on
        if trained:
            self.ended.add(run.name, how, run.startup.epoch, now)
            well = run.lost_shard is None and not run.losses
            text = f"job {run.name!r} has ended: {how}"
            actions.append(Log("info" if well else "error", text, "ended", job=run.name))
        error = JobEndedError(job=run.name, reason=how)
        told = Error.of(0, error)
        for member in run.members.values():
            self._membership.remove(member, DepartureCause.ENDED, now, error)
            actions.append(Send(member.peer, told))
        run.startup.give_up()
        actions += self.discard(run, now)
        if closing is not None:
            text = f"job {run.name!r} has ended"
            actions += [Send(peer, self.ended.answer(peer, asked, text)) for peer, asked in closing.askers.values()]
        if self._options.once and trained and not moved:
            actions += self._cluster_end.begin(end_of_cluster(how, run.losses, run.lost_shard), now)
        return actions

    def end_if_over(self, run: Run, now: float) -> list[Action]:
        """End a job whose members have not come back, or that has failed without another report."""
        if run.expired(now):
            return self.close(run, f"no worker for {self._options.lease:.0f} s", now)
        return self.end(run, str(run.lost_shard), now) if run.has_failed else []

    def discard(self, run: Run, now: float) -> list[Action]:
        """Free the shards of a job's abandoned epochs."""
        given_up, run.startup.given_up = run.startup.given_up, []
        there = self._membership.members
        copies = [copy for copy in given_up if copy.server.incarnation in there]
        discard = self._erasures.discard
        return [a for copy in copies for a in discard(copy.epoch, copy.server, now, moved=copy.moved)]

    def replace(self, run: Run, member: MemberInfo, now: float) -> list[Action]:
        """A worker begins another job under the name of an idle one; its other members move to it."""
        how = f"left by its workers, and {member.hello.name} began another one"
        return self.close(run, how, now, moved=True)

    def _succeed(self, run: Run, closing: Closing, now: float) -> list[Action]:
        """End a job, and let its workers continue with another one of its name."""
        moved = list(run.workers)  # they keep their ranks, which no message would change
        for worker in moved:
            del run.members[worker.incarnation]
            run.workers.leave(worker)
        actions = self.end(run, closing.how, now, moved=True)
        new = self.runs[run.name] = self.named(run.name)
        self.touched.add(run.name)
        for worker in moved:
            new.workers.take(worker, worker.rank)
            actions += new.join(worker, now)
        for worker in moved:
            if (message := closing.parked.get(worker.incarnation)) is not None:
                actions += self._init(new, worker, message, now)
        return actions

    def _init(self, run: Run, member: MemberInfo, message: Init, now: float) -> list[Action]:
        try:
            return run.init(member, message, now)
        except PSError as error:
            return [member.fail(message.request, error)]

    def end_asked(self, peer: Peer, message: EndJob, now: float) -> list[Action]:
        """A client asks for the end of a job, or of all; repeated, because the answer was lost, it ends no other.

        Raises `JobError`: there is no such job.
        """
        if (known := self.ended.answered(peer, message)) is not None:
            return [Send(peer, known)]
        if not message.job:  # all of them, and the cluster
            answer = Send(peer, self.ended.answer(peer, message, "the cluster is ending"))
            return [answer, *self._cluster_end.begin(Exit(exits.OK, DOWN), now)]
        run, actions = self.runs.get(message.job), list[Action]()
        if run is not None:
            actions = self.close(run, ASKED, now)
            self._cluster_end.note_idle(now)
            if (closing := self.closing.get(message.job)) is not None:  # it is answered then
                closing.askers[message.nonce or peer, message.request] = peer, message
                return actions
            text = f"job {message.job!r} has ended"
        elif not (text := self.ended.describe(message.job, now)):
            raise unknown_job(message.job, self.runs)
        return [*actions, Send(peer, self.ended.answer(peer, message, text))]

    def validate(self) -> None:
        """Assert that each is in order, and each copy of a shard has a unique number."""
        for run in self.runs.values():
            run.validate()
        self.touched.validate()
        epochs = [epoch for run in self.runs.values() for epoch in run.startup.copies.by_epoch]
        assert len(set(epochs)) == len(epochs)
        assert set(self.closing) <= set(self.runs)


def is_replaceable(run: JobKernel, message: Init, workers: int | None) -> bool:
    """Whether a worker that describes another job than the idle one may begin its own under that name.

    No member may look at what was trained, or have begun to train it again. ``workers``: how many the cluster expects.

    Raises `PSError`: its job could not begin.
    """
    ours = run.startup.job
    unwanted = run.occupancy.is_abandoned and not run.anybody_waits()
    if not unwanted or not message.job or ours is None:
        return False
    job = read(message.job)
    job.check_startable(workers if job.workers is None else job.workers)
    return difference(ours, message.job, "", run.name) is not None
