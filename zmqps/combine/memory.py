"""A model in memory that other processes of the host map: gradients on their way to the leader, values on theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from zmqps.combine.messages import Place
from zmqps.core.job.keyspace import KeySpace
from zmqps.core.job.spec import Parameter
from zmqps.core.protocol.arrays import Array, Bytes
from zmqps.errors import ConfigurationError, ProtocolError
from zmqps.net.lane.arena import MIN_NBYTES, ArenaError, Arenas, Description, attach

#: Bytes that are added at a time, so that they stay in the caches from one member to the next.
BLOCK_NBYTES = 1 << 20


class Layout:
    """Where each parameter is in the tables of a model."""

    def __init__(self, parameters: Sequence[Parameter], *, buffers: bool) -> None:
        self.parameters = parameters
        tables = [table for table in KeySpace(tuple(parameters)).tables if buffers or not table.buffers]
        self.tables = [(table.size, table.dtype) for table in tables]
        self._places = {
            number: (index, start, stop)
            for index, table in enumerate(tables)
            for number, (start, stop) in zip(table.parameters, pairwise(table.offsets), strict=True)
        }

    def cut(self, tables: Sequence[Array]) -> dict[int, Array]:
        """Return each parameter's flat part, by number."""
        return {number: tables[t][start:stop] for number, (t, start, stop) in sorted(self._places.items())}


class SharedModel:
    """A model in arenas of this process.

    Parameters
    ----------
    layout
        Of its tables.
    arenas
        This process's.

    Raises
    ------
    ConfigurationError
        This system shares no memory.
    """

    def __init__(self, layout: Layout, arenas: Arenas) -> None:
        tables, self.places = [], list[Place]()
        for size, dtype in layout.tables:
            room = max(size, -(-MIN_NBYTES // dtype.itemsize))  # smaller arrays are not arenas
            table = arenas.empty(room, dtype)
            found = arenas.find(table)
            if found is None or found[1]:
                raise ConfigurationError(
                    "combine='host' needs memory that processes share (memfd_create), and there is none; leave it out"
                )
            pid, fd, nbytes, key = found[0].description
            self.places.append((pid, fd, nbytes, key))
            tables.append(table)
        self.flat = layout.cut(tables)


class MappedModels:
    """Models of other processes, mapped to read; those that were used last stay mapped.

    Parameters
    ----------
    layout
        Of their tables.
    most
        How many of one process, or of another key that distinguishes them.
    """

    def __init__(self, layout: Layout, most: int) -> None:
        self._layout = layout
        self._most = most
        self._mapped: dict[Any, dict[tuple[Place, ...], dict[int, Array]]] = {}

    def flat(self, owner: Any, places: Sequence[Sequence[Any]]) -> dict[int, Array]:
        """Return the parameters of a model, by number.

        Raises
        ------
        ProtocolError
            It is not there, or of another size.
        """
        key = tuple(tuple(place) for place in places)
        known = self._mapped.setdefault(owner, {})
        if key not in known:
            if len(key) != len(self._layout.tables):
                raise ProtocolError(f"a model of {len(key)} tables, where the job has {len(self._layout.tables)}")
            try:
                tables = [
                    _table(attach(Description(*place)).data, size, dtype)
                    for place, (size, dtype) in zip(key, self._layout.tables, strict=True)
                ]
            except ArenaError as error:
                raise ProtocolError(f"memory of a worker of this host cannot be read: {error}") from None
            while len(known) >= self._most:
                known.pop(next(iter(known)))
            known[key] = self._layout.cut(tables)
        return known[key]

    def forget(self, owner: Any) -> None:
        """Unmap what an owner had."""
        self._mapped.pop(owner, None)


def _table(memory: Bytes, size: int, dtype: np.dtype[Any]) -> Array:
    if memory.size < size * dtype.itemsize:
        raise ProtocolError(f"{memory.size} bytes for a table of {size} elements")
    return memory[: size * dtype.itemsize].view(dtype)


def runs(counts: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Return how often each parameter counts as runs: first, one past the last, count."""
    found: list[tuple[int, int, int]] = []
    for number, count in sorted(counts.items()):
        if found and found[-1][1:] == (number, count):
            found[-1] = (found[-1][0], number + 1, count)
        else:
            found.append((number, number + 1, count))
    return found


def counts_of(found: Sequence[tuple[int, int, int]], known: Mapping[int, Any]) -> dict[int, int]:
    """Return the counts that runs say, by parameter; raise `ProtocolError` for one that has no gradient."""
    counts = {
        number: count for first, stop, count in found for number in range(first, min(stop, first + len(known) + 1))
    }
    if not counts.keys() <= known.keys():
        raise ProtocolError("a gradient of what has none")
    return counts


def average(total: Array, summands: Sequence[Array], count: int) -> None:
    """Write the sum of arrays, divided by a count, to ``total``, a separate array, block by block."""
    step = max(1, BLOCK_NBYTES // total.itemsize)
    for start in range(0, total.size, step):
        part, (first, *rest) = total[start : start + step], [array[start : start + step] for array in summands]
        if rest:
            np.add(first, rest[0], out=part)
            for other in rest[1:]:
                np.add(part, other, out=part)
        else:
            np.copyto(part, first)
        if count > 1:
            np.divide(part, count, out=part)
