"""What simulated workers do, and what must hold whatever happens to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulator.engine import Node, Program
from tests.simulator.memory import ScarceMemory, ScarceRule
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.server.builds import Room
from zmqps.core.server.dense.aggregate import mean_in_passes
from zmqps.core.server.dense.rules import UpdateKernel
from zmqps.core.server.dense.stale import treated
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import make_rows
from zmqps.core.server.tables.table import RowUpdate
from zmqps.core.server.tenant import Tenant
from zmqps.core.treatments import make_treatment
from zmqps.core.worker.session import SessionKernel
from zmqps.errors import DeadlineError
from zmqps.optim import OptimizerSpec, all_finite, make_kernel, slots_of
from zmqps.optim.rows import kernel_of_table

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster
    from tests.simulator.placement.stores import SavedJob


#: The job of simulated workers, where there is only one.
DEFAULT = "default"

#: A job from its placement to its end: the coordinator's incarnation, and the epoch.
Life = tuple[bytes, int]
#: Of a shard: the life of its job, the cuts of its placement, its number.
Place = tuple[Life, tuple[tuple[int, ...], ...], int]


class ReferenceRules:
    """An optimizer's rules in plain numpy (`zmqps.core.server.dense.rules.Rules`)."""

    allocates = True

    def __init__(self, spec: OptimizerSpec, memory: ScarceMemory | None = None, workers: int = 1) -> None:
        self._spec = spec
        self._workers = workers
        self._memory = memory
        self.slot_fill: tuple[float, ...] = ()

    def kernels(self, names: Sequence[str]) -> tuple[Sequence[UpdateKernel | None], Sequence[int], Sequence[int]]:
        """Return the kernels in use, the index of each parameter's, and the number of its group."""
        rules, kernel_of = self._spec.rules(names, self._workers)
        slots, self.slot_fill = slots_of(rules)
        kernels = [None if rule.frozen else make_kernel(rule, slots=slots) for rule in rules]
        return [kernel and self._scarce(kernel) for kernel in kernels], kernel_of, self._spec.groups_of(names)

    def _scarce(self, kernel: UpdateKernel) -> UpdateKernel:
        """Let a kernel fail for want of memory when half is done, where memory is scarce."""
        memory = self._memory
        if memory is None:
            return kernel

        def run(w: Array, g: Array, out: Array, slots: tuple[Array, ...], step: int, *terms: Any) -> None:
            middle = w.size // 2
            for part in (slice(0, middle), slice(middle, w.size)):
                new = out[part]
                state = tuple([slot[part] for slot in slots])
                kernel(new if w is out else w[part], g[part], new, state, step, *terms)
                memory.request()

        return run

    def all_finite(self, g: Array) -> bool:
        """Whether an array holds neither NaN nor infinity."""
        return all_finite(g)

    mean = staticmethod(mean_in_passes)


