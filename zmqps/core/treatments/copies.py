"""Slices as each worker last read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from zmqps.core.protocol.arrays import Array

#: The version of an empty copy.
NOTHING = -1


class ReadCopies:
    """A copy for each worker and slice, with its version.

    A worker's copies take as much memory as the shard's values, and are overwritten by its next read; `forget` frees
    them.

    Parameters
    ----------
    empty
        Allocates an array for one: ``empty(size, dtype)``.
    """

    def __init__(self, empty: Callable[[int, np.dtype[Any]], Array] = np.empty) -> None:
        self._empty = empty
        self._copies: dict[bytes, dict[int, tuple[int, Array]]] = {}

    def prepare(self, worker: bytes, values: Iterable[tuple[int, Array]]) -> None:
        """Allocate copies of slices, by number, so that `note` cannot fail for any of them."""
        copies = self._copies.setdefault(worker, {})
        for index, value in values:
            if index not in copies:
                copies[index] = NOTHING, self._empty(value.size, value.dtype)

    def note(self, worker: bytes, index: int, version: int, value: Array) -> None:
        """A slice is sent to a worker."""
        self.prepare(worker, [(index, value)])
        kept = self._copies[worker][index]
        if kept[0] != version:
            kept[1][:] = value
            self._copies[worker][index] = version, kept[1]

    def find(self, worker: bytes, index: int, version: int) -> Array | None:
        """Return the worker's copy, if it has this version."""
        kept = self._copies.get(worker, {}).get(index)
        return kept[1] if kept is not None and kept[0] == version else None

    def forget(self, worker: bytes) -> None:
        """A worker has departed."""
        self._copies.pop(worker, None)

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(value.nbytes for copies in self._copies.values() for _, value in copies.values())
