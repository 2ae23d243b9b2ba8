"""Rows of a sparse table pulled and pushed by real processes, and the same work in one process without servers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

import zmqps
from bench.children import TIMEOUT
from bench.ids import Array, RowWork
from bench.reference import ROUNDING
from bench.setup import GRADIENT_SCALE, LEARNING_RATE, OPTIMIZERS
from zmqps.client.futures import begins
from zmqps.core.job.keyspace import Slice
from zmqps.core.job.tables import NUM_BUCKETS, TableSpec
from zmqps.core.server.tables.table import RowTable
from zmqps.net.system.memory import keep_freed_memory
from zmqps.optim.rows import RowKernel, kernel_of_table
from zmqps.rows import arena
from zmqps.rows.initial import Initial, filler
from zmqps.rows.store import RowStore
from zmqps.rows.unique import different, spread, summed

ROW_OPTIMIZERS: dict[str, Callable[[], zmqps.optim.OptimizerSpec]] = {
    **OPTIMIZERS,
    "rowwise_adagrad": lambda: zmqps.optim.rowwise_adagrad(LEARNING_RATE),
}
#: ``step`` is a pull of a batch and then a push of it; ``push_pull`` pushes one and pulls the next.
OPERATIONS = ("pull", "push", "step", "push_pull")
NAME = "rows"
#: What all rows begin with.
START = 1.0
#: Rows that are loaded at a time, and how many of these are under way.
LOADED_ROWS, LOADS = 1 << 17, 4
#: Rows that are compared with the reference.
CHECKED_ROWS = 256
#: Odd, so that products differ, modulo 2**64: ids are not numbers of rows, which a table need not look for.
_SCATTER = np.int64(0x1E37_79B9_7F4A_7C15)


def ids_of(numbers: Array) -> Array:
    """Return the ids of rows by their numbers: they differ, and lie all over the 64 bits."""
    with np.errstate(over="ignore"):
        ids: Array = numbers * _SCATTER
    return ids


def gradients(work: RowWork, batch: int) -> Array:
    """Return the gradients of a batch, which each worker pushes again and again."""
    rng = np.random.default_rng(batch)
    return GRADIENT_SCALE * rng.standard_normal((work.batch, work.dim), np.float32)


class RowWorker:
    """A worker process: one operation on a batch of rows after the other.

    Parameters
    ----------
    address
        The coordinator's.
    work
        The table, and the batches.
    transport
        As `zmqps.connect` takes it.
    number
        Of the worker: each has batches of its own.
    """

    def __init__(self, address: str, work: RowWork, transport: str, number: int) -> None:
        self._work, self._number = work, number
        self._worker = zmqps.connect(address, timeout=TIMEOUT, transport=transport)
        tables = {NAME: zmqps.table(work.dim, optimizer=ROW_OPTIMIZERS[work.optimizer]())}
        self._worker.init({}, tables=tables, mode="async", timeout=TIMEOUT)
        self._table = self._worker.table(NAME)
        self._ids = [ids_of(numbers) for numbers in work.batches(number)]
        self._grads = [gradients(work, batch) for batch in range(len(self._ids))]
        self._out = np.empty((work.batch, work.dim), np.float32)
        self._at = 0
        self._pushed: list[int] = []  # which batches, in their order

    def load(self) -> float:
        """Fill the table with this worker's part of the rows; return the seconds it took."""
        values = np.full((LOADED_ROWS, self._work.dim), START, np.float32)
        pending: list[Future[None]] = []
        started = time.perf_counter()
        for start in range(self._number * LOADED_ROWS, self._work.rows, self._work.workers * LOADED_ROWS):
            numbers = np.arange(start, min(start + LOADED_ROWS, self._work.rows))
            if len(pending) == LOADS:
                pending.pop(0).result(TIMEOUT)
            pending.append(
                begins(zmqps.Table.load)(self._table, ids_of(numbers), values[: numbers.size], timeout=TIMEOUT)
            )
        for future in pending:
            future.result(TIMEOUT)
        return time.perf_counter() - started

    def steps(self, operation: str, name: str, count: int) -> list[float]:
        """Do it so many times, beginning together with the other workers; return the seconds of each."""
        self._worker.barrier(name, timeout=TIMEOUT)
        seconds = []
        for _ in range(count):
            batch, following = self._at % len(self._ids), (self._at + 1) % len(self._ids)
            ids, grads = self._ids[batch], self._grads[batch]
            started = time.perf_counter()
            if operation == "push_pull":
                self._table.push_pull(ids, grads, self._ids[following], out=self._out)
            if operation in ("pull", "step"):
                self._table.pull(ids, out=self._out)
            if operation in ("push", "step"):
                self._table.push(ids, grads)
            seconds.append(time.perf_counter() - started)
            self._at += 1
            if operation != "pull":
                self._pushed.append(batch)
        return seconds

    def deviation(self) -> float:
        """Return how far some rows are from what this worker's pushes make of them: wrong above 1."""
        work = self._work
        known = np.unique(np.concatenate(self._ids))[:: -(-work.batch // CHECKED_ROWS)][:CHECKED_ROWS]
        kernel = kernel_of_table(ROW_OPTIMIZERS[work.optimizer]().to_wire(), NAME, work.dim)
        values = np.full((known.size, work.dim), START, np.float32)
        slots = [np.full_like(values, fill) for fill in kernel.slot_fill]
        row_slots = [np.full(known.size, fill, np.float32) for fill in kernel.row_slot_fill]
        counts = np.zeros(known.size, np.uint32) if kernel.counts else None
        sums = [_sums_of(known, ids, grads) for ids, grads in zip(self._ids, self._grads, strict=True)]
        for step, batch in enumerate(self._pushed, start=1):
            rows, grad = sums[batch]
            kernel(values, rows, grad, slots, row_slots, counts, step)
        found = self._table.rows(known, timeout=TIMEOUT)
        return float(np.max(np.abs(found - values))) / ((1 + len(self._pushed)) * ROUNDING)

    def statistics(self) -> tuple[int, int]:
        """Return how many rows there are, and the bytes that servers say they take."""
        found = self._table.statistics(timeout=TIMEOUT)
        return found.rows, found.bytes

    def close(self) -> None:
        """Disconnect; what was recorded is written."""
        self._worker.close()


def _sums_of(known: Array, ids: Array, grads: Array) -> tuple[Array, Array]:
    """Return which of some ids, ascending, occur in a batch, and the sums of their gradients, as they come."""
    at = np.searchsorted(known, ids).clip(max=known.size - 1)
    there = known[at] == ids
    rows, which = np.unique(at[there], return_inverse=True)
    return rows, summed(grads[there], which.astype(np.int64), rows.size)[0]


class InProcess(ABC):
    """What does the operations of a worker in this process, without servers.

    Parameters
    ----------
    work
        The table, and the batches.
    """

    def __init__(self, work: RowWork) -> None:
        keep_freed_memory()  # as zmqps's own processes do
        self._work = work
        self._numbers = work.batches()
        self._grads = [gradients(work, batch) for batch in range(len(self._numbers))]
        self._out = np.empty((work.batch, work.dim), np.float32)
        self._at = 0

    def steps(self, operation: str, count: int) -> list[float]:
        """Return the seconds of each of so many operations."""
        seconds = []
        for _ in range(count):
            batch, following = self._at % len(self._numbers), (self._at + 1) % len(self._numbers)
            started = time.perf_counter()
            if operation in ("pull", "step"):
                self._pull(batch)
            if operation != "pull":
                self._push(batch)
            if operation == "push_pull":
                self._pull(following)
            seconds.append(time.perf_counter() - started)
            self._at += 1
        return seconds

    @abstractmethod
    def _pull(self, batch: int) -> None:
        """Gather the rows of a batch."""

    @abstractmethod
    def _push(self, batch: int) -> None:
        """Apply the gradients of a batch to its rows."""


class OneProcess(InProcess):
    """The same operations in one process, as numpy does them where numbers of rows are known.

    Parameters
    ----------
    work
        The table, and the batches.
    rule
        Whether gradients of a row are summed and its optimizer is applied; otherwise rows are only gathered, and as
        many different ones written as have been pushed: the bytes that have to be moved.
    """

    def __init__(self, work: RowWork, rule: bool) -> None:
        super().__init__(work)
        self._rule, self._step = rule, 0
        self._different = [np.unique(numbers) for numbers in self._numbers]
        self._values = arena.reserve(work.rows, work.dim)
        spec = ROW_OPTIMIZERS[work.optimizer]()
        self._kernel = kernel_of_table(spec.to_wire(), NAME, work.dim)
        self._slots = [arena.reserve(work.rows, work.dim) for _ in self._kernel.slot_fill]
        self._row_slots = [arena.reserve(work.rows) for _ in self._kernel.row_slot_fill]
        self._counts = arena.reserve(work.rows, dtype=np.uint32) if self._kernel.counts else None
        for rows in self._different:  # a page that was never written costs no miss
            self._values[rows] = START
            for slot, fill in zip(self._slots, self._kernel.slot_fill, strict=True):
                slot[rows] = fill

    def _pull(self, batch: int) -> None:
        np.take(self._values, self._numbers[batch], axis=0, out=self._out, mode="clip")

    def _push(self, batch: int) -> None:
        if not self._rule:
            rows = self._different[batch]
            self._values[rows] = self._grads[batch][: rows.size]
            return
        numbers, self._step = self._numbers[batch], self._step + 1
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        sums = np.add.reduceat(self._grads[batch][order], first, axis=0)
        self._kernel(self._values, ordered[first], sums, self._slots, self._row_slots, self._counts, self._step)


class OwnTable(InProcess):
    """The same operations in one process on a table of zmqps', with its compiled loops, but without messages."""

    def __init__(self, work: RowWork) -> None:
        super().__init__(work)
        self.table = make_table(2 * work.rows + work.batch, work.dim, work.optimizer)
        self._ids = [ids_of(numbers) for numbers in self._numbers]
        fill_table(self.table, work.rows)

    def _pull(self, batch: int) -> None:
        found = different(self._ids[batch], 0)
        spread(self.table.read(found.ids), 0, found.inverse, self._out)

    def _push(self, batch: int) -> None:
        found = different(self._ids[batch], 0)
        self.table.update(found.ids, summed(self._grads[batch], found.inverse, found.size)[0])


def make_table(rows: int, dim: int, optimizer: str) -> RowTable:
    """Return an empty table as a server has it, which may have so many rows."""
    initial = Initial("zeros")
    spec = TableSpec(name=NAME, dim=dim, optimizer=ROW_OPTIMIZERS[optimizer]().to_wire(), initial=initial.to_wire())
    kernel: RowKernel = kernel_of_table(spec.optimizer, NAME, dim, "numba")
    store = RowStore(
        dim,
        filler(initial, NAME),
        slots=kernel.slot_fill,
        row_slots=kernel.row_slot_fill,
        counts=kernel.counts,
        reserve_rows=rows,
    )
    return RowTable(Slice(shard=0, index=0, table=0, start=0, stop=NUM_BUCKETS, segments=()), spec, kernel, store)


def fill_table(table: RowTable, rows: int, start: int = 0) -> None:
    """Let rows have what all begin with, from number ``start`` up to ``rows``."""
    values = np.full((LOADED_ROWS, table.spec.dim), START, np.float32)
    for first in range(start, rows, LOADED_ROWS):
        numbers = np.arange(first, min(first + LOADED_ROWS, rows))
        table.put(ids_of(numbers), values[: numbers.size])
