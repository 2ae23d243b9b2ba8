"""One job under way: its workers, its start, its steps, barriers and data sets, until its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from zmqps.core.coordinator.attendance import Attendance, unnamed
from zmqps.core.coordinator.barrier import Barriers
from zmqps.core.coordinator.data import DataSets
from zmqps.core.coordinator.losses import Losses
from zmqps.core.coordinator.membership import MemberInfo, Roster
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.reach import check_in_reach, complaints
from zmqps.core.coordinator.spares import Kept, Spares, waiting_for
from zmqps.core.coordinator.startup import Beginning, Startup
from zmqps.core.coordinator.steps import Steps
from zmqps.core.coordinator.waits import Waiter, Waits
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages import Arrive, Committed, Enter, Init, Ready, Take, Waiting, Withdraw
from zmqps.errors import ConfigurationError, PSError, listed

#: How many waits at barriers, and for data, the status and the log show.
MOST_WAITS = 8


class JobRun:
    """What the coordinator knows of one job.

    Parameters
    ----------
    name
        The job's.
    options
        The coordinator's.
    servers
        The cluster's.
    new_epoch
        Returns a number that no job has had.
    before
        How the job that had this name before has ended; empty where there was none.
    root
        The coordinator's secret.
    """

    def __init__(
        self,
        name: str,
        options: CoordinatorOptions,
        servers: Roster,
        new_epoch: Callable[[], int],
        before: str,
        root: bytes,
    ) -> None:
        self.name = name
        self.members: dict[bytes, MemberInfo] = {}
        self.workers = Roster()
        self.observers = Roster()
        self.lost_shard: PSError | None = None  # a server of this job is gone
        self.idle_since: float | None = None  # since when nobody is there
        self._before = before
        self._options = options
        self._servers = servers
        self._all_joined = 0  # the largest number of workers that was expected and came
        self._left_alone = False  # its workers have gone, and no other one has begun since
        self._training: set[bytes] = set()  # workers that have begun
        self._missed: set[bytes] = set()  # those of them that count: if they are lost the job has lost a worker
        self._returned: set[bytes] = set()  # workers that came to it then and have not begun yet
        self.attendance = Attendance()
        self.spares = Spares(self.members)
        self.losses = Losses()
        self.steps = Steps(self.members, self.attendance)
        self.startup = Startup(
            name, options.servers, options.slice_nbytes, new_epoch, self._begin, self._count,
            lambda: self.num_workers, options.workers, root,
        )  # fmt: skip
        self.barriers = Barriers(self.members, self._awaited, self.steps.pause, self.steps.resume)
        self.data = DataSets(self.members, self._lasts, self.steps.pause, self.steps.resume)
        self.waits = Waits(self._waiters, self._anybody_waits)

    @property
    def expected(self) -> int | None:
        """How many workers the job expects; None: whoever comes."""
        job = self.startup.job
        return self._options.workers if job is None or job.workers is None else job.workers

    @property
    def num_workers(self) -> int:
        """How many workers the job counts on: as many as expected, less those who were lost, or as many as are here."""
        if self.expected is None:
            return len(self.workers)
        return max(self.expected - len(self.losses), len(self.attendance))

    @property
    def num_missing(self) -> int:
        """How many of the expected workers do not count yet; none, once all did."""
        expected = self.expected or 0
        return 0 if expected <= self._all_joined else max(0, expected - self.attendance.num_joined)

    def _awaited(self) -> Roster | Attendance:
        """Return whom barriers wait for: who counts or, where whoever comes trains, all workers that are here."""
        return self.workers if self.expected is None else self.attendance

    @property
    def finished(self) -> bool:
        """Whether nobody is there any more and all is done.

        Those who were expected came, one has finished, and all servers have applied every step.
        """
        done = not self.members and self.attendance.num_finished > 0 and not self.num_missing
        return done and self.lost_shard is None and self.steps.settled

    @property
    def vacant(self) -> bool:
        """Whether there is nothing to keep: nobody is there and nothing was placed, or a part of it is lost."""
        return not self.members and (self.startup.placement is None or self.lost_shard is not None)

    # --- members -------------------------------------------------------------------------------

    def join(self, member: MemberInfo, now: float) -> list[Action]:
        """A worker or observer has joined."""
        if self._left_alone and member.role == "worker":
            self._returned.add(member.incarnation)
        self.idle_since = None
        self.members[member.incarnation] = member
        return self.move_on(now)

    def depart(self, member: MemberInfo, how: str, now: float, error: PSError | None = None) -> list[Action]:
        """A worker or observer has gone; ``error`` is what those get who wait for it."""
        awaited = member.role == "worker" and (self.expected is None or member.incarnation in self.attendance)
        actions = self.barriers.lose(member, error) if error is not None and awaited else []
        self.barriers.withdraw(member)
        del self.members[member.incarnation]
        if member.incarnation in self._missed:
            self.losses.left(member, how)
            self._missed.remove(member.incarnation)
        self._returned.discard(member.incarnation)
        self.attendance.leave(member, how)
        self.spares.take(member)
        self.steps.leave(member)
        actions += self.startup.withdraw(member.incarnation)
        actions += self.data.leave(member, finished=how == "finished")
        if not self.members:
            self.idle_since = now
        trained = member.incarnation in self._training
        self._training.discard(member.incarnation)
        if self.startup.ready and not self._training and (trained or not len(self.workers)):
            self._left_alone = True  # who is there already, as in a notebook's next cell, has come to it, too
            self._returned |= {worker.incarnation for worker in self.workers}
        return actions + self.move_on(now)

    def move_on(self, now: float) -> list[Action]:
        """Do what may have become possible: called when somebody has come or gone."""
        expected = self.expected or 0
        if self.attendance.num_joined >= expected > self._all_joined:
            self._all_joined = expected
        actions = [*self._place(), *self._fill(now)]
        actions += self.steps.advance(self.num_missing, now)
        actions += self.barriers.release(self.num_missing)
        self.waits.tell_soon(now)
        return actions

    def _place(self) -> list[Action]:
        """Place the job as soon as all servers are here."""
        actions = self.startup.place(list(self._servers))
        if actions and self.startup.job is not None:
            job, epoch, servers = self.startup.job, self.startup.epoch, self.startup.servers
            self.steps.start(job, epoch, servers, waits_for_all=self.expected is not None)
        return actions

    def _begin(self, member: MemberInfo) -> Beginning:
        """Say what a member begins with, now that the job can be trained."""
        beginning = Beginning(self.steps.begin(member), self.num_workers, self._note(member))
        if member.role == "worker":
            self._training.add(member.incarnation)
            self._returned.discard(member.incarnation)
            self._left_alone = False
            if self.expected is None or member.incarnation in self.attendance:
                self._miss(member)
        return beginning

    def _miss(self, member: MemberInfo) -> None:
        """A worker that counts has begun."""
        if member.incarnation not in self._missed:  # who was expected anyway comes in nobody's place
            self.losses.began(member, by_rank=(self.expected or 0) <= self._all_joined)
            self._missed.add(member.incarnation)

    # --- who counts ----------------------------------------------------------------------------

    def _count(self, member: MemberInfo, named: bool, first: bool) -> list[Action]:
        """Count a worker that names the job, if there is a place; one that takes it as it is, if whoever comes counts.

        Whoever is the first to name it has begun another job than those that could not be started, for which
        others may have been counted.
        """
        actions = self._begin_anew() if first else []
        if named and self.attendance.name(member, self.expected):
            if self.expected is not None:
                self.workers.promote(member, self.expected, self.attendance.here)
        elif self.expected is None:
            self.attendance.count(member)
        elif named and member.role == "worker":
            actions.append(Log("info", f"{member.title} is a spare: job {self.name!r} has the workers that it expects"))
        return actions

    def _begin_anew(self) -> list[Action]:
        self.data.begin_anew()
        for member in self.members.values():
            member.named = False
        if self.expected is None:
            return []
        error, everybody = unnamed(self.name, self.expected), list(self.attendance)
        self.attendance.begin_anew()
        self._all_joined = 0
        told = self.spares.fail(error)
        for member in everybody:
            told += self.barriers.dismiss(member, error)
        return told

    def _lasts(self, member: MemberInfo) -> bool:
        """Whether what a member says of the data goes for others: it is one of those the job is for."""
        return member.named if self.expected is None else member.incarnation in self.attendance

    def _keep(self, member: MemberInfo, message: Kept) -> list[Action] | None:
        """Return None for a worker that takes part; keep what a spare asks for, and refuse others.

        Raises
        ------
        JobError
            So many workers are expected, and this one has not named the job.
        """
        if self.expected is None or (self.startup.job is None and len(self.attendance) < self.expected):
            self.attendance.count(member)  # where there is no job yet: until somebody names one
        if self.expected is None or member.incarnation in self.attendance:
            return None
        if member.incarnation not in self.attendance.spares:
            raise unnamed(self.name, self.expected)
        self.spares.keep(member, message)
        return [Send(member.peer, Waiting(message.request, waiting_for(self.expected)))]

    def _fill(self, now: float) -> list[Action]:
        """Let spares take the places that are free, and do what they have asked for."""
        actions: list[Action] = []
        filled = self.attendance.fill(self.expected)
        places = (self.expected or 0) - len(self.attendance) + len(filled)
        for i, member in enumerate(filled, 1):
            actions.append(Log("info", f"{member.title} is no spare any more: it counts in job {self.name!r}"))
            if begun := member.incarnation in self._training:
                self._miss(member)
                self.steps.begin(member)
            self.losses.taken(member, places - i, began=begun)
        for member in filled:
            for message in self.spares.take(member):
                try:
                    actions += self._take_part(member, message, now)
                except PSError as error:
                    actions.append(member.fail(message.request, error))
        return actions

    def _take_part(self, member: MemberInfo, message: Kept, now: float) -> list[Action]:
        if isinstance(message, Arrive):
            return self.arrive(member, message, now)
        return self.enter(member, message, now) if isinstance(message, Enter) else self.take(member, message, now)

    def _note(self, member: MemberInfo) -> str:
        if member.incarnation in self.attendance.spares:
            return (
                f"the job {self.name!r} has the workers that it expects ({self.expected}): this one is a spare, and "
                "takes the place of the first that leaves or is lost; its steps, barriers and data wait until then"
            )
        if member.incarnation in self._returned:
            return (
                f"the job {self.name!r} goes on with what was trained before its workers left, not with new initial "
                f"values; to begin anew: worker.finish() at its end, or zmqps jobs end {self.name}"
            )
        if self._before and member.title == self.startup.owner:
            return f"the job {self.name!r} begins anew from the initial values given; the one before: {self._before}"
        return ""

    def replaceable(self, member: MemberInfo, message: Init) -> bool:
        """Whether a worker that wants another job than the one that was left alone may begin its own under that name.

        Nobody may be there who looks at what was trained, or has begun to train it again.

        Raises
        ------
        PSError
            The job that it wants could not begin.
        """
        ours = self.startup.job
        unwanted = self._left_alone and self._returned == set(self.members) and not self._anybody_waits()
        if not unwanted or member.role != "worker" or not message.job or ours is None:
            return False
        job = JobSpec.from_wire(message.job)
        job.check_startable(self._options.workers if job.workers is None else job.workers)
        return not ours.is_same(job)

    # --- requests ------------------------------------------------------------------------------

    def init(self, member: MemberInfo, message: Init, now: float) -> list[Action]:
        """A worker names what it trains, or a member asks for it."""
        self._check_shards()
        check_in_reach(member.role, member.origin, self._servers)
        actions = self.startup.init(member, message)
        actions += self.move_on(now)
        if (member.incarnation, message.request) in self.startup.parked:
            text = self.startup.waiting_for(list(self._servers))
            actions.append(Send(member.peer, Waiting(message.request, text)))
        return actions

    def arrive(self, member: MemberInfo, message: Arrive, now: float) -> list[Action]:
        """A worker has completed a step."""
        self._check_shards()  # no step can be applied to the whole model any more
        if (kept := self._keep(member, message)) is not None:
            return kept
        self.steps.arrive(member, message, now)
        actions = self.steps.advance(self.num_missing, now)
        self.waits.tell_soon(now)
        return actions

    def take(self, member: MemberInfo, message: Take, now: float) -> list[Action]:
        """A worker asks for a range of a data set."""
        if self.startup.job is not None and self.startup.job.deterministic:
            raise ConfigurationError("who takes which range depends on who asks first: use zmqps.data.split")
        if (kept := self._keep(member, message)) is not None:
            return kept
        self.waits.tell_soon(now)
        return [*self.data.take(member, message), *self.steps.advance(self.num_missing, now)]

    def enter(self, member: MemberInfo, message: Enter, now: float) -> list[Action]:
        """A worker enters a barrier."""
        if (kept := self._keep(member, message)) is not None:
            return kept
        actions = self.barriers.enter(member, message, self.num_missing)
        # first the step that is complete without those who wait: behind the barrier it would wait for them again
        actions += self.steps.advance(self.num_missing, now)
        actions += self.barriers.release(self.num_missing)
        self.waits.tell_soon(now)
        return actions

    def withdraw(self, member: MemberInfo, message: Withdraw, now: float) -> list[Action]:
        """A member no longer waits for a request."""
        self.barriers.withdraw(member, message.request)
        self.data.withdraw(member, message.request)
        self.spares.withdraw(member, message.request)
        self.waits.tell_soon(now)
        return self.startup.withdraw(member.incarnation, message.request)

    def _check_shards(self) -> None:
        if self.lost_shard is not None:
            raise self.lost_shard.again()

    # --- servers -------------------------------------------------------------------------------

    def is_on(self, server: MemberInfo) -> bool:
        """Whether a server has a shard of this job."""
        return any(other.incarnation == server.incarnation for other in self.startup.servers)

    def progress(self, server: MemberInfo, message: Ready, now: float) -> list[Action]:
        """A server has built its shard, or has all its values."""
        self.waits.tell_soon(now)
        return self.startup.progress(server, bool(message.loaded))

    def committed(self, server: MemberInfo, message: Committed) -> None:
        """A server has applied a step."""
        self.steps.confirmed(server, message.step)

    def fail(self, error: PSError) -> list[Action]:
        """A server could not build its shard: tell every parked init; a job that runs already is not touched."""
        if self.startup.ready:
            return []
        self.steps.stop()
        return self.startup.fail(error)

    def lose_server(self, server: MemberInfo, error: PSError) -> list[Action]:
        """A server has gone with a shard of this job."""
        if not self.startup.ready:
            return self.fail(error)
        self.lost_shard = error
        waiters = list(self.steps.waiters(self.num_missing))
        self.steps.stop()
        self.steps.leave(server)
        told = [*(worker.fail(n, error) for worker, n, _ in waiters), *self.spares.fail(error, arrivals_only=True)]
        return [Log("error", f"job {self.name!r}: {error}"), *told]

    # --- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        dues = [self.steps.next_deadline(), self.waits.next_deadline(), self._lease_ends_at]
        return min((due for due in dues if due is not None), default=None)

    @property
    def _lease_ends_at(self) -> float | None:
        return None if self.idle_since is None or not self._options.lease else self.idle_since + self._options.lease

    def expired(self, now: float) -> bool:
        """Whether nobody has been there for so long that the job is not kept any more."""
        return self._lease_ends_at is not None and now >= self._lease_ends_at

    def on_deadline(self, now: float) -> list[Action]:
        """Do what is due."""
        due = self.steps.next_deadline()
        actions = self.steps.on_deadline(self.num_missing, now) if due is not None and now >= due else []
        return actions + self.waits.on_deadline(now)

    # --- what others may look at ---------------------------------------------------------------

    def _waiters(self) -> Iterator[Waiter]:
        missing = self.num_missing
        yield from self.startup.waiters(list(self._servers))
        yield from self.barriers.waiters(missing)
        yield from self.steps.waiters(missing)
        yield from self.data.waiters()
        yield from self.spares.waiters(self.expected or 0)

    def _anybody_waits(self) -> bool:
        in_start, at_barrier = self.startup.parked, self.barriers.by_name
        return bool(in_start or at_barrier or self.steps.anybody_waits or self.data.anybody_waits or self.spares)

    def waiting(self) -> list[str]:
        """Return in words what is waited for: a few of many waits."""
        missing, startup = self.num_missing, self.startup
        unreached = list(complaints([*self.workers, *self.observers]))
        if startup.ready:
            barriers, waits_for = self.barriers.by_name, self.barriers.waiting_for
            texts = [
                f"barrier {b.name!r} waits for {waits_for(b, missing)}" for b in islice(barriers.values(), MOST_WAITS)
            ]
            if len(barriers) > MOST_WAITS:
                texts.append(f"{len(barriers) - MOST_WAITS} more barriers are waited at")
            step = self.steps.waiting_for(missing)
            texts += [f"step waits for {step}"] if step else []
            texts += [f"{who.title} waits for {say()}" for who, _, say in islice(self.data.waiters(), MOST_WAITS)]
            return unreached + texts
        if startup.parked:
            return [*unreached, f"init waits for {startup.waiting_for(list(self._servers))}"]
        if startup.job is None:
            return [] if self.only_observed else ["waiting for a worker's init"]
        return unreached

    @property
    def only_observed(self) -> bool:
        """Whether nobody has begun it, or is there to: as where the tasks of ``zmqps run`` meet."""
        return self.startup.job is None and not self.workers

    @property
    def state(self) -> str:
        """In a word, or with what went wrong."""
        if self.lost_shard is not None:
            return f"failed: {self.lost_shard}"
        if not self.startup.ready:
            return "starting"
        return "training" if self.members else "idle"

    def status(self, servers: Sequence[MemberInfo], now: float) -> dict[str, Any]:
        """Return the state for the status."""
        job = self.startup.status()
        epoch = str(self.startup.epoch)
        return {
            "state": self.state,
            "mode": job.get("mode", ""),
            "epoch": self.startup.epoch,
            "workers": self.num_workers,
            "observers": len(self.observers),
            "lost": self.losses.text,
            "idle": listed([self._idle(w) for w in self.workers if w.incarnation not in self.attendance], 8),
            "idle_s": 0.0 if self.idle_since is None else round(now - self.idle_since, 3),
            "waiting": self.waiting(),
            "job": dict(job),
            "steps": self.steps.status(self.num_missing, now),
            "data": self.data.status(),
            "servers": {server.hello.name: dict(server.counters_of.get(epoch, {})) for server in servers},
        }

    def _idle(self, worker: MemberInfo) -> str:
        return f"{'spare ' * (worker.incarnation in self.attendance.spares)}{worker.title}"

    def validate(self) -> None:
        """Assert the invariants."""
        self.spares.validate(self.attendance.spares)
        assert set(self.attendance.here) <= set(self.members)
        assert not set(self.attendance.here) & set(self.attendance.spares)
        assert self._missed <= self._training
        self.barriers.validate()
        self.data.validate()
        self.steps.validate()
        assert {incarnation for incarnation, _ in self.startup.parked} <= set(self.members)
        assert not (self.startup.ready and self.startup.parked)
        assert {m.incarnation for roster in (self.workers, self.observers) for m in roster} == set(self.members)
        assert all(member.job == self.name for member in self.members.values())
        assert self._returned <= set(self.members)
