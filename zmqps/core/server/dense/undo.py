"""Taking an update back that failed after it had begun to write."""

from __future__ import annotations

from collections.abc import Iterable

from zmqps.core.protocol.arrays import Array
from zmqps.core.server.dense.memory import Memory


class Undo:
    """Arrays as they were before an update.

    For kernels that need memory while they compute (`Rules.allocates`); the copies cost as
    much as the update.

    Parameters
    ----------
    memory
        Where they are kept.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._saved: list[tuple[Array, Array]] = []

    def save(self, arrays: Iterable[Array]) -> None:
        """Keep what some arrays hold."""
        for array in arrays:
            copy = self._memory.empty(array.size, array.dtype)
            copy[:] = array
            self._saved.append((array, copy))

    def restore(self) -> None:
        """Write it back."""
        for array, copy in self._saved:
            array[:] = copy
