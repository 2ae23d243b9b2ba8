"""A shard's rows of one sparse table: reading, updating, admission and eviction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import numpy as np

from zmqps.core.job.keyspace import Slice
from zmqps.core.job.tables import NUM_BUCKETS, TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages.rows import COUNTED
from zmqps.core.server.dense.rules import Timing
from zmqps.core.server.tables.gone import GoneLog
from zmqps.core.server.tables.room import Expiry, RowRoom
from zmqps.errors import NonFiniteGradientError, ProtocolError, TableFullError, listed
from zmqps.rows.hashing import Sketch
from zmqps.rows.kept import Kept, rebased
from zmqps.rows.store import SCANNED_ROWS, RowStore

#: Rows examined to find those changed least recently: this many, or this many times the number to evict.
WINDOW_ROWS, WINDOW_SHARE = 4096, 8
#: Rows examined with each update, to free expired ones.
SWEEP_ROWS = 1024
_STAMPS = 1 << 32


class RowUpdate(Protocol):
    """A rule, compiled for rows of one length (`zmqps.optim.rows.RowKernel`)."""

    @property
    def slot_fill(self) -> tuple[float, ...]:
        """The initial value of each slot that is as long as a row."""

    @property
    def row_slot_fill(self) -> tuple[float, ...]:
        """The initial value of each slot that is one number a row."""

    @property
    def counts(self) -> bool:
        """Whether it needs the number of updates of each row."""

    def __call__(
        self,
        values: Array,
        rows: Array,
        grads: Array,
        slots: Sequence[Array],
        row_slots: Sequence[Array],
        counts: Array | None,
        step: int,
        learning_rate: float | None = ...,
        missed: Array | None = ...,
    ) -> None:
        """Update distinct rows in place. Its errors are raised before anything is written."""


class Times(NamedTuple):
    """The progress of a table: messages or steps, updates, and the update before which rows have expired by seconds."""

    version: int
    steps: int
    expired_before: int


class RowWatchers(NamedTuple):
    """Is informed of changes of rows.

    ``changing``: rows about to change, or to be removed; ``removed``: the ids of removed rows, before anything else is
    done.
    """

    changing: list[Callable[[Array], None]]
    removed: list[Callable[[Array], None]]


class RowTable:
    """A shard's part of a table.

    Updates are numbered, for the table on this shard. A row's *stamp* is the number of its last one, in 32 bits: ages
    are taken modulo 2**32, so a row older than that looks younger, never older.
    """

    def __init__(
        self,
        slice_: Slice,  # its buckets
        spec: TableSpec,
        kernel: RowUpdate,
        store: RowStore,  # where rows are stored; empty
        *,
        sketch_width: int = 1 << 10,  # of the sketch that counts touches of rows not admitted yet
        # requests memory for a table without a capacity: ``more(nbytes)``, whether it is granted
        more: Callable[[int], bool] = lambda nbytes: True,
    ) -> None:
        self.slice = slice_
        self.spec = spec
        self.store = store
        self.version = 0  # applied messages; synchronous: committed steps
        self.steps = 0  # updates of the table: those that schedules count
        self.counters: Counter[str] = Counter()
        self.timing = Timing()
        self.watchers = RowWatchers([], [])
        self.gone = GoneLog()
        self.kernel = kernel
        self.expiry = Expiry(spec.expire_s)
        limit = len(store.ids)
        if spec.capacity_nbytes is not None:
            share = spec.capacity_nbytes * (slice_.stop - slice_.start) // NUM_BUCKETS
            limit = min(limit, share // store.row_nbytes)
        self.room = RowRoom(limit, more, Sketch(sketch_width) if spec.admit > 1 else None)

    @property
    def expired_before(self) -> int:
        """By seconds: rows last updated before this update have expired."""
        return self.expiry.before

    def __len__(self) -> int:
        return self.store.num_rows

    # --- reading -------------------------------------------------------------------------------

    def read(self, ids: Array) -> Array:
        """Return rows in a new array ``(len(ids), dim)``, in the store's kind of memory.

        For ids without a row it has their initial values.
        """
        out: Array = self.store.buffer(ids.size)
        hits = self.store.gather(ids, out, self._oldest(self.steps), self.steps % _STAMPS)
        self.counters["hits"] += hits
        self.counters["misses"] += ids.size - hits
        return out

    def _oldest(self, now: int) -> int | None:
        """Return the greatest age of an unexpired row, after ``now`` updates; None: rows do not expire."""
        oldest = None
        if self.spec.expire_steps is not None:
            oldest = self.spec.expire_steps - 1
        if self.expired_before:
            by_time = now - self.expired_before  # -1: all of them
            oldest = by_time if oldest is None else min(oldest, by_time)
        return oldest

    @property
    def lifetime(self) -> int:
        """The updates without one of its own after which a row has expired; 2**32: never."""
        oldest = self._oldest(self.steps)
        return _STAMPS if oldest is None else oldest + 1

    # --- updating ------------------------------------------------------------------------------

    def check_finite(self, ids: Array, grads: Array, worker: str) -> None:
        """Raise `NonFiniteGradientError`, with the worker and ids, unless all gradients are finite."""
        if not np.isfinite(grads).all():
            self.counters["nonfinite"] += 1
            names = list(map(repr, self.spec.nonfinite(ids, grads)))
            raise NonFiniteGradientError(worker=worker, parameters=listed(names, 5))

    def make_room(self, ids: Array, reserved: int = 0, *, promised: bool = False) -> int:
        """Return at most how many of some distinct ids are new, once there is room for them and others to come.

        If it was ``promised``, no memory is requested any more: the index may have grown since.

        Raises
        ------
        TableFullError
            There is none, and no row can be evicted for them.
        """
        store = self.store
        room = store.num_rows + ids.size + reserved <= self.room.limit
        if room and (promised or self._has_memory(ids.size + reserved)):
            return int(ids.size)
        new = store.count_absent(ids)
        lacking = store.num_rows + new + reserved - self.room.limit
        if self.spec.when_full == "evict" and lacking > 0 and ids.size + reserved <= self.room.limit:  # else in vain
            self._evict(lacking, ids)
            lacking = store.num_rows + new + reserved - self.room.limit
        if new and (lacking > 0 or not (promised or self._has_memory(new + reserved))):
            self.counters["refused"] += new
            raise TableFullError(table=self.spec.name, num_rows=store.num_rows, new=new, nbytes=store.nbytes)
        return new

    def reserve(self, ids: Array, reserved: int) -> int:
        """Return how many rows some distinct ids may need later, in addition to others with as many reserved.

        Raises
        ------
        TableFullError
            There would be no room for all of them then.
        """
        if self.spec.when_full != "evict":
            return self.make_room(ids, reserved)
        if ids.size + reserved > self.room.limit:
            raise TableFullError(
                table=self.spec.name, num_rows=self.store.num_rows, new=ids.size, nbytes=self.store.nbytes
            )
        return int(ids.size)

    def is_there(self, rows: Array) -> Array:
        """Return which rows exist, and have not expired."""
        there: Array = self.store.live[rows] != 0
        oldest = self._oldest(self.steps)
        return there if oldest is None else there & (self.store.ages(rows, self.steps) <= oldest)

    def _has_places(self, new: int) -> bool:
        """Whether there is room for this many more rows, whatever the capacity says."""
        return self.store.num_rows + new <= len(self.store.ids) and self._has_memory(new)

    def _has_memory(self, new: int) -> bool:
        """Whether this many more rows fit into the granted memory, or more is granted."""
        if self.spec.capacity_nbytes is not None:  # which was admitted
            return True
        return self.room.has(self.store.nbytes + new * self.store.row_nbytes)

    def _evict(self, number: int, kept: Array) -> None:
        """Evict rows changed least recently, of those in a window, but none of some ids."""
        store = self.store
        safe = store.find(kept)
        looked = 0
        while number > 0 and looked < store.end:
            size = min(max(WINDOW_ROWS, WINDOW_SHARE * number), store.end - looked)
            window, looked = self.room.window(size, store.end), looked + size
            rows = window[store.live[window] != 0]
            rows = rows[~np.isin(rows, safe)]
            ages = store.ages(rows, self.steps)
            order = np.argsort(-ages, kind="stable")[:number]
            gone = store.ids[rows[order]].copy()
            number -= gone.size
            self.counters["evicted"] += gone.size
            if gone.size:
                for told in self.watchers.removed:
                    told(gone)
                self.remove(gone)

    def _before(self, rows: Array) -> None:
        for watcher in self.watchers.changing:
            watcher(rows)

    def remove(self, ids: Array) -> None:
        """Some rows are not on this server any more, if they were."""
        rows = self.store.find(ids)
        self._free(rows[rows >= 0])

    def _free(self, rows: Array) -> None:
        self._before(rows)
        self.gone.add(self.store.ids[rows])
        self.store.remove(rows)

    def update(self, ids: Array, grads: Array, *, begins: bool = True, promised: bool = False) -> None:
        """Apply gradients to rows; a failure changes nothing, except that rows may be created or evicted.

        Parameters
        ----------
        ids
            Distinct ids.
        grads
            ``(len(ids), dim)``.
        begins
            Whether this is one more update of the table, or a part of the last one.
        promised
            As of `make_room`.
        """
        self.make_room(ids, promised=promised)
        steps = self._number(begins=begins)
        rows, places = self._rows(ids, self.steps)
        if rows.size < ids.size:
            grads = grads[places]
        lag = None
        if self.spec.lazy_decay:  # of a row already changed by another message of this update: nothing
            lag = np.maximum(self.store.ages(rows, steps) - 1, 0).astype(np.uint32)
        self._before(rows)
        began = self.timing.clock()
        self.store.update(self.kernel, rows, grads, max(1, steps), lag)
        self.timing.seconds += self.timing.clock() - began
        self.timing.num += 1
        self.store.mark(rows, steps)
        self.steps = steps
        with suppress(MemoryError):  # the update is done, and must not count as failed
            self._sweep(ids.size)

    def put(self, ids: Array, values: Array, *, promised: bool = False) -> None:
        """Set rows to values, without the rule; their slots do not change. It is not an update of the table."""
        self.make_room(ids, promised=promised)
        steps, before = self._number(begins=False), self.store.num_rows
        found = self.store.insert(ids, steps % _STAMPS)
        new = self.store.num_rows - before
        self.counters["new"] += new
        self._renew(found, steps, new)
        self._before(found)
        self.store.put(found, values)
        self.store.mark(found, steps)
        self.steps = steps

    def _number(self, *, begins: bool) -> int:
        """Return the number of the present update."""
        return self.expiry.number(self.steps, begins=begins)

    def _rows(self, ids: Array, now: int) -> tuple[Array, Array]:
        """Return the rows of ids, created if missing, and their ids if some are not admitted."""
        store = self.store
        places = np.empty(0, np.int64)
        if self.room.sketch is not None:
            absent = np.flatnonzero(store.find(ids) < 0)
            if absent.size:
                waits = absent[self.room.sketch.touch(ids[absent]) < self.spec.admit]
                self.counters["waiting"] += waits.size
                if waits.size:
                    admitted = np.ones(ids.size, bool)
                    admitted[waits] = False
                    places = np.flatnonzero(admitted)
                    ids = ids[places]
        before = store.num_rows
        rows = store.insert(ids, now % _STAMPS)  # a new row has missed nothing
        new = store.num_rows - before
        self.counters["new"] += new
        self._renew(rows, now, new)
        return rows, places

    def _renew(self, rows: Array, now: int, new: int) -> None:
        """Reset expired rows to their initial values; ``new`` of them have just been reset."""
        oldest = self._oldest(now)
        if oldest is not None:
            late = rows[self.store.ages(rows, now) > oldest]
            if late.size:
                self._before(late)
                self.store.renew(late, now % _STAMPS)
                self.counters["expired"] += late.size - (new if oldest < 0 else 0)

    def _sweep(self, touched: int) -> None:
        """Free some of the expired rows."""
        oldest = self._oldest(self.steps)
        store = self.store
        if oldest is None or not store.end:
            return
        size = min(SWEEP_ROWS + 2 * touched, store.end)
        window = self.room.window(size, store.end)
        gone = window[(store.live[window] != 0) & (store.ages(window, self.steps) > oldest)]
        if gone.size:
            self._free(gone)
            self.counters["expired"] += gone.size

    # --- time ----------------------------------------------------------------------------------

    def tick(self, now: float) -> bool:
        """Record the time; return whether more rows have expired by it."""
        return self.expiry.tick(now, self.steps)

    # --- raw rows ------------------------------------------------------------------------------

    def kept(self, rows: Array) -> Kept:
        """Return copies of some rows."""
        return self.store.kept(rows)

    def restore(self, kept: Kept, *, slots: bool = True) -> None:
        """Set rows to saved ones; raises as `make_room` does.

        Without ``slots``, slots and counts have their initial values.
        """
        self.make_room(kept.ids)
        if slots:
            self.store.upsert(*kept)
            return
        rows = self.store.insert(kept.ids)
        self.store.put(rows, kept.values)
        self.store.stamps[rows] = kept.stamps

    def take(self, kept: Kept) -> None:
        """Set rows to those of another copy, even if they exceed a share of the capacity.

        Raises
        ------
        TableFullError
            There is no memory for them here, or no place.
        """
        store = self.store
        new = kept.ids.size
        if not self._has_places(new):
            new = store.count_absent(kept.ids)
            if not self._has_places(new):
                raise TableFullError(table=self.spec.name, num_rows=store.num_rows, new=new, nbytes=store.nbytes)
        store.upsert(*kept)
        self.room.limit = max(self.room.limit, store.num_rows)

    def follow(self, kept: Kept, gone: Array, version: int, steps: int, expired_before: int) -> None:
        """Set rows to those of this copy's leader, and remove some ids.

        Raises
        ------
        TableFullError
            As for `take`.
        """
        self.remove(gone)
        self.take(kept)
        self.version, self.steps, self.expiry.before = version, steps, expired_before

    def refill(self, over: Sequence[tuple[RowTable, slice, slice]]) -> None:
        """Copy the rows of some buckets from other tables, which do not change any more; it may be repeated.

        Raises
        ------
        ProtocolError
            They lack some of the buckets.
        TableFullError
            As for `take`.
        """
        num_filled = sum(here.stop - here.start for _, here, _ in over)
        if num_filled != self.slice.size:
            raise ProtocolError(
                f"of table {self.spec.name} {self.slice.size} buckets are wanted, {num_filled} are here"
            )
        self.steps = max(other.steps for other, _, _ in over)
        self.version = max(other.version for other, _, _ in over)
        # rows keep their age, and expire no earlier
        self.expiry.before = min(other.expired_before + self.steps - other.steps for other, _, _ in over)
        for other, _, there in over:
            lo, hi = other.slice.start + there.start, other.slice.start + there.stop
            start = 0
            while start < other.store.end:
                rows, start = other.store.in_buckets(lo, hi, self.spec.bucket_seed, start, SCANNED_ROWS)
                kept = other.kept(rows)
                self.take(kept._replace(stamps=rebased(kept.stamps, self.steps, other.steps)))

    @property
    def times(self) -> Times:
        """The clock of its rows' stamps."""
        return Times(self.version, self.steps, self.expired_before)

    def figures(self) -> dict[str, int]:
        """Return its counters (`COUNTED`)."""
        here = {"rows": self.store.num_rows, "nbytes": self.store.nbytes}
        return {name: here.get(name, self.counters[name]) for name in COUNTED}

    def validate(self) -> None:
        """Assert the invariants."""
        self.store.validate()
        assert self.store.num_rows <= max(self.room.limit, 0)
        assert self.expired_before <= self.steps + 1