class Training:
    """Base of the scenarios: a job, the workers' program, and invariants of its own.

    Every machine's ``validate()``, "each operation is resolved once and by its deadline" and "all
    workers end" are checked by the simulation itself; `check` and `check_end` add to them.
    """

    slice_nbytes = 256
    name = DEFAULT  # of the job
    num_jobs = 1

    def job_of(self, number: int) -> str:
        """Return the job that the worker of this number is there for."""
        return self.name

    def job(self) -> tuple[JobSpec, list[Array]]:
        """Return what is trained and the initial values, flat, by parameter."""
        raise NotImplementedError

    def program(self, simulation: SimulatedCluster, worker: Node) -> Program:
        """Return the script of a worker."""
        raise NotImplementedError

    def watch(self, simulation: SimulatedCluster) -> None:
        """Register with ``simulation.on_send`` and ``on_receive``, if what travels is to be checked, too."""

    def check(self, simulation: SimulatedCluster, node: Node) -> None:
        """Assert what must hold after an event of ``node``."""

    def check_freed(self, simulation: SimulatedCluster, server: Node) -> None:
        """Assert what must hold of a server's shard that is about to be freed, or is there when all is over."""

    def check_end(self, simulation: SimulatedCluster) -> None:
        """Assert what must hold when all is over."""

    def notified(self, simulation: SimulatedCluster, node: Node, event: object) -> None:
        """A node tells its process something unrequested."""

    def saving(self, simulation: SimulatedCluster, path: str, life: Life) -> None:
        """A life of the job begins to be saved."""

    def check_saved(self, simulation: SimulatedCluster, saved: SavedJob, life: Life) -> None:
        """Assert what must hold of a checkpoint that is published."""

    def check_cut(self, simulation: SimulatedCluster, saved: SavedJob, life: Life) -> None:
        """Assert what must hold of it once it is known what has become of all pushes."""

    def resume(self, life: Life, saved: SavedJob) -> None:
        """A life of the job begins from a checkpoint."""

    def fall(self, simulation: SimulatedCluster, life: Life, shards: Collection[int], saved: SavedJob) -> None:
        """Shards of a life of the job begin to go back to a checkpoint, or to another one."""

    def fell(self, worker: Node, shard: int, saved: SavedJob, lost: Iterable[object]) -> None:
        """A worker has gone back; these of its pushes (`PushTransfer`) are lost on a shard."""

    def miss(self, worker: Node, shard: int, push: object) -> None:
        """A push was acknowledged by a copy of a shard that had gone back: it may be lost."""

    def went_back(self, simulation: SimulatedCluster, life: Life, saved: SavedJob) -> None:
        """All of a life of the job has gone back to a checkpoint, steps and data sets as well."""

    def may_wait(self, simulation: SimulatedCluster, error: DeadlineError) -> bool:
        """Whether a wait may end like this although nothing has gone wrong for long."""
        return True

    def restarts(self, simulation: SimulatedCluster, worker: Node) -> bool:
        """Whether a worker that has ended is started again, as a new one."""
        return False

    def shard(
        self, job: JobSpec, placement: Placement, index: int, room: Room, memory: ScarceMemory | None = None
    ) -> Shard:
        """Build a server's shard; by default there is memory for all."""
        rules = ReferenceRules(OptimizerSpec.from_wire(job.optimizer), memory, job.num_updating)
        return Shard(
            placement, index, rules, reject_nonfinite=job.nonfinite == "reject", synchronous=job.mode == "sync",
            retain=job.retain, dense=treated(make_treatment(job.treatment)), memory=memory,
            others=[make_rows(
                job, placement, index, partial(row_rule, job, memory=memory), available_nbytes=1 << 20,
                more=lambda nbytes: memory is None or memory.has_some(),
            )],
        )  # fmt: skip

    def run_s(self, rng: Random) -> float:
        """Return how long building a shard takes."""
        return rng.uniform(0.0, 0.5)


def row_rule(job: JobSpec, table: TableSpec, memory: ScarceMemory | None = None) -> RowUpdate:
    """Return a table's rule in plain numpy."""
    counts: Any = table.step_counts
    rule = kernel_of_table(table.optimizer, table.name, table.dim, "numpy", counts, job.num_updating)
    return rule if memory is None else ScarceRule(rule, memory)


def tenant_of(node: Node, job: str = DEFAULT) -> Tenant | None:
    """Return what a server keeps of a job, or kept last of those that had its name; None of any other node."""
    machine = node.machine
    if not isinstance(machine, ServerKernel) or machine.member.welcome is None:
        return None  # it may have been assigned a shard before it has heard of which coordinator
    epochs = [epoch for epoch, tenant in machine.tenants.items() if tenant.name == job]
    return machine.tenants[max(epochs)] if epochs else None


def loaded_shard(node: Node, job: str = DEFAULT) -> Shard | None:
    """Return a server's shard of a job, if it has its initial values; None of any other node."""
    tenant = tenant_of(node, job)
    return tenant.shard if tenant is not None and tenant.loaded else None


def copies_on(simulation: SimulatedCluster, node: Node, job: str = DEFAULT) -> list[tuple[Life, int, Shard]]:
    """Return the copies of a job's shards on a server that have all values, with their epochs; of its last life."""
    machine = node.machine
    if not isinstance(machine, ServerKernel) or machine.member.welcome is None:
        return []
    coordinator = machine.member.welcome.incarnation
    lives = {e: simulation.life_of_copy(coordinator, e) for e, tenant in machine.tenants.items() if tenant.name == job}
    if not lives:
        return []
    last = lives[max(lives)]
    shards = [(last, epoch, machine.tenants[epoch].shard) for epoch, life in lives.items() if life == last]
    return [(life, epoch, shard) for life, epoch, shard in shards if shard is not None and shard.loaded]


def life_of(worker: Node) -> Life:
    """Return the life of the job that a worker trains."""
    machine = worker.machine
    assert isinstance(machine, SessionKernel)
    assert machine.member.welcome is not None
    return machine.member.welcome.incarnation, machine.epoch
