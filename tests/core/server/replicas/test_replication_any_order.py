"""Copies of a shard in whatever order things happen: after a promotion nothing is missing that was acknowledged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.machines import identity, job, make_shard
from tests.core.server.copies import LEADER, Copies, Node, pull, push
from tests.core.server.scarcity import ScarceHost, Scarcity
from tests.simulator.jobs.training import ReferenceRules
from zmqps.core.protocol.messages import Ack, Commit, Committed, Error, Leading, Push, Values
from zmqps.core.server.shard import Shard
from zmqps.errors import DeposedError, ServerMemoryError
from zmqps.optim import OptimizerSpec, adam, sgd

WORKERS = ("v", "w")
SLICES = 4
BACKUPS = {"b": 2, "c": 3}
SETS = st.sets(st.integers(0, SLICES - 1), min_size=1)


def spec(optimizer: Any, **options: Any) -> Any:
    return replace(job(*"klmn", **options), optimizer=optimizer.to_wire())


class Links(RuleBasedStateMachine):
    """A leader, up to two backups, and links that break."""

    copies: Copies
    optimizer: Any = sgd(1.0)
    options: dict[str, Any] = {}  # noqa: RUF012
    make: Any = staticmethod(make_shard)

    def __init__(self) -> None:
        super().__init__()
        self.backups: list[str] = []
        self.generation = 1
        self.promoted = ""

    @initialize(backups=st.sampled_from([(), ("b",), ("b", "c")]), filled=st.sampled_from([True, True, False]))
    def begin(self, backups: tuple[str, ...], filled: bool) -> None:
        self.copies = Copies(spec(self.optimizer, **self.options), make=self.make)
        self.backups = list(backups)
        self.copies.begin(*[(name, BACKUPS[name]) for name in backups])
        for worker in WORKERS:
            self.copies.join(worker)
        if filled:
            self.copies.settle()

    @rule(numbers=st.lists(st.integers(0, 3), min_size=1, max_size=8))
    def deliver(self, numbers: list[int]) -> None:
        """Messages arrive: each the oldest of some wire."""
        for number in numbers:
            if self.copies.busy:
                self.copies.deliver(self.copies.busy[number % len(self.copies.busy)])

    @rule()
    def settle(self) -> None:
        self.copies.settle()

    @rule(
        what=st.sampled_from(["lose", "lose its answer", "break", "cut", "mend", "pause", "remove"]),
        name=st.sampled_from("bbc"),
    )
    def trouble(self, what: str, name: str) -> None:
        """A message is lost, for there was no memory for it; a connection breaks; time passes, and nothing arrives."""
        if what.startswith("lose"):
            wire = ("p", name) if what == "lose" else (name, "p")
            if self.copies.wires.get(wire):
                self.copies.wires[wire].popleft()
        elif what == "break":
            self.copies.cut("p", name)
            self.copies.mend("p", name)
        elif what == "cut":
            self.copies.cut("p", name)
        elif what == "mend":
            self.copies.mend("p", name)
        elif what == "pause":
            self._pause(4.0 if name == "b" else 0.2)
        elif what == "remove" and not self.promoted and len(self.backups) > 1:
            self.backups.pop()
            self._retarget()

    @rule()
    @precondition(lambda self: not self.promoted and len(self.backups) < 2)
    def add(self) -> None:
        for name in "bc":
            if name not in self.backups and BACKUPS[name] not in self.copies.nodes[name].machine.tenants:
                self.before_assign()
                self.copies.assign_backup(name, BACKUPS[name])
                self.backups.append(name)
                self._retarget()
                return

    def before_assign(self) -> None:
        """A copy is about to be built."""

    def _pause(self, seconds: float) -> None:
        """Time passes; nothing arrives."""
        self.copies.now += seconds
        for name in "pbc":
            node = self.copies.nodes[name]
            due = node.machine.next_deadline()
            if due is not None and due <= self.copies.now:
                self.copies.carry(node, node.machine.on_deadline(self.copies.now))

    def _retarget(self) -> None:
        self.generation += 1
        self.copies.retarget(*[(name, BACKUPS[name]) for name in self.backups], generation=self.generation)

    @property
    def whole(self) -> list[tuple[Node, int]]:
        """The backups that have everything."""
        nodes = [(self.copies.nodes[name], BACKUPS[name]) for name in self.backups]
        tenants = [(node, node.machine.tenants[epoch], epoch) for node, epoch in nodes]
        return [(node, epoch) for node, tenant, epoch in tenants if tenant.follows and tenant.built().loaded]

    @rule()
    @precondition(lambda self: not self.promoted and self.whole)
    def promote(self) -> None:
        """The leader is given up, whether it is gone or not."""
        if self.whole:
            node, epoch = self.whole[0]
            self.promoted = node.name
            self.generation += 1
            self.copies.promote(node.name, epoch, self.generation)
            assert len(self.copies.told(node.name, Leading)) == 1
            self.promoted_now()

    def promoted_now(self) -> None:
        """The workers are told."""

    @invariant()
    def no_backup_is_broken(self) -> None:
        if not hasattr(self, "copies"):
            return
        for name in self.backups:
            backup = self.copies.nodes[name].machine.replication.backups.get(BACKUPS[name])
            assert backup is None or backup.broken is None

    def end(self) -> None:
        for name in "bc":
            self.copies.mend("p", name)
        self.copies.wait(60.0)


class Asynchronous(Links):
    """Workers push when they like; a push is acknowledged at once, but for the backups."""

    def __init__(self) -> None:
        super().__init__()
        self.pushes: dict[str, list[Push]] = {worker: [] for worker in WORKERS}
        self.asked: dict[str, list[int]] = {worker: [] for worker in WORKERS}
        self.requests = 1000
        self.history: dict[Any, list[Any]] = {}  # what the leader was after each push, and what it remembered then

    @rule(pushes=st.lists(st.tuples(st.sampled_from(WORKERS), SETS, st.integers(-8, 8), st.booleans()), max_size=4))
    def push(self, pushes: list[tuple[str, set[int], int, bool]]) -> None:
        for worker, slices, value, reply in pushes:
            self._push(worker, slices, value, int(reply))

    def _push(self, worker: str, slices: set[int], value: int, reply: int) -> None:
        message = push(len(self.pushes[worker]) + 1, float(value), *sorted(slices), reply=reply)
        self.pushes[worker].append(message)
        self.asked[worker].append(message.request)
        self.copies.push(worker, message)
        self._note()

    @rule(worker=st.sampled_from(WORKERS), number=st.integers(0, 99))
    def push_again(self, worker: str, number: int) -> None:
        if self.pushes[worker]:
            self.copies.push(worker, self.pushes[worker][number % len(self.pushes[worker])])
            self._note()

    @rule(worker=st.sampled_from(WORKERS))
    def pull(self, worker: str) -> None:
        self.requests += 1
        self.asked[worker].append(self.requests)
        self.copies.from_worker("p", worker, pull(self.requests, 0, 1))

    def _note(self) -> None:
        node = self.copies.nodes["p"]
        of_state, remembered = self.history.setdefault(node.state(LEADER), []), node.remembered(LEADER)
        if not of_state or of_state[-1] != remembered:
            of_state.append(remembered)

    def acknowledged(self, server: str = "p") -> set[tuple[bytes, int]]:
        """Return the pushes that workers know to be applied."""
        found = set()
        for worker in WORKERS:
            who = identity("worker", worker).incarnation
            for answer in self.copies.answers(worker, server):
                if isinstance(answer, (Ack, Values)) and answer.request < 1000:
                    found.add((who, answer.request - 100))
        return found

    @invariant()
    def what_is_acknowledged_all_backups_have(self) -> None:
        if not hasattr(self, "copies"):
            return
        self._note()
        acknowledged = self.acknowledged()
        for node, epoch in self.whole:
            state, remembered = node.state(epoch), node.remembered(epoch)
            assert remembered in self.history.get(state, ()), "bit for bit what the leader was"
            assert acknowledged <= set(remembered)

    @invariant()
    def answers_come_in_the_order_of_the_requests(self) -> None:
        if not hasattr(self, "copies"):
            return
        for worker in WORKERS:
            answers = [a for a in self.copies.answers(worker) if not isinstance(a, Error)]
            first = list(dict.fromkeys(answer.request for answer in answers))  # type: ignore[attr-defined]
            assert first == [request for request in self.asked[worker] if request in set(first)]

    def teardown(self) -> None:
        if not hasattr(self, "copies"):
            return
        if not self.promoted:
            self.end()
            state = self.copies.nodes["p"].state(LEADER)
            assert all(self.copies.nodes[name].state(BACKUPS[name]) == state for name in self.backups)
            assert len(self.whole) == len(self.backups)
            every = {(identity("worker", w).incarnation, p.seq) for w in WORKERS for p in self.pushes[w]}
            assert self.acknowledged() == every
            assert self.copies.nodes["p"].machine.replication.unconfirmed.nbytes == 0
            return
        self._go_on_with_the_promoted_copy()

    def _go_on_with_the_promoted_copy(self) -> None:
        """Workers send what was not acknowledged, and more: each push counts once."""
        name, epoch = self.promoted, BACKUPS[self.promoted]
        before = self.acknowledged()
        self.end()
        late = self.acknowledged() - before
        assert late <= set(self.copies.nodes[name].remembered(epoch)), "two leaders never both acknowledge"
        for worker in WORKERS:
            self.copies.join(worker, name, epoch)
            for message in self.pushes[worker]:
                self.copies.push(worker, replace(message, epoch=epoch), name)
        expected = np.arange(8 * SLICES, dtype=np.float32)
        for worker in WORKERS:
            for message in self.pushes[worker]:
                for index, _, _ in message.parts:
                    value = np.asarray(message.payload[0]).view(np.float32)[0]
                    expected[8 * index : 8 * index + 8] -= value
        shard = self.copies.nodes[name].shard(epoch)
        if self.optimizer == sgd(1.0):
            assert np.concatenate([state.value for state in shard.slices]).tolist() == expected.tolist()
        for worker in WORKERS:
            errors = [a for a in self.copies.answers(worker) if isinstance(a, Error)]
            assert {error.code for error in errors} <= {DeposedError.code, ServerMemoryError.code}


class WithSlots(Asynchronous):
    """The same with an optimizer that keeps two arrays and a step count for each parameter."""

    optimizer = adam(0.1)


class ScarceCopies(ScarceHost):
    """Memory that also fails where a copy is made for a backup."""

    def copied(self, array: Any) -> Any:
        self.scarcity.tick()
        return super().copied(array)


class Scarce(Asynchronous):
    """Servers lack the memory for something now and then; what they refuse the workers send again."""

    optimizer = adam(0.1)

    def __init__(self) -> None:
        super().__init__()
        self.scarcity = Scarcity()

    def make(self, job: Any, where: Any, index: int, room: Any = None) -> Shard:
        rules = ReferenceRules(OptimizerSpec.from_wire(job.optimizer))
        return Shard(where, index, rules, memory=ScarceCopies(self.scarcity))

    @rule(requests=st.integers(0, 6))
    def run_short(self, requests: int) -> None:
        self.scarcity.fail_after(requests)

    def answers_come_in_the_order_of_the_requests(self) -> None:
        """One that was refused comes again behind others."""

    def before_assign(self) -> None:
        self.scarcity.fail_after(None)  # what could not be built is the coordinator's matter

    def end(self) -> None:
        self.scarcity.fail_after(None)
        super().end()
        if not self.promoted:
            for worker in WORKERS:
                for message in self.pushes[worker]:
                    self.copies.push(worker, message)
            super().end()


class Synchronous(Links):
    """Two workers bring gradients for each step, which the coordinator has committed."""

    optimizer = adam(0.1)
    options = {"mode": "sync", "retain": 1}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.reference = Copies(spec(self.optimizer, **self.options))
        self.reference.begin()
        for worker in WORKERS:
            self.reference.join(worker)
        self.states = [self.reference.nodes["p"].state(LEADER)]
        self.step = 0  # that is being brought
        self.brought: list[tuple[str, Push]] = []  # for it
        self.asked = False  # for its commit

    @property
    def server(self) -> tuple[str, int]:
        return (self.promoted, BACKUPS[self.promoted]) if self.promoted else ("p", LEADER)

    @rule(slices=st.lists(st.sets(st.integers(0, SLICES - 1)), min_size=2, max_size=2), value=st.integers(-8, 8))
    @precondition(lambda self: not self.brought)
    def bring(self, slices: list[set[int]], value: int) -> None:
        for number, (worker, of) in enumerate(zip(WORKERS, slices, strict=True)):
            if of:
                message = push(self.step + 1, value + 0.3 * number, *sorted(of), step=self.step, attempt=self.step)
                self.brought.append((worker, message))
        if not self.brought:
            return
        for worker, message in self.brought:
            self.reference.push(worker, message)
            self._bring(worker, message)
        self.reference.commit(self.step, *WORKERS)
        self.states.append(self.reference.nodes["p"].state(LEADER))

    def _bring(self, worker: str, message: Push) -> None:
        name, epoch = self.server
        self.copies.push(worker, replace(message, epoch=epoch), name)

    @rule()
    @precondition(lambda self: self.brought)
    def commit(self) -> None:
        """The coordinator says it, perhaps again."""
        name, epoch = self.server
        contributors = tuple((identity("worker", worker).incarnation, (self.step,)) for worker in WORKERS)
        self.copies.order(name, Commit(epoch, self.step, contributors))
        self._look()

    def _look(self) -> None:
        name, _ = self.server
        if any(isinstance(m, Committed) and m.step == self.step for m in self.copies.nodes[name].told):
            self.step += 1
            self.brought = []

    def promoted_now(self) -> None:
        for worker in WORKERS:
            self.copies.join(worker, *self.server)
        for worker, message in self.brought:
            self._bring(worker, message)

    @invariant()
    def every_copy_is_at_a_step_or_between_two(self) -> None:
        if not hasattr(self, "copies"):
            return
        self._look()
        for node, epoch in self.whole if not self.promoted else ():
            version, slices, _ = node.state(epoch)
            assert version >= self.step, "what was reported all backups have"
            for index, state in enumerate(slices):
                assert state in [self.states[v][1][index] for v in range(version, min(version + 2, len(self.states)))]

    def teardown(self) -> None:
        if not hasattr(self, "copies"):
            return
        self.end()
        self._look()
        if self.brought:
            self.commit()
            self.end()
            self._look()
        assert not self.brought
        name, epoch = self.server
        assert self.copies.nodes[name].state(epoch) == self.states[self.step]


LIMITS = settings(max_examples=15, stateful_step_count=30, deadline=None)
TestAsynchronous = Asynchronous.TestCase
TestAsynchronous.settings = LIMITS
TestWithSlots = WithSlots.TestCase
TestWithSlots.settings = LIMITS
TestScarce = Scarce.TestCase
TestScarce.settings = LIMITS
TestSynchronous = Synchronous.TestCase
TestSynchronous.settings = LIMITS
