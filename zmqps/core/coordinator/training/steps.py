"""Steps of the job: carries a consistency policy's decisions to workers and servers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar

from zmqps.core.coordinator.consistency import Commitment, Grant, Policy, make_policy
from zmqps.core.coordinator.journal import Changed, KeptRecord, Plain, nothing, unkept
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.members.places import Attendance, Places
from zmqps.core.coordinator.placement.copies import Replica
from zmqps.core.coordinator.training.waits import Waiter, not_joined
from zmqps.core.job.norms import scale_to
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.message import OPEN_STEPS, Contributor
from zmqps.core.protocol.messages import Arrive, Commit, Measured, Proceed
from zmqps.core.protocol.terms import Rates, terms_of
from zmqps.errors import DeadlineError, counted, listed

#: A server answers a commit within milliseconds; without an answer it may not have received it.
COMMIT_RETRY_S = 1.0
#: The most awaited workers that an error names.
MOST_NAMED = 8
#: The number of past steps examined.
STEPS = 8
#: A worker is slow if it came last to this many steps in a row, by this much of a step after the one before it.
IN_A_ROW, SHARE = 3, 0.2


class Numbers(KeptRecord):
    """The numbers that replace the optimizer's own: from a step on if steps are common, else at once."""

    kept: ClassVar = {"latest": "job"}

    def __init__(self, changed: Callable[[str], None] = unkept) -> None:
        self.changed = changed
        self.latest: Rates = ()  # the last ones set; none: the optimizer's own apply
        self.before: deque[tuple[int, Rates]] = deque()  # the first step without some, and these

    def set(self, first: int, clock: int, rates: Rates) -> None:
        """They apply from a step on: an open one, or the next; ``clock`` is the first uncommitted one."""
        step = min(max(first, clock), clock + OPEN_STEPS)
        while self.before and self.before[-1][0] > step:
            _, self.latest = self.before.pop()  # set again before their step
        self.before.append((step, self.latest))
        if len(self.before) > 2 * OPEN_STEPS:  # a worker is at most this many steps ahead
            self.before.popleft()
        self.latest = tuple(rates)

    @property
    def terms(self) -> Rates:
        return terms_of(1.0, self.latest)

    def at(self, step: int) -> Rates:
        return next((rates for first, rates in self.before if step < first), self.latest)

    def begin_at(self, rates: Sequence[float]) -> None:
        """The job starts from a checkpoint, or goes back to one, where these were in force."""
        self.latest = tuple(rates)
        self.before.clear()

    def dump(self) -> Plain:
        return [list(self.latest), [[step, list(rates)] for step, rates in self.before]]

    def restore(self, kept: Plain) -> None:
        latest, before = kept
        self.latest = tuple(latest)
        self.before = deque((step, tuple(rates)) for step, rates in before)


class Delays:
    """When workers arrived at the steps of one job; an arrival costs the same however many there are."""

    def __init__(self) -> None:
        self.since: float | None = None  # when the first of the waiting workers arrived
        self.last: tuple[MemberInfo, float] | None = None  # the last worker to arrive at the open step, and when
        self.counted = float("-inf"), 0  # the last count of steps for watchers, and its time
        self._arrived: set[bytes] = set()  # at the open step
        self._delay_s = 0.0  # its delay after the one before it
        self._closed: tuple[int, float] | None = None  # the last closed step, and when
        # worker, its delay, the step's length, unknown for the first
        self._recent: deque[tuple[MemberInfo, float, float | None]] = deque(maxlen=STEPS)

    def arrived(self, member: MemberInfo, now: float) -> None:
        """A worker has arrived, perhaps again."""
        if member.incarnation in self._arrived:
            return
        self._arrived.add(member.incarnation)
        if self.last is not None:
            self._delay_s = now - self.last[1]
            member.reported.awaited_s += self._delay_s
        self.last = member, now

    def closed(self, step: int, now: float) -> None:
        """A step is over, with several arrivals."""
        if self.last is not None:
            length = now - self._closed[1] if self._closed is not None and self._closed[0] == step - 1 else None
            self._recent.append((self.last[0], self._delay_s, length))
        self._arrived.clear()
        self.last, self._delay_s, self._closed = None, 0.0, (step, now)

    def slowest(self, members: Mapping[bytes, MemberInfo]) -> Mapping[str, Any]:
        """Return the live worker that came last to the last steps, and its delay; empty: none stands out."""
        last = list(self._recent)[-IN_A_ROW:]
        if len(last) < IN_A_ROW or any(member is not last[0][0] for member, _, _ in last):
            return {}
        member, in_a_row = last[0][0], 0
        if members.get(member.incarnation) is not member:
            return {}  # it has departed since
        delay_s, length = mean([delay for _, delay, _ in last]), mean([s for *_, s in last if s is not None])
        if not length or delay_s < SHARE * length:
            return {}
        for other, *_ in reversed(self._recent):
            if other is not member:
                break
            in_a_row += 1
        return {
            "node": f"{member.role} {member.rank}",
            "host": member.hello.host,
            "delay_s": round(delay_s, 3),
            "step_s": round(length, 3),
            "text": f"{member.title} came last to the last {in_a_row} steps, {delay_s:.2g} s after the others; "
            f"a step takes {length:.2g} s",
        }


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class TraineePhase(StrEnum):
    """A worker's phase in training.

    It was informed of a clock, but does not count yet; it computes; it has arrived and waits for its answer; it has
    departed, and its contribution may still be part of the open step.
    """

    INFORMED, COMPUTING, WAITING, GONE = "informed", "computing", "waiting", "gone"


