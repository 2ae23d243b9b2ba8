"""Simulated training whose gradients travel in codecs: nothing is lost of what one leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tests.simulator.engine import Node, Program
from tests.simulator.jobs.training import Training
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import RAW
from zmqps.core.protocol.messages import Commit, Message
from zmqps.core.protocol.messages import Push as PushMessage
from zmqps.core.worker.operations import Attached, EnterBarrier, Exchange, Finish, Join, StartJob
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import PullTransfer, PushTransfer, Source, Target, plan
from zmqps.optim import sgd

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster
    from zmqps.core.protocol.message import Contributors

#: Exact for small whole numbers; the latter leaves most values for later.
CODECS = (RAW, "fp16", "topk:fraction=0.05")
#: Whole numbers up to this: sums of what was left out stay exact in each codec.
LARGEST = 3
#: A mean over three is off by less than this, and what is lost is more.
INEXACT = 0.01


@dataclass(kw_only=True)
class CodedTraining(Training):
    """Each worker pushes whole numbers, again and again, in one codec or another.

    Encoded they are what they were. So at the end the values are the sum of all that was pushed, but for what workers
    still keep for later, and perhaps for a push that a worker was still waiting for when it was given up. In the
    synchronous mode they are the sum of the means over those whose gradients counted, step by step.

    Parameters
    ----------
    mode
        ``sync`` or ``async``.
    steps
        Of each worker.
    size
        Elements of the parameter.
    compute_s, timeout
        Seconds that a step computes, and that anything may wait.
    """

    mode: str = "sync"
    steps: int = 24
    size: int = 40_000
    compute_s: float = 0.02
    timeout: float = 60.0
    slice_nbytes: int = 40_000

    def __post_init__(self) -> None:
        self._attempts: dict[bytes, int] = {}  # by worker: the last that its messages had
        self._pushed: dict[tuple[bytes, int], Array] = {}  # by worker and attempt: what of it has left the worker
        self._unsure: dict[bytes, Array] = {}  # by worker: what it had before the push that is under way, and that
        self._counted: dict[int, Contributors] = {}  # by step

    def job(self) -> tuple[JobSpec, list[Array]]:
        """A tensor of zeros, plain SGD."""
        job = JobSpec(
            parameters=(Parameter("layer.weight", (self.size,), "float32"),),
            optimizer=sgd(1.0).to_wire(),
            mode=self.mode,
        )
        return job, [np.zeros(self.size, np.float32)]

    def watch(self, simulation: SimulatedCluster) -> None:
        """Note which attempts there were, and whose count."""
        simulation.on_send.append(lambda node, to, message: self._sends(node, message))

    def _sends(self, node: Node, message: Message) -> None:
        if isinstance(message, Commit):
            self._counted[message.step] = message.contributors
        elif isinstance(message, PushMessage):
            self._attempts[node.identity.incarnation] = message.attempt

    def program(self, simulation: SimulatedCluster, worker: Node) -> Program:
        """Join, start the job; push; look whether all of it is there; finish."""
        rng, t = simulation.rng, self.timeout
        job, values = self.job()
        yield Join(0.0), t
        attached: Attached = yield StartJob(0.0, job=job, values=values), 3 * t
        cargoes = plan(attached.placement)
        for _ in range(self.steps):
            yield self.compute_s * rng.choice((0.5, 1.0, 1.5))
            gradient = _gradient(self.size, rng.randrange(1 << 16))
            who, before = worker.identity.incarnation, gradient + self._kept(worker)
            self._unsure[who] = before
            source = Source(arrays=[gradient], codec=rng.choice(CODECS))
            yield Exchange(push=PushTransfer(cargoes=cargoes, source=source, whole=True)), t
            attempt = self._attempts[who] if self.mode == "sync" else len(self._pushed)
            self._pushed[who, attempt] = before - self._kept(worker)
            del self._unsure[who]
            simulation.counters["steps"] += 1
        yield EnterBarrier(0.0, barrier="pushed"), t
        out = [np.empty(self.size, np.float32)]
        yield Exchange(pull=PullTransfer(cargoes=cargoes, target=Target(arrays=out))), t
        self._check_sum(simulation, out[0])
        yield EnterBarrier(0.0, barrier="read"), t  # until then no worker drops its residuals
        yield Finish(0.0), t

    def _kept(self, worker: Node) -> Array:
        """Return what a worker keeps for later."""
        machine, kept = worker.machine, np.zeros(self.size)
        assert isinstance(machine, SessionKernel)
        assert machine.attached is not None
        for link, slices in zip(machine.links.by_shard, machine.attached.placement.slices, strict=True):
            for slice_ in slices:
                if (left := link.packer.left_out.get(slice_.index)) is not None:
                    kept[slice_.start : slice_.stop] += left
        return kept

    def _check_sum(self, simulation: SimulatedCluster, values: Array) -> None:
        """Assert that all that was pushed and counts has come, once."""
        missing = values.astype(np.float64)
        unsure: list[Array] = []
        if self.mode == "async":
            missing += sum(self._pushed.values())
            nodes = {node.identity.incarnation: node for node in simulation.workers}
            unsure = [before - self._kept(nodes[who]) for who, before in self._unsure.items()]
        else:
            for contributors in self._counted.values():
                pushed = [self._pushed[who, attempt] for who, attempts in contributors for attempt in attempts]
                missing += sum(pushed) / max(1, len(contributors))
        wrong = np.flatnonzero(~_is_sum(missing, unsure))
        assert not wrong.size, f"of element {wrong[0]} {missing[wrong[0]]} is missing of what was pushed"


def _is_sum(missing: Array, unsure: list[Array]) -> Array:
    """Return for each element whether nothing is missing, apart from some pushes of unknown outcome."""
    if not unsure:
        found: Array = abs(missing) < INEXACT
        return found
    return _is_sum(missing, unsure[1:]) | _is_sum(missing + unsure[0], unsure[1:])


def _gradient(size: int, seed: int) -> Array:
    """Return small whole numbers; many are zero."""
    values: Array = np.random.default_rng(seed).integers(-LARGEST, LARGEST + 1, size).astype(np.float32)
    return values
