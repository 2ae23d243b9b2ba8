"""Simulated asynchronous training: no push may be lost or count twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.simulator.engine import Node, Program
from tests.simulator.jobs.marks import MarkedRows
from tests.simulator.jobs.training import Life, Place, Training, copies_on, life_of
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages import Leading, Message, Values
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.shard import Shard
from zmqps.core.worker.operations import Attached, EnterBarrier, Exchange, Finish, Join, StartJob
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import PullTransfer, PushTransfer, Source, Target, plan
from zmqps.errors import DeadlineError, PSError, ServerMemoryError
from zmqps.optim import sgd

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster
    from tests.simulator.placement.stores import SavedJob
    from zmqps.core.job.keyspace import Placement

#: Pushes of one worker that can be told apart in a float32: two bits each.
MOST_TOLD_APART = 11
#: How often a worker does a step again that has failed at its deadline: until all that went wrong is long over.
RETRIES = 6


class AsyncTraining(Training):
    """Every worker pulls, computes, pushes, again and again, and no push may be lost or count twice.

    Elements belong to workers in turn. A worker's k-th push subtracts ``-4**k`` from its own
    elements and nothing from the others, and the optimizer is plain SGD with a learning rate of 1:
    so two bits of every element say how often a push was applied there, exactly, even in float32.

    Parameters
    ----------
    steps
        Of each worker; those that fail at a deadline do not count, as long as there are marks. With more
        than `MOST_TOLD_APART` pushes are only counted.
    parameters, size
        Number of tensors and elements of each; dtypes alternate.
    lives
        How many workers there can be, those started again after a crash included.
    compute_s, timeout
        Seconds that a step computes (a fourth to the double of it, drawn), and may wait.
    restart
        Whether workers that die are started again.
    partly
        Whether a push is made in two, a half of the parameters later than the other.
    tables
        Names of its sparse tables (`tests.simulator.jobs.marks.KINDS`).
    """

    #: As in `zmqps.core.job.spec.JobSpec`.
    mode = "async"
    staleness: int | None = None
    #: In how many parts a push may be made: each is in a cut, or is not.
    halves = 1

    def __init__(
        self, steps: int = 5, parameters: int = 6, size: int = 40, lives: int = 8, compute_s: float = 0.02,
        timeout: float = 20.0, restart: bool = True, slice_nbytes: int = 256, partly: bool = False,
        tables: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._partly = partly
        self.halves = 2 if partly else type(self).halves
        self.steps = steps
        self.lives = lives
        self.slice_nbytes = slice_nbytes
        self._size = size
        self._num = parameters
        self._compute_s = compute_s
        self._timeout = timeout
        self._restart = restart
        self._base = 4.0 if steps <= MOST_TOLD_APART else 1.0
        self.rows = MarkedRows(lives, tables)
        # of each life of the job, by worker
        self._attempted: dict[Life, Any] = defaultdict(lambda: np.zeros(lives, np.int64))
        self._applied: dict[Life, Any] = defaultdict(lambda: np.zeros(lives, np.int64))  # at least: acknowledged
        self._num_acknowledged = 0
        # server, epoch and job -> updates of its shard, and how many pushes were acknowledged
        self._checked: dict[tuple[str, int, Life], tuple[int, int]] = {}
        self._floors: dict[str, Any] = {}  # by path of a checkpoint: what was acknowledged before it was begun
        # of each shard that has gone back to a checkpoint: what may be missing there, by worker
        self._lost: dict[tuple[Life, int], Any] = defaultdict(lambda: np.zeros(lives, np.int64))
        self._gone: dict[tuple[Life, int], Any] = defaultdict(
            lambda: np.zeros(lives, np.int64)
        )  # … is, by what is said
        self._marks_of: dict[int, tuple[PushTransfer, int]] = {}  # by id: what a push is marked with
        self._shards: dict[Placement, list[Any]] = {}  # by placement: of each parameter, which shard an element is of
        # what was acknowledged when another copy of a shard, by its place, became leader; reads at the one before
        self._before: dict[Place, Any] = {}
        self._behind: defaultdict[str, set[Place]] = defaultdict(set)
        # by id of a placement and number of a shard: the placement, and whose each element is
        self._owners: dict[tuple[int, int], tuple[Placement, Any]] = {}

    def job(self) -> tuple[JobSpec, list[Array]]:
        """Tensors of zeros, plain SGD."""
        names = [f"layer{i}.weight" for i in range(self._num)]
        dtypes = ["float32" if i % 2 else "float64" for i in range(self._num)]
        parameters = tuple(Parameter(n, (self._size,), t) for n, t in zip(names, dtypes, strict=True))
        job = JobSpec(
            parameters=parameters, optimizer=sgd(1.0).to_wire(), mode=self.mode, staleness=self.staleness,
            tables=self.rows.specs,
        )  # fmt: skip
        return job, [np.zeros(self._size, t) for t in dtypes]

    def gradients(self, owner: int, push: int) -> list[Array]:
        """Return the gradients that mark a push."""
        own = np.where(np.arange(self._size) % self.lives == owner, -(self._base**push), 0.0)
        return [own.astype("float32" if i % 2 else "float64") for i in range(self._num)]

    def program(self, simulation: SimulatedCluster, worker: Node) -> Program:
        """Join, start the job, train, meet the others, finish."""
        t = self._timeout
        job, values = self.job()
        yield Join(0.0), t
        attached: Attached = yield StartJob(0.0, job=job, values=values), 3 * t
        out = [np.empty_like(value) for value in values]
        done, spare = 0, min(RETRIES, max(0, MOST_TOLD_APART - self.steps))
        for push in range(self.steps + spare):
            try:
                yield from self.step(simulation, worker, attached, push, out)
                done += 1
            except (DeadlineError, ServerMemoryError):
                done += not spare
            simulation.counters["steps"] += 1
            if done == self.steps:
                break
        try:
            yield EnterBarrier(0.0, barrier="end"), t + 2 * self._compute_s * self.steps  # a new worker begins again
        except PSError:
            pass
        yield Finish(0.0), t

    def step(
        self, simulation: SimulatedCluster, worker: Node, attached: Attached, push: int, out: Sequence[Array | None]
    ) -> Program:
        """Pull, compute, push."""
        rng, t = simulation.rng, self._timeout
        yield from self.rows.step(simulation, worker, attached, push, t, self._behind[worker.name])
        cargoes, gradients = plan(attached.placement), self.gradients(worker.number, push)
        both = rng.random() < 0.3
        if not both:
            seen = self.acknowledged(worker)
            self._behind[worker.name].clear()
            yield Exchange(pull=PullTransfer(cargoes=cargoes, target=Target(arrays=out))), t
            self.check_pulled(worker, out, seen)
        yield self._compute_s * rng.choice((0.25, 1.0, 1.0, 2.0))
        self.attempt(worker, push)
        if self._partly:
            yield from self._push_halves(attached, gradients, push)
            self.acknowledge(worker, push)
            return
        whole = PushTransfer(cargoes=cargoes, source=Source(arrays=gradients), atomic=rng.random() < 0.2)
        self.mark(whole, push)
        yield Exchange(push=whole, pull=PullTransfer(cargoes=cargoes, target=Target(arrays=out)) if both else None), t
        self.acknowledge(worker, push)

    def _push_halves(self, attached: Attached, gradients: Sequence[Array], push: int) -> Program:
        for first in range(2):
            half = frozenset(range(first, self._num, 2))
            part = PushTransfer(cargoes=plan(attached.placement, half), source=Source(arrays=gradients))
            self.mark(part, push)
            yield Exchange(push=part), self._timeout
            if self._partly and not first:
                yield self._compute_s

    # --- what must hold ------------------------------------------------------------------------

    def attempt(self, worker: Node, push: int) -> None:
        """A push begins: from now on it may be applied."""
        self._attempted[life_of(worker)][worker.number] += int(self._base**push)

    def mark(self, transfer: PushTransfer, push: int) -> None:
        """Note what a push is marked with."""
        self._marks_of[id(transfer)] = transfer, int(self._base**push)

    def acknowledge(self, worker: Node, push: int) -> None:
        """A push was acknowledged by all servers: from now on it must be applied."""
        self._num_acknowledged += 1
        self._applied[life_of(worker)][worker.number] += int(self._base**push)

    def acknowledged(self, worker: Node) -> Any:
        """Return what must have been applied by now, by worker."""
        return self._applied[life_of(worker)].copy()

    def check_pulled(self, worker: Node, out: Sequence[Array | None], seen: Any) -> None:
        """Assert that what a worker reads is made of pushes there were, and of all acknowledged before it asked."""
        life = life_of(worker)
        attempted = self._attempted[life]
        assert isinstance(worker.machine, SessionKernel)
        attached = worker.machine.attached
        assert attached is not None
        for number, array in enumerate(out):
            assert array is not None
            values, owners = array.astype(np.int64), np.arange(array.size) % self.lives
            self._check_values(values, attempted[owners])
            due = seen[owners] & ~self._excused(life, attached.placement, number)[owners, np.arange(array.size)]
            for place in self._behind[worker.name] & self._before.keys():  # else no copy has taken over
                if place[:2] == (life, attached.placement.cuts):
                    its = self._shards[attached.placement][number] == place[2]
                    due[its] &= self._before[place][owners[its]]
            assert self._holds(values, due), "a worker does not see what was pushed before"

    def _excused(self, life: Life, placement: Placement, parameter: int) -> Any:
        """Return by worker and element of a parameter what may be missing, because its shard has gone back."""
        shards = self._shards.get(placement)
        if shards is None:
            shards = self._shards[placement] = shards_of(placement)
        lost = np.stack([self._lost[life, shard] for shard in range(placement.num_shards)])
        return lost[shards[parameter]].T

    def watch(self, simulation: SimulatedCluster) -> None:
        """Note reads at a deposed leader that does not know it: pushes are fenced there, reads are not."""
        simulation.on_send.append(partial(self._sent_by_copies, simulation))
        self.rows.watch(simulation)

    def _sent_by_copies(self, simulation: SimulatedCluster, sender: Node, receiver: str, message: Message) -> None:
        if not simulation.options.replicas or not isinstance(message, (Leading, Values)):
            return
        assert isinstance(sender.machine, ServerKernel)
        for life, epoch, shard in copies_on(simulation, sender, self.name):
            place = life, shard.placement.cuts, shard.index
            if isinstance(message, Values):
                if not sender.machine.tenants[epoch].follows and not simulation.is_live(sender, epoch):
                    self._behind[receiver].add(place)
            elif epoch == message.epoch and sender.machine.tenants[epoch].ledgers.inherited:  # it was a backup
                self._before.setdefault(place, self._applied[life].copy())
                self.rows.promoted(place)

    def check(self, simulation: SimulatedCluster, node: Node) -> None:
        """Assert that each copy has pushes there were, each once at most, and all that were acknowledged."""
        for life, epoch, shard in copies_on(simulation, node, self.name):
            now = sum([state.version for state in shard.slices]), self._num_acknowledged
            if self._checked.get((node.name, epoch, life)) != now:
                self._checked[node.name, epoch, life] = now
                values, owners = self._values(shard)
                self._check_values(values, self._attempted[life][owners])
                if simulation.is_live(node, epoch):
                    self._check_acknowledged(shard, life)
            self.rows.check(simulation, node, life, epoch, shard)

    def _values(self, shard: Shard) -> tuple[Any, Any]:
        """Return the values of a shard, slice by slice, as integers, and whose they are."""
        key = id(shard.placement), shard.index
        if key not in self._owners:
            segments = [segment for slice_ in shard.placement.slices[shard.index] for segment in slice_.segments]
            elements = [np.arange(s.start, s.start + s.size) for s in segments]
            self._owners[key] = shard.placement, np.concatenate([np.zeros(0, np.int64), *elements]) % self.lives
        values = np.concatenate([np.zeros(0), *[state.value for state in shard.slices]])
        return values.astype(np.int64), self._owners[key][1]

    def _check_values(self, values: Any, attempted: Any) -> None:
        if self._base == 1.0:
            assert (values >= 0).all(), "no worker pushed such a gradient"
            assert (values <= attempted).all(), "a push was applied twice"
            return
        assert not (values & 0xAAAAAAAAAAAA).any(), f"a push was applied twice: {values}"
        assert not (values & ~attempted).any(), f"a gradient that no worker pushed was applied: {values}, {attempted}"

    def check_freed(self, simulation: SimulatedCluster, server: Node) -> None:
        """Assert that every push that was acknowledged has been applied."""
        for life, epoch, shard in copies_on(simulation, server, self.name):
            if simulation.is_live(server, epoch):
                self._check_acknowledged(shard, life)
            self.rows.check(simulation, server, life, epoch, shard)

    def _check_acknowledged(self, shard: Shard, life: Life) -> None:
        """Assert that a shard has every push that was acknowledged and is not lost by going back to a checkpoint."""
        due = self._applied[life] & ~self._lost[life, shard.index]
        values, owners = self._values(shard)
        applied = due[owners]
        assert self._holds(values, applied), f"an acknowledged push is missing: {values}, {applied}"

    def _holds(self, values: Any, applied: Any) -> bool:
        there = values >= applied if self._base == 1.0 else values & applied == applied
        return bool(there.all())

    def saving(self, simulation: SimulatedCluster, path: str, life: Life) -> None:
        """Note what a checkpoint must have at least."""
        self._floors[path] = self._applied[life].copy()
        self.rows.saving(path, life)

    def check_saved(self, simulation: SimulatedCluster, saved: SavedJob, life: Life) -> None:
        """Assert that a checkpoint has all that was acknowledged before it was begun, and nothing twice."""
        for number, values in enumerate(self._saved_values(saved)):
            owners, elements = np.arange(values.size) % self.lives, np.arange(values.size)
            self._check_values(values, self._attempted[life][owners])
            due = self._floors[saved.path][owners] & ~self._excused(life, saved.placement, number)[owners, elements]
            assert self._holds(values, due), f"{saved.path} lacks what was acknowledged"
        self.rows.check_saved(saved, life)

    def check_cut(self, simulation: SimulatedCluster, saved: SavedJob, life: Life) -> None:
        """Assert that every push is in all of a cut, or nowhere in it, unless it has failed or its worker has died."""
        failed = self._attempted[life] & ~self._applied[life]
        for shard in range(saved.placement.num_shards):
            failed |= self._lost[life, shard]
        for first in range(self.halves) if saved.consistent else ():
            anywhere, everywhere = self._marks(saved, slice(first, None, self.halves))
            torn = anywhere & ~everywhere & ~failed
            assert not torn.any(), f"{saved.path} has pushes in part: {torn}"
        if saved.consistent:
            self.rows.check_cut(saved, life)

    def resume(self, life: Life, saved: SavedJob) -> None:
        """Expect what a checkpoint has in the life that begins from it."""
        if life not in self._attempted:
            self._attempted[life], self._applied[life] = self._marks(saved)
            self.rows.resume(life, saved)

    def fall(self, simulation: SimulatedCluster, life: Life, shards: Collection[int], saved: SavedJob) -> None:
        """Expect of a shard that goes back what the checkpoint has, until workers say what they have lost."""
        placement = simulation.coordinator.runs[self.name].startup.placement
        assert placement is not None
        for shard in shards:  # which the checkpoint may have cut otherwise
            self._lost[life, shard] |= self._attempted[life] & ~self._has(saved, placement, shard)
        self.rows.fall(placement, life, shards, saved)

    def fell(self, worker: Node, shard: int, saved: SavedJob, lost: Iterable[object]) -> None:
        """Expect of a worker's pushes all but those that are lost."""
        life, who = life_of(worker), worker.number
        pushes = list(lost)
        self._gone[life, shard][who] |= sum(
            {self._marks_of[id(push)][1] for push in pushes if id(push) in self._marks_of}
        )
        self.rows.fell(worker, shard, pushes)
        unanswered = self._lost[life, shard][who] & ~self._applied[life][who]
        self._lost[life, shard][who] = self._gone[life, shard][who] | unanswered

    def miss(self, worker: Node, shard: int, push: object) -> None:
        """Expect nothing of a push on a shard that had gone back when it was acknowledged, until the worker says so."""
        if id(push) in self._marks_of:
            self._lost[life_of(worker), shard][worker.number] |= self._marks_of[id(push)][1]
        self.rows.miss(worker, shard, push)

    def _has(self, saved: SavedJob, placement: Placement, shard: int) -> Any:
        """Return by worker which pushes a checkpoint has in all of a shard."""
        where = shards_of(placement)
        marks = np.full(self.lives, -1, np.int64)
        for values, there in zip(self._saved_values(saved), where, strict=True):
            owners = np.arange(values.size) % self.lives
            for owner in range(self.lives):
                own = values[(owners == owner) & (there == shard)]
                marks[owner] &= np.bitwise_and.reduce(own) if own.size else -1
        return marks

    def _saved_values(self, saved: SavedJob) -> Iterator[Any]:
        return (value.astype(np.int64) for value in saved.values)

    def _marks(self, saved: SavedJob, parameters: slice = slice(None)) -> tuple[Any, Any]:
        """Return by worker which pushes are somewhere in (parameters of) a checkpoint, and which everywhere."""
        nothing = np.zeros(0, np.int64)
        values = np.concatenate([nothing, *list(self._saved_values(saved))[parameters]])
        owners = np.concatenate([nothing, *[np.arange(value.size) % self.lives for value in saved.values[parameters]]])
        own = [values[owners == owner] for owner in range(self.lives)]
        return np.array([np.bitwise_or.reduce(v) for v in own]), np.array([np.bitwise_and.reduce(v) for v in own])

    def may_wait(self, simulation: SimulatedCluster, error: DeadlineError) -> bool:
        """Wait in vain for workers that cannot be started again: their marks are used up."""
        return simulation.num_workers >= self.lives or not self._restart

    def restarts(self, simulation: SimulatedCluster, worker: Node) -> bool:
        """Start a worker again unless it had finished or there is nothing to train, as often as its marks allow."""
        if worker.finished or not self._restart or simulation.num_workers >= self.lives:
            return False
        return simulation.coordinator_alive and not simulation.job_failed


def shards_of(placement: Placement) -> list[Any]:
    """Return of each parameter, for each element, the number of the shard that it is in."""
    found = [np.zeros(parameter.size, np.int64) for parameter in placement.keyspace.parameters]
    for shard, slices in enumerate(placement.slices):
        for slice_ in slices:
            for s in slice_.segments:
                found[s.parameter][s.start : s.start + s.size] = shard
    return found