@dataclass(slots=True, kw_only=True)
class Trainee:
    """A worker's state in the steps."""

    rank: int
    phase: TraineePhase = TraineePhase.COMPUTING
    clock: int = 0  # which it was informed of
    lag: int = 0  # how many clocks its own is behind the counting one
    request: int = -1  # its arrival, while it waits for the answer
    counted: tuple[int, tuple[int, ...]] = (-1, ())  # its last gradients that counted: the step, and the pushes
    paused_for: set[str] = field(default_factory=set)  # why no step waits for it
    unheard: bool = False  # it has not reported its position since this coordinator is back


class Trainees(dict[bytes, Trainee]):
    """The workers of a job by incarnation."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[bytes, Trainee] = {}  # in order of arrival
        self.num_training = 0  # how many compute or wait

    def begin(self, who: bytes, rank: int) -> Trainee:
        """Return a worker that counts from now on, if it did not."""
        trainee = self.setdefault(who, Trainee(rank=rank, phase=TraineePhase.INFORMED))
        if trainee.phase in (TraineePhase.INFORMED, TraineePhase.GONE):
            trainee.phase = TraineePhase.COMPUTING
            self.num_training += 1
        trainee.rank = rank
        return trainee

    def wait(self, who: bytes, request: int) -> None:
        """A worker has arrived."""
        trainee = self.waiting[who] = self[who]
        trainee.phase, trainee.request = TraineePhase.WAITING, request

    def answer(self, who: bytes) -> int | None:
        """A worker does not wait any more; return its request. None: it has not waited."""
        trainee = self.waiting.pop(who, None)
        if trainee is None:
            return None
        request, trainee.phase, trainee.request = trainee.request, TraineePhase.COMPUTING, -1
        return request

    def leave(self, who: bytes, *, remembered: bool) -> bool:
        """A worker has departed; return whether it trained. ``remembered``: the step may have its contribution."""
        trainee = self.pop(who, None)
        if trainee is None or trainee.phase is TraineePhase.INFORMED:
            return False
        self.answer(who)
        self.num_training -= 1
        if remembered:
            self[who] = Trainee(rank=trainee.rank, phase=TraineePhase.GONE)
        return True

    def forget_gone(self) -> None:
        """A step is over: departed workers do not contribute to the next one."""
        for who in [who for who, trainee in self.items() if trainee.phase is TraineePhase.GONE]:
            del self[who]

    def dump(self) -> dict[str, Plain]:
        trained = {who: one for who, one in self.items() if one.phase is not TraineePhase.INFORMED}
        return {
            "counted": [[who, one.counted[0], list(one.counted[1])] for who, one in self.items() if one.counted[1]],
            "ranks": [[who, one.rank] for who, one in trained.items()],
            "told": [[who, one.clock] for who, one in self.items() if who not in trained],
            "behind": [[who, one.lag] for who, one in self.items() if one.lag],
        }

    def restore(self, kept: Mapping[str, Plain], members: Mapping[bytes, MemberInfo]) -> None:
        """Restore the journaled state: members continue to train, once they have reported their positions."""
        for who, rank in kept["ranks"]:
            here = who in members
            self[who] = Trainee(rank=rank, unheard=here, phase=TraineePhase.COMPUTING if here else TraineePhase.GONE)
            self.num_training += here
        for who, clock in kept["told"]:
            self[who] = Trainee(rank=members[who].rank, phase=TraineePhase.INFORMED, clock=clock)
        for who, clocks in kept["behind"]:
            self[who].lag = clocks
        for who, step, attempts in kept["counted"]:
            self[who].counted = step, tuple(attempts)

    def validate(self, here: Container[bytes], counting: Container[bytes]) -> None:
        """Assert that each is in one phase; ``here``: the members, ``counting``: those of them that count."""
        waiting = {who for who, one in self.items() if one.phase is TraineePhase.WAITING}
        training = {who for who, one in self.items() if one.phase is TraineePhase.COMPUTING} | waiting
        assert waiting == set(self.waiting)
        assert len(training) == self.num_training
        assert all(who in counting for who in training)
        assert all((who in here) == (one.phase is not TraineePhase.GONE) for who, one in self.items())
        assert all((one.request >= 0) == (who in waiting) for who, one in self.items())
        assert all(who in training for who, one in self.items() if one.paused_for or one.counted[1] or one.lag)


@dataclass(slots=True)
class LeaderProgress:
    """What the leader of a shard has not confirmed yet."""

    copy: Replica
    unconfirmed: list[Commit] = field(default_factory=list)  # in order
    squares: float | None = None  # of its part of the measured mean


@dataclass(slots=True)
class Heir:
    """A backup that replaces a lost leader with gradients of the open step."""

    behind: set[bytes]  # workers that may have to resend theirs
    is_coming: bool = True  # it has not taken over yet


class Commits:
    """The committed steps, and which leaders have not confirmed them yet.

    `heirs` and `torn` are about lost leaders: without backups they stay empty.
    """

    def __init__(self, *, replicated: bool = False) -> None:
        self.leaders: dict[int, LeaderProgress] = {}  # the receivers of commits, by epoch
        self.heirs: dict[int, Heir] = {}  # by shard: those that may lack gradients of the open step
        self.torn: int | None = None  # a shard that can never get the gradients of a step that others have
        #: Servers have not reported the size of the last step's mean yet; no other step is committed before.
        self.measuring = False
        self.retry_due: float | None = None  # when to resend unconfirmed commits
        self._replicated = replicated  # backups must have a step before any worker begins the next

    def start(self, copies: Iterable[Replica]) -> None:
        """Set the copies whose leaders take commits; nothing is committed yet."""
        self.leaders = {copy.epoch: LeaderProgress(copy) for copy in copies if not copy.backup}
        self.measuring, self.retry_due = False, None

    def forget(self) -> None:
        """Earlier commits and contributions do not count any more."""
        self.start([leader.copy for leader in self.leaders.values()])
        self.heirs.clear()
        self.torn = None

    def stop(self) -> None:
        """No step is committed any more, nor the last one if its terms were not sent yet."""
        for epoch in [epoch for epoch, leader in self.leaders.items() if leader.copy.shard in self.heirs]:
            self.lose(epoch)  # it lacks gradients of the step
        self.heirs.clear()
        self.measuring = False
        for leader in self.leaders.values():
            leader.unconfirmed = [commit for commit in leader.unconfirmed if not commit.measure]

    def add(self, made: Commit, now: float) -> list[Action]:
        """A step is committed: inform the leaders. With ``made.measure`` they are asked for the size of its mean."""
        self.measuring, self.retry_due = bool(made.measure), now + COMMIT_RETRY_S
        actions: list[Action] = []
        for epoch, leader in self.leaders.items():
            commit, leader.squares = replace(made, epoch=epoch), None
            leader.unconfirmed.append(commit)
            actions.append(Send(leader.copy.server.peer, commit))
        return self.say_again() if self.heirs else actions

    def say_again(self, shard: int | None = None) -> list[Action]:
        """Resend unconfirmed commits to leaders that may have their gradients; ``shard``: only to its leader."""
        actions: list[Action] = []
        for leader in self.leaders.values():
            heir = self.heirs.get(leader.copy.shard)
            if (heir is not None and heir.is_coming) or shard not in (None, leader.copy.shard):
                continue
            for commit in leader.unconfirmed:
                if heir is not None and any(who in heir.behind for who, _ in commit.contributors):
                    break
                actions.append(Send(leader.copy.server.peer, commit))
        return actions

    def measured(self, epoch: int, step: int, squares: float) -> float | None:
        """A leader has reported the size of its part of a step's mean; return the total of squares when all have."""
        leader = self.leaders.get(epoch)
        if not self.measuring or leader is None or not leader.unconfirmed or leader.unconfirmed[-1].step != step:
            return None  # repeated
        leader.squares = squares
        found = {one.copy.shard: one.squares for one in self.leaders.values() if one.squares is not None}
        return sum(found[shard] for shard in sorted(found)) if len(found) == len(self.leaders) else None

    def set_terms(self, terms: Rates) -> None:
        """Apply the last step on these terms."""
        self.measuring = False
        for leader in self.leaders.values():
            if leader.unconfirmed and leader.unconfirmed[-1].measure:
                leader.unconfirmed[-1] = replace(leader.unconfirmed[-1], terms=terms, measure=0)

    def confirmed_before(self, epoch: int, before: int) -> None:
        """A leader has all steps before this one."""
        if (leader := self.leaders.get(epoch)) is not None:
            leader.unconfirmed = [commit for commit in leader.unconfirmed if commit.step >= before]
        if self.all_confirmed:
            self.retry_due = None

    @property
    def all_confirmed(self) -> bool:
        """Whether every leader has confirmed all steps."""
        return not any(leader.unconfirmed for leader in self.leaders.values())

    def may_go_on(self) -> bool:
        """Whether gradients of the next step can be taken everywhere."""
        most = 1 if self._replicated else OPEN_STEPS
        return all(len(leader.unconfirmed) < most for leader in self.leaders.values())

    def late(self) -> str:
        """Return the servers that have not confirmed, and what is awaited of them."""
        late = [leader.copy.server.title for leader in self.leaders.values() if leader.unconfirmed]
        names = listed(list(dict.fromkeys(late)), MOST_NAMED)
        if self.measuring:
            return f"{names} to say how large the mean of the last step is"
        return f"{names}{' and its backups' * self._replicated} to have the step"

    def lose(self, epoch: int) -> None:
        """A leader gets no more commits."""
        self.leaders.pop(epoch, None)

    # --- heirs ---------------------------------------------------------------------------------

    def move(self, old: int, copy: Replica, behind: set[bytes] | None = None) -> None:
        """A shard has another leader, which must get what the old one has not confirmed.

        ``behind``: workers that may have to resend gradients of the open step; None: it has them all.
        """
        before = self.leaders.pop(old, LeaderProgress(copy))
        commits = [replace(commit, epoch=copy.epoch) for commit in before.unconfirmed]
        self.leaders[copy.epoch] = LeaderProgress(copy, commits, before.squares)
        if behind is not None:
            self.heirs[copy.shard] = Heir(behind)

    def moved(self, copy: Replica, step: int, here: Container[bytes]) -> None:
        """An heir has taken over with this many steps; it is torn if it lacks one with a departed contributor."""
        self.confirmed_before(copy.epoch, step)
        if (heir := self.heirs.get(copy.shard)) is not None:
            heir.is_coming = False
            self._end(copy.shard)
        leader = self.leaders.get(copy.epoch)
        if leader and any(who not in here for commit in leader.unconfirmed for who, _ in commit.contributors):
            self._tear(leader)

    def brought(self, worker: bytes, shard: int) -> None:
        """A worker has resent its part of the open step."""
        if (heir := self.heirs.get(shard)) is not None:
            heir.behind.discard(worker)
            self._end(shard)

    def leave(self, worker: bytes) -> bool:
        """A worker has departed; return whether it had yet to resend gradients: they only count elsewhere."""
        lacked = [shard for shard, heir in self.heirs.items() if worker in heir.behind]
        for shard in lacked:
            self.heirs[shard].behind.discard(worker)
            for leader in [leader for leader in self.leaders.values() if leader.copy.shard == shard]:
                # one that has not taken over may have the step
                at_stake = any(worker in dict(commit.contributors) for commit in leader.unconfirmed)
                if at_stake and not self.heirs[shard].is_coming:
                    self._tear(leader)
            self._end(shard)
        return bool(lacked)

    def _tear(self, leader: LeaderProgress) -> None:
        self.torn = leader.copy.shard
        self.lose(leader.copy.epoch)  # repeated there, it would be another step than that of the others

    def _end(self, shard: int) -> None:
        if not self.heirs[shard].behind and not self.heirs[shard].is_coming:
            del self.heirs[shard]

    def lacks(self, arrived: Collection[bytes]) -> bool:
        """Whether an heir may lack gradients of arrived workers, or has not taken over yet."""
        return any(heir.is_coming or not heir.behind.isdisjoint(arrived) for heir in self.heirs.values())

    # --- the journal ---------------------------------------------------------------------------

    def dump(self) -> dict[str, Plain]:
        commits = {commit.step: commit for leader in self.leaders.values() for commit in leader.unconfirmed}
        kept: list[Plain] = [
            [
                step, [[who, list(attempts)] for who, attempts in c.contributors], list(c.terms), c.measure,
                c.examples, c.left_out,
            ]
            for step, c in sorted(commits.items())
        ]  # fmt: skip
        return {
            "commits": kept,
            "unconfirmed": [[epoch, [c.step for c in one.unconfirmed]] for epoch, one in self.leaders.items()],
            "moved": [[shard, sorted(heir.behind)] for shard, heir in self.heirs.items()],
            "moving": sorted(shard for shard, heir in self.heirs.items() if heir.is_coming),
        }

    def restore(self, kept: Mapping[str, Plain], now: float) -> None:
        """Restore the journaled state, of the existing copies."""
        commits = {entry[0]: commit_of(entry) for entry in kept["commits"]}
        for epoch, steps in kept["unconfirmed"]:
            if epoch in self.leaders:
                self.leaders[epoch].unconfirmed = [replace(commits[step], epoch=epoch) for step in steps]
        self.heirs = {shard: Heir(set(behind), shard in kept["moving"]) for shard, behind in kept["moved"]}
        self.measuring = any(leader.unconfirmed[-1].measure for leader in self.leaders.values() if leader.unconfirmed)
        self.retry_due = None if self.all_confirmed else now + COMMIT_RETRY_S


