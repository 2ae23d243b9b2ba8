"""The flat key space of a job, its placement over shards, and the slices messages carry.

All parameters of one storage dtype are stored one after the other in a *table*, a flat array of elements ``[0, N)``;
buffers, which are not trained, are in separate tables. A *sparse* table has buckets instead of elements, to which rows
belong by a hash of their ids. S+1 *cuts* per table give each of S shards a key range of it. A shard's ranges are
divided into *slices* of ``slice_nbytes`` (the last of a range is shorter), numbered over its tables. A message
addresses a slice, or ranges inside one, so messages and update kernels work on contiguous 4 MiB, whatever the tensors
are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

import numpy as np

from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.job.tables import NUM_BUCKETS, TableSpec
from zmqps.errors import LimitError, ProtocolError
from zmqps.settings.coordinator import CoordinatorSettings

SLICE_NBYTES = CoordinatorSettings().slice_size
#: A smaller parameter stays on one shard: its share of a balance of 1% is nil, and a tensor on one shard is one view
#: less in every message.
SPLIT_NBYTES = 64 << 10
#: Cuts inside a large parameter fall between rows of its first dimension, so that every shard has blocks that others
#: can read from a checkpoint; if rows are larger than this part of a shard, between rows of the next dimension.
CUT_SHARE = 1 / 128
#: Of the values of sparse tables.
ROW_DTYPE: np.dtype[Any] = np.dtype("<f4")
#: Of all shards together: enough for `zmqps.core.job.spec.MAX_NBYTES` at the usual size. Servers, workers and
#: checkpoints have state for each slice.
MAX_SLICES = 1 << 24
#: Cuts inside a row are aligned to cache lines, so that arenas copy and vectorise aligned.
CUT_ALIGNMENT_NBYTES = 64


@dataclass(frozen=True, kw_only=True)
class Table:
    """The parameters of one storage dtype, or the buffers, one after the other."""

    dtype: np.dtype[Any]
    parameters: tuple[int, ...] = ()  # indices into the job's parameters, in order
    offsets: tuple[int, ...]  # len(parameters) + 1 element offsets
    buffers: bool = False  # not trained, only set
    rows: TableSpec | None = None  # of a sparse table

    @property
    def size(self) -> int:
        """Number of elements; of a sparse table, of buckets."""
        return self.offsets[-1]

    @property
    def itemsize(self) -> int:
        """Bytes of an element; 0 of a bucket, whose number of rows is unknown."""
        return 0 if self.rows is not None else self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.itemsize

    @cached_property
    def num_filled(self) -> tuple[int, ...]:
        """The number of parameters before each that have elements."""
        return tuple(accumulate((start < stop for start, stop in pairwise(self.offsets)), initial=0))

    def within(self, start: int, stop: int) -> tuple[int, int, int]:
        """Return how many parameters have elements in ``[start, stop)``, which has some; the first, and the last."""
        first, end = bisect_right(self.offsets, start) - 1, bisect_left(self.offsets, stop)
        num = self.num_filled[end] - self.num_filled[first]
        return num, self.parameters[first], self.parameters[end - 1]


@dataclass(frozen=True)
class Segment:
    """The part of one parameter in one slice."""

    parameter: int  # index into the job's parameters
    start: int  # first element within the flattened parameter
    position: int  # first element within the slice
    size: int


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A contiguous stretch of a table on one shard, as in one message; of a sparse table, its buckets there."""

    shard: int
    index: int  # number within the shard
    table: int
    start: int  # elements of the table
    stop: int
    segments: tuple[Segment, ...]
    buffers: bool = False  # of a table of these

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start


class KeySpace:
    """The place of each parameter in the flat tables.

    Parameters
    ----------
    parameters
        In their order.
    sparse
        The sparse tables, which come after those of the parameters.
    """

    def __init__(self, parameters: Sequence[Parameter], sparse: Sequence[TableSpec] = ()) -> None:
        self.parameters = tuple(parameters)
        self.index = {p.name: i for i, p in enumerate(self.parameters)}
        tables = []
        for kind in dict.fromkeys(_kind(p) for p in self.parameters):
            members = tuple(i for i, p in enumerate(self.parameters) if _kind(p) == kind)
            offsets = tuple(accumulate((self.parameters[i].size for i in members), initial=0))
            tables.append(Table(dtype=kind[0].newbyteorder("<"), parameters=members, offsets=offsets, buffers=kind[1]))
        self.num_dense = len(tables)
        self.sparse = tuple(sparse)
        tables += [Table(dtype=ROW_DTYPE, offsets=(0, NUM_BUCKETS), rows=spec) for spec in self.sparse]
        self.tables = tuple(tables)

    def __repr__(self) -> str:
        return f"KeySpace({self.parameters!r}, {self.sparse!r})"

    @classmethod
    def of(cls, job: JobSpec) -> KeySpace:
        """Return that of a job."""
        return cls(job.parameters, job.tables)

    def prepared(self) -> KeySpace:
        """Return this key space, with everything that is computed from each parameter."""
        _ = self.largest, [table.num_filled for table in self.dense]
        return self

    @cached_property
    def largest(self) -> Parameter | None:
        """The parameter with the most bytes; None: there are only tables."""
        return max(self.parameters, key=lambda p: p.size * p.storage_dtype.itemsize, default=None)

    @property
    def dense(self) -> tuple[Table, ...]:
        """The tables of parameters."""
        return self.tables[: self.num_dense]

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(table.nbytes for table in self.tables)

    def segments(self, table: int, start: int, stop: int) -> Iterator[Segment]:
        """Yield the parameters' parts in elements ``[start, stop)`` of a table, in order."""
        offsets = self.tables[table].offsets
        for i in range(bisect_right(offsets, start) - 1, bisect_left(offsets, stop)):
            lo, hi = max(start, offsets[i]), min(stop, offsets[i + 1])
            if lo < hi:
                yield Segment(self.tables[table].parameters[i], lo - offsets[i], lo - start, hi - lo)


