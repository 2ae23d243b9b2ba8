"""Memory of a simulated server that is short now and then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zmqps.core.protocol.arrays import Array
from zmqps.core.server.dense.memory import HostMemory, Outgoing
from zmqps.core.server.tables.table import RowUpdate

#: What an array holds before it is written to: used too early it shows.
GARBAGE = 0x40


class ScarceMemory(HostMemory):
    """The memory of a host where requests for it may fail, and whose arrays hold garbage at first.

    Parameters
    ----------
    fails
        Whether the next request does; asked for each.
    """

    def __init__(self, fails: Callable[[], bool]) -> None:
        super().__init__(self.empty)
        self._fails = fails

    def request(self) -> None:
        """Raise `MemoryError` now and then."""
        if self._fails():
            raise MemoryError("simulated")

    def has_some(self) -> bool:
        """Whether there is more for rows of tables."""
        return not self._fails()

    def empty(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Return a new array, if there is memory for it."""
        self.request()
        array = super().empty(size, dtype)
        array.view(np.uint8)[:] = GARBAGE
        return array

    def send(self, codec: Any, parts: Sequence[Sequence[Array]], seed: int, readers: Sequence[Any]) -> Outgoing:
        """Return the payload, if there is memory to put it together."""
        self.request()
        return super().send(codec, parts, seed, readers)

    def copied(self, array: Array) -> Array:
        """Return a copy, if there is memory for it."""
        self.request()
        return super().copied(array)


class ScarceRule:
    """A table's rule that now and then has no memory, before it has written anything.

    Parameters
    ----------
    rule
        The rule.
    memory
        Its server's.
    """

    def __init__(self, rule: RowUpdate, memory: ScarceMemory) -> None:
        self.slot_fill, self.row_slot_fill, self.counts = rule.slot_fill, rule.row_slot_fill, rule.counts
        self._rule = rule
        self._memory = memory

    def __call__(self, *arguments: Any, **options: Any) -> None:
        """Update rows."""
        self._memory.request()
        self._rule(*arguments, **options)