def commit_of(entry: Sequence[Any]) -> Commit:
    """Return a journaled commit (`Commits.dump`), without an epoch."""
    step, contributors, terms, measure, examples, left_out = entry
    brought = tuple((who, tuple(attempts)) for who, attempts in contributors)
    return Commit(0, step, brought, tuple(terms), measure, examples, left_out)


@dataclass(slots=True)
class Pauses:
    """What steps wait for, besides the workers."""

    #: Why nothing is committed, in words: all shards go back to a checkpoint. Empty: they do not.
    suspended: str = ""
    #: Whether `Proceed` is delayed, because shards must move first.
    holding: bool = False
    #: Shards whose leader was asked to give up its leadership: nothing is committed.
    closed: set[int] = field(default_factory=set)

    def clear(self) -> None:
        self.suspended, self.holding = "", False
        self.closed.clear()


@dataclass(frozen=True, slots=True)
class MeanRule:
    """How gradients of a step become one."""

    clip_norm: float | None = None  # the mean is scaled down to this norm
    over_all: bool = False  # it is the mean over all contributors, whatever they have pushed


@dataclass(slots=True)
class KeptSteps:
    """The last journaled state of steps."""

    changed: Changed  # called when journaled state has changed, before any message is sent
    data: Plain = None  # None: nothing is trained
    clock: int = 0