@dataclass(frozen=True)
class Placement:
    """The key ranges of all shards; a deterministic function of the job and the shard count.

    Parameters
    ----------
    keyspace
        The flat key space.
    cuts
        For each table a tuple of S+1 ascending element indices, from 0 to the table's size.
    slice_nbytes
        Size of a slice in bytes.
    """

    keyspace: KeySpace
    cuts: tuple[tuple[int, ...], ...]
    slice_nbytes: int = SLICE_NBYTES

    @classmethod
    def balance(cls, keyspace: KeySpace, num_shards: int, slice_nbytes: int = SLICE_NBYTES) -> Placement:
        """Place a key space on shards, balanced by bytes.

        Each table is cut at the S-quantiles of its bytes; a cut inside a parameter of less than `SPLIT_NBYTES` moves to
        that parameter's nearer end, one inside a larger one to the nearest row.

        Raises
        ------
        LimitError
            There would be more slices than `MAX_SLICES`.
        """
        if num_shards < 1:
            raise ValueError(f"a placement needs at least one shard, not {num_shards}")
        dense = [
            (0, *(_cut(keyspace, table, i, num_shards) for i in range(1, num_shards)), table.size)
            for table in keyspace.dense
        ]
        sparse = tuple(shard * NUM_BUCKETS // num_shards for shard in range(num_shards + 1))
        cuts = (*dense, *[sparse] * len(keyspace.sparse))
        placement = cls(keyspace, cuts, slice_nbytes)
        placement.check_slices()
        return placement

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self.cuts[0]) - 1

    @cached_property
    def slices(self) -> tuple[tuple[Slice, ...], ...]:
        """The slices of every shard, in order; those of parameters."""
        return tuple(tuple(self._slices(shard)) for shard in range(self.num_shards))

    @cached_property
    def row_slices(self) -> tuple[tuple[Slice, ...], ...]:
        """The buckets of the sparse tables on every shard; they are numbered after its other slices."""
        return tuple(tuple(self._row_slices(shard)) for shard in range(self.num_shards))

    def num_slices(self, shard: int) -> int:
        """Return how many slices of either kind a shard has."""
        return self.num_dense_slices(shard) + sum(
            start < stop for _, start, stop in self._stretches(shard, sparse=True)
        )

    def num_dense_slices(self, shard: int) -> int:
        """Return how many slices of parameters a shard has, without making any."""
        stretches = self._stretches(shard)
        return sum(-(-(stop - start) // self._step(table)) for table, start, stop in stretches)

    def largest_slice(self, shard: int) -> int:
        """Return the bytes of the largest slice of parameters of a shard."""
        stretches = self._stretches(shard)
        return max(
            [min(stop - start, self._step(table)) * table.itemsize for table, start, stop in stretches], default=0
        )

    def check_slices(self) -> None:
        """Raise `LimitError` if there are more slices than allowed."""
        number = sum(map(self.num_dense_slices, range(self.num_shards)))
        if number > MAX_SLICES:
            raise LimitError(what="number of slices of a job", got=number, limit=MAX_SLICES)

    def _stretches(self, shard: int, *, sparse: bool = False) -> Iterator[tuple[Table, int, int]]:
        """Yield a shard's part of each table of parameters, or of rows."""
        first = self.keyspace.num_dense
        tables, cuts = self.keyspace.tables, self.cuts
        numbers = range(first, len(tables)) if sparse else range(first)
        return ((tables[number], cuts[number][shard], cuts[number][shard + 1]) for number in numbers)

    def _step(self, table: Table) -> int:
        """Return how many elements of a table are in a slice."""
        return max(1, self.slice_nbytes // table.dtype.itemsize)

    def _row_slices(self, shard: int) -> Iterator[Slice]:
        index = self.num_dense_slices(shard)
        for number in range(self.keyspace.num_dense, len(self.keyspace.tables)):
            start, stop = self.cuts[number][shard : shard + 2]
            if start < stop:
                yield Slice(shard=shard, index=index, table=number, start=start, stop=stop, segments=())
                index += 1

    def _slices(self, shard: int) -> Iterator[Slice]:
        index = 0
        for number, (table, cuts) in enumerate(zip(self.keyspace.dense, self.cuts, strict=False)):
            step = self._step(table)
            for start in range(cuts[shard], cuts[shard + 1], step):
                stop = min(start + step, cuts[shard + 1])
                segments = tuple(self.keyspace.segments(number, start, stop))
                buffers = table.buffers
                yield Slice(
                    shard=shard, index=index, table=number, start=start, stop=stop, segments=segments, buffers=buffers
                )
                index += 1

    def nbytes(self, shard: int) -> int:
        """Bytes of values on a shard."""
        tables = zip(self.keyspace.tables, self.cuts, strict=True)
        return sum((cuts[shard + 1] - cuts[shard]) * table.itemsize for table, cuts in tables)

    def buckets(self, shard: int) -> int:
        """Return the number of buckets of the sparse tables on a shard, of `NUM_BUCKETS` each."""
        return sum(stop - start for _, start, stop in self._stretches(shard, sparse=True))

    def weight(self, shard: int) -> int:
        """Bytes of values and the number of buckets, to compare shards by: the future number of rows is unknown."""
        return self.nbytes(shard) + self.buckets(shard)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per shard for a table of the placement: bytes, share, slices, first and last parameter."""
        total, parameters = self.keyspace.nbytes, self.keyspace.parameters
        rows = []
        for shard in range(self.num_shards):
            found = [table.within(start, stop) for table, start, stop in self._stretches(shard) if start < stop]
            rows.append(
                {
                    "shard": shard,
                    "nbytes": self.nbytes(shard),
                    "share": self.nbytes(shard) / total if total else 0.0,
                    "slices": self.num_dense_slices(shard),
                    "parameters": sum(num for num, _, _ in found),
                    "first": parameters[found[0][1]].name if found else "",
                    "last": parameters[found[-1][2]].name if found else "",
                    **({"buckets": self.buckets(shard)} if self.keyspace.sparse else {}),
                }
            )
        return rows

    def to_wire(self) -> dict[str, Any]:
        """Return the map in `Job` and `Assign`; it includes the cuts, so a peer need not know how they are made."""
        return {"cuts": [list(cuts) for cuts in self.cuts], "slice_nbytes": self.slice_nbytes}

    @classmethod
    def from_wire(cls, keyspace: KeySpace, wire: Mapping[str, Any]) -> Placement:
        """Return the placement of a received map.

        Raises
        ------
        ProtocolError
            It does not fit the key space.
        LimitError
            It has more slices than `MAX_SLICES`.
        """
        cuts, slice_nbytes = wire.get("cuts"), wire.get("slice_nbytes")
        if type(cuts) is not list or len(cuts) != len(keyspace.tables):
            raise ProtocolError("a placement has a list of cuts for each table")
        if type(slice_nbytes) is not int or not 1 <= slice_nbytes <= 32 << 20:
            raise ProtocolError(f"slice_nbytes is 1 to 32 MiB, not {slice_nbytes!r}")
        for table, row in zip(keyspace.tables, cuts, strict=True):
            if type(row) is not list or len(row) < 2 or len(row) != len(cuts[0]):
                raise ProtocolError("every table has S+1 cuts")
            if any(type(cut) is not int for cut in row) or row[0] != 0 or row[-1] != table.size or row != sorted(row):
                raise ProtocolError("cuts ascend from 0 to the table's size")
        placement = cls(keyspace, tuple(tuple(row) for row in cuts), slice_nbytes)
        placement.check_slices()
        return placement


def _kind(parameter: Parameter) -> tuple[np.dtype[Any], bool]:
    """Return the common part of the slices of one table."""
    return parameter.storage_dtype, parameter.buffer


def _cut(keyspace: KeySpace, table: Table, shard: int, num_shards: int) -> int:
    """Return a table's cut before a shard: near its share of the bytes, and at an allowed place."""
    ideal = shard * table.size // num_shards
    i = bisect_right(table.offsets, ideal) - 1
    if i >= len(table.parameters):
        return table.size
    lo, hi, itemsize = table.offsets[i], table.offsets[i + 1], table.dtype.itemsize
    if (hi - lo) * itemsize < SPLIT_NBYTES:
        return lo if ideal - lo <= hi - ideal else hi
    shape = keyspace.parameters[table.parameters[i]].shape
    row = _row(shape, max(SPLIT_NBYTES, int(CUT_SHARE * table.nbytes / num_shards)) // itemsize)
    if row > 1:
        return min(hi, lo + (ideal - lo + row // 2) // row * row)
    # down to a cache line, but not before the parameter's own start
    return max(lo, ideal - ideal % (CUT_ALIGNMENT_NBYTES // itemsize))


def _row(shape: tuple[int, ...], most: int) -> int:
    """Return the elements of a row: of the first dimension whose rows have no more than ``most``."""
    rows = accumulate(reversed(shape[1:]), mul, initial=1)
    return next(row for row in reversed(list(rows)) if row <= most)
