"""Rows of a table on a device: found on this host, read and updated in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from zmqps.core.protocol.arrays import Array
from zmqps.gpu.chunks import Chunks, Staging
from zmqps.rows.initial import Filler, Initial, filler
from zmqps.rows.kept import Kept
from zmqps.rows.store import RowStore


class DeviceRows(RowStore):
    """A store whose values and slots are on a device (`Chunks`).

    The index, ids, stamps and what tells which rows are live stay on this host. So do counts of updates, as the scalars
    that follow from them are computed here: on the device they would have to be waited for with every update.

    Parameters
    ----------
    staging
        The device's memory.
    dim, filler, options
        As those of `RowStore`.
    """

    def __init__(self, staging: Staging, dim: int, filler: Filler, **options: Any) -> None:
        self._staging = staging
        super().__init__(dim, filler, **options)

    def _reserve_columns(self) -> None:
        num_long = 1 + len(self._slot_fill)
        self.chunks = Chunks(self._staging, self.dim, num_long, len(self._row_slot_fill), self._reserved)
        self.values, *slots = self.chunks.columns[:num_long]
        self.slots, self.row_slots = tuple(slots), self.chunks.columns[num_long:]

    def have_room(self, num_rows: int) -> None:
        """Have the device's memory for rows up to this number."""
        self.chunks.have_room(num_rows)

    def _copy(self, rows: Array, out: Any, found: int) -> None:
        if found:
            self.chunks.load(self.values, np.maximum(rows, 0), out.reshape(-1))

    def _fill(self, ids: Array, out: Any, rows: Array) -> None:
        for block in self.chunks.blocks(ids.size, rows.itemsize + 4 * self.dim):
            numbers = np.empty((block.stop - block.start, self.dim), np.float32)
            self._filler.fill(ids[block], numbers)  # here: the device's functions may differ in the last bit
            if out is self.values:
                self.values.write(rows[block], numbers)
            else:
                self.chunks.place(out, rows[block], numbers)

    def buffer(self, num_rows: int) -> Any:
        """Return a new array on the device."""
        return self.chunks.empty(num_rows * self.dim).reshape(num_rows, self.dim)

    def _write(self, column: Any, rows: Array, numbers: Array) -> None:
        column.write(rows, numbers)

    def update(
        self, kernel: Callable[..., None], rows: Array, grads: Array, step: int, missed: Array | None = None
    ) -> None:
        """Enqueue an update (`zmqps.optim.device_rows.DeviceRowKernel`)."""
        kernel(self.chunks, rows, grads, (), (), self.counts, step, None, missed)

    def kept(self, rows: Array) -> Kept:
        """Return copies of rows; waits for the device."""
        values, *others = self._staging.fetched([column[rows] for column in self._columns])
        slots, row_slots = tuple(others[: len(self.slots)]), tuple(others[len(self.slots) :])
        counts = None if self.counts is None else self.counts[rows]
        return Kept(self.ids[rows], values, slots, row_slots, counts, self.stamps[rows])


def warm_up(staging: Staging, kernel: Any, dim: int, *, lazy: bool) -> None:
    """Compile what the first rows of a table would otherwise wait for, by one that is not kept.

    Parameters
    ----------
    kernel
        The table's rule.
    dim
        Elements of a row.
    lazy
        Whether it makes up for updates that a row has missed.
    """
    store = DeviceRows(
        staging, dim, filler(Initial("zeros"), ""), slots=kernel.slot_fill, row_slots=kernel.row_slot_fill,
        counts=kernel.counts, reserve_rows=1,
    )  # fmt: skip
    rows = store.insert(np.zeros(1, np.int64))
    missed = np.ones(1, np.uint32) if lazy else None
    store.update(kernel, rows, np.zeros((1, dim), np.float32), 1, missed)
    store.gather(np.arange(2), store.buffer(2))
