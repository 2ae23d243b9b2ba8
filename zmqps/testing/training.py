"""What simulated workers do, and what must hold whatever happens to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from zmqps.core.arrays import Array
from zmqps.core.job import JobSpec, Parameter
from zmqps.core.keyspace import Placement
from zmqps.core.operations import Attached, Enter, Finish, Init, Join, Transfer, plan
from zmqps.core.server import ServerMachine
from zmqps.core.shard import Kernel, Shard
from zmqps.errors import DeadlineError, PSError
from zmqps.optim import OptimizerSpec, all_finite, make_kernel, sgd
from zmqps.testing.engine import Node, Program

if TYPE_CHECKING:
    from zmqps.testing.simulation import Simulation


class ReferenceRules:
    """An optimizer's rules in plain numpy (`zmqps.core.shard.Rules`)."""

    def __init__(self, spec: OptimizerSpec) -> None:
        self._spec = spec
        self.slot_fill: tuple[float, ...] = ()

    def kernels(self, names: Sequence[str]) -> tuple[Sequence[Kernel | None], Sequence[int]]:
        """Return the kernels in use and which is each parameter's."""
        rules, kernel_of = self._spec.rules(names)
        self.slot_fill = rules[0].slot_fill
        return [None if rule.frozen else make_kernel(rule) for rule in rules], kernel_of

    def all_finite(self, g: Array) -> bool:
        """Whether an array holds neither NaN nor infinity."""
        return all_finite(g)


class Training:
    """Base of the scenarios: a job, the workers' program, and invariants of its own.

    Every machine's ``validate()``, "each operation is resolved once and by its deadline" and "all
    workers end" are checked by the simulation itself; `check` and `check_end` add to them.
    """

    slice_nbytes = 256

    def job(self) -> tuple[JobSpec, list[Array]]:
        """Return what is trained and the initial values, flat, by parameter."""
        raise NotImplementedError

    def program(self, simulation: Simulation, worker: Node) -> Program:
        """Return the script of a worker."""
        raise NotImplementedError

    def check(self, simulation: Simulation, node: Node) -> None:
        """Assert what must hold after an event of ``node``."""

    def check_end(self, simulation: Simulation) -> None:
        """Assert what must hold when all is over."""

    def restarts(self, simulation: Simulation, worker: Node) -> bool:
        """Whether a worker that has ended is started again, as a new one."""
        return False

    def shard(self, job: JobSpec, placement: Placement, index: int) -> Shard:
        """Build a server's shard."""
        rules = ReferenceRules(OptimizerSpec.from_wire(job.optimizer))
        return Shard(placement, index, rules, reject_nonfinite=job.nonfinite == "reject")

    def run_s(self, rng: Random) -> float:
        """Return how long building a shard takes."""
        return rng.uniform(0.0, 0.5)


#: Pushes of one worker that can be told apart in a float32: two bits each.
MOST_TOLD_APART = 11


