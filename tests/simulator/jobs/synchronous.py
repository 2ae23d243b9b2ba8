"""Simulated synchronous training: each step is the mean of whole contributions, applied once, everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tests.simulator.engine import Node, Program
from tests.simulator.jobs.asynchronous import RETRIES
from tests.simulator.jobs.ranges import RangeWitness
from tests.simulator.jobs.trained import MOMENTUM, RATE, TrainedRows
from tests.simulator.jobs.training import Life, Training, copies_on, life_of
from tests.simulator.watching.witness import StepWitness
from zmqps.core.job.data import DataSpec
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages import Range
from zmqps.core.protocol.terms import SET, SET_TO_MEAN
from zmqps.core.worker.operations import Advance, Attached, Exchange, Finish, Join, SetNumbers, StartJob
from zmqps.core.worker.ranges import TakeRange
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import Cargo, PullTransfer, PushTransfer, Source, Target, plan
from zmqps.errors import DeadlineError, PSError, ServerMemoryError, TableFullError, VersionError
from zmqps.optim import sgd

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster
    from tests.simulator.placement.stores import SavedJob


#: The dtypes of buffers, where there are some.
BUFFERS = ["float64", "int64"]
#: What an eager worker waits for values to come: servers keep its request meanwhile.
EAGER_S = 1.5


@dataclass(kw_only=True)
class SyncTraining(Training):
    """Workers read, compute and push step by step, in all the ways the public interface has for that.

    Gradients are random numbers, so no two sets of contributors have the same mean; the optimizer
    has a memory, so no two histories have the same values.

    Parameters
    ----------
    steps
        Of each worker, where no ``data`` say how many.
    parameters, size
        Number of tensors and elements of each; dtypes alternate.
    aggregate, on_straggler, mean, retain
        As in `zmqps.core.job.spec.JobSpec`.
    data
        Examples handed out by the coordinator: a step a range, until there are no more.
    deterministic
        As in `zmqps.core.job.spec.JobSpec`.
    plain
        Whether every step is one pull and one push, nothing else.
    partly
        Whether a worker has gradients of every third parameter only; of the same in a step, if the mean is ``pushed``.
    skips
        Probability that a worker has no gradient in a step, or leaves out what it has pushed of it.
    voids
        Probability that a worker leaves out a step for all, with or without having pushed something of it.
    clip_norm
        What the norm of a step's mean is at most.
    values
        Probability that a worker sets some of the parameters and buffers in a step, or averages them.
    sets
        Probability that a worker sets the learning rate, or all numbers, in a step, whether it is the chief or not.
    eager
        Probability that a worker asks for the next values too, before it pushes what makes them.
    together
        Probability that a worker pushes and pulls in one call, beside the ways that it chooses otherwise.
    lends
        Whether a worker that pushes and pulls at once lets servers read its gradients in its own memory.
    tables
        Names of its sparse tables.
    compute_s, hiccup
        Seconds that a step computes; probability that it takes `HICCUP_S` more.
    timeout
        Seconds that anything may wait.
    lives
        How many workers there can be, those started again included.
    """

    steps: int = 6
    parameters: int = 4
    size: int = 24
    aggregate: int | None = None
    on_straggler: str = "wait"
    mean: str = "pushed"
    retain: int = 0
    data: DataSpec | None = None
    deterministic: bool = False
    plain: bool = False
    partly: bool = False
    skips: float = 0.0
    voids: float = 0.0
    clip_norm: float | None = None
    values: float = 0.0
    sets: float = 0.0
    eager: float = 0.0
    together: float = 0.0
    lends: bool = False
    tables: Sequence[str] = ()
    compute_s: float = 0.02
    hiccup: float = 0.0
    timeout: float = 20.0
    lives: int = 40
    slice_nbytes: int = 192

    def __post_init__(self) -> None:
        self.witness: StepWitness | None = None
        self.trained = TrainedRows(self.tables)
        self.ranges: RangeWitness | None = None
        self._saved_in: dict[str, int] = {}  # by path: how often the job had gone back before
        self._checked: dict[tuple[str, int, Life], int] = {}  # server and job -> version its shard had

    def job(self) -> tuple[JobSpec, list[Array]]:
        """Tensors of zeros, momentum; where values are set buffers as well."""
        dtypes = ["float32" if i % 2 else "float64" for i in range(self.parameters)]
        parameters = tuple(Parameter(f"layer{i}.weight", (self.size,), t) for i, t in enumerate(dtypes))
        if self.values:
            dtypes += BUFFERS
            parameters += tuple(Parameter(f"{dtype}.buffer", (self.size,), dtype, True) for dtype in BUFFERS)
        spec = sgd(RATE, momentum=MOMENTUM, clip_norm=self.clip_norm).to_wire()
        job = JobSpec(
            parameters=parameters,
            optimizer=spec,
            mode="sync",
            aggregate=self.aggregate,
            on_straggler=self.on_straggler,
            mean=self.mean,
            retain=self.retain,
            deterministic=self.deterministic,
            tables=self.trained.specs,
        )
        return job, [np.zeros(self.size, t) for t in dtypes]

    def watch(self, simulation: SimulatedCluster) -> None:
        """Note what is pushed, arrived and committed."""
        expected, exact = simulation.options.workers or 0, simulation.options.replicas > 0
        self.witness = StepWitness(simulation, *self.job(), self.name, expected=expected, exact=exact)
        if self.data is not None:
            self.ranges = RangeWitness(simulation, self.data)

    # --- what workers do -----------------------------------------------------------------------

    def program(self, simulation: SimulatedCluster, worker: Node) -> Program:
        """Join, start the job, train, finish."""
        t = self.timeout
        job, values = self.job()
        yield Join(0.0), t
        attached: Attached = yield StartJob(0.0, job=job, values=values), 3 * t
        out = [np.empty_like(value) for value in values]
        used: tuple[int, int] | None = None
        done = failed = 0
        while (done < self.steps or self.data is not None) and failed < RETRIES:
            try:
                if self.data is not None:
                    found: Range = yield TakeRange(0.0, data=self.data, used=used), t
                    if found.start >= found.stop:
                        break
                    used = found.data_pass, found.number
                yield from self._read(simulation, worker, attached, out)
                yield from self._read_rows(simulation, worker, attached)
                yield from self._set_rate(simulation, worker)
                yield self._seconds(simulation)
                yield from self._push(simulation, worker, attached, out)
                done += 1
            except DeadlineError:
                failed += 1  # the next attempt may do better
            except ServerMemoryError:
                yield RETRY_S
            simulation.counters["steps"] += 1
        try:
            yield Finish(0.0), t
        except DeadlineError:
            if failed < RETRIES:
                raise
            # else the others had finished before it came, and no more come

    def _set_rate(self, simulation: SimulatedCluster, worker: Node) -> Program:
        """Sometimes set the learning rate, or all numbers, which counts for nothing where this is not the chief."""
        if self.sets and simulation.rng.random() < self.sets and self.witness is not None:
            assert isinstance(worker.machine, SessionKernel)
            rng, step = simulation.rng, worker.machine.transfers.pace.next_step
            numbers = [rng.uniform(0.05, 0.2)]
            if rng.random() < 0.5:
                numbers += [rng.uniform(0.0, 0.3), rng.uniform(0.1, 0.9)]  # weight decay and momentum
            rates = self.witness.rates[life_of(worker)]
            rates.ask(step, numbers)
            if (yield SetNumbers(0.0, rates=(1.0, *numbers)), self.timeout):
                rates.holds(step, numbers)

    def _seconds(self, simulation: SimulatedCluster) -> float:
        rng = simulation.rng
        late = self.hiccup and rng.random() < self.hiccup
        return self.compute_s * rng.choice((0.25, 1.0, 1.0, 2.0)) + (HICCUP_S if late else 0.0)

    def _read(self, simulation: SimulatedCluster, worker: Node, attached: Attached, out: list[Array]) -> Program:
        """Pull whatever the mode demands, sometimes an older version as well."""
        pull = PullTransfer(cargoes=plan(attached.placement), target=Target(arrays=out))
        yield Exchange(pull=pull), self.timeout
        version = self._check_read(worker, pull, out)
        self._check_clock(worker, version)
        if self.eager and simulation.rng.random() < self.eager:
            following = PullTransfer(cargoes=pull.cargoes, target=Target(arrays=out), version=version + 1)
            try:
                yield Exchange(pull=following), EAGER_S
            except DeadlineError:
                return  # the others do the same
            self._check_read(worker, following, out)
        if self.plain or not self.retain or not version or simulation.rng.random() < 0.5:
            return
        older = max(0, version - simulation.rng.randint(1, self.retain))
        exact = PullTransfer(cargoes=pull.cargoes, target=Target(arrays=out), version=older, exact=True)
        try:
            yield Exchange(pull=exact), EAGER_S
        except VersionError:
            return  # others have gone on meanwhile
        except DeadlineError:
            assert isinstance(worker.machine, SessionKernel)
            if worker.machine.transfers.pace.version >= older:
                raise
            return  # the job went back before this was asked for: that version needs a push of this worker first
        versions = set(exact.target.versions.values())
        assert versions == {older}, f"asked for version {older}, got {versions}"
        self._check_read(worker, exact, out)

    def _read_rows(self, simulation: SimulatedCluster, worker: Node, attached: Attached) -> Program:
        """Pull some rows, of one version."""
        for number, which, pull, target in self.trained.reads(attached.placement, simulation.rng):
            yield Exchange(pull=pull), self.timeout
            version = self._version_of(worker, pull)
            assert version >= pull.version, f"{worker.name} asked for version {pull.version} of rows, and has {version}"
            if self.witness is not None:
                rows = self.witness.read_by(worker).rows
                rows.compare(version, f"what {worker.name} reads", number, which, target.out)

    def _push_rows(self, simulation: SimulatedCluster, attached: Attached) -> Program:
        """Push rows of most tables; those for which there is no room are left out."""
        for push in self.trained.pushes(attached.placement, simulation.rng):
            try:
                yield Exchange(push=push), self.timeout
            except TableFullError:
                pass

    def _push(self, simulation: SimulatedCluster, worker: Node, attached: Attached, out: list[Array]) -> Program:
        """Push a whole gradient, or two halves, or push and pull."""
        rng, t = simulation.rng, self.timeout
        source = self._gradients(simulation)
        examples = rng.choice((1, 1, 4))
        way = 0.0 if self.plain else rng.random()
        cargoes, atomic = plan(attached.placement), not self.plain and rng.random() < 0.2
        pushed = cargoes
        if self.values:
            pushed = plan(attached.placement, frozenset(range(self.parameters)))
            yield from self._set_values(simulation, attached, len(out))
        if self.together and rng.random() < self.together:
            way = 0.6
        if self.partly:
            assert isinstance(worker.machine, SessionKernel)
            first = worker.machine.transfers.pace.clock % 3 if self.mean == "pushed" else rng.randrange(3)
            pushed, way = plan(attached.placement, frozenset(range(first, self.parameters, 3))), 0.7 * way

        yield from self._push_rows(simulation, attached)

        def push(cargoes: tuple[tuple[Cargo, ...], ...], *, whole: bool) -> PushTransfer:
            sent = Source(arrays=source)
            return PushTransfer(cargoes=cargoes, source=sent, whole=whole, examples=examples, atomic=atomic)

        if self.voids and rng.random() < self.voids:
            if way < 0.5:
                yield Exchange(push=push(pushed, whole=False)), t
            yield Advance(0.0, skips=True, for_all=True), t
        elif self.skips and rng.random() < self.skips:
            if way < 0.7:
                part = push(plan(attached.placement, frozenset({0})), whole=False)
                if way < 0.3:
                    yield Exchange(push=part), t
                yield Advance(0.0, skips=True), t
                if self.witness is not None:
                    self.witness.left_out.add((worker.identity.incarnation, part.attempt))
            else:
                nothing = plan(attached.placement, frozenset())
                yield Exchange(push=PushTransfer(cargoes=nothing, source=Source(arrays=source), whole=True)), t
        elif way < 0.5:
            yield Exchange(push=push(pushed, whole=True)), t
        elif way < 0.7:
            pull, both = PullTransfer(cargoes=cargoes, target=Target(arrays=out)), push(pushed, whole=True)
            if self.lends:
                both.source = lent_source(attached.placement, source)
            try:
                yield Exchange(push=both, pull=pull), t
            except PSError:
                self.part(both.source)
                raise
            overwrite(both.source)
            self._check_clock(worker, self._check_read(worker, pull, out))
        else:
            for first in range(2):
                half = frozenset(range(first, self.parameters, 2))
                yield Exchange(push=push(plan(attached.placement, half), whole=False)), t
                yield self.compute_s * rng.random()
            yield Advance(0.0), t

    def part(self, source: Source) -> None:
        """Do what a worker does with gradients that it has lent where it fails: servers go on to see what they were."""

    def _set_values(self, simulation: SimulatedCluster, attached: Attached, number: int) -> Program:
        """Sometimes set some parameters and buffers, or average what is no whole number."""
        rng = simulation.rng
        while rng.random() < self.values:
            sort = rng.choice((SET, SET_TO_MEAN))
            floats = number - sum(dtype.startswith("int") for dtype in BUFFERS)  # which come last
            some = frozenset(n for n in range(number if sort == SET else floats) if rng.random() < 0.4)
            numbers = np.random.default_rng(rng.getrandbits(32)).normal(0.0, 9.0, (number, self.size))
            source = Source(arrays=list(numbers.round()), checked=True)
            examples = rng.choice((1, 3))
            push = PushTransfer(cargoes=plan(attached.placement, some), source=source, examples=examples, terms=(sort,))
            yield Exchange(push=push), self.timeout

    def _gradients(self, simulation: SimulatedCluster) -> list[Array | None]:
        numbers = np.random.default_rng(simulation.rng.getrandbits(32)).standard_normal((self.parameters, self.size))
        gradients: list[Array | None] = [row.astype("float32" if i % 2 else "float64") for i, row in enumerate(numbers)]
        return [*gradients, *([None] * len(BUFFERS) if self.values else [])]

    # --- what must hold ------------------------------------------------------------------------

    def _check_read(self, worker: Node, pull: PullTransfer, out: list[Array]) -> int:
        """Assert that a worker has read one version of everything, and the values of that version."""
        version = self._version_of(worker, pull)
        if self.witness is not None:
            reference = self.witness.read_by(worker)
            reference.compare(version, f"what {worker.name} reads", enumerate(out))
        return version

    @staticmethod
    def _check_clock(worker: Node, version: int) -> None:
        """Assert that a worker has read no version before the step that it is at, whenever it has asked for it."""
        assert isinstance(worker.machine, SessionKernel)
        clock = worker.machine.transfers.pace.version
        assert version >= clock, f"{worker.name} is at step {clock}, and has read version {version}"

    @staticmethod
    def _version_of(worker: Node, pull: PullTransfer) -> int:
        """Return the version that a worker has read; assert that it is one."""
        assert isinstance(worker.machine, SessionKernel)
        versions = set(pull.target.versions.values()) or {worker.machine.transfers.pace.version}  # of nothing: any
        assert len(versions) == 1, f"{worker.name} has read versions {sorted(versions)} at once"
        return versions.pop()

    def check(self, simulation: SimulatedCluster, node: Node) -> None:
        """Assert that a server has the values of the reference, at each of its versions."""
        for life, epoch, shard in copies_on(simulation, node, self.name) if self.witness is not None else ():
            if simulation.track_of_copy(life[0], epoch) > simulation.num_back[life]:
                continue  # the others have yet to be loaded
            between = any(state.version == shard.version + 1 for state in shard.slices)  # a backup, in a step
            if self._checked.get((node.name, epoch, life)) == shard.version or between:
                continue
            self._checked[node.name, epoch, life] = shard.version
            assert self.witness is not None
            if (exact := self.witness.exactly(life, simulation.track_of_copy(life[0], epoch))) is not None:
                exact.compare(shard, node.name)
            reference = self.witness.of_copy(life[0], epoch)
            self.trained.check(shard, node.name, reference.rows)
            for state in shard.slices:
                for s in state.slice.segments:
                    got = state.value[s.position : s.position + s.size]
                    reference.compare(shard.version, node.name, [(s.parameter, got)], s.start)

    def check_freed(self, simulation: SimulatedCluster, server: Node) -> None:
        """Assert that nothing that was committed is missing on a server that lives to the end."""
        if self.witness is not None:
            self.witness.check_freed(server)

    def check_saved(self, simulation: SimulatedCluster, saved: SavedJob, life: Life) -> None:
        """Assert that a checkpoint is the reference at one version: values, slots and steps."""
        assert saved.versions <= {saved.version}, f"{saved.path} has versions {saved.versions}, not {saved.version}"
        if self.witness is not None:
            reference = self.witness.reference(life, self._saved_in.get(saved.path, 0))
            reference.compare(saved.version, saved.path, enumerate(saved.values))
            for slots in saved.slots:
                reference.compare_slots(saved.version, saved.path, enumerate(slots))
            self.trained.check_saved(saved, reference.rows)
        for steps in saved.steps:
            assert len(steps) == 1, f"{saved.path} has parts of a parameter after {steps} steps"

    def resume(self, life: Life, saved: SavedJob) -> None:
        """Expect what is trained from there on."""
        if self.witness is not None:
            self.witness.resume(life, saved, self.trained.saved(saved))
        if self.ranges is not None:
            self.ranges.resume(life, saved)

    def saving(self, simulation: SimulatedCluster, path: str, life: Life) -> None:
        """Note of which steps a checkpoint is, where a job may go back."""
        self._saved_in[path] = simulation.num_back[life]

    def went_back(self, simulation: SimulatedCluster, life: Life, saved: SavedJob) -> None:
        """Expect what is trained from the checkpoint on; its data sets stand where they stood there."""
        if self.witness is not None:
            back = simulation.num_back[life]
            self.witness.resume(life, saved, self.trained.saved(saved), back)
        if self.ranges is not None:
            self.ranges.resume(life, saved, again=True)

    def may_wait(self, simulation: SimulatedCluster, error: DeadlineError) -> bool:
        """Wait in vain only where the job says so, or for workers that cannot be started again."""
        return error.operation == "step" or simulation.num_workers >= self.lives

    def restarts(self, simulation: SimulatedCluster, worker: Node) -> bool:
        """Start a worker again unless it had finished or there is nothing to train."""
        if worker.finished or simulation.num_workers >= self.lives:
            return False
        return simulation.coordinator_alive and not simulation.job_failed


def lent_source(placement: Placement, gradients: Sequence[Array | None]) -> Source:
    """Return a source of the same gradients in tables that servers read in place."""
    tables = [np.zeros(0 if table.buffers else table.size, table.dtype) for table in placement.keyspace.dense]
    for values, table in zip(tables, placement.keyspace.dense, strict=True):
        for number, start in zip(table.parameters, table.offsets, strict=False):
            if (gradient := gradients[number]) is not None:
                values[start : start + gradient.size] = gradient
    return Source(arrays=gradients, tables=tables, in_place=1, stays=True)


def overwrite(source: Source) -> None:
    """Write something else where gradients were that servers could read in place."""
    for table in source.tables or ():
        table.fill(1e30)


#: How long a worker waits where a server was short of memory.
RETRY_S = 0.1

#: How much longer a late worker computes: more than the least patience of a step.
HICCUP_S = 2.5
