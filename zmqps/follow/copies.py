"""A copy of a sparse table, for reading: rows in full, in half or in a quarter of their precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from zmqps import checks
from zmqps.core.job.tables import NUM_BUCKETS, TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.rows import arena
from zmqps.rows.initial import Filler, Initial
from zmqps.rows.store import RowStore

#: Address space, not memory.
MOST_NBYTES = 1 << 40
#: Of a row of int8: 127 times its scale, rounded, is finite.
_LARGEST = np.float32(3.4028e38)


class _Rows(RowStore):
    """Rows that are always written as soon as there is one."""

    def _begin(self, rows: Array) -> None:
        """Do nothing: what a row begins with is overwritten at once."""


class _ShortRows(_Rows):
    """Rows that are not kept as they are read."""

    def _copy(self, rows: Array, out: Any, found: int) -> None:
        there = np.flatnonzero(rows >= 0)
        out[there] = self.read(rows[there])


class _HalfRows(_ShortRows):
    """Rows of float16; what is too large for one becomes the largest."""

    def _reserve_columns(self) -> None:
        self.values = arena.reserve(self._reserved, self.dim, dtype=np.float16)
        self.slots = self.row_slots = ()

    def _write(self, column: Any, rows: Array, numbers: Array) -> None:
        most = float(np.finfo(np.float16).max)
        column[rows] = np.clip(numbers, -most, most)

    def read(self, rows: Array) -> Any:
        return self.values[rows].astype(np.float32)


class _QuarterRows(_ShortRows):
    """Rows of int8, each with a scale: its largest element is 127. NaN becomes 0, infinity the largest number."""

    def _reserve_columns(self) -> None:
        self.values = arena.reserve(self._reserved, self.dim, dtype=np.int8)
        self._scales = arena.reserve(self._reserved, 1)
        self.slots = self.row_slots = ()

    def _write(self, column: Any, rows: Array, numbers: Array) -> None:
        numbers = np.clip(np.nan_to_num(numbers), -_LARGEST, _LARGEST)
        scales = np.abs(numbers).max(axis=1, keepdims=True) / np.float32(127)
        self._scales[rows] = scales
        column[rows] = np.rint(numbers / np.where(scales > 0, scales, 1))

    def read(self, rows: Array) -> Any:
        return self.values[rows] * self._scales[rows]


#: How rows are kept, and the bytes of an element.
PRECISIONS: dict[str, tuple[type[RowStore], int]] = {
    "float32": (_Rows, 4), "float16": (_HalfRows, 2), "int8": (_QuarterRows, 1)
}  # fmt: skip


class TableCopy:
    """The rows of a table as far as they were heard of.

    Parameters
    ----------
    spec
        Of the table: how long rows are, and what an id without one has.
    precision
        One of ``PRECISIONS``.
    seed
        A secret number: without it a peer cannot make many ids collide.
    """

    def __init__(self, spec: TableSpec, precision: str = "float32", seed: int = 0) -> None:
        self.dim = spec.dim
        store, nbytes = PRECISIONS[checks.one_of("rows", precision, tuple(PRECISIONS))]
        filler = Filler(Initial.from_wire(spec.initial), spec.name)
        places = MOST_NBYTES // (nbytes * spec.dim + 16)
        self._store = store(spec.dim, filler, seed=seed, reserve_rows=places)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._store.num_rows

    def change(self, gone: Array, ids: Array, rows: Array) -> None:
        """Remove some rows, then set others.

        Parameters
        ----------
        gone : int64 array (n,)
            Ids; those without a row are passed over.
        ids : int64 array (m,)
            Different ones.
        rows : float32 array (m, dim)
        """
        if gone.size:
            found = np.unique(self._store.find(gone))
            self._store.remove(found[found >= 0])
        if ids.size:
            self._store.put(self._store.insert(ids), rows)

    def read(self, ids: Array) -> Array:
        """Return the rows of ids, ``(n, dim)`` of float32; an id without a row has what it begins with."""
        out: Array = self._store.buffer(ids.size)
        self._store.gather(ids, out)
        return out

    def rows_from(self, start: int, most: int) -> tuple[Array, Array, int]:
        """Return ids and rows in the order of the memory, and where to continue; 0: there are no more."""
        rows, after = self._store.in_buckets(0, NUM_BUCKETS, 0, start, most)
        return self._store.ids[rows], self._store.read(rows), 0 if after >= self._store.end else after
