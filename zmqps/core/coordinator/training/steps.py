"""Steps of the job: carries a consistency policy's decisions to workers and servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from zmqps.core.coordinator.consistency import Commitment, Decision, Grant, Policy, make_policy
from zmqps.core.coordinator.journal import Changed, Plain, nothing
from zmqps.core.coordinator.members.attendance import Attendance
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.placement.bringing import Bringing
from zmqps.core.coordinator.placement.copies import Replica
from zmqps.core.coordinator.training.commits import Commits
from zmqps.core.coordinator.training.delays import Delays
from zmqps.core.coordinator.training.pauses import Pauses
from zmqps.core.coordinator.training.rates import Numbers
from zmqps.core.coordinator.training.waits import Waiter, not_joined
from zmqps.core.job.norms import scale_to
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages import Arrive, Measured, Proceed
from zmqps.core.protocol.terms import terms_of
from zmqps.errors import DeadlineError, counted, listed

#: A server answers a commit within milliseconds; one that did not may not have received it.
COMMIT_RETRY_S = 1.0
#: How many of the workers that a step waits for an error names.
MOST_NAMED = 8


class Steps:
    """The training workers, their arrivals, and the commits that servers have not confirmed.

    Parameters
    ----------
    members
        The live members of the job by incarnation; shared with its `JobRun`.
    attendance
        Which of them count.
    changed
        Called when something has changed that is kept, before anybody is told.
    rates
        The learning rates that were set.
    replicated
        Whether shards have backups: a worker proceeds when these have its step, and until then it can bring it again.
    """

    def __init__(
        self,
        members: Mapping[bytes, MemberInfo],
        attendance: Attendance,
        changed: Changed = nothing,
        rates: Numbers | None = None,
        *,
        replicated: bool = False,
    ) -> None:
        self.policy: Policy | None = None
        self._changed = changed
        self.kept: Plain = None  # how it stands, as it is kept; None if nothing is trained
        self._kept_clock = 0
        self._counted: dict[bytes, tuple[int, tuple[int, ...]]] = {}  # the last of each that counted: step, attempts
        self._returned: set[bytes] = set()  # who trained when this coordinator was away, and has not said where it is
        self._replicated = replicated
        self._granted: list[Grant] = []  # where shards have backups: until these have the step
        self._members = members
        self._attendance = attendance
        self._training: set[bytes] = set()  # the live ones that have begun; all of them count
        self._commits = Commits()
        self.bringing = Bringing(self._commits, members)
        self._ranks: dict[bytes, int] = {}  # of everybody who may be a contributor, alive or not
        self._told: dict[bytes, int] = {}  # the clocks that those began with who did not count yet
        self._behind: dict[bytes, int] = {}  # by how much their own clocks are behind, since they count
        self._waits_for_all = False
        self._clip_norm: float | None = None
        self._counts_all = False  # a mean is over all contributors, whatever they have pushed
        self._rates = rates or Numbers()
        self._paused: dict[bytes, set[str]] = {}  # what those who are not waited for wait for themselves
        self._requests: dict[bytes, int] = {}  # arrivals that wait for their answer
        self._retry_due: float | None = None
        self._since: float | None = None  # when the first of those who wait arrived
        self.pauses = Pauses()
        self.delays = Delays()
        self.counted = float("-inf"), 0  # when steps were counted last, for those who watch, and how many

    def start(self, job: JobSpec, copies: Iterable[Replica], *, waits_for_all: bool = False, clock: int = 0) -> None:
        """A job was placed.

        Parameters
        ----------
        job, copies
            Which, and where.
        waits_for_all
            The first step is not complete before all have begun to train.
        clock
            The one to begin with, where it goes on from a checkpoint.
        """
        self.policy = make_policy(job)
        self.policy.begin_at(clock)
        self._clip_norm = job.clip_norm
        self._counts_all = job.mean == "workers"
        self._waits_for_all = waits_for_all
        self._commits.start(copies)
        self.keep()

    def keep(self) -> None:
        """Keep how it stands: whoever has been told of it may rely on that."""
        if self._changed is nothing:
            return
        self.kept, self._kept_clock = self._snapshot(), self.clock
        self._changed()

    def keep_arrivals(self) -> None:
        """Keep who has arrived at a step, if anybody waits there."""
        if self._requests and self.policy is not None and self.policy.mode == "sync":
            self.keep()

    def _snapshot(self) -> Plain:
        if self.policy is None:
            return None
        return {
            **self._commits.dump(),
            "policy": self.policy.dump(),
            "waits_for_all": self._waits_for_all,
            "counted": [[who, step, list(attempts)] for who, (step, attempts) in self._counted.items()],
            "ranks": [[who, rank] for who, rank in self._ranks.items()],
            "told": [[who, clock] for who, clock in self._told.items()],
            "behind": [[who, clocks] for who, clocks in self._behind.items()],
            **self.bringing.dump(),
        }

    def restore(self, kept: Plain, job: JobSpec, copies: Iterable[Replica], now: float) -> None:
        """Go on where it stood; who has arrived arrives again, and who is paused asks again for what it waits for."""
        self.start(job, copies, waits_for_all=kept["waits_for_all"])
        assert self.policy is not None
        self._ranks = dict(kept["ranks"])
        for who in [who for who in self._ranks if who in self._members]:
            self._training.add(who)
            self.policy.join(who)
        self.policy.restore(kept["policy"], now)
        self._returned = set(self._training)
        self._told, self._behind = dict(kept["told"]), dict(kept["behind"])
        self._counted = {who: (step, tuple(attempts)) for who, step, attempts in kept["counted"]}
        self.bringing.restore(kept)
        self._commits.restore(kept)
        self._retry_due = None if self.settled else now + COMMIT_RETRY_S
        self.kept = kept

    def resumed(self, member: MemberInfo, clock: int, now: float) -> None:
        """A member is back and has asked for all that it waits for."""
        self._returned.discard(who := member.incarnation)
        if self.policy is not None and who in self._training:
            self.policy.catch_up(who, clock + self._behind.get(who, 0))

    def again(self, server: MemberInfo) -> list[Action]:
        """A server is back: what it has not confirmed is said again at once."""
        return [said for said in self._say_again() if isinstance(said, Send) and said.peer == server.peer]

    @property
    def clock(self) -> int:
        """Synchronous: the steps that are committed; bounded: the slowest worker's clock; else 0."""
        return 0 if self.policy is None else self.policy.now

    def stop(self) -> None:
        """The job was given up before it began, or has lost a shard: no step is committed any more."""
        self.policy = None
        self.pauses.clear()
        self._paused.clear()
        self._requests.clear()
        self._granted.clear()
        for epoch in [epoch for epoch, copy in self._commits.copies.items() if copy.shard in self.bringing.behind]:
            self._commits.lose(epoch)  # it lacks gradients of the step
        self.bringing.clear()
        self._commits.drop_measured()
        self._since = None
        self.keep()

    def suspend(self, why: str) -> None:
        """All shards go back to a checkpoint: no step is committed until they have."""
        self.pauses.clear()
        self.pauses.suspended = why
        self._commits.forget()
        self._granted.clear()
        self.bringing.clear()
        self._retry_due = self.bringing.torn = None
        self.keep()

    def go_back(self, copies: Iterable[Replica], clock: int | None) -> None:
        """Shards have other leaders, as they were in a checkpoint; ``clock``: with the steps, if they are for all."""
        self._commits.start(copies)
        if clock is not None and self.policy is not None:
            self.pauses.suspended, self._since = "", None
            self._requests.clear()
            self._counted.clear()
            self.policy.go_back(clock)
        self.keep()

    def begin(self, member: MemberInfo) -> int:
        """A worker begins to train; return its clock."""
        if self.policy is None or member.role != "worker":
            return 0
        if member.incarnation not in self._attendance:
            self._told[member.incarnation] = self.policy.now
            self.keep()
            return self.policy.now  # nobody waits for it before it counts
        self._ranks[member.incarnation] = member.rank
        self._training.add(member.incarnation)
        clock = self.policy.join(member.incarnation)
        if self.policy.mode != "sync" and member.incarnation in self._told:  # there it learns the step with its answer
            self._behind[member.incarnation] = max(0, clock - self._told[member.incarnation])
        self._told.pop(member.incarnation, None)
        self.keep()
        return clock

    def pause(self, member: MemberInfo, reason: str) -> None:
        """A worker waits for something other than a step: no step waits for it."""
        if self.policy is not None and member.incarnation in self._ranks:
            self._paused.setdefault(member.incarnation, set()).add(reason)
            self.policy.pause(member.incarnation)

    def resume(self, member: MemberInfo, reason: str) -> int:
        """A worker that was paused goes on; return its clock. Of one that was not, or still is: 0."""
        reasons = self._paused.get(member.incarnation, set())
        if self.policy is None:
            return 0
        if reason not in reasons:  # as far as is known: it may have been when this coordinator went away
            return self.policy.now if member.incarnation in self._returned else 0
        reasons.remove(reason)
        if reasons:
            return 0
        del self._paused[member.incarnation]
        if self._behind.pop(member.incarnation, None) is not None:  # it is told where it goes on
            self.keep()
        return self.policy.join(member.incarnation)

    @property
    def anybody_waits(self) -> bool:
        """Whether a worker has arrived and may not go on yet."""
        return bool(self._requests)

    def waiters(self, missing: int) -> Iterator[Waiter]:
        """Yield who has arrived and may not go on yet, with the request, and what says whom it waits for."""
        say = partial(self.waiting_for, missing)
        for worker, request in self._requests.items():
            yield self._members[worker], request, say

    def arrive(self, member: MemberInfo, message: Arrive, now: float) -> None:
        """A worker has completed a step; its answer may have to wait."""
        if self.policy is None or self._requests.get(member.incarnation) == message.request:
            return  # sent again
        if member.incarnation not in self._ranks:
            self.begin(member)
        self._requests[member.incarnation] = message.request
        if self._since is None:
            self._since = now
        step, attempts = message.step + self._behind.get(member.incarnation, 0), tuple(message.attempts)
        before, counted = self._counted.get(member.incarnation, (-1, ()))
        if step == before and set(attempts) <= set(counted):
            attempts = ()  # it asks again for an answer that was lost
        leaves_out = bool(message.leaves_out)
        self.policy.arrive(member.incarnation, step, attempts, now, message.examples, leaves_out=leaves_out)
        if self.policy.mode == "sync":
            self.delays.arrived(member, now)

    def lose(self, epoch: int) -> None:
        """A copy is lost with its server, which confirms nothing any more."""
        self._commits.lose(epoch)

    def let_go(self) -> list[Action]:
        """Let those begin the next step who may, if they were held."""
        self.pauses.holding = False
        return self._proceed()

    @property
    def is_between(self) -> bool:
        """Whether one step is over everywhere, and nobody that had a part in it has begun the next."""
        return self.settled and not self._blocked and (bool(self._granted) or not self._requests)

    @property
    def is_held(self) -> bool:
        """Whether those wait for the next step who had a part in the last one, which is over everywhere."""
        return self.settled and not self._blocked and bool(self._granted)

    def move(self, old: int, heir: Replica, told: Iterable[bytes] | None) -> None:
        """A shard's leader is lost, and a backup takes over; ``told`` None: it has given up its place between steps.

        Gradients that are not committed there are lost. Whoever has been told the job may have brought some, and is to
        bring them again; until then no step counts on them.
        """
        self._commits.move(old, heir)
        if told is not None and self.policy is not None and self.policy.mode == "sync":
            self.bringing.begin(heir.shard, told)
            for who in [who for who in self.policy.arrived() if who not in self._members]:
                self.policy.retract(who)  # it has gone, and what it had brought has gone with the shard
        self.keep()

    def moved(self, heir: Replica, step: int) -> None:
        """A backup has taken over, with so many steps."""
        self._commits.confirmed(heir.epoch, step)
        self.bringing.moved(heir.shard, heir.epoch)
        self.keep()

    def brought_again(self, worker: bytes, shard: int) -> list[Action]:
        """A worker has brought again what it has of the open step to a shard that has moved."""
        self.bringing.brought(worker, shard)
        self.keep()
        return self._say_again(shard)

    def _say_again(self, shard: int | None = None) -> list[Action]:
        """Send the commits again that servers have not confirmed, as far as they can have the gradients."""
        return [Send(server.peer, commit) for server, commit in self.bringing.sendable(shard)]

    @property
    def _blocked(self) -> bool:
        """Whether nothing may be committed: a shard may lack gradients, or the mean before is yet to be measured."""
        if self.pauses.blocks or self._commits.measuring:
            return True
        return self.policy is not None and self.bringing.blocks(self.policy.arrived())

    def leave(self, member: MemberInfo) -> None:
        """A worker or observer has gone."""
        if self.bringing.forget(member.incarnation) and self.policy is not None:
            self.policy.retract(member.incarnation)
        self._training.discard(member.incarnation)
        self._returned.discard(member.incarnation)
        for known in (self._requests, self._paused, self._told, self._behind, self._counted):
            known.pop(member.incarnation, None)
        if self.policy is not None and member.incarnation in self._ranks:
            self.policy.leave(member.incarnation)
            if self.policy.mode != "sync":
                del self._ranks[member.incarnation]
        self.keep()

    def advance(self, missing: int, now: float) -> list[Action]:
        """Do what the policy decides; called after every event."""
        if self.policy is None or self._blocked:
            return []
        due = self.policy.next_deadline()
        awaited = self.waiting_for(missing) if due is not None and now >= due else ""  # before waits fail
        decision = self.policy.decide(self._to_begin(missing), now)
        actions: list[Action] = []
        if decision.commitment is not None:
            self.delays.closed(now)
            actions += self._commit(decision.commitment, now)
        self._granted += decision.granted
        actions += self._proceed()
        actions += self._fail(decision, awaited, now)
        if not self._requests:
            self._since = None
        if decision.commitment is not None:  # a member that is gone contributes no more
            self._ranks = {who: rank for who, rank in self._ranks.items() if who in self._members}
        if self.policy.mode == "sync":
            kept = not (decision.commitment or decision.granted or decision.failed)
        else:  # who comes new begins at the slowest clock: it must not be an earlier one when this coordinator is back
            kept = self.policy.now == self._kept_clock
        if not kept:
            self.keep()
        return actions

    def _proceed(self) -> list[Action]:
        """Tell those who may go on, unless servers could not take gradients of the next step yet."""
        actions: list[Action] = []
        if not self._granted or self.pauses.holding or not self._commits.may_go_on(replicated=self._replicated):
            return actions
        for grant in self._granted:
            member, request = self._members.get(grant.worker), self._requests.pop(grant.worker, None)
            if member is not None and request is not None:
                proceed = Proceed(request, grant.version, int(grant.counted), int(grant.left_out))
                actions.append(member.answer(request, proceed))
        self._granted.clear()
        return actions

    def _to_begin(self, missing: int) -> int:
        """Return how many workers the first step waits for, besides those that train already."""
        if not self._waits_for_all:
            return missing
        idle = len(self._attendance) - len(self._training)
        if missing + idle == 0:
            self._waits_for_all = False
            self.keep()
        return missing + idle

    def _commit(self, commitment: Commitment, now: float) -> list[Action]:
        # in the order of ranks: the sum does not depend on the order of arrival
        contributors = sorted(commitment.contributors, key=lambda c: (self._ranks.get(c[0], 0), c[0]))
        measure = self._clip_norm is not None and bool(contributors) and not commitment.left_out
        terms = terms_of(1.0, self._rates.at(commitment.step))
        examples = commitment.examples if self._counts_all else 0
        made = self._commits.add(
            commitment.step, contributors, terms, measure=measure, examples=examples, left_out=commitment.left_out
        )
        actions: list[Action] = [Send(copy.server.peer, commit) for copy, commit in made]
        if self.bringing.behind:
            actions = self._say_again()
        live = ((who, tuple(attempts)) for who, attempts in contributors if who in self._members)
        self._counted.update((who, (commitment.step, attempts)) for who, attempts in live)
        self._retry_due = now + COMMIT_RETRY_S
        return actions

    def _fail(self, decision: Decision, awaited: str, now: float) -> list[Action]:
        if not decision.failed:
            return []
        waited = now - (self._since if self._since is not None else now)
        error = DeadlineError(operation="step", seconds=round(waited, 3), waiting_for=awaited)
        actions: list[Action] = [Log("warning", str(error), "timeout", error=error.number)]
        for worker in decision.failed:
            member, request = self._members.get(worker), self._requests.pop(worker, None)
            if member is not None and request is not None:
                actions.append(member.fail(request, error))
        return actions

    def measured(self, message: Measured) -> list[Action]:
        """A server has said how large its part of a step's mean is; when all have, the step is applied."""
        total = self._commits.measured(message.epoch, message.step, message.squares)
        if total is None or self._clip_norm is None:
            return []
        self._commits.settle(terms_of(scale_to(self._clip_norm, total), self._rates.at(message.step)))
        self.keep()
        return self._say_again()

    def lacks(self, step: int) -> bool:
        """Whether a step that a server has applied was never committed, as far as is known."""
        committing = self.policy is not None and self.policy.mode == "sync" and not self.pauses.suspended
        return committing and step >= self.clock

    def confirmed(self, epoch: int, step: int) -> list[Action]:
        """A server has applied a step to its copy of a shard, and so have its backups."""
        self._commits.confirmed(epoch, step + 1)
        if self.settled:
            self._retry_due = None
        actions = self._proceed()
        if not self._requests:
            self._since = None
        return actions

    @property
    def settled(self) -> bool:
        """Whether every server has said that it has applied every step."""
        return self._commits.settled

    def waiting_for(self, missing: int) -> str:
        """Say whom those who have arrived wait for, and why."""
        if self.policy is None or not self._requests:
            return ""
        if why := self.pauses.why(waits=bool(self._granted) and self.settled):
            return why
        if self._commits.measuring:
            return f"{listed(self._commits.late(), MOST_NAMED)} to say how large the mean of the last step is"
        if self._blocked:
            return "a backup to take over from a server that was lost, and to get the gradients of the step again"
        if self._granted and not self.settled:
            return f"{listed(self._commits.late(), MOST_NAMED)}{' and its backups' * self._replicated} to have the step"
        awaited = [self._members[w] for w in self.policy.awaited() if w in self._members]
        texts = [listed([worker.title for worker in awaited[:MOST_NAMED]], MOST_NAMED, len(awaited))]
        texts += [not_joined(missing, len(self._attendance))] if missing else []
        to_begin = self._to_begin(missing)
        texts += [f"{counted(to_begin - missing, 'worker')} to call init"] if to_begin > missing else []
        return f"{', '.join(filter(None, texts)) or 'more gradients'}: {self.policy.why(to_begin)}"

    def awaited(self, now: float) -> tuple[float, list[MemberInfo]]:
        """Return for how long somebody has waited for the open step, and whom that waits for."""
        if self.policy is None or self._since is None or not self._requests:
            return 0.0, []
        return now - self._since, [self._members[who] for who in self.policy.awaited() if who in self._members]

    def slowest(self) -> Mapping[str, Any]:
        """Return who keeps the others waiting step after step; empty: nobody."""
        return self.delays.slowest(self._members)

    def next_deadline(self) -> float | None:
        """Return when `on_deadline` wants to be called."""
        policy = None if self._blocked or self.policy is None else self.policy.next_deadline()
        return min([due for due in (self._retry_due, policy) if due is not None], default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Send unconfirmed commits again, if that is due; `advance` lets the policy see the time."""
        if self._retry_due is None or now < self._retry_due:
            return []
        self._retry_due = now + COMMIT_RETRY_S
        return self._say_again()

    def status(self, missing: int, now: float) -> dict[str, Any]:
        """Return the state for the status."""
        if self.policy is None:
            return {}
        since = now if self._since is None else self._since
        told = {"waiting": self.waiting_for(missing), "since_s": round(now - since, 3)}
        return {"mode": self.policy.mode, **self.policy.status(), **told}

    def validate(self) -> None:
        """Assert the invariants."""
        here = set(self._members)
        assert {*self._requests, *self._paused, *self._told, *self._behind} <= here
        assert self._training == {who for who in self._ranks if who in here} <= set(self._attendance.here)
        assert set(self._commits.unconfirmed) <= set(self._commits.copies) or self.policy is None
        assert self.bringing.moving <= set(self.bringing.behind)
        assert set().union(*self.bringing.behind.values()) <= here
        if self.policy is not None:
            self.policy.validate()