class Steps:
    """The steps of a job: the training workers, the commits, and which workers may proceed."""

    def __init__(
        self,
        members: Mapping[bytes, MemberInfo],
        attendance: Attendance,
        changed: Changed = nothing,
        rates: Numbers | None = None,
        *,
        replicated: bool = False,
    ) -> None:
        self.policy: Policy | None = None  # None: nothing is trained
        self.trainees = Trainees()
        self.commits = Commits(replicated=replicated)
        self.pauses = Pauses()
        self.delays = Delays()
        self.kept = KeptSteps(changed)
        self._members = members
        self._attendance = attendance
        self._rates = rates or Numbers()
        self._rule = MeanRule()
        self._waits_for_all = False  # the first step is not complete before all have begun to train
        self._granted: list[Grant] = []  # workers that may proceed as soon as leaders can take their gradients

    def start(self, job: JobSpec, copies: Iterable[Replica], *, waits_for_all: bool = False, clock: int = 0) -> None:
        """A job was placed, and continues at a clock; ``waits_for_all``: all begin before the first step ends."""
        self._rule, self.policy = MeanRule(job.clip_norm, job.mean == "workers"), make_policy(job)
        self.policy.begin_at(clock)
        self._waits_for_all = waits_for_all
        self.commits.start(copies)
        self.keep()

    def stop(self) -> None:
        """The job was given up before it began, or has lost a shard: no step is committed any more."""
        self.policy = None
        self.pauses.clear()
        self._let_nobody_wait()
        for trainee in self.trainees.values():
            trainee.paused_for.clear()
        self.commits.stop()
        self.keep()

    def suspend(self, why: str) -> None:
        """All shards go back to a checkpoint: no step is committed until they have."""
        self.pauses.clear()
        self.pauses.suspended = why
        self.commits.forget()
        self._granted.clear()
        self.keep()

    def go_back(self, copies: Iterable[Replica], clock: int | None) -> None:
        """Shards have other leaders, in a checkpoint's state; ``clock``: with the steps, if they are for all."""
        self.commits.start(copies)
        if clock is not None and self.policy is not None:
            self.pauses.suspended = ""
            self._let_nobody_wait()
            for trainee in self.trainees.values():
                trainee.counted = (-1, ())
            self.policy.go_back(clock)
        self.keep()

    def _let_nobody_wait(self) -> None:
        for who in list(self.trainees.waiting):
            self.trainees.answer(who)
        self._granted.clear()
        self.delays.since = None

    @property
    def clock(self) -> int:
        """Synchronous: the committed steps; bounded: the slowest worker's clock; else 0."""
        return 0 if self.policy is None else self.policy.clock

    # --- the journal, and a coordinator that was away ------------------------------------------

    def keep(self) -> None:
        """Journal the state: informed members may rely on it."""
        if self.kept.changed is nothing:
            return
        self.kept.data, self.kept.clock = self._snapshot(), self.clock
        self.kept.changed()

    def keep_arrivals(self) -> None:
        """Journal the arrivals at a step, if any worker waits there."""
        if self.trainees.waiting and self.policy is not None and self.policy.mode == "sync":
            self.keep()

    def _snapshot(self) -> Plain:
        if self.policy is None:
            return None
        parts = {**self.commits.dump(), **self.trainees.dump()}
        return {**parts, "policy": self.policy.dump(), "waits_for_all": self._waits_for_all}

    def restore(self, kept: Plain, job: JobSpec, copies: Iterable[Replica], now: float) -> None:
        """Continue at the journaled state; arrived workers arrive again, and paused ones repeat their requests."""
        self.start(job, copies, waits_for_all=kept["waits_for_all"])
        assert self.policy is not None
        self.trainees.restore(kept, self._members)
        for who, trainee in self.trainees.items():
            if trainee.unheard:
                self.policy.join(who)
        self.policy.restore(kept["policy"], now)
        self.commits.restore(kept, now)
        self.kept.data = kept

    def resumed(self, member: MemberInfo, clock: int, now: float) -> None:
        """A member is back and has repeated all its requests."""
        trainee = self.trainees.get(who := member.incarnation)
        if self.policy is not None and trainee is not None and trainee.phase is not TraineePhase.INFORMED:
            trainee.unheard = False
            self.policy.catch_up(who, clock + trainee.lag)

    def again(self, server: MemberInfo) -> list[Action]:
        """A server is back: its unconfirmed commits are resent at once."""
        return [said for said in self.commits.say_again() if isinstance(said, Send) and said.peer == server.peer]

    # --- training workers ----------------------------------------------------------------------

    def begin(self, member: MemberInfo) -> int:
        """A worker begins to train; return its clock."""
        if self.policy is None or member.role != "worker":
            return 0
        who = member.incarnation
        before = self.trainees.get(who)
        if who not in self._attendance:  # no step waits for it before it counts
            self.trainees[who] = Trainee(rank=member.rank, phase=TraineePhase.INFORMED, clock=self.policy.clock)
            self.keep()
            return self.policy.clock
        informed = before is not None and before.phase is TraineePhase.INFORMED
        trainee, clock = self.trainees.begin(who, member.rank), self.policy.join(who)
        if informed and self.policy.mode != "sync":  # there it learns the step with its answer
            trainee.lag = max(0, clock - trainee.clock)
        self.keep()
        return clock

    def leave(self, member: MemberInfo) -> None:
        """A worker has departed: no step waits for it, and its contribution counts only if it had arrived."""
        who = member.incarnation
        if self.commits.leave(who) and self.policy is not None:
            self.policy.retract(who)
        is_sync = self.policy is not None and self.policy.mode == "sync"
        if self.trainees.leave(who, remembered=is_sync) and self.policy is not None:
            self.policy.leave(who)
        self.keep()

    def pause(self, member: MemberInfo, reason: str) -> None:
        """A worker waits for something other than a step: no step waits for it."""
        trainee = self.trainees.get(member.incarnation)
        if self.policy is not None and trainee is not None and trainee.phase is not TraineePhase.INFORMED:
            trainee.paused_for.add(reason)
            self.policy.pause(member.incarnation)

    def resume(self, member: MemberInfo, reason: str) -> int:
        """A paused worker continues; return its clock. Of one that was not, or still is: 0."""
        trainee = self.trainees.get(member.incarnation)
        if self.policy is None or trainee is None:
            return 0
        if reason not in trainee.paused_for:  # as far as known: it may have been when this coordinator went away
            return self.policy.clock if trainee.unheard else 0
        trainee.paused_for.remove(reason)
        if trainee.paused_for:
            return 0
        if trainee.lag:  # it is informed of its clock
            trainee.lag = 0
            self.keep()
        return self.policy.join(member.incarnation)

    def waiters(self, missing: int) -> Iterator[Waiter]:
        """Yield the arrived workers that may not proceed yet, with the request, and a function that says why."""
        say = partial(self.waiting_for, missing)
        for who, trainee in self.trainees.waiting.items():
            yield self._members[who], trainee.request, say

    # --- a step --------------------------------------------------------------------------------

    def arrive(self, member: MemberInfo, message: Arrive, now: float) -> None:
        """A worker has completed a step; its answer may have to wait."""
        who = member.hello.incarnation
        trainee = self.trainees.get(who)
        if self.policy is None or (trainee is not None and trainee.request == message.request):
            return  # repeated
        if trainee is None or trainee.phase is TraineePhase.INFORMED:
            self.begin(member)
            trainee = self.trainees[who]
        self.trainees.wait(who, message.request)
        if self.delays.since is None:
            self.delays.since = now
        step, attempts = message.step + trainee.lag, tuple(message.attempts)
        before, counted = trainee.counted
        if step == before and set(attempts) <= set(counted):
            attempts = ()  # it repeats its request for a lost answer
        leaves_out = bool(message.leaves_out)
        self.policy.arrive(who, step, attempts, now, message.examples, leaves_out=leaves_out)
        if self.trainees.num_training > 1 and self.policy.mode == "sync":
            self.delays.arrived(member, now)

    def advance(self, places: Places, now: float) -> list[Action]:
        """Carry out the policy's decisions; called after every event."""
        policy = self.policy
        if policy is None or self._blocked or not (policy.pending or self._granted or self._waits_for_all):
            return []
        missing = places.num_missing
        decision = policy.decide(self._to_begin(missing), now)
        late = self.waiting_for(missing, decision.awaited) if decision.failed else ""
        actions = [] if decision.commitment is None else self._commit(decision.commitment, now)
        self._granted += decision.granted
        actions += self._proceed()
        if decision.failed:
            actions += self._fail(decision.failed, late, now)
        if policy.mode == "sync":
            changed = bool(decision.commitment or decision.granted or decision.failed)
        else:  # new workers begin at the slowest clock: it must not be an earlier one after a restart
            changed = policy.clock != self.kept.clock
        if changed:
            self.keep()
        return actions

    @property
    def _blocked(self) -> bool:
        """Whether nothing may be committed: a shard may lack gradients, or the previous mean is not measured yet."""
        if self.pauses.suspended or self.pauses.closed or self.commits.measuring:
            return True
        return bool(self.commits.heirs) and self.policy is not None and self.commits.lacks(self.policy.arrived())

    def _to_begin(self, missing: int) -> int:
        """Return how many workers the first step waits for, besides those that train already."""
        if not self._waits_for_all:
            return missing
        idle = len(self._attendance) - self.trainees.num_training
        if missing + idle == 0:
            self._waits_for_all = False
            self.keep()
        return missing + idle

    def _commit(self, commitment: Commitment, now: float) -> list[Action]:
        if self.delays.last is not None:
            self.delays.closed(commitment.step, now)
        # in the order of ranks: the sum does not depend on the order of arrival
        ranks: list[tuple[int, Contributor]] = []
        for who, attempts in commitment.contributors:
            trainee = self.trainees.get(who)
            ranks.append((0 if trainee is None else trainee.rank, (who, attempts)))
            if trainee is not None and trainee.phase is not TraineePhase.GONE:
                trainee.counted = commitment.step, tuple(attempts)
        self.trainees.forget_gone()
        contributors = tuple(contributor for _, contributor in sorted(ranks))
        measure = self._rule.clip_norm is not None and bool(contributors) and not commitment.left_out
        examples = commitment.examples if self._rule.over_all else 0
        terms, left_out = self._terms(commitment.step), int(commitment.left_out)
        return self.commits.add(Commit(0, commitment.step, contributors, terms, int(measure), examples, left_out), now)

    def _terms(self, step: int, scale: float = 1.0) -> tuple[float, ...]:
        rates = self._rates.at(step) if self._rates.latest or self._rates.before else ()
        return terms_of(scale, rates) if rates or scale != 1.0 else ()

    def _proceed(self) -> list[Action]:
        """Inform workers that may proceed, unless servers could not take gradients of the next step yet."""
        actions: list[Action] = []
        if self._granted and not self.pauses.holding and self.commits.may_go_on():
            for grant in self._granted:
                if (request := self.trainees.answer(grant.worker)) is not None:
                    proceed = Proceed(request, grant.version, int(grant.counted), int(grant.left_out))
                    actions.append(self._members[grant.worker].answer(request, proceed))
            self._granted.clear()
        if not self.trainees.waiting:
            self.delays.since = None
        return actions

    def _fail(self, failed: Collection[bytes], awaited: str, now: float) -> list[Action]:
        """End waits with an error; ``awaited``: the workers they waited for."""
        waited = now - (self.delays.since if self.delays.since is not None else now)
        error = DeadlineError(operation="step", seconds=round(waited, 3), waiting_for=awaited)
        actions: list[Action] = [Log("warning", str(error), "timeout", error=error.number)]
        for who in failed:
            if (request := self.trainees.answer(who)) is not None:
                actions.append(self._members[who].fail(request, error))
        if not self.trainees.waiting:
            self.delays.since = None
        return actions

    # --- reports of servers --------------------------------------------------------------------

    def measured(self, message: Measured) -> list[Action]:
        """A server has reported the size of its part of a step's mean; when all have, the step is applied."""
        total = self.commits.measured(message.epoch, message.step, message.squares)
        if total is None or self._rule.clip_norm is None:
            return []
        self.commits.set_terms(self._terms(message.step, scale_to(self._rule.clip_norm, total)))
        self.keep()
        return self.commits.say_again()

    def lacks(self, step: int) -> bool:
        """Whether a step that a server has applied was never committed, as far as known."""
        committing = self.policy is not None and self.policy.mode == "sync" and not self.pauses.suspended
        return committing and step >= self.clock

    def confirmed(self, epoch: int, step: int) -> list[Action]:
        """A server has applied a step to its copy of a shard, and so have its backups."""
        self.commits.confirmed_before(epoch, step + 1)
        return self._proceed()

    def lose(self, epoch: int) -> None:
        """A copy is lost with its server, which confirms nothing any more."""
        self.commits.lose(epoch)

    def move(self, old: int, heir: Replica, told: Iterable[bytes] | None) -> None:
        """A shard's leader is lost, and a backup takes over; ``told`` None: it gave up its leadership between steps.

        Gradients that are not committed there are lost. Workers that have got the job may have sent some, and must
        resend them; until then no step relies on them.
        """
        behind = None
        if told is not None and self.policy is not None and self.policy.mode == "sync":
            behind = {who for who in told if who in self._members}
            for who in [who for who in self.policy.arrived() if who not in self._members]:
                self.policy.retract(who)  # it has departed, and its contribution is lost with the shard
        self.commits.move(old, heir, behind)
        self.keep()

    def moved(self, heir: Replica, step: int) -> None:
        """A backup has taken over, with this many steps."""
        self.commits.moved(heir, step, self._members)
        self.keep()

    def brought_again(self, worker: bytes, shard: int) -> list[Action]:
        """A worker has resent its part of the open step to a shard that has moved."""
        self.commits.brought(worker, shard)
        self.keep()
        return self.commits.say_again(shard)

    # --- pauses --------------------------------------------------------------------------------

    def let_go(self) -> list[Action]:
        """Send delayed `Proceed` messages."""
        self.pauses.holding = False
        return self._proceed()

    @property
    def is_sync(self) -> bool:
        """Whether a step is one for all shards."""
        return self.policy is not None and self.policy.mode == "sync"

    @property
    def is_held(self) -> bool:
        """Whether contributors of the last step, which is over everywhere, wait for the next."""
        return bool(self._granted) and self.commits.all_confirmed and not self._blocked

    @property
    def is_between(self) -> bool:
        """Whether one step is over everywhere, and no contributor of it has begun the next."""
        return self.is_held or (not self.trainees.waiting and self.commits.all_confirmed and not self._blocked)

    # --- time, and state for others to read ----------------------------------------------------

    def next_deadline(self) -> float | None:
        retry, policy = self.commits.retry_due, self.policy
        if policy is None or not policy.pending or self._blocked or (due := policy.next_deadline()) is None:
            return retry
        return due if retry is None else min(due, retry)

    def on_deadline(self, now: float) -> list[Action]:
        """Resend unconfirmed commits, if due; `advance` lets the policy see the time."""
        if self.commits.retry_due is None or now < self.commits.retry_due:
            return []
        self.commits.retry_due = now + COMMIT_RETRY_S
        return self.commits.say_again()

    def waiting_for(self, missing: int, late: Iterable[bytes] | None = None) -> str:
        """Return in words which workers the arrived ones wait for, and why; ``late``: for these."""
        if self.policy is None or not self.trainees.waiting:
            return ""
        pauses, is_over = self.pauses, bool(self._granted) and self.commits.all_confirmed
        if pauses.suspended or pauses.closed or (pauses.holding and is_over):
            return pauses.suspended or "shards to move to other servers"
        if self.commits.measuring:
            return self.commits.late()
        if self._blocked:
            return "a backup to take over from a server that was lost, and to get the gradients of the step again"
        if self._granted and not is_over:
            return self.commits.late()
        awaited = [self._members[w] for w in (late or self.policy.awaited()) if w in self._members]
        texts = [listed([worker.title for worker in awaited[:MOST_NAMED]], MOST_NAMED, len(awaited))]
        texts += [not_joined(missing, len(self._attendance))] if missing else []
        to_begin = self._to_begin(missing)
        texts += [f"{counted(to_begin - missing, 'worker')} to call init"] if to_begin > missing else []
        return f"{', '.join(filter(None, texts)) or 'more gradients'}: {self.policy.why(to_begin)}"

    def awaited(self, now: float) -> tuple[float, list[MemberInfo]]:
        """Return how long workers have waited for the open step, and the workers that it waits for."""
        if self.policy is None or self.delays.since is None or not self.trainees.waiting:
            return 0.0, []
        late = [self._members[who] for who in self.policy.awaited() if who in self._members]
        return now - self.delays.since, late

    def status(self, missing: int, now: float) -> dict[str, Any]:
        if self.policy is None:
            return {}
        since = now if self.delays.since is None else self.delays.since
        told = {"waiting": self.waiting_for(missing), "since_s": round(now - since, 3)}
        return {"mode": self.policy.mode, **self.policy.status(), **told}

    def validate(self) -> None:
        self.trainees.validate(self._members, self._attendance.here)
        assert all(heir.behind <= set(self._members) for heir in self.commits.heirs.values())
        assert self.commits.all_confirmed or self.commits.retry_due is not None
        if self.policy is not None:
            self.policy.validate()
