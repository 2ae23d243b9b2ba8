"""Gradients computed in memory that servers on this host read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from zmqps.core.job.keyspace import KeySpace
from zmqps.core.job.spec import Parameter
from zmqps.core.protocol.arrays import Array


class GradientBuffers:
    """An array for the gradient of each parameter; together they are the flat tables that slices are cut from.

    Buffers have none.

    Parameters
    ----------
    parameters
        Of the job.
    empty
        Allocates a table: ``empty(size, dtype)``.
    part
        Releases such a table to the servers: they do not see what is written to it later.

    Attributes
    ----------
    shared
        Whether servers may read the tables.
    """

    def __init__(
        self,
        parameters: tuple[Parameter, ...],
        empty: Callable[[int, np.dtype[Any]], Array] = np.empty,
        part: Callable[[Array], None] = lambda table: None,
    ) -> None:
        self.parameters = parameters
        self.shared = True
        self._part = part
        keyspace = KeySpace(parameters)
        self.tables = [empty(0 if table.buffers else table.size, table.dtype) for table in keyspace.tables]
        flat: dict[int, Array] = {}
        for values, table in zip(self.tables, keyspace.tables, strict=True):
            values.fill(0)
            for number, start in zip(() if table.buffers else table.parameters, table.offsets, strict=False):
                flat[number] = values[start : start + parameters[number].size]
        self.flat = {number: flat[number] for number in sorted(flat)}
        self.arrays = {parameters[n].name: array.reshape(parameters[n].shape) for n, array in self.flat.items()}

    def part(self) -> None:
        """Release the tables to the servers that read them; from now on the arrays belong to this process only."""
        self.shared = False
        for table in self.tables:
            self._part(table)

    def are(self, grads: Mapping[str, Any]) -> bool:
        """Whether exactly these arrays are pushed: all of them, and the same objects."""
        return len(grads) == len(self.arrays) and all(grads.get(name) is array for name, array in self.arrays.items())

    def hold(self, flat: Sequence[Array | None]) -> bool:
        """Whether flat arrays, by parameter, are all in this memory, however they were made."""
        return all(
            (array := flat[number]) is not None
            and array.dtype == own.dtype
            and (not own.size or array.__array_interface__["data"] == own.__array_interface__["data"])
            for number, own in self.flat.items()
        )
