"""Rows of simulated synchronous training, and the values that they must have: its steps, one by one, in one place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tests.simulator.jobs.tables import IDS, TableTransfers, beginnings, numbers_of, shards_of_ids, some_ids, there
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.terms import SET
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.worker.rows import RowSource, RowTarget
from zmqps.core.worker.transfer import PullTransfer, PushTransfer
from zmqps.optim import sgd
from zmqps.rows.initial import Initial

if TYPE_CHECKING:
    from tests.simulator.placement.stores import SavedJob

#: Of synchronous training, with tables or not.
RATE, MOMENTUM = 0.1, 0.5
#: float32 against float64 after some tens of steps.
TOLERANCE = 1e-4
DIM = 5
#: Rows that a table with a capacity has room for, of one shard in two.
CAPACITY_ROWS = 18
#: How often a worker sets rows, where it pushes some.
SETS = 0.15


class RowGradient(NamedTuple):
    """What a push brings to a table: which of `IDS`, and a row for each; ``is_set``: these are values."""

    table: int
    which: Array
    rows: Array
    is_set: bool


class RowVersion(NamedTuple):
    """The rows of all tables, by table and id, and whether there is one."""

    values: Array
    velocity: Array
    there: Array


def table_specs(names: Sequence[str]) -> tuple[TableSpec, ...]:
    """Return tables with momentum; that which is called ``full`` has little room."""
    return tuple(
        TableSpec(
            name=name,
            dim=DIM,
            optimizer=sgd(RATE, momentum=MOMENTUM).to_wire(),
            initial=Initial("normal", 0.0, 1.0, 3).to_wire(),
            capacity_nbytes=CAPACITY_ROWS * (8 * DIM + 13) if name == "full" else None,
        )
        for name in names
    )


class RowReference:
    """Sequential training of tables with momentum: a version after each step, all of them kept.

    Parameters
    ----------
    specs
        The tables.
    first
        The number of the first version.
    saved
        What it is; by default no rows.
    """

    def __init__(self, specs: Sequence[TableSpec], first: int = 0, saved: RowVersion | None = None) -> None:
        self._specs = specs
        self._first = first
        self._versions = [nothing(specs) if saved is None else saved]

    def step(self, brought: Iterable[tuple[RowGradient, int]], examples: int = 0) -> None:
        """Apply the mean of some gradients over the examples of all workers that pushed to the table; then what is set.

        With ``examples``, those of all workers, the mean is over these.
        """
        values, velocity, is_there = (array.copy() for array in self._versions[-1])
        brought = list(brought)
        for number in range(len(self._specs)):
            grads = [(g, weight) for g, weight in brought if g.table == number and not g.is_set]
            sums, touched = np.zeros((IDS.size, DIM)), np.zeros(IDS.size, bool)
            for gradient, weight in grads:
                sums[gradient.which] += weight * gradient.rows.astype(np.float64)
                touched[gradient.which] = True
            mean = sums / max(1, examples, sum(weight for _, weight in grads))
            velocity[number, touched] = MOMENTUM * velocity[number, touched] + mean[touched]
            values[number, touched] -= RATE * velocity[number, touched]
            is_set = np.zeros(IDS.size, bool)
            for gradient, _ in brought:
                if gradient.table == number and gradient.is_set:
                    fresh = ~is_set[gradient.which]
                    values[number, gradient.which[fresh]] = gradient.rows[fresh]
                    is_set[gradient.which] = True
            is_there[number] |= touched | is_set
        self._versions.append(RowVersion(values, velocity, is_there))

    def compare(
        self, version: int, who: str, number: int, which: Array, rows: Array, velocity: Array | None = None
    ) -> None:
        """Assert that rows of some of `IDS`, and their velocities, are those of a version."""
        found = self._at(version, who)
        pairs = [(found.values, rows)] if velocity is None else [(found.values, rows), (found.velocity, velocity)]
        for of, got in pairs:
            expected = of[number][which]
            assert np.allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE), (
                f"{who}: rows {IDS[which].tolist()} of {self._specs[number].name} are not those of the sequential "
                f"reference at version {version}: {got} instead of {expected}"
            )

    def compare_there(self, version: int, who: str, number: int, here: Array, is_there: Array) -> None:
        """Assert that of the ids that are ``here`` those have a row that were trained or set by then.

        Others may have one, as it begins: of a step for which there was no memory.
        """
        lacking = self._at(version, who).there[number] & here & ~is_there
        text = f"{who}: at version {version} {self._specs[number].name} lacks rows {IDS[lacking].tolist()}"
        assert not lacking.any(), text

    def _at(self, version: int, who: str) -> RowVersion:
        assert self._first <= version < self._first + len(self._versions), (
            f"{who}: rows are at version {version}, which was never committed"
        )
        return self._versions[version - self._first]


class TrainedRows:
    """The sparse tables of a synchronous training.

    Parameters
    ----------
    names
        Of the tables.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.specs = table_specs(names)

    def reads(self, placement: Placement, rng: Random) -> Iterable[tuple[int, Array, PullTransfer, RowTarget]]:
        """Yield, for some of the tables, which rows are read, how, and where they come to lie."""
        for number in range(len(self.specs)):
            if rng.random() < 0.5:
                which = some_ids(rng)
                yield number, which, *TableTransfers(placement, number, rng).pull(IDS[which])

    def pushes(self, placement: Placement, rng: Random) -> Iterable[PushTransfer]:
        """Yield what a worker brings to a step: gradients of most tables, and sometimes values of rows."""
        for number in range(len(self.specs)):
            transfers = TableTransfers(placement, number, rng)
            while rng.random() < SETS:
                which = np.unique(some_ids(rng))
                yield transfers.push(IDS[which], _numbers(rng, which.size), everywhere=False, terms=(SET,))
            if rng.random() < 0.8:
                which = some_ids(rng)
                examples = rng.choice((1, 1, 4))
                yield transfers.push(IDS[which], _numbers(rng, which.size), everywhere=True, examples=examples)

    def check(self, shard: Shard, who: str, reference: RowReference) -> None:
        """Assert that the tables of a shard are those of the reference at each one's version: values, slots, rows."""
        for table in rows_in(shard).tables:
            number = [spec.name for spec in self.specs].index(table.spec.name)
            shards = shards_of_ids(shard.placement, number)
            here = there(table, shards, shard.index)
            which = np.flatnonzero(here)
            rows = table.store.find(IDS[which])
            values, velocity = table.store.values[rows], table.store.slots[0][rows]
            reference.compare(table.version, who, number, which, values, velocity)
            reference.compare_there(table.version, who, number, shards == shard.index, here)

    def check_saved(self, saved: SavedJob, reference: RowReference) -> None:
        """Assert that a checkpoint has the rows of the reference at its version."""
        found, who, version = self.saved(saved), saved.path, saved.version
        for number in range(len(self.specs)):
            which = np.flatnonzero(found.there[number])
            values, velocity = found.values[number, which], found.velocity[number, which]
            reference.compare(version, who, number, which, values, velocity)
            reference.compare_there(version, who, number, np.ones(IDS.size, bool), found.there[number])

    def saved(self, saved: SavedJob) -> RowVersion:
        """Return what a checkpoint has."""
        found = nothing(self.specs)
        for number, spec in enumerate(self.specs):
            which, kept = saved.rows_of(spec.name, number)
            for of, array in zip((found.values, found.velocity), kept, strict=False):  # none, of no rows
                of[number, which] = array
            found.there[number, which] = True
        return found


def nothing(specs: Sequence[TableSpec]) -> RowVersion:
    """Return tables without rows."""
    values = np.array([beginnings(spec) for spec in specs], np.float64).reshape(len(specs), IDS.size, DIM)
    return RowVersion(values, np.zeros_like(values), np.zeros(values.shape[:2], bool))


def brought_by(push: PushTransfer, placement: Placement) -> RowGradient | None:
    """Return what a push brings to a table; None if it is none of rows."""
    source = push.source
    if not isinstance(source, RowSource):
        return None
    cargoes: list[Any] = [cargo for of_shard in push.cargoes for cargo in of_shard]
    which = numbers_of(id_ for cargo in cargoes for id_ in cargo.pushed.tolist())
    order = [number for cargo in cargoes for number in range(cargo.first, cargo.first + cargo.pushed.size)]
    table = cargoes[0].slice.table - placement.keyspace.num_dense
    return RowGradient(table, which, source.rows[order].copy(), bool(push.terms))


def _numbers(rng: Random, count: int) -> Array:
    return np.random.default_rng(rng.getrandbits(32)).standard_normal((count, DIM)).astype(np.float32)
