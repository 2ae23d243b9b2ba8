"""Slices as each worker last read them."""

from __future__ import annotations

from zmqps.core.protocol.arrays import Array


class ReadCopies:
    """A copy for each worker and slice, with the version it is of.

    A worker's copies take as much memory as the shard's values, and are overwritten by its next
    read; `forget` gives them back.
    """

    def __init__(self) -> None:
        self._copies: dict[bytes, dict[int, tuple[int, Array]]] = {}

    def note(self, worker: bytes, index: int, version: int, value: Array) -> None:
        """A worker is sent a slice."""
        copies = self._copies.setdefault(worker, {})
        kept = copies.get(index)
        if kept is None:
            copies[index] = version, value.copy()
        elif kept[0] != version:
            kept[1][:] = value
            copies[index] = version, kept[1]

    def find(self, worker: bytes, index: int, version: int) -> Array | None:
        """Return what the worker read, if the last of it was this version."""
        kept = self._copies.get(worker, {}).get(index)
        return kept[1] if kept is not None and kept[0] == version else None

    def forget(self, worker: bytes) -> None:
        """A worker has gone."""
        self._copies.pop(worker, None)

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(value.nbytes for copies in self._copies.values() for _, value in copies.values())
