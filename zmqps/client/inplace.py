"""Memory that a worker and servers on its host read of each other: gradients, and values."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from zmqps.client.tensors import LOOKED_AT, copy_finite
from zmqps.core.job.keyspace import KeySpace
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.arrays import Array, Bytes
from zmqps.net.lane.private import Private
from zmqps.net.system.memory import available_nbytes


@dataclass(frozen=True, kw_only=True)
class SharedMemory:
    """What a worker shares with the servers on its host.

    Attributes
    ----------
    empty
        Allocates a table that servers may read: ``empty(size, dtype)``.
    part
        Releases such a table to the servers: they do not see what is written to it later.
    reads
        Whether all servers and this process read each other's memory.
    private
        Maps memory that a server lends, so that writes stay in this process (`zmqps.net.lane.shm.LaneTransport`); None:
        values are copied.
    num_workers
        Of the cluster.
    """

    empty: Callable[[int, np.dtype[Any]], Array] = np.empty
    part: Callable[[Array], None] = lambda table: None
    reads: Callable[[], bool] = lambda: False
    private: Callable[[Bytes, Any], Private | None] | None = None
    num_workers: Callable[[], int] = lambda: 1


class GradientBuffers:
    """An array for the gradient of each parameter; together they are the flat tables that slices are cut from.

    Buffers have none.

    Parameters
    ----------
    parameters
        Of the job.
    memory
        Where the tables are.

    Attributes
    ----------
    shared
        Whether servers may read the tables.
    """

    def __init__(self, parameters: tuple[Parameter, ...], memory: SharedMemory) -> None:
        self.parameters = parameters
        self.shared = True
        self._part, empty = memory.part, memory.empty
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
#: Servers keep what a failed push gave up mapped for a while: after this many, staging ends.
MOST_PARTED = 4


class Staging:
    """Memory that servers on this host read, where the gradients of one push at a time are copied, and checked.

    So a push is copied once, by no more than two threads, and none of it leaves unless all of it is finite. A caller
    may write to its arrays again as soon as the call returns, however that ends.

    Parameters
    ----------
    job
        Whose gradients they are.
    memory
        Where they are copied to.
    """

    def __init__(self, job: JobSpec, memory: SharedMemory) -> None:
        trained = [parameter for parameter in job.parameters if not parameter.buffer]
        self._nbytes = sum(parameter.size * parameter.storage_dtype.itemsize for parameter in trained)
        #: Whether pushes of this job are worth it.
        self.suits = self._nbytes >= STAGED_NBYTES and all(p.storage_dtype in LOOKED_AT for p in trained)
        self.suits = self.suits and job.nonfinite == "reject"
        self.number = len(trained)  # of arrays
        self._parameters, self._memory = job.parameters, memory
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
                needed = self._nbytes * max(1, self._memory.num_workers())
                self.suits = self._num_parted < MOST_PARTED and needed <= most
                self._buffers = GradientBuffers(self._parameters, self._memory) if self.suits else None
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
                with suppress(OSError):  # they read memory that is not written to any more
                    self._buffers.part()
                self._buffers = None
        finally:
            self._taken.release()

    def end(self) -> None:
        """Stage nothing more: the worker is closed, or the program computes in place."""
        self.suits, self._buffers = False, None


#: Values that are kept for more calls than this become the worker's own, so that servers get their memory back.
MOST_CALLS = 4
#: Writing to more of the values than this costs more than a copy of all.
MOST_WRITTEN = 0.1
#: One worker alone copies while the server updates what is next, and so waits for less.
FEWEST_WORKERS = 2
#: A program that keeps values, or writes to them, as often as this is better served with copies.
MOST_DEAR = 2


class CopiesOnWrite:
    """Decides whether values are handed out where they arrive, also those that servers lend.

    They are the caller's arrays: a page that the caller writes to is copied then, and so are all pages of values that
    it keeps. That pays where neither is usual, and only while no other worker waits for the memory that is lent: in
    synchronous training all have finished the step before the next values are written.

    Parameters
    ----------
    job
        Whose values they are.
    memory
        Where they are.

    Attributes
    ----------
    large
        Whether the job is worth it.
    lent
        What was handed out, with the number of the call, oldest first.
    """

    def __init__(self, job: JobSpec, memory: SharedMemory) -> None:
        nbytes = sum(parameter.size * parameter.storage_dtype.itemsize for parameter in job.parameters)
        self.large = nbytes >= STAGED_NBYTES
        self._together = job.mode == "sync" and job.aggregate is None
        self._memory = memory
        self._calls = 0
        self._num_dear = 0
        self.lent: deque[tuple[int, weakref.ref[Private]]] = deque()

    @property
    def suit(self) -> bool:
        """Whether values of this job are worth it now."""
        return self.large and (not self._memory.reads() or self._may_keep())  # messages belong to this process

    def _may_keep(self) -> bool:
        """Whether servers' memory may be kept from them."""
        may = self._together and self._memory.private is not None and self._num_dear < MOST_DEAR
        return may and self._memory.num_workers() >= FEWEST_WORKERS

    def call(self) -> None:
        """Count a push or a pull, and take over what has been kept since many of them."""
        self._calls += 1
        for _ in range(len(self.lent)):
            try:
                call, reference = self.lent.popleft()
            except IndexError:  # another thread was quicker
                return
            if call + MOST_CALLS >= self._calls:
                self.lent.appendleft((call, reference))
                return
            private = reference()
            if private is not None:
                self._num_dear += 1
                with suppress(OSError):  # no memory: it stays with the server
                    private.detach()

    def end(self) -> None:
        """Take over all that is kept: calls are not counted any more."""
        self._calls += MOST_CALLS + 1
        self.call()

    def take(self, memory: Bytes, hold: Any) -> Private | None:
        """Return memory of a server as this process's own (`zmqps.core.protocol.arrays.CopyOnWrite`)."""
        lends = self._memory.private if self._may_keep() else None
        private = None if lends is None else lends(memory, hold)
        if private is not None:
            private.report = self._note
            self.lent.append((self._calls, weakref.ref(private)))
        return private

    def _note(self, written_nbytes: int, used_nbytes: int) -> None:
        self._num_dear += written_nbytes > MOST_WRITTEN * used_nbytes