class AsyncTraining(Training):
    """Every worker pulls, computes, pushes, again and again, and no push may be lost or count twice.

    Elements belong to workers in turn. A worker's k-th push subtracts ``-4**k`` from its own
    elements and nothing from the others, and the optimizer is plain SGD with a learning rate of 1:
    so two bits of every element say how often a push was applied there, exactly, even in float32.

    Parameters
    ----------
    steps
        Of each worker; with more than `MOST_TOLD_APART` pushes are only counted.
    parameters, size
        Number of tensors and elements of each; dtypes alternate.
    lives
        How many workers there can be, those started again after a crash included.
    compute_s, timeout
        Seconds that a step computes (a fourth to the double of it, drawn), and may wait.
    restart
        Whether workers that die are started again.
    """

    def __init__(
        self, steps: int = 5, parameters: int = 6, size: int = 40, lives: int = 8, compute_s: float = 0.02,
        timeout: float = 20.0, restart: bool = True, slice_nbytes: int = 256,
    ) -> None:  # fmt: skip
        self.steps = steps
        self.lives = lives
        self.slice_nbytes = slice_nbytes
        self._size = size
        self._num = parameters
        self._compute_s = compute_s
        self._timeout = timeout
        self._restart = restart
        self._base = 4.0 if steps <= MOST_TOLD_APART else 1.0
        self._attempted = np.zeros(lives, np.int64)
        self._applied = np.zeros(lives, np.int64)  # at least these: they were acknowledged
        self._checked: dict[str, int] = {}  # server -> updates that its shard had had

    def job(self) -> tuple[JobSpec, list[Array]]:
        """Tensors of zeros, plain SGD."""
        names = [f"layer{i}.weight" for i in range(self._num)]
        dtypes = ["float32" if i % 2 else "float64" for i in range(self._num)]
        parameters = tuple(Parameter(n, (self._size,), t) for n, t in zip(names, dtypes, strict=True))
        return JobSpec(parameters, sgd(1.0).to_wire()), [np.zeros(self._size, t) for t in dtypes]

    def gradients(self, owner: int, push: int) -> list[Array]:
        """Return the gradients that mark a push."""
        own = np.where(np.arange(self._size) % self.lives == owner, -(self._base**push), 0.0)
        return [own.astype("float32" if i % 2 else "float64") for i in range(self._num)]

    def program(self, simulation: Simulation, worker: Node) -> Program:
        """Join, start the job, train, meet the others, finish."""
        rng, t = simulation.rng, self._timeout
        job, values = self.job()
        yield Join(0.0), t
        attached: Attached = yield Init(0.0, job=job, values=values), 3 * t
        cargoes = plan(attached.placement)
        out: list[Array | None] = [np.empty_like(value) for value in values]
        for push in range(self.steps):
            gradients = self.gradients(worker.number, push)
            both = rng.random() < 0.3
            try:
                if not both:
                    yield Transfer(0.0, kind="pull", cargoes=cargoes, out=out), t
                    self._check_pulled(worker, out)
                yield self._compute_s * rng.choice((0.25, 1.0, 1.0, 2.0))
                bit = int(self._base**push)
                self._attempted[worker.number] += bit
                kind, atomic = "push_pull" if both else "push", rng.random() < 0.2
                transfer = Transfer(0.0, kind=kind, cargoes=cargoes, source=gradients, out=out, atomic=atomic)
                yield transfer, t
                self._applied[worker.number] += bit
            except DeadlineError:
                pass  # the next step may do better
            simulation.counters["steps"] += 1
        try:
            yield Enter(0.0, barrier="end"), t
        except PSError:
            pass
        yield Finish(0.0), t

    def _check_pulled(self, worker: Node, out: Sequence[Array | None]) -> None:
        for array in out:
            assert array is not None
            self._check_values(array.astype(np.int64), np.arange(array.size) % self.lives)
            mine = array[worker.number :: self.lives].astype(np.int64)
            assert (mine & self._applied[worker.number] == self._applied[worker.number]).all() or self._base == 1.0, (
                "a worker does not see what it has pushed"
            )

    def check(self, simulation: Simulation, node: Node) -> None:
        """Assert that the server's values are made of the pushes there were, each once at most."""
        shard = _loaded_shard(node)
        if shard is not None:
            updates = sum(state.version for state in shard.slices)
            if self._checked.get(node.name) != updates:
                self._checked[node.name] = updates
                for values, owners in self._values(shard):
                    self._check_values(values, owners)

    def _values(self, shard: Shard) -> Iterator[tuple[Any, Any]]:
        """Yield the values of each slice, as integers, and whose they are."""
        for state in shard.slices:
            segments = state.piece.segments
            starts = np.repeat([s.start - s.position for s in segments], [s.size for s in segments])
            yield state.value.astype(np.int64), (starts + np.arange(state.piece.size)) % self.lives

    def _check_values(self, values: Any, owners: Any) -> None:
        attempted = self._attempted[owners]
        if self._base == 1.0:
            assert (values >= 0).all(), "nobody pushed such a gradient"
            assert (values <= attempted).all(), "a push was applied twice"
            return
        assert not (values & 0xAAAAAAAAAAAA).any(), f"a push was applied twice: {values}"
        assert not (values & ~attempted).any(), f"a gradient nobody pushed was applied: {values}, {attempted}"

    def check_end(self, simulation: Simulation) -> None:
        """Assert that every push that was acknowledged has been applied everywhere."""
        for server in simulation.servers:
            shard = _loaded_shard(server)
            for values, owners in self._values(shard) if shard is not None else ():
                applied = self._applied[owners]
                there = values >= applied if self._base == 1.0 else values & applied == applied
                assert there.all(), f"an acknowledged push is missing on {server.name}: {values}, {applied}"

    def restarts(self, simulation: Simulation, worker: Node) -> bool:
        """Start a worker again unless it had finished, as often as its marks allow."""
        room = simulation.num_workers < self.lives and simulation.coordinator_alive
        return self._restart and not worker.finished and room


def _loaded_shard(node: Node) -> Shard | None:
    machine = node.machine
    return machine.shard if isinstance(machine, ServerMachine) and machine.shard and machine.shard.loaded else None
