"""The rows of one table on one shard, found by their ids.

Arrays are reserved at once and never move (`arena`). Ids are found by open addressing with linear probing; the index is
replaced by a larger one little by little, with each call that inserts, so no call waits for all of it. Ids are looked
for in a bounded number of places. Where that is not enough, which only happens with maliciously chosen ids, the
index is rebuilt with another seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from zmqps.rows import arena, loops
from zmqps.rows.hashing import BUCKET_BITS, Array, mixed, seed_of
from zmqps.rows.initial import Filler
from zmqps.rows.kept import Kept, Layout
from zmqps.rows.kernels import kernel

#: An index is replaced when this part of its places is taken; the next one has twice as many, or as many where that was
#: mostly tombstones.
MOST_TAKEN = 0.7
#: So much of it at most is taken by rows that are there, so that all of them have been moved before it is replaced.
MOST_MOVED = 0.45
SMALLEST_INDEX = 1 << 10
#: Places of an old index that each inserting call moves: this many, or this many times the ids of the call.
MOVED_PLACES, MOVED_PER_ID = 1 << 14, 4
#: From this part of an index on, the memory of the next is taken, this many places with each inserting call, or this
#: many for each of its ids: all is there when the first call needs it, which puts ids all over it.
PREPARED_FROM = 0.5
PREPARED_PLACES, PREPARED_PER_ID = 1 << 14, 16
#: Rows that a scan looks at in one go.
SCANNED_ROWS = 1 << 16
MAX_ROWS = (1 << 32) - 3
_STAMPS = 1 << 32


class RowStore:
    """Rows of one length, with their optimizer's state.

    What is computed with, `values`, `slots` and `row_slots`, may be elsewhere: a subclass says where, by the methods
    under *columns*. All else stays in the memory of this host.

    Parameters
    ----------
    dim
        Elements of a row.
    filler
        Writes what rows begin with.
    slots
        What each slot that is as long as a row begins with.
    row_slots
        What each slot that is one number a row begins with.
    counts
        Whether the number of its updates is kept of each row.
    seed
        Of the index.
    reserve_rows
        The most rows there will be: address space, not memory.

    Attributes
    ----------
    values : float32 array (reserve_rows, dim)
    slots : tuple of such
    row_slots : tuple of float32 array (reserve_rows,)
    counts : uint32 array (reserve_rows,), or None
    ids : int64 array (reserve_rows,)
    stamps : uint32 array (reserve_rows,)
        When a row was last changed, as its owner counts.
    live : uint8 array (reserve_rows,)
        Whether a row is one.
    """

    def __init__(
        self,
        dim: int,
        filler: Filler,
        *,
        slots: Sequence[float] = (),
        row_slots: Sequence[float] = (),
        counts: bool = False,
        seed: int = 0,
        reserve_rows: int,
    ) -> None:
        self.dim = dim
        self._reserved = min(reserve_rows, MAX_ROWS)
        self._filler = filler
        self._slot_fill, self._row_slot_fill = tuple(slots), tuple(row_slots)
        self.values: Any
        self.slots: tuple[Any, ...]
        self.row_slots: tuple[Any, ...]
        self._reserve_columns()
        self.counts = arena.reserve(self._reserved, dtype=np.uint32) if counts else None
        self.ids = arena.reserve(self._reserved, dtype=np.int64)
        self.stamps = arena.reserve(self._reserved, dtype=np.uint32)
        self.live = arena.reserve(self._reserved, dtype=np.uint8)
        self.num_rows = 0
        self._seed = seed
        self._index = arena.reserve(SMALLEST_INDEX, dtype=np.uint32)
        self._taken = 0  # places of the index that are not empty
        self._old: Array | None = None  # the one before, while it is moved
        self._moved = 0  # its places that were
        self._next: Array | None = None  # the one to come
        self._prepared = 0  # its places that take memory
        self._free = np.empty(16, np.int64)
        #: Rows to be taken first; the first that was never taken; places of the index that were taken in a call.
        self._state = np.zeros(3, np.int64)

    @property
    def end(self) -> int:
        """Rows up to this one have been taken, some perhaps given back."""
        return int(self._state[1])

    @property
    def free(self) -> Array:
        """Rows before `end` that are unused."""
        return self._free[: int(self._state[0])]

    @property
    def layout(self) -> Layout:
        """What is kept of each row."""
        return Layout(self.dim, len(self.slots), len(self.row_slots), self.counts is not None)

    @cached_property
    def row_nbytes(self) -> int:
        """Bytes of one more row, without the index."""
        per_element, per_row = 4 * (1 + len(self.slots)), 4 * len(self.row_slots) + 4 * (self.counts is not None)
        return per_element * self.dim + per_row + 8 + 4 + 1

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are in use."""
        old = 0 if self._old is None else (self._old.size - self._moved) * self._old.itemsize
        coming = 0 if self._next is None else self._prepared * self._next.itemsize
        return self.end * self.row_nbytes + self._index.nbytes + old + coming

    # --- finding -------------------------------------------------------------------------------

    def find(self, ids: Array) -> Array:
        """Return the rows of ids, which may repeat, int64; -1 where there is none."""
        return self._find(ids, mixed(ids, self._seed))[0]

    def _find(self, ids: Array, hashes: Array) -> tuple[Array, int]:
        rows = np.empty(ids.size, np.int64)
        rows.fill(-1)
        loop = kernel(loops.find)
        found = loop(ids, hashes, self._index, self.ids, rows)
        if self._old is not None and found < ids.size:
            found += loop(ids, hashes, self._old, self.ids, rows)
        return rows, found

    def gather(self, ids: Array, out: Array, oldest: int | None = None, now: int = 0) -> int:
        """Write the rows of ids, which may repeat; where there is none, what it would begin with.

        Parameters
        ----------
        ids
            int64 ``(n,)``.
        out
            As `buffer` returns it.
        oldest
            Rows that were changed longer ago count as none; None: all count.
        now
            The stamp of rows that are changed now.

        Returns
        -------
        int
            Of how many ids there is a row.
        """
        rows, found = self._find(ids, mixed(ids, self._seed))
        if oldest is not None and found:
            there = np.flatnonzero(rows >= 0)
            late = there[self.ages(rows[there], now) > oldest]
            rows[late] = -1
            found -= late.size
        self._copy(rows, out, found)
        if found < ids.size:
            absent = np.flatnonzero(rows < 0)
            self._fill(ids[absent], out, absent)
        return found

    def ages(self, rows: Array, now: int) -> Array:
        """Return how long ago rows were changed, modulo 2**32."""
        return (np.uint32(now % _STAMPS) - self.stamps[rows]).astype(np.int64)

    def count_absent(self, ids: Array) -> int:
        """Return how many of some different ids have no row."""
        return ids.size - self._find(ids, mixed(ids, self._seed))[1]

    # --- changing ------------------------------------------------------------------------------

    def mark(self, rows: Array, now: int) -> None:
        """Note that rows are changed now."""
        kernel(loops.mark)(rows, self.stamps, np.uint32(now % _STAMPS))

    def insert(self, ids: Array, now: int = 0) -> Array:
        """Return the rows of some different ids; those that have none get one, as rows begin.

        Parameters
        ----------
        ids
            int64 ``(n,)``.
        now
            The stamp of rows that are made.

        Raises
        ------
        MemoryError
            There is no room for that many; nothing has changed.
        """
        hashes = mixed(ids, self._seed)
        rows, found = self._find(ids, hashes)
        if found == ids.size:
            if self._old is not None:
                self._move(MOVED_PLACES)
            return rows
        seed = self._seed
        self._make_room(ids.size - found)
        if self._seed != seed:
            hashes = mixed(ids, self._seed)
        fresh = np.zeros(ids.size, np.uint8)
        loop = kernel(loops.insert)
        while not loop(
            ids, hashes, self._index, self.ids, self.live, self.stamps, np.uint32(now % _STAMPS), self._free,
            self._reserved, rows, fresh, self._state,
        ):  # fmt: skip
            self._reseed()
            hashes = mixed(ids, self._seed)
        self._taken += int(self._state[2])
        self._state[2] = 0
        made = rows[fresh != 0]
        self.num_rows += made.size
        self._begin(made)
        if self._old is not None:
            self._move(max(MOVED_PLACES, MOVED_PER_ID * ids.size))
        elif self._taken > PREPARED_FROM * self._index.size:
            self._prepare(max(PREPARED_PLACES, PREPARED_PER_ID * ids.size))
        return rows

    def _begin(self, rows: Array) -> None:
        """Let rows have what they begin with."""
        self._fill(self.ids[rows], self.values, rows)
        for slot, value in zip(self._columns[1:], (*self._slot_fill, *self._row_slot_fill), strict=True):
            slot[rows] = value
        if self.counts is not None:
            self.counts[rows] = 0

    def renew(self, rows: Array, now: int = 0) -> None:
        """Let rows begin again."""
        self._begin(rows)
        self.mark(rows, now)

    def remove(self, rows: Array) -> None:
        """Give rows back, which are different and there."""
        if not rows.size:
            return
        ids, num_free = self.ids[rows], int(self._state[0])
        if num_free + rows.size > self._free.size:
            self._free = np.concatenate([self._free[:num_free], np.empty(num_free + 2 * rows.size, np.int64)])
        hashes, loop = mixed(ids, self._seed), kernel(loops.erase)
        for index in (self._index, self._old):
            if index is not None:
                loop(ids, hashes, index, self.ids)
        self._free[num_free : num_free + rows.size] = rows
        self._state[0] += rows.size
        self.live[rows] = 0
        self.num_rows -= rows.size

    def upsert(
        self,
        ids: Array,
        values: Array,
        slots: Sequence[Array],
        row_slots: Sequence[Array],
        counts: Array | None,
        stamps: Array,
    ) -> None:
        """Have rows of some different ids as they are elsewhere; raises `MemoryError` as `insert` does."""
        rows = self.insert(ids)
        for own, other in zip(self._columns, (values, *slots, *row_slots), strict=True):
            self._write(own, rows, other)
        if self.counts is not None:
            self.counts[rows] = counts
        self.stamps[rows] = stamps

    # --- columns -------------------------------------------------------------------------------

    def _reserve_columns(self) -> None:
        """Reserve `values`, `slots` and `row_slots`, for as many rows as there will be."""
        self.values = arena.reserve(self._reserved, self.dim)
        self.slots = tuple(arena.reserve(self._reserved, self.dim) for _ in self._slot_fill)
        self.row_slots = tuple(arena.reserve(self._reserved) for _ in self._row_slot_fill)

    def have_room(self, num_rows: int) -> None:
        """Have the memory for rows up to this number, where it does not come by being written to.

        Raises
        ------
        MemoryError
            There is not so much; what is there stays.
        """

    @property
    def _columns(self) -> tuple[Any, ...]:
        return (self.values, *self.slots, *self.row_slots)

    def _copy(self, rows: Array, out: Any, found: int) -> None:
        """Write the values of rows that there are (not -1), of which there are ``found``."""
        kernel(loops.copy)(rows, self.values, out)

    def _fill(self, ids: Array, out: Any, rows: Array) -> None:
        """Write what the rows of ids begin with to some rows of `values`, or of what is gathered."""
        self._filler.fill(ids, out, rows)

    def buffer(self, num_rows: int) -> Any:
        """Return a new array ``(num_rows, dim)`` to gather rows in: float32, contiguous, where `values` are."""
        return np.empty((num_rows, self.dim), np.float32)

    def read(self, rows: Array) -> Any:
        """Return a copy of the values of rows, where `values` are."""
        return self.values[rows]

    def put(self, rows: Array, values: Array) -> None:
        """Let rows have values that are in the memory of this host."""
        self._write(self.values, rows, values)

    def _write(self, column: Any, rows: Array, numbers: Array) -> None:
        """Write numbers that are in the memory of this host."""
        column[rows] = numbers

    def update(
        self, kernel: Callable[..., None], rows: Array, grads: Array, step: int, missed: Array | None = None
    ) -> None:
        """Let a rule update rows (`RowUpdate`), by gradients in the memory of this host."""
        kernel(self.values, rows, grads, self.slots, self.row_slots, self.counts, step, None, missed)

    def kept(self, rows: Array) -> Kept:
        """Return copies of rows, with all that is kept of them, in the memory of this host."""
        counts = None if self.counts is None else self.counts[rows]
        slots, row_slots = tuple(s[rows] for s in self.slots), tuple(s[rows] for s in self.row_slots)
        return Kept(self.ids[rows], self.values[rows], slots, row_slots, counts, self.stamps[rows])

    # --- scanning ------------------------------------------------------------------------------

    def changed(self, since: int, now: int, start: int, most: int) -> tuple[Array, int]:
        """Return rows from ``start`` on that were changed after ``since``, at most that many, and where to continue."""
        span = (now - since) % _STAMPS
        return self._scan(start, most, lambda rows: self.ages(rows, now) < span)

    def in_buckets(self, lo: int, hi: int, seed: int, start: int, most: int) -> tuple[Array, int]:
        """Return rows from ``start`` on whose id is in one of the buckets ``[lo, hi)``, and where to continue."""

        def there(rows: Array) -> Array:
            buckets = (mixed(self.ids[rows], seed) >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)
            return (buckets >= lo) & (buckets < hi)

        return self._scan(start, most, there)

    def _scan(self, start: int, most: int, wanted: Any) -> tuple[Array, int]:
        """Return live rows that are wanted, from ``start`` on; the scan is over if it continues at `end`."""
        found: list[Array] = []
        while start < self.end and most > 0:
            rows = np.arange(start, min(self.end, start + SCANNED_ROWS))
            rows = rows[self.live[rows] != 0]
            rows = rows[wanted(rows)]
            start = min(self.end, start + SCANNED_ROWS)
            if rows.size > most:
                rows = rows[:most]
                start = int(rows[-1]) + 1
            most -= rows.size
            found.append(rows)
        return np.concatenate(found) if found else np.empty(0, np.int64), start

    # --- the index -----------------------------------------------------------------------------

    def _make_room(self, new: int) -> None:
        """Make sure that rows, and the index, have room for that many more."""
        if self.end + max(0, new - int(self._state[0])) > self._reserved:
            raise MemoryError(f"room for {self._reserved:,} rows was reserved")
        self.have_room(self.end + max(0, new - int(self._state[0])))
        waits = 0 if self._old is None else self.num_rows  # all of those may yet come
        while max(self._taken, waits) + new > MOST_TAKEN * self._index.size:
            if self._old is not None:
                self._move(self._old.size)
            size = self._index.size
            while self.num_rows + new > MOST_MOVED * size:
                size *= 2
            self._old, self._moved = self._index, 0
            prepared, self._next = self._next, None
            if prepared is None or prepared.size != size:
                prepared = arena.reserve(size, dtype=np.uint32)
            self._index, self._taken = prepared, 0
            waits = self.num_rows

    def _prepare(self, num_places: int) -> None:
        """Take the memory of some places of the index that will come next, if rows continue to come."""
        if self._reserved <= MOST_MOVED * self._index.size:
            return  # there will never be enough of them to need a larger one
        if self._next is None or self._next.size < 2 * self._index.size:
            self._next, self._prepared = arena.reserve(2 * self._index.size, dtype=np.uint32), 0
        stop = min(self._next.size, self._prepared + num_places)
        self._next[self._prepared : stop] = loops.EMPTY
        self._prepared = stop

    def _move(self, num_places: int) -> None:
        """Move some places of the old index to the new one."""
        assert self._old is not None
        stop = min(self._old.size, self._moved + num_places)
        entries = self._old[self._moved : stop]
        entries = entries[(entries != loops.EMPTY) & (entries != loops.TOMBSTONE)]
        hashes = mixed(self.ids[entries.astype(np.int64) - 1], self._seed)
        if kernel(loops.place)(entries, hashes, self._index) < entries.size:
            self._reseed()
            return
        self._taken += entries.size
        # what was moved is found in the new index first, and must not be found here once it was removed there
        self._old[self._moved : stop] = loops.TOMBSTONE
        self._moved = stop
        if stop == self._old.size:
            self._old = None

    def _reseed(self) -> None:
        """Rebuild the index with another seed, against ids chosen to collide."""
        self._taken += int(self._state[2])
        self._state[2] = 0
        rows = np.flatnonzero(self.live[: self.end])
        size = self._index.size
        while True:
            self._seed = seed_of("again", self._seed)
            while rows.size > MOST_TAKEN / 2 * size:
                size *= 2
            index = arena.reserve(size, dtype=np.uint32)
            if kernel(loops.place)((rows + 1).astype(np.uint32), mixed(self.ids[rows], self._seed), index) == rows.size:
                break
            size *= 2
        self._index, self._old, self._taken = index, None, int(rows.size)

    def validate(self) -> None:
        """Assert the invariants: every live row is found, nothing else is, and rows given back are free."""
        rows = np.flatnonzero(self.live[: self.end])
        assert rows.size == self.num_rows
        assert np.array_equal(self.find(self.ids[rows]), rows)
        free, known = self.free, self.live[: self.end].copy()
        assert free.size == self.end - rows.size
        known[free] = True
        assert known.all()  # so each row that is not live is free, once, and no other one is
        taken = [int(np.count_nonzero(index)) for index in self._indexes]  # but `EMPTY`, which is 0
        graves = [int(np.count_nonzero(index == loops.TOMBSTONE)) for index in self._indexes]
        assert sum(taken) - sum(graves) == rows.size
        assert taken[0] == self._taken <= MOST_TAKEN * self._index.size + 1

    @property
    def _indexes(self) -> list[Array]:
        return [self._index] if self._old is None else [self._index, self._old]
