"""Simulated training with bounded staleness: no worker reads further ahead of the slowest than allowed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.simulator.engine import Node, Program
from tests.simulator.jobs.asynchronous import AsyncTraining
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages import Arrive, Enter, Error, Job, Message, PullRows, Range, Released, Take, Withdraw
from zmqps.core.protocol.messages import Pull as PullMessage
from zmqps.core.worker.operations import Advance, Attached, Exchange
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import PullTransfer, PushTransfer, Source, Target, plan

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster


class BoundedTraining(AsyncTraining):
    """Asynchronous training whose workers wait for the slowest: what holds there, and the bound.

    Parameters
    ----------
    staleness
        How many steps a worker may be ahead of the slowest when it reads.
    plain
        Whether every step is one pull and one push, nothing else.
    skips
        Probability that a worker has no gradient in a step.
    **options
        As of `AsyncTraining`.
    """

    mode = "bounded"
    halves = 2

    def __init__(self, staleness: int, plain: bool = False, skips: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.staleness = self._bound = staleness
        self._plain = plain
        self._skips = skips

    def watch(self, simulation: SimulatedCluster) -> None:
        """Note the clocks."""
        self.rows.watch(simulation)
        self._simulation = simulation
        self._begun: set[bytes] = set()
        self._clocks: dict[bytes, int] = defaultdict(int)
        self._pausing: dict[bytes, set[int]] = defaultdict(set)  # requests during which no step waits for the worker
        simulation.on_send.append(self._sent)
        simulation.on_receive.append(self._received)

    def step(
        self, simulation: SimulatedCluster, worker: Node, attached: Attached, push: int, out: Sequence[Array | None]
    ) -> Program:
        """Pull, compute; push everything, or half by half, or push and pull."""
        rng, t = simulation.rng, self._timeout
        yield from self.rows.step(simulation, worker, attached, push, t, self._behind[worker.name])
        cargoes, source = plan(attached.placement), self.gradients(worker.number, push)
        seen = self.acknowledged(worker)
        yield Exchange(pull=PullTransfer(cargoes=cargoes, target=Target(arrays=out))), t
        self.check_pulled(worker, out, seen)
        yield self._compute_s * rng.choice((0.25, 1.0, 1.0, 4.0))
        if self._skips and rng.random() < self._skips:
            yield Advance(0.0, skips=True), t
            return
        self.attempt(worker, push)
        way = 1.0 if self._partly else 0.0 if self._plain else rng.random()
        if way < 0.7:
            pull = None if way < 0.5 else PullTransfer(cargoes=cargoes, target=Target(arrays=out))
            whole = PushTransfer(cargoes=cargoes, source=Source(arrays=source), whole=True)
            self.mark(whole, push)
            yield Exchange(push=whole, pull=pull), t
        else:
            yield from self._push_halves(attached, source, push)
            yield Advance(0.0), t
        self.acknowledge(worker, push)

    # --- what must hold ------------------------------------------------------------------------

    def _sent(self, sender: Node, receiver: str, message: Message) -> None:
        who = sender.identity.incarnation
        if isinstance(message, Arrive):
            self._clocks[who] = max(self._clocks[who], message.step + 1)
        elif isinstance(message, (Take, Enter)):
            self._pausing[who].add(message.request)
        elif isinstance(message, Withdraw):
            self._pausing[who].discard(message.request)
        elif isinstance(message, (PullMessage, PullRows)):
            self._check_bound(sender)

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        if receiver.role == "worker" and isinstance(message, (Error, Job, Range, Released)):
            who = receiver.identity.incarnation
            self._pausing[who].discard(message.request)
            # one that begins as a spare is not waited for, and has a clock of its own when it counts
            if isinstance(message, Job) and not message.load and "is a spare" not in message.note:
                self._begun.add(who)
                self._clocks[who] = max(self._clocks[who], message.step)

    def _check_bound(self, reader: Node) -> None:
        """Assert that a worker that reads is not too far ahead of the slowest that trains."""
        coordinator = self._simulation.nodes["coordinator"].machine
        assert isinstance(coordinator, CoordinatorMachine)
        training = self._begun & set(coordinator.membership.members)
        if reader.identity.incarnation not in training:
            return  # presumed dead: what it reads is its own affair
        clock = _clock(reader)
        others = (node for node in self._simulation.workers if node.identity.incarnation in training)
        for other in others:
            who = other.identity.incarnation
            behind = clock - max(self._clocks[who], _clock(other))
            assert behind <= self._bound or self._pausing[who], (
                f"{reader.name} reads at clock {clock}, {behind} steps ahead of {other.name}"
            )


def _clock(worker: Node) -> int:
    assert isinstance(worker.machine, SessionKernel)
    return worker.machine.transfers.pace.clock
