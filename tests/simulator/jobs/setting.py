"""Simulated asynchronous training that sets buffers: what was set last is read, until it is set again."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from tests.simulator.engine import Node, Program
from tests.simulator.jobs.tables import IDS, TableTransfers, shards_of_ids, there
from tests.simulator.jobs.training import Life, Training, copies_on, life_of
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.terms import SET
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.worker.operations import Attached, Exchange, Finish, Join, StartJob
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import PullTransfer, PushTransfer, Source, Target, plan
from zmqps.errors import DeadlineError, ServerMemoryError
from zmqps.optim import sgd
from zmqps.rows.initial import Initial

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster


class SettingTraining(Training):
    """Each worker counts in a buffer of its own, and reads it again; in between it pushes gradients.

    Parameters
    ----------
    staleness
        With it, training is bounded (`zmqps.core.job.spec.JobSpec`); None: asynchronous.
    steps
        Of each worker.
    lives
        How many workers there can be, those started again included: a buffer for each.
    compute_s, timeout
        Seconds that a step computes, and that anything may wait.
    tables
        Whether each worker has rows of its own, too, of a sparse table.
    """

    def __init__(
        self,
        staleness: int | None = None,
        steps: int = 6,
        lives: int = 8,
        compute_s: float = 0.02,
        timeout: float = 20.0,
        tables: bool = False,
    ) -> None:
        self.tables = (_table(),) if tables else ()
        self.staleness = staleness
        self.steps = steps
        self.lives = lives
        self.compute_s = compute_s
        self.timeout = timeout
        # by life of the job and worker: up to which number it has counted, and has been told that it has
        self._said: dict[tuple[Life, int], int] = defaultdict(int)
        self._done: dict[tuple[Life, int], int] = defaultdict(int)
        self._rows_said: dict[tuple[Life, int], int] = defaultdict(int)  # the same of rows
        self._rows_done: dict[tuple[Life, int], int] = defaultdict(int)

    def job(self) -> tuple[JobSpec, list[Array]]:
        """A tensor of zeros and a counter for each worker, as large as some slices."""
        own = [Parameter(f"count{number}", (SIZE,), "int64", True) for number in range(self.lives)]
        parameters = Parameter("layer.weight", (SIZE,), "float32"), *own
        mode = "async" if self.staleness is None else "bounded"
        job = JobSpec(
            parameters=parameters, optimizer=sgd(1.0).to_wire(), mode=mode, staleness=self.staleness, tables=self.tables
        )
        return job, [np.zeros(p.shape, p.storage_dtype) for p in parameters]

    def program(self, simulation: SimulatedCluster, worker: Node) -> Program:
        """Join, start the job; push, count, read, each in its turn; finish."""
        job, values = self.job()
        yield Join(0.0), self.timeout
        attached: Attached = yield StartJob(0.0, job=job, values=values), 3 * self.timeout
        for _ in range(self.steps):
            try:
                if self.tables:
                    yield from self._set_rows(simulation, worker, attached)
                yield from self._step(simulation, worker, attached, values)
            except (DeadlineError, ServerMemoryError):
                pass  # counted or not: the next number is higher
            simulation.counters["steps"] += 1
        yield Finish(0.0), self.timeout

    def _step(self, simulation: SimulatedCluster, worker: Node, attached: Attached, values: list[Array]) -> Program:
        rng, t, own = simulation.rng, self.timeout, 1 + worker.number
        yield self.compute_s * rng.choice((0.25, 1.0, 1.0, 2.0))
        gradient = PushTransfer(
            cargoes=plan(attached.placement, frozenset({0})), source=Source(arrays=values), whole=True
        )
        yield Exchange(push=gradient), t
        cargoes, out = plan(attached.placement, frozenset({own})), [np.empty_like(value) for value in values]
        me = life_of(worker), worker.number
        self._said[me] += 1
        counted = [np.full_like(value, self._said[me]) for value in values]
        source, atomic = Source(arrays=counted, checked=True), rng.random() < 0.8
        yield Exchange(push=PushTransfer(cargoes=cargoes, source=source, atomic=atomic, terms=(SET,))), t
        assert isinstance(worker.machine, SessionKernel)
        self._done[me] = self._said[me]
        yield Exchange(pull=PullTransfer(cargoes=cargoes, target=Target(arrays=out))), t
        read = set(out[own].tolist())
        assert read == {self._said[me]}, f"{worker.name} has set {self._said[me]}, and reads {sorted(read)}"

    def _set_rows(self, simulation: SimulatedCluster, worker: Node, attached: Attached) -> Program:
        """Set the rows of this worker, and read them again."""
        transfers, me = TableTransfers(attached.placement, 0, simulation.rng), (life_of(worker), worker.number)
        own = IDS[worker.number :: self.lives].copy()  # as compiled code takes it
        self._rows_said[me] += 1
        number = self._rows_said[me]
        rows = np.full((own.size, ROW_DIM), number, np.float32)
        yield Exchange(push=transfers.push(own, rows, everywhere=False, terms=(SET,))), self.timeout
        self._rows_done[me] = number
        pull, target = transfers.pull(own)
        yield Exchange(pull=pull), self.timeout
        assert (target.out == number).all(), f"{worker.name} has set rows to {number}, and reads {target.out}"

    def _check_rows(self, life: Life, shard: Shard, who: str, *, live: bool) -> None:
        """Assert that rows are set as a whole, to numbers there were, and a leader's to none that is too low."""
        for table in rows_in(shard).tables:
            shards = shards_of_ids(shard.placement, 0)
            values = np.zeros((IDS.size, ROW_DIM), np.float32)
            here = there(table, shards, shard.index)
            values[here] = table.store.values[table.store.find(IDS[here])]
            owners = [number % self.lives for number in range(IDS.size)]
            said = np.array([self._rows_said[life, owner] for owner in owners])
            done = np.array([self._rows_done[life, owner] for owner in owners])
            assert (values == values[:, :1]).all(), f"{who} has set a part of a row only: {values}"
            assert (values[:, 0] <= said).all(), f"{who} has rows {values[:, 0]}, no worker has set more than {said}"
            due = (shards == shard.index) & live
            assert (values[due, 0] >= done[due]).all(), f"{who} has rows {values[:, 0]}, which were set to {done}"

    def check(self, simulation: SimulatedCluster, node: Node) -> None:
        """Assert that each copy has numbers there were, and a leader none that is lower than what is known to be."""
        for life, epoch, shard in copies_on(simulation, node, self.name):
            live = simulation.is_live(node, epoch)
            self._check_rows(life, shard, node.name, live=live)
            for state in shard.slices:
                for s in state.slice.segments:
                    if s.parameter:
                        self._check(life, s.parameter - 1, state.value[s.position : s.position + s.size], node, live)

    def _check(self, life: Life, number: int, value: Array, node: Node, live: bool) -> None:
        found, said, done = set(value.tolist()), self._said[life, number], self._done[life, number]
        assert len(found) == 1, f"{node.name} has set a part of count{number} only: {sorted(found)}"
        assert max(found) <= said, f"{node.name} has {max(found)} in count{number}, no worker has set more than {said}"
        assert not live or min(found) >= done, f"{node.name} has {min(found)} in count{number}, which was set to {done}"

    def may_wait(self, simulation: SimulatedCluster, error: DeadlineError) -> bool:
        """Wait in vain for workers that cannot be started again."""
        return simulation.num_workers >= self.lives

    def restarts(self, simulation: SimulatedCluster, worker: Node) -> bool:
        """Start a worker again unless it had finished or there is nothing to train, as often as there are buffers."""
        if worker.finished or simulation.num_workers >= self.lives:
            return False
        return simulation.coordinator_alive and not simulation.job_failed


def _table() -> TableSpec:
    initial = Initial("zeros").to_wire()
    return TableSpec(name="own", dim=ROW_DIM, optimizer=sgd(1.0).to_wire(), initial=initial)


#: Elements of each tensor, and of each row.
SIZE, ROW_DIM = 40, 4
