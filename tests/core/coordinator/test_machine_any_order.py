"""The coordinator in any order of events: several jobs, whose members do what they like."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.machines import Coordinator, exits_of, job, peer, sent
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Send
from zmqps.errors import JobEndedError, JobError

NAMES = ["s0", "s1", "s2", "w0", "w1", "o0", "w2.b", "w3.b", "o1.b"]
JOBS = ["default", "b", "c"]


def job_of(name: str) -> str:
    return name.partition(".")[2] or "default"


class AnyOrder(RuleBasedStateMachine):
    """Nodes do what they like, in any order: the coordinator answers, never raises, and forgets nobody who waits.

    What is done in one job never reaches the members of another, and no server keeps what is of no job any more.
    """

    names = st.sampled_from(NAMES)

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator(servers=2, workers=2, idle_timeout=30.0, lease=20.0)
        self.requests = itertools.count(1)
        self.lives = dict.fromkeys(NAMES, 0)
        self.waiting: dict[tuple[str, int], str] = {}
        self.kept: dict[str, set[int]] = {}  # by server: the epochs it has shards of
        self.ended = False

    @initialize(once=st.booleans())
    def begin(self, once: bool) -> None:
        self.coordinator = Coordinator(servers=2, workers=2, idle_timeout=30.0, lease=20.0, once=once)

    def now(self, name: str) -> str:
        """Return how a node is called in its present life."""
        node, dot, job_name = name.partition(".")
        return f"{node}-{self.lives[name]}{dot}{job_name}"

    @property
    def here(self) -> dict[str, str]:
        """The members, and the jobs they are there for."""
        return {got.hello.name: got.job for got in self.coordinator.machine.membership.members.values()}

    def take(self, name: str, message) -> None:  # type: ignore[no-untyped-def]
        before = self.here
        actions = self.coordinator.take(name, message)
        self.note(actions)
        if name[0] != "s" and self.coordinator.machine.ending is None:
            self.check_reach(actions, name, job_of(name), before)

    def check_reach(self, actions, asker: str, job_name: str, before: dict[str, str]) -> None:  # type: ignore[no-untyped-def]
        reached = {action.peer[1:].decode() for action in actions if isinstance(action, Send)} - {asker}
        assert {(before | self.here)[name] for name in reached} <= {"", job_name}

    def note(self, actions) -> None:  # type: ignore[no-untyped-def]
        for action in actions:
            message = getattr(action, "message", None)
            name = action.peer[1:].decode() if message else ""
            if isinstance(message, m.Assign):
                self.kept.setdefault(name, set()).add(message.epoch)
            elif isinstance(message, m.Error) and message.code == JobEndedError.code:
                self.waiting = {key: what for key, what in self.waiting.items() if key[0] != name}
            elif isinstance(message, (m.Released, m.Error)) or (isinstance(message, m.Job) and not message.load):
                self.waiting.pop((name, message.request), None)
        self.ended = self.ended or bool(exits_of(actions))

    @rule(name=names)
    def join(self, name: str) -> None:
        if self.now(name) not in self.here:
            self.kept.pop(self.now(name), None)  # a server that had left took what it kept with it
        self.note(self.coordinator.join(self.now(name)))

    @rule(name=names)
    def restart(self, name: str) -> None:
        self.lives[name] += 1
        self.note(self.coordinator.join(self.now(name)))

    @rule(name=names, spec=st.sampled_from([job("a"), job("b"), job("a", workers=1), None]))
    def init(self, name: str, spec) -> None:  # type: ignore[no-untyped-def]
        request, name = next(self.requests), self.now(name)
        self.waiting[name, request] = "init"
        self.take(name, m.Init(request, spec.to_wire() if spec else {}))

    @rule(name=names, barrier=st.sampled_from(["x", "y"]))
    def enter(self, name: str, barrier: str) -> None:
        name = self.now(name)
        if (name, barrier) in {(who, what) for (who, _), what in self.waiting.items()}:
            return  # a script enters a barrier once at a time
        request = next(self.requests)
        self.waiting[name, request] = barrier
        self.take(name, m.Enter(request, barrier))

    @rule(name=names, epoch=st.integers(0, 4), loaded=st.integers(0, 1))
    def ready(self, name: str, epoch: int, loaded: int) -> None:
        self.take(self.now(name), m.Ready(epoch, loaded))

    @rule(name=names, job_name=st.sampled_from(JOBS))
    def build(self, name: str, job_name: str) -> None:
        """All servers have built and loaded what they were asked to."""
        run = self.coordinator.machine.runs.get(job_name)
        for copy in list(run.startup.copies) if run else ():
            self.take(copy.server.hello.name, m.Ready(copy.epoch, 1))

    @rule(name=names, epoch=st.integers(0, 4))
    def fail(self, name: str, epoch: int) -> None:
        error = JobError("no")
        self.take(self.now(name), m.Error(epoch, error.code, "no", error.facts()))

    @rule(name=names, epoch=st.integers(0, 4))
    def discarded(self, name: str, epoch: int) -> None:
        name = self.now(name)
        self.take(name, m.Discarded(epoch))
        if not any(epoch in run.startup.copies.by_epoch for run in self.coordinator.machine.runs.values()):
            self.kept.get(name, set()).discard(epoch)

    @rule(name=st.sampled_from([*NAMES, "anybody"]), job_name=st.sampled_from(JOBS))
    def end_job(self, name: str, job_name: str) -> None:
        name = self.now(name) if name in NAMES else name
        before = self.here
        actions = self.coordinator.take(name, m.EndJob(next(self.requests), job_name))
        self.note(actions)
        if self.coordinator.machine.ending is None:  # else the cluster was there for this job: all are told
            self.check_reach(actions, name, job_name, before)
        assert len([*sent(actions, m.JobEnded, peer(name)), *(e for e in sent(actions, m.Error) if e.request)]) == 1
        if name == "anybody":  # a member is no operator
            assert job_name not in self.coordinator.machine.runs

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data) -> None:  # type: ignore[no-untyped-def]
        name, request = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[name, request]
        self.take(name, m.Withdraw(request))

    @rule(name=names, reason=st.sampled_from(["finished", "closed"]))
    def leave(self, name: str, reason: str) -> None:
        name = self.now(name)
        self.take(name, m.Leave(reason))
        self.waiting = {key: what for key, what in self.waiting.items() if key[0] != name}

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]), alive=st.sets(names))
    def wait(self, seconds: float, alive: set[str]) -> None:
        self.note(self.coordinator.wait(self.coordinator.now + seconds, *sorted(map(self.now, alive))))

    @invariant()
    def nobody_who_waits_is_forgotten(self) -> None:
        parked = set()
        for run in self.coordinator.machine.runs.values():
            parked |= {(member.hello.name, request) for (_, request), (member, _) in run.startup.parked.items()}
            for barrier in run.barriers.by_name.values():
                parked |= {(run.members[who].hello.name, r) for who, r in barrier.waiters.items()}
        assert {key for key in self.waiting if key[0] in self.here} <= parked

    @invariant()
    def no_barrier_waits_for_nobody(self) -> None:
        for run in self.coordinator.machine.runs.values():
            assert all(run.barriers.waiting_for(barrier, run.num_missing) for barrier in run.barriers.by_name.values())

    @invariant()
    def no_server_keeps_what_is_of_no_job(self) -> None:
        machine = self.coordinator.machine
        epochs = {epoch for run in machine.runs.values() for epoch in run.startup.copies.by_epoch}
        for server in machine.servers:
            awaited = machine.erasures._awaited.get(server.incarnation)
            asked = set(awaited.jobs) if awaited else set()
            assert self.kept.get(server.hello.name, set()) <= epochs | asked

    @invariant()
    def no_job_is_kept_that_cannot_go_on(self) -> None:
        for run in self.coordinator.machine.runs.values():
            assert run.members or (
                run.startup.ready and run.lost_shard is None and run.occupancy.idle_since is not None
            )

    @invariant()
    def the_cluster_is_idle_when_nobody_trains(self) -> None:
        machine = self.coordinator.machine
        idle = not any(run.members for run in machine.runs.values())
        assert machine.ending is not None or (machine.cluster_end.next_deadline() is not None) == idle

    @invariant()
    def deadlines_lie_ahead(self) -> None:
        due = self.coordinator.machine.next_deadline()
        assert self.ended or due is None or due >= self.coordinator.now - 1e-9


AnyOrder.TestCase.settings = settings(max_examples=30, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase
