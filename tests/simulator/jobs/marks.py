"""Rows of simulated asynchronous training: of each it is known, to the bit, whose pushes it has and must have."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tests.simulator.engine import Node, Program
from tests.simulator.jobs.tables import (
    IDS,
    MOST_IDS,
    TableTransfers,
    beginnings,
    numbers_of,
    shards_of_ids,
    some_ids,
    there,
)
from tests.simulator.jobs.training import Life, Place, copies_on, life_of
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages import Message, PushRows
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.server.tables.table import RowTable
from zmqps.core.worker.operations import Attached, Exchange
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import PushTransfer
from zmqps.errors import TableFullError
from zmqps.optim import sgd
from zmqps.rows.initial import Initial

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster
    from tests.simulator.placement.stores import SavedJob

#: Parts of a gradient that are pushed for an id which a batch has so often: their sum is the gradient, exactly.
SHARES = {1: (1.0,), 2: (0.5, 0.5), 3: (0.25, 0.25, 0.5)}
#: How often a worker reads all rows of a shard.
SCANS = 0.08
#: Rows that a table with a capacity has room for, of one shard in two.
CAPACITY_ROWS = 14
#: Of a table: server, life of the job, epoch, its number.
Copy: TypeAlias = tuple[str, Life, int, int]
#: What is special about a table, by its name.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"initial": Initial("zeros")},
    "halves": {"initial": Initial("constant", 0.5)},
    "full": {"rows": CAPACITY_ROWS},
    "evicts": {"rows": CAPACITY_ROWS, "when_full": "evict"},
    "admits": {"admit": 2},
    "expires": {"expire_steps": 4},
    "lapses": {"expire_s": 1.5},
}


def table_spec(name: str, dim: int) -> TableSpec:
    """Return the table of a name, with plain SGD and a learning rate of 1."""
    options = {"initial": Initial("constant", 0.5), **KINDS[name]}
    if (rows := options.pop("rows", None)) is not None:
        options["capacity_nbytes"] = rows * (4 * dim + 13)
    options["initial"] = options["initial"].to_wire()
    return TableSpec(name=name, dim=dim, optimizer=sgd(1.0).to_wire(), **options)


@dataclass(slots=True, kw_only=True)
class _Seen:
    """A copy of a table when it was looked at last."""

    version: int
    marks: Array
    rows: Array  # which ids have one
    steps: Array  # by id: the table's updates when its row was seen to change
    at: Array  # … and the time


class MarkedRows:
    """The sparse tables of an asynchronous training: no push of a row may be lost, count twice, or change another one.

    A row has an element for each worker there can be. A worker's k-th push subtracts ``-4**k`` from its own element of
    some rows: two bits of it say how often that push was applied there.

    Parameters
    ----------
    lives
        How many workers there can be.
    names
        Of the tables (`KINDS`).
    """

    def __init__(self, lives: int, names: Sequence[str]) -> None:
        self.specs = tuple(table_spec(name, lives) for name in names)
        self._begin = [beginnings(spec) for spec in self.specs]
        self._shape = shape = (len(names), IDS.size, lives)
        # of each life of the job, by table, id and worker, as sums of marks
        self._attempted: dict[Life, Any] = defaultdict(lambda: np.zeros(shape, np.int64))
        self._applied: dict[Life, Any] = defaultdict(lambda: np.zeros(shape, np.int64))  # at least: acknowledged
        self._lost: dict[Life, Any] = defaultdict(lambda: np.zeros(shape, np.int64))  # what may be missing
        self._left: dict[Life, Any] = defaultdict(lambda: np.zeros(shape, np.int64))  # what rows need not have any more
        self._unsure: dict[Life, Any] = defaultdict(lambda: np.zeros(shape, np.int64))  # … and may yet come
        self._gone: dict[Life, Any] = defaultdict(lambda: np.zeros(shape, np.int64))  # … is, by what is said
        self._copied: set[Life] = set()  # of which there were copies that follow
        # by life, epoch and table: of each id the pushes that came before its row was admitted
        self._waits: dict[tuple[Life, int, int], Counter[int]] = defaultdict(Counter)
        self._floors: dict[str, Any] = {}  # by path of a checkpoint: what was acknowledged before it was begun
        self._left_before: dict[str, Any] = {}  # … and what had made way before
        self._marks_of: dict[int, tuple[PushTransfer, int, Array, int]] = {}  # by id: a push, its table, ids and mark
        self._seen: dict[Copy, _Seen] = {}
        self._counting: set[Copy] = set()  # those that have counted: what others dropped unseen they may still have
        self._named: dict[str, Array] = {}  # by server: which rows it was asked to change last
        self._before: dict[Place, Any] = {}  # what was acknowledged when another copy of a shard became leader
        self._acknowledged = 0
        self._checked: dict[Copy, tuple[int, int]] = {}

    # --- what workers do -----------------------------------------------------------------------

    def step(
        self, simulation: SimulatedCluster, worker: Node, attached: Attached, push: int, timeout: float,
        behind: set[Place],
    ) -> Program:  # fmt: skip
        """Read some rows of each table, and push some.

        Parameters
        ----------
        simulation, worker, attached
            The worker.
        push
            The number of the step.
        timeout
            Seconds that anything may wait.
        behind
            Where this worker has read at a leader that was deposed since its reading began.
        """
        rng = simulation.rng
        for number in range(len(self.specs)):
            if rng.random() < 0.2:
                continue
            transfers = TableTransfers(attached.placement, number, rng)
            if rng.random() < SCANS:
                yield from self._scan(rng, worker, number, timeout, behind)
            one_trip = rng.random() < 0.3
            wanted = some_ids(rng)
            seen = self._applied[life_of(worker)].copy()
            behind.clear()
            if not one_trip:
                pull, target = transfers.pull(IDS[wanted])
                yield Exchange(pull=pull), timeout
                self._check_read(worker, number, wanted, target.out, self._visible(worker, seen, behind))
            which, rows, touched = self._gradients(rng, worker.number, push)
            self._attempted[life_of(worker)][number, touched, worker.number] += 4**push
            try:
                if one_trip:
                    sent, pull, target = transfers.push_pull(IDS[which], rows, IDS[wanted])
                    self._marks_of[id(sent)] = sent, number, touched, 4**push
                    yield Exchange(push=sent, pull=pull), timeout
                    self._check_read(worker, number, wanted, target.out, self._visible(worker, seen, behind))
                else:
                    sent = transfers.push(IDS[which], rows, everywhere=False)
                    self._marks_of[id(sent)] = sent, number, touched, 4**push
                    yield Exchange(push=sent), timeout
            except TableFullError:
                continue  # on some servers perhaps
            self._acknowledge(simulation, worker, number, touched, 4**push)

    def _scan(self, rng: Random, worker: Node, number: int, timeout: float, behind: set[Place]) -> Program:
        """Read all rows of a shard as they lie; where shards are cut anew meanwhile, the reader has to begin again."""
        placement, seen = _placement(worker), self._applied[life_of(worker)].copy()
        behind.clear()
        pull, target, shard = TableTransfers(placement, number, rng).scan()
        yield Exchange(pull=pull), timeout
        if _placement(worker) is not placement:
            return
        which, due = numbers_of(target.ids.tolist()), self._visible(worker, seen, behind)
        self._check_read(worker, number, which, target.rows, due)
        shards = shards_of_ids(placement, number)
        assert (shards[which] == shard).all(), f"a scan of shard {shard} finds rows of others: {IDS[which].tolist()}"
        if not _forgets(self.specs[number]):
            life = life_of(worker)
            lacking = (due & ~self._lost[life] & ~self._left[life])[number].any(axis=1) & (shards == shard)
            lacking[which] = False
            assert not lacking.any(), f"a scan does not find rows {IDS[lacking].tolist()}, which were pushed before"

    def _gradients(self, rng: Any, who: int, push: int) -> tuple[Array, Array, Array]:
        """Return which ids a batch has, their gradients, and the different ones."""
        which = some_ids(rng)
        left = {number: list(SHARES[count]) for number, count in Counter(which.tolist()).items()}
        rows = np.zeros((which.size, self.specs[0].dim), np.float32)
        rows[:, who] = [-(4.0**push) * left[number].pop() for number in which.tolist()]
        return which, rows, np.array(sorted(left))

    def _acknowledge(self, simulation: SimulatedCluster, worker: Node, number: int, touched: Array, mark: int) -> None:
        """A push was acknowledged by all servers: from now on it must be there."""
        life = life_of(worker)
        self._acknowledged += 1
        self._applied[life][number, touched, worker.number] += mark
        if self.specs[number].admit > 1:
            self._excuse_touches(simulation, worker, number, touched, mark)

    def _excuse_touches(
        self, simulation: SimulatedCluster, worker: Node, number: int, touched: Array, mark: int
    ) -> None:
        """Expect nothing of a push that came before rows were admitted, of which there are so many at most."""
        life, spec, begin = life_of(worker), self.specs[number], self._begin[number]
        of_job = [copy for server in simulation.servers for copy in _live(simulation, server, worker.identity.job)]
        tables = [(epoch, s, t) for of, epoch, s in of_job if of == life for t in rows_in(s).tables]
        for epoch, shard, table in tables:
            if table.spec.name == spec.name:
                mine = touched[shards_of_ids(shard.placement, number)[touched] == shard.index]
                marks = (_values(table, mine) - begin[mine])[:, worker.number].astype(np.int64)
                waits = (marks & mark == 0) & (self._lost[life][number, mine, worker.number] & mark == 0)
                for id_ in mine[waits].tolist():
                    self._left[life][number, id_, worker.number] |= mark
                    self._waits[life, epoch, number][id_] += 1
                    times = self._waits[life, epoch, number][id_]
                    assert times < spec.admit, f"row {IDS[id_]} of {spec.name} is not admitted after {times} pushes"

    # --- what must hold ------------------------------------------------------------------------

    def watch(self, simulation: SimulatedCluster) -> None:
        """Note which rows servers are asked to change."""
        simulation.on_receive.append(self._received)

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        if isinstance(message, PushRows) and receiver.role == "server":
            ids = np.frombuffer(b"".join(map(bytes, message.payload)), "<i8", message.count)
            self._named[receiver.name] = numbers_of(ids.tolist())

    def promoted(self, place: Place) -> None:
        """Another copy of a shard becomes leader: reads at the old one need not see what comes after that."""
        self._before.setdefault(place, self._applied[place[0]].copy())

    def _visible(self, worker: Node, due: Any, behind: set[Place]) -> Any:
        """Return what a worker must see of what was acknowledged before it asked."""
        placement = _placement(worker)
        for place in behind & self._before.keys():
            for number in range(len(self.specs)) if place[:2] == (life_of(worker), placement.cuts) else ():
                its = shards_of_ids(placement, number) == place[2]
                due[number, its] &= self._before[place][number, its]
        return due

    def _check_read(self, worker: Node, number: int, which: Array, rows: Array, due: Any) -> None:
        """Assert that a worker reads pushes that there were, and all acknowledged before it asked."""
        life, spec = life_of(worker), self.specs[number]
        marks = self._marks(rows - self._begin[number][which], f"what {worker.name} reads of {spec.name}")
        self._check_marks(marks, self._attempted[life][number][which], spec)
        if not _forgets(spec):
            due = (due & ~self._lost[life] & ~self._left[life])[number][which]
            assert (marks & due == due).all(), f"a worker does not see rows of {spec.name} that were pushed before"

    @staticmethod
    def _marks(differences: Any, who: str) -> Any:
        assert np.isfinite(differences).all(), f"{who} has no values: {differences}"
        found = differences.astype(np.int64)
        assert np.array_equal(found, differences), f"{who} is not made of whole pushes: {differences}"
        return found

    @staticmethod
    def _check_marks(marks: Any, attempted: Any, spec: TableSpec) -> None:
        assert not (marks & 0xAAAAAAAAAAAA).any(), f"a push of rows of {spec.name} was applied twice: {marks}"
        assert not (marks & ~attempted).any(), f"rows of {spec.name} have gradients that no worker pushed: {marks}"

    def check(self, simulation: SimulatedCluster, server: Node, life: Life, epoch: int, shard: Shard) -> None:
        """Assert that a copy of a shard has rows there may be, each push once at most, and all that must be there."""
        live = simulation.is_live(server, epoch)
        for table in rows_in(shard).tables:
            number = [spec.name for spec in self.specs].index(table.spec.name)
            key, state = (server.name, life, epoch, number), (table.version, self._acknowledged)
            if self._checked.get(key) == state and table.spec.expire_s is None and table.spec.when_full != "evict":
                self._check_same(server, table, number, shard, self._seen[key])
                continue
            self._checked[key] = state
            mine = shards_of_ids(shard.placement, number) == shard.index
            rows = there(table, shards_of_ids(shard.placement, number), shard.index)
            marks = np.zeros((IDS.size, table.spec.dim), np.int64)
            text = f"{table.spec.name} on {server.name}"
            marks[mine] = self._marks((_values(table, np.flatnonzero(mine)) - self._begin[number][mine]), text)
            self._check_marks(marks, self._attempted[life][number], table.spec)
            follows = isinstance(server.machine, ServerKernel) and server.machine.tenants[epoch].follows
            self._copied |= {life} if follows else set()
            gone = self._check_gone(
                simulation.time_of(server), server, table, marks, rows, self._seen.get(key), follows=follows
            )
            if live:
                is_new = key not in self._counting and life not in self._copied
                self._leave(life, number, table, mine, marks, gone, is_new=is_new)
                self._counting.add(key)
            self._note(simulation.time_of(server), key, table, marks, rows)
            if live:
                due = self._due(life, number)
                due[~mine] = 0
                assert (marks & due == due).all(), f"an acknowledged push of rows of {text} is missing: {marks}, {due}"

    def _leave(
        self, life: Life, number: int, table: RowTable, mine: Array, marks: Any, gone: Any, *, is_new: bool
    ) -> None:
        """Expect nothing any more of what has gone; assert that what had gone before does not come back."""
        left, is_evicting = self._left[life][number], table.spec.when_full == "evict"
        unsure = self._unsure[life][number]
        if is_new:  # it was loaded, perhaps from a time when they were there
            left[mine] &= ~marks[mine]
            if is_evicting and len(table) + MOST_IDS > table.room.limit:  # and may have no room for all
                absent = self._attempted[life][number][mine] & ~marks[mine] & ~left[mine]
                unsure[mine] |= absent & ~self._applied[life][number][mine]  # a push under way may have yet to come
                left[mine] |= absent
        come = unsure & marks
        left &= ~come
        unsure &= ~come
        # a copy that follows lets rows go at other times, or never, where it takes over before it has heard of it
        back = left & marks if is_evicting and life not in self._copied else np.zeros_like(left)
        assert not back.any(), f"rows of {table.spec.name} that had made way have come back: {back}"
        left |= gone

    def _due(self, life: Life, number: int) -> Any:
        return self._applied[life][number] & ~self._lost[life][number] & ~self._left[life][number]

    def _check_same(self, server: Node, table: RowTable, number: int, shard: Shard, seen: _Seen) -> None:
        """Assert that rows do not change where nothing was applied."""
        mine = np.flatnonzero(shards_of_ids(shard.placement, number) == shard.index)
        marks = _values(table, mine) - self._begin[number][mine]
        text = f"rows of {table.spec.name} on {server.name} have changed, and nothing was applied"
        assert np.array_equal(marks, seen.marks[mine]), text

    def _check_gone(
        self, now: float, server: Node, table: RowTable, marks: Any, rows: Array, seen: _Seen | None, *, follows: bool
    ) -> Any:
        """Assert that nothing has gone that was there, but for rows that have expired, or made way; return what has.

        Which ones make way, the leader decides: a copy that ``follows`` is compared with that one.
        """
        if seen is None:
            return np.zeros_like(marks)
        gone = np.flatnonzero((seen.marks & ~marks).any(axis=1))
        spec, names = table.spec, IDS[gone].tolist()
        if not gone.size or (follows and spec.when_full == "evict"):
            pass
        elif spec.when_full == "evict":
            named = self._named.get(server.name, np.zeros(0, np.int64))
            assert not np.isin(gone, named).any(), (
                f"rows {names} of {spec.name} have made way although they were pushed"
            )
            stay = rows & seen.rows
            stay[gone] = stay[named] = False
            oldest = seen.steps[stay].min(initial=table.steps)
            assert seen.steps[gone].max() <= oldest, f"rows {names} of {spec.name} have made way, and older ones not"
        elif spec.expire_steps is not None:
            updates = table.steps - seen.steps[gone]
            assert (updates >= spec.expire_steps).all(), f"rows {names} of {spec.name} have expired after {updates}"
        elif spec.expire_s is not None:
            seconds = now - seen.at[gone]
            assert (seconds >= spec.expire_s - 1e-6).all(), (
                f"rows {names} of {spec.name} have expired after {seconds} s"
            )
        else:
            raise AssertionError(f"rows {names} of {spec.name} have lost what was pushed: {marks[gone]}")
        return seen.marks & ~marks

    def _note(self, now: float, key: Copy, table: RowTable, marks: Any, rows: Array) -> None:
        seen = self._seen.get(key)
        if seen is None:
            # when rows were pushed that come from another copy is not known
            steps, at = np.full(IDS.size, table.steps), np.where(rows, -np.inf, now)
            steps[rows] -= table.store.ages(table.store.find(IDS[rows]), table.steps)
        else:
            steps, at = seen.steps, seen.at
            changed = (marks != seen.marks).any(axis=1) | (rows & ~seen.rows)
            steps[changed], at[changed] = table.steps, now
        self._seen[key] = _Seen(version=table.version, marks=marks, rows=rows, steps=steps, at=at)

    # --- checkpoints ---------------------------------------------------------------------------

    def saving(self, path: str, life: Life) -> None:
        """Note what a checkpoint must have at least, and what it may not have."""
        self._floors[path] = self._due_of_all(life)
        self._left_before[path] = self._left[life].copy()

    def _due_of_all(self, life: Life) -> Any:
        return self._applied[life] & ~self._lost[life] & ~self._left[life]

    def _saved(self, saved: SavedJob, *, late: bool = True) -> Any:
        """Return the marks of all rows in a checkpoint, by table, id and worker; ``late``: of expired ones as well."""
        found = np.zeros(self._shape, np.int64)
        for number, spec in enumerate(self.specs):
            which, arrays = saved.rows_of(spec.name, number)
            for values in arrays:  # there are no slots
                found[number, which] = self._marks(values - self._begin[number][which], f"{spec.name} in {saved.path}")
            if not late and spec.expire_steps is not None and which.size:
                found[number, which[saved.ages_of(spec.name, number) >= spec.expire_steps]] = 0
        return found

    def check_saved(self, saved: SavedJob, life: Life) -> None:
        """Assert that a checkpoint has all that was acknowledged before it was begun, and nothing twice."""
        found = self._saved(saved)
        for number, spec in enumerate(self.specs):
            self._check_marks(found[number], self._attempted[life][number], spec)
            back = found[number] & self._left_before[saved.path][number] & self._left[life][number]
            assert spec.when_full != "evict" or not back.any(), f"{saved.path} has rows that had made way: {back}"
        due = self._floors[saved.path] & ~self._lost[life] & ~self._left[life]
        assert (found & due == due).all(), f"{saved.path} lacks rows that were acknowledged"

    def check_cut(self, saved: SavedJob, life: Life) -> None:
        """Assert that each push of rows is in all of a cut, or nowhere in it, unless it has failed."""
        found, attempted = self._saved(saved), self._attempted[life]
        failed = attempted & ~self._applied[life] | self._lost[life] | self._left[life]
        anywhere = np.bitwise_or.reduce(found, axis=1)
        torn = anywhere & ~np.bitwise_and.reduce(found | ~attempted, axis=1) & ~np.bitwise_or.reduce(failed, axis=1)
        assert not torn.any(), f"{saved.path} has pushes of rows in part: {torn}"

    def resume(self, life: Life, saved: SavedJob) -> None:
        """Expect what a checkpoint has in the life that begins from it."""
        if life not in self._attempted:
            self._attempted[life], self._applied[life] = self._saved(saved), self._saved(saved, late=False)

    def fall(self, placement: Placement, life: Life, shards: Collection[int], saved: SavedJob) -> None:
        """Expect of shards that go back what the checkpoint has, until workers say what they have lost."""
        missing = self._attempted[life] & ~self._saved(saved, late=False)
        for number in range(len(self.specs)):
            there = np.isin(shards_of_ids(placement, number), list(shards))
            self._lost[life][number, there] |= missing[number, there]

    def fell(self, worker: Node, shard: int, lost: Iterable[object]) -> None:
        """Expect of a worker's pushes all but those that are lost."""
        life, who = life_of(worker), worker.number
        for push in lost:
            self._note_lost(self._gone[life], worker, shard, push)
        unanswered = self._lost[life][:, :, who] & ~self._applied[life][:, :, who]
        for number in range(len(self.specs)):
            mine = shards_of_ids(_placement(worker), number) == shard
            self._lost[life][number, mine, who] = (self._gone[life][number, :, who] | unanswered[number])[mine]

    def miss(self, worker: Node, shard: int, push: object) -> None:
        """Expect nothing of a push on a shard that had gone back when it was acknowledged, until the worker says so."""
        self._note_lost(self._lost[life_of(worker)], worker, shard, push)

    def _note_lost(self, where: Any, worker: Node, shard: int, push: object) -> None:
        if id(push) in self._marks_of:
            _, number, touched, mark = self._marks_of[id(push)]
            mine = touched[shards_of_ids(_placement(worker), number)[touched] == shard]
            where[number, mine, worker.number] |= mark


def _forgets(spec: TableSpec) -> bool:
    """Whether rows go that were pushed."""
    return spec.expire_s is not None or spec.expire_steps is not None or spec.when_full == "evict"


def _live(simulation: SimulatedCluster, server: Node, job: str) -> list[tuple[Life, int, Shard]]:
    """Return the copies of a job's shards on a server that count."""
    return [copy for copy in copies_on(simulation, server, job) if simulation.is_live(server, copy[1])]


def _values(table: RowTable, which: Array) -> Array:
    """Return the rows of some ids as they are read, and count no look."""
    counters, table.counters = table.counters, Counter()
    values = table.read(IDS[which])
    table.counters = counters
    return values


def _placement(worker: Node) -> Placement:
    assert isinstance(worker.machine, SessionKernel)
    assert worker.machine.attached is not None
    return worker.machine.attached.placement
