"""Rows as they are, with all that a table keeps of them: to be written, or to go elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Kept(NamedTuple):
    """Ids, values, slots, slots of one number a row, how many updates each row has had, and when the last was."""

    ids: Array
    values: Array
    slots: tuple[Array, ...]
    row_slots: tuple[Array, ...]
    counts: Array | None
    stamps: Array

    @property
    def arrays(self) -> list[Array]:
        """All of them, flat, in the order in which they travel."""
        counts = [] if self.counts is None else [self.counts]
        return [
            array.reshape(-1) for array in (self.ids, self.stamps, *counts, *self.row_slots, self.values, *self.slots)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum([array.nbytes for array in self.arrays])

    def only(self, which: Array) -> Kept:
        """Return some of the rows, which may be a mask or indices."""
        return Kept(
            self.ids[which],
            self.values[which],
            tuple(slot[which] for slot in self.slots),
            tuple(slot[which] for slot in self.row_slots),
            None if self.counts is None else self.counts[which],
            self.stamps[which],
        )


class Layout(NamedTuple):
    """What a table keeps of each row: elements, slots as long as a row, slots of one number, and whether a count."""

    dim: int
    slots: int
    row_slots: int
    counts: bool

    def runs(self, number: int) -> list[tuple[int, np.dtype[Any]]]:
        """Return size and dtype of each of `Kept.arrays` for that many rows, little-endian."""
        row = (number * self.dim, np.dtype("<f4"))
        return [
            (number, np.dtype("<i8")),
            (number, np.dtype("<u4")),
            *[(number, np.dtype("<u4"))] * self.counts,
            *[(number, np.dtype("<f4"))] * self.row_slots,
            *[row] * (1 + self.slots),
        ]

    def kept(self, arrays: Sequence[Array]) -> Kept:
        """Return the rows of which these are `Kept.arrays`."""
        ids, stamps, *rest = arrays
        counts = rest.pop(0) if self.counts else None
        row_slots, rows = rest[: self.row_slots], [array.reshape(-1, self.dim) for array in rest[self.row_slots :]]
        return Kept(ids, rows[0], tuple(rows[1:]), tuple(row_slots), counts, stamps)


def joined(some: Sequence[Kept]) -> Kept:
    """Return the rows of several, which are of one table, as one."""
    if len(some) == 1:
        return some[0]
    ids, values, slots, row_slots, counts, stamps = zip(*some, strict=True)
    return Kept(
        np.concatenate(ids),
        np.concatenate(values),
        tuple(map(np.concatenate, zip(*slots, strict=True))),
        tuple(map(np.concatenate, zip(*row_slots, strict=True))),
        None if counts[0] is None else np.concatenate(counts),
        np.concatenate(stamps),
    )


def rebased(stamps: Array, now: int, then: int) -> Array:
    """Return stamps of a table that has had ``then`` updates for one that has had ``now``: rows are as old there."""
    return stamps + np.uint32((now - then) % (1 << 32))
