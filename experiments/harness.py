"""Training on the simulated clock: one `Run` is one cluster, its `Curve` what came out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.problems import Digits, Params, Problem
from tests.simulator import Node, Program, Simulation, Training
from tests.simulator.jobs.training import ReferenceRules, loaded_shard
from zmqps.client.tensors import describe
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.server.builds import Room
from zmqps.core.server.dense.stale import treated
from zmqps.core.server.shard import Shard
from zmqps.core.treatments import make_treatment
from zmqps.core.worker.operations import Attached, EnterBarrier, Exchange, Finish, Join, StartJob
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import PullTransfer, PushTransfer, Source, Target, plan
from zmqps.errors import PSError
from zmqps.gpu.handover import Handover
from zmqps.optim import OptimizerSpec
from zmqps.stale import Treatment

#: Seconds a worker computes for a mini-batch; the network (50 µs, 10 Gbit/s) hardly counts beside it.
COMPUTE_S = 0.02
TIMEOUT_S = 1000.0

#: Seconds that a worker computes for a step: of its number and a generator of its own.
Speed = Callable[[int, np.random.Generator], float]


def equal(number: int, rng: np.random.Generator) -> float:
    """All workers are as fast, give or take a tenth."""
    return COMPUTE_S * math.exp(rng.normal(0.0, 0.1))


def one_slower(factor: float) -> Speed:
    """Worker 0 takes ``factor`` times as long as the others."""
    return lambda number, rng: equal(number, rng) * (1.0 if number else factor)


def hiccups(probability: float, factor: float) -> Speed:
    """Every worker now and then takes ``factor`` times as long."""
    return lambda number, rng: equal(number, rng) * (factor if rng.random() < probability else 1.0)


@dataclass(kw_only=True)
class Curve:
    """Loss over updates and over simulated seconds; ``updates`` are versions of the parameters."""

    label: str
    seconds: list[float] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    staleness: dict[int, int] = field(default_factory=dict)
    dropped: int = 0
    pushes: int = 0

    def first_below(self, loss: float) -> tuple[int, float] | None:
        """Return updates and seconds when the smoothed loss was first below some value."""
        smooth = self.smooth()
        found = next((i for i, value in enumerate(smooth) if value < loss), None)
        return None if found is None else (self.updates[found], self.seconds[found])

    def smooth(self, width: int = 5) -> list[float]:
        """Return the loss averaged over the last few points: single ones are noisy."""
        return [float(np.mean(self.loss[max(0, i - width + 1) : i + 1])) for i in range(len(self.loss))]

    @property
    def final(self) -> float:
        """The loss at the end, of the last tenth of the points."""
        return float(np.mean(self.loss[-max(1, len(self.loss) // 10) :]))

    @property
    def mean_staleness(self) -> float:
        """Updates between reading and pushing, on average."""
        return sum(k * n for k, n in self.staleness.items()) / max(1, sum(self.staleness.values()))

    @property
    def step_s(self) -> float:
        """Seconds an update took, on average."""
        return (self.seconds[-1] - self.seconds[0]) / max(1, self.updates[-1] - self.updates[0])

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        loss = [value if math.isfinite(value) else None for value in self.loss]  # JSON has no infinity
        return {**vars(self), "loss": loss, "staleness": {str(k): n for k, n in sorted(self.staleness.items())}}


@dataclass(kw_only=True)
class Run(Training):
    """A cluster that trains a problem, with a program for each worker that pulls, computes, pushes.

    Parameters
    ----------
    label
        Of its curve.
    optimizer
        The servers'.
    problem
        What is trained.
    workers
        How many.
    mode, staleness, aggregate, treatment
        As in `zmqps.Worker.init`.
    speed
        How long steps take.
    seconds, updates
        When to stop: simulated seconds, or updates of the parameters.
    every
        Updates between two points of the curve.
    seed
        Of everything random.
    on_push
        Called when a push has been acknowledged: seconds, the worker's number, what it had read, the values now.
    """

    label: str
    optimizer: OptimizerSpec
    problem: Problem = field(default_factory=Digits)
    workers: int = 4
    mode: str = "sync"
    staleness: int | None = None
    aggregate: int | None = None
    treatment: Treatment | None = None
    speed: Speed = equal
    seconds: float = math.inf
    updates: float = math.inf
    every: int = 10
    seed: int = 1
    on_push: Callable[[float, int, Params, Params], None] | None = None

    slice_nbytes = 1 << 20

    def run(self) -> Curve:
        """Train; return the curve."""
        self.curve = Curve(label=self.label)
        self.began_at: float | None = None
        simulation = Simulation(self.seed, 1, self.workers, training=self, validate=False)
        simulation.run()
        return self.curve

    def job(self) -> tuple[JobSpec, list[Any]]:
        """Return the job and the initial values."""
        parameters, values = describe(self.problem.start(), Handover())
        treatment = None if self.treatment is None else self.treatment.to_wire()
        job = JobSpec(
            parameters=parameters,
            optimizer=self.optimizer.to_wire(),
            mode=self.mode,
            staleness=self.staleness,
            aggregate=self.aggregate,
            treatment=treatment,
            nonfinite="allow",  # a run that diverges is a result, too
        )
        return job, values

    def shard(self, job: JobSpec, placement: Placement, index: int, room: Room) -> Shard:
        """Build a server's shard."""
        rules = ReferenceRules(OptimizerSpec.from_wire(job.optimizer))
        return Shard(
            placement, index, rules, reject_nonfinite=False, synchronous=job.mode == "sync",
            dense=treated(make_treatment(job.treatment)),
        )  # fmt: skip

    def program(self, simulation: Simulation, worker: Node) -> Program:
        """Pull, compute, push, until it is enough."""
        rng = np.random.default_rng((self.seed, worker.number))
        job, values = self.job()
        yield Join(0.0), TIMEOUT_S
        attached: Attached = yield StartJob(0.0, job=job, values=values), TIMEOUT_S
        cargoes = plan(attached.placement)
        out = [np.empty_like(value) for value in values]
        read = {p.name: array.reshape(p.shape) for p, array in zip(job.parameters, out, strict=True)}
        yield EnterBarrier(0.0, barrier="start"), TIMEOUT_S
        self.began_at = self.began_at or simulation.now
        while True:
            pull = PullTransfer(cargoes=cargoes, target=Target(arrays=out))
            yield Exchange(pull=pull), TIMEOUT_S
            updates, seconds = min(pull.target.versions.values()), simulation.now - self.began_at
            if seconds >= self.seconds or updates >= self.updates:
                break
            self._record(updates, seconds, read)
            gradients = self.problem.gradients(read, rng)
            yield self.speed(worker.number, rng)
            source = [np.ascontiguousarray(gradients[p.name]).reshape(-1) for p in job.parameters]
            yield Exchange(push=PushTransfer(cargoes=cargoes, source=Source(arrays=source), whole=True)), TIMEOUT_S
            if self.on_push is not None:
                self.on_push(simulation.now - self.began_at, worker.number, read, self._now(simulation))
        assert isinstance(worker.machine, SessionKernel)
        statistics = worker.machine.statistics()
        self.curve.dropped += statistics.dropped
        self.curve.pushes += statistics.pushes
        for staleness, count in statistics.staleness_histogram.items():
            self.curve.staleness[staleness] = self.curve.staleness.get(staleness, 0) + count
        try:
            yield Finish(0.0), TIMEOUT_S
        except PSError:
            pass  # the cluster may have ended before

    def _record(self, updates: int, seconds: float, params: Params) -> None:
        curve = self.curve
        if not curve.updates or updates >= curve.updates[-1] + self.every:
            curve.updates.append(updates)
            curve.seconds.append(seconds)
            curve.loss.append(self.problem.loss(params))

    def _now(self, simulation: Simulation) -> Params:
        shard = loaded_shard(simulation.servers[0])
        assert shard is not None
        (state,) = shard.slices
        return {p.name: state.value[: p.size].copy() for p in shard.placement.keyspace.parameters[:1]}
