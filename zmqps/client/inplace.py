"""Gradients computed in memory that servers on this host read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from zmqps.client.tensors import LOOKED_AT, copy_finite
from zmqps.core.job.keyspace import KeySpace
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.arrays import Array
from zmqps.net.system.available import available_nbytes


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


#: Below this a push is copied to the connection faster than its memory is looked up.
STAGED_NBYTES = 1 << 20
#: The part of the memory that is left which the staging of all workers takes at most: pages that are not there end a
#: process. All workers may be on this host.
MOST_OF_MEMORY = 0.5
#: Servers keep what a failed push gave up mapped for a while: after so many, staging ends.
MOST_PARTED = 4


class Staging:
    """Memory that servers on this host read, where the gradients of one push at a time are copied, and checked.

    So a push is copied once, by no more than two threads, and none of it leaves unless all of it is finite. A caller
    may write to its arrays again as soon as the call returns, however that ends.

    Parameters
    ----------
    job
        Whose gradients they are.
    empty, part
        As of `GradientBuffers`.
    num_workers
        Of the cluster.
    """

    def __init__(
        self,
        job: JobSpec,
        empty: Callable[[int, np.dtype[Any]], Array],
        part: Callable[[Array], None],
        num_workers: Callable[[], int] = lambda: 1,
    ) -> None:
        trained = [parameter for parameter in job.parameters if not parameter.buffer]
        self._nbytes = sum(parameter.size * parameter.storage_dtype.itemsize for parameter in trained)
        #: Whether pushes of this job are worth it.
        self.suits = self._nbytes >= STAGED_NBYTES and all(p.storage_dtype in LOOKED_AT for p in trained)
        self.suits = self.suits and job.nonfinite == "reject"
        self.number = len(trained)  # of arrays
        self._parameters, self._empty, self._part, self._num_workers = job.parameters, empty, part, num_workers
        self._buffers: GradientBuffers | None = None
        self._num_parted = 0
        self._taken = threading.Lock()

    def take(self, plain: Mapping[int, Array]) -> GradientBuffers | None:
        """Copy gradients, by parameter number, until `give_back`.

        None where they are not all of them, not of the job's dtypes, contiguous and finite; while another push is here;
        and where there is little memory for them, which is asked for once.
        """
        if len(plain) != self.number or not self._taken.acquire(blocking=False):
            return None
        try:
            staged = self._staged(plain)
        except BaseException:
            self._taken.release()
            raise
        if staged is None:
            self._taken.release()
        return staged

    def _staged(self, plain: Mapping[int, Array]) -> GradientBuffers | None:
        try:
            if self._buffers is None and self.suits:
                most = MOST_OF_MEMORY * available_nbytes()
                self.suits = self._num_parted < MOST_PARTED and self._nbytes * max(1, self._num_workers()) <= most
                self._buffers = GradientBuffers(self._parameters, self._empty, self._part) if self.suits else None
            return None if self._buffers is None else self._fill(self._buffers, plain)
        except (MemoryError, OSError):
            return None

    def _fill(self, buffers: GradientBuffers, plain: Mapping[int, Array]) -> GradientBuffers | None:
        pairs = []
        for number, target in buffers.flat.items():
            source = plain.get(number)
            if source is None or source.dtype != target.dtype or not source.flags.c_contiguous:
                return None
            pairs.append((target, source.reshape(-1)))
        return buffers if copy_finite(pairs) else None

    def give_back(self, *, is_read: bool) -> None:
        """The push is over; ``is_read``: servers may still read its gradients, so the next one is copied elsewhere."""
        try:
            if is_read and self._buffers is not None:
                self._num_parted += 1
                with suppress(OSError):  # they read memory that nobody writes to any more
                    self._buffers.part()
                self._buffers = None
        finally:
            self._taken.release()

    def end(self) -> None:
        """Stage nothing more: the worker is closed, or the program computes in place."""
        self.suits, self._buffers = False, None
