"""Many small tensors as the flat tables they are in: checked, joined and distributed all at once.

A call for each tensor costs the interpreter more than its bytes cost the memory. So here each step over all tensors is
one call that loops in C.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import attrgetter, setitem
from typing import Any, NamedTuple

import numpy as np

from zmqps.client.tensors import NATIVE_DTYPES
from zmqps.core.job.keyspace import Table
from zmqps.core.job.spec import Parameter
from zmqps.core.protocol.arrays import Array

#: Joining copies every byte once more. Up to this mean size that is cheaper than the calls it saves (an estimate: the
#: calls for a tensor take as long as a copy of about 20 KB); with fewer tensors there is little to save.
SMALL_NBYTES, MANY = 8 << 10, 64


class Landing(NamedTuple):
    """Flat tables that receive values, with a view of them for each parameter."""

    tables: list[Array]
    views: list[Array]


class SmallTensors:
    """The tensors of a job with many small ones, as decided by `of`.

    Parameters
    ----------
    parameters
        Of the job; none is a buffer.
    tables
        Their tables.
    """

    #: Cached landings: of one transfer, and of another that began before its end.
    KEPT = 2

    def __init__(self, parameters: Sequence[Parameter], tables: Sequence[Table]) -> None:
        self._names = tuple(parameter.name for parameter in parameters)
        self._shapes = [parameter.shape for parameter in parameters]
        self._tables = tables
        self._free: deque[Landing] = deque(maxlen=self.KEPT)

    @classmethod
    def of(cls, parameters: Sequence[Parameter], tables: Sequence[Table]) -> SmallTensors | None:
        """Return them for a job; None if it has buffers, or fewer or larger tensors."""
        if len(parameters) < MANY or any(parameter.buffer for parameter in parameters):
            return None
        if sum(table.nbytes for table in tables) > len(parameters) * SMALL_NBYTES:
            return None
        return cls(parameters, tables)

    def plain(self, values: Mapping[str, Any]) -> list[Array] | None:
        """Return the arrays if there is exactly one usable array per parameter, in their order; else None."""
        if type(values) is not dict or tuple(values) != self._names:
            return None
        arrays = list(values.values())
        if set(map(type, arrays)) != {np.ndarray} or not NATIVE_DTYPES.issuperset(map(attrgetter("dtype"), arrays)):
            return None
        return arrays if list(map(attrgetter("shape"), arrays)) == self._shapes else None

    def join(self, arrays: Sequence[Array]) -> list[Array]:
        """Return a copy of plain arrays as tables; values too large for a table's dtype become infinite."""
        return [self._join(table, [arrays[number] for number in table.parameters]) for table in self._tables]

    def _join(self, table: Table, arrays: Sequence[Array]) -> Array:
        if set(map(attrgetter("dtype"), arrays)) == {table.dtype}:
            try:
                buffers: Any = arrays
                return np.frombuffer(b"".join(buffers), table.dtype)  # four times as fast as numpy's own
            except (BufferError, TypeError, ValueError):  # one of them is not contiguous
                pass
        joined: Array = np.empty(table.size, table.dtype)
        with np.errstate(over="ignore"):
            return np.concatenate(arrays, axis=None, out=joined, casting="unsafe")

    def landing(self) -> Landing:
        """Return tables that are not used otherwise until they are delivered."""
        try:
            return self._free.pop()
        except IndexError:
            pass
        tables: list[Array] = [np.empty(table.size, table.dtype) for table in self._tables]
        views: list[Any] = [None] * len(self._shapes)
        for values, table in zip(tables, self._tables, strict=True):
            for number, start, stop in zip(table.parameters, table.offsets, table.offsets[1:], strict=False):
                views[number] = values[start:stop].reshape(self._shapes[number])
        return Landing(tables, views)

    def deliver(self, landing: Landing, arrays: Sequence[Array]) -> None:
        """Copy the received values into the caller's arrays, converted to their dtype; free the landing."""
        put: Any = setitem
        deque(map(put, arrays, repeat(...), landing.views), maxlen=0)
        self._free.append(landing)


def are_writeable(arrays: Sequence[Array]) -> bool:
    """Whether values can be written to all of these."""
    return all([flags.writeable for flags in map(attrgetter("flags"), arrays)])
