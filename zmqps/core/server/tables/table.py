"""The rows that a shard has of one sparse table: reading them, updating them, and which of them stay."""

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
from zmqps.rows.kept import Kept, rebased
from zmqps.rows.sketch import Sketch
from zmqps.rows.store import SCANNED_ROWS, RowStore

#: Rows that are looked at to find those that were changed least recently: so many, or so many times what is to go.
WINDOW_ROWS, WINDOW_SHARE = 4096, 8
#: Rows that are looked at with each update, to free those that have expired.
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
        """Whether it needs to know how many updates each row has had."""

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
        """Update rows, which are different, in place. What it raises it raises before it has written anything."""


class Times(NamedTuple):
    """How far a table is: by messages or steps, by updates, and before which update rows have expired by seconds."""

    version: int
    steps: int
    expired_before: int


class RowWatchers(NamedTuple):
    """Who is told of what happens to rows.

    ``changing``: which rows are about to change, or to go; ``removed``: the ids of rows that make way for others,
    before anything else is done.
    """

    changing: list[Callable[[Array], None]]
    removed: list[Callable[[Array], None]]


class RowTable:
    """A shard's part of a table.

    An update has a number, of the table's on this shard. A row's *stamp* is that of its last one, in 32 bits: ages are
    taken modulo 2**32, so one that is older than that looks younger, never older.
    """

    def __init__(
        self,
        slice_: Slice,  # which buckets it has
        spec: TableSpec,
        kernel: RowUpdate,
        store: RowStore,  # where rows are; empty
        *,
        sketch_width: int = 1 << 10,  # of the sketch that counts touches of rows which are yet to be admitted
        # asks for memory where the table has no capacity: ``more(nbytes)``, whether it may be had
        more: Callable[[int], bool] = lambda nbytes: True,
    ) -> None:
        self.slice = slice_
        self.spec = spec
        self.store = store
        self.version = 0  # messages applied; synchronous: steps committed
        self.steps = 0  # updates of the table: those that schedules go by
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
        """By seconds: rows that were last updated before this update are gone."""
        return self.expiry.before

    def __len__(self) -> int:
        return self.store.num_rows

    # --- reading -------------------------------------------------------------------------------

    def read(self, ids: Array) -> Array:
        """Return rows in a new array ``(len(ids), dim)``, which is where the store's values are.

        Of ids that have none it is what they would begin with.
        """
        out: Array = self.store.buffer(ids.size)
        hits = self.store.gather(ids, out, self._oldest(self.steps), self.steps % _STAMPS)
        self.counters["hits"] += hits
        self.counters["misses"] += ids.size - hits
        return out

    def _oldest(self, now: int) -> int | None:
        """Return the greatest age of a row, after ``now`` updates, that has not expired; None: rows do not expire."""
        oldest = None
        if self.spec.expire_steps is not None:
            oldest = self.spec.expire_steps - 1
        if self.expired_before:
            by_time = now - self.expired_before  # -1: all that there are
            oldest = by_time if oldest is None else min(oldest, by_time)
        return oldest

    @property
    def lifetime(self) -> int:
        """After how many updates without one of its own a row has expired; 2**32: never."""
        oldest = self._oldest(self.steps)
        return _STAMPS if oldest is None else oldest + 1

    # --- updating ------------------------------------------------------------------------------

    def check_finite(self, ids: Array, grads: Array, worker: str) -> None:
        """Raise `NonFiniteGradientError`, which names the worker and ids, unless all gradients are finite."""
        if not np.isfinite(grads).all():
            self.counters["nonfinite"] += 1
            names = list(map(repr, self.spec.nonfinite(ids, grads)))
            raise NonFiniteGradientError(worker=worker, parameters=listed(names, 5))

    def make_room(self, ids: Array, reserved: int = 0, *, promised: bool = False) -> int:
        """Return at most how many of some different ids are new, once there is room for them beside others to come.

        Where it was ``promised``, nobody is asked for memory any more: the index may have grown since.

        Raises
        ------
        TableFullError
            There is none, and nothing makes way for them.
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
        """Return how many rows some different ids may need later, beside others for which as many are reserved.

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
        """Return which rows are ones, and have not expired."""
        there: Array = self.store.live[rows] != 0
        oldest = self._oldest(self.steps)
        return there if oldest is None else there & (self.store.ages(rows, self.steps) <= oldest)

    def _has_places(self, new: int) -> bool:
        """Whether there is room for so many more rows, whatever the capacity says."""
        return self.store.num_rows + new <= len(self.store.ids) and self._has_memory(new)

    def _has_memory(self, new: int) -> bool:
        """Whether so many more rows fit into what was granted, or more is."""
        if self.spec.capacity_nbytes is not None:  # which was admitted
            return True
        return self.room.has(self.store.nbytes + new * self.store.row_nbytes)

    def _evict(self, number: int, kept: Array) -> None:
        """Let rows that were changed least recently make way, of those in a window, but none of some ids."""
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
        """Some rows are not here any more, if they were."""
        rows = self.store.find(ids)
        self._free(rows[rows >= 0])

    def _free(self, rows: Array) -> None:
        self._before(rows)
        self.gone.add(self.store.ids[rows])
        self.store.remove(rows)

    def update(self, ids: Array, grads: Array, *, begins: bool = True, promised: bool = False) -> None:
        """Apply gradients to rows; what fails changes nothing but that rows may be there, as they begin, or made way.

        Parameters
        ----------
        ids
            They are different.
        grads
            ``(len(ids), dim)``.
        begins
            Whether this is one more update of the table, or a part of the one before.
        promised
            As of `make_room`.
        """
        self.make_room(ids, promised=promised)
        steps = self._number(begins=begins)
        rows, places = self._rows(ids, self.steps)
        if rows.size < ids.size:
            grads = grads[places]
        lag = None
        if self.spec.lazy_decay:  # of a row that another message of this update has changed: nothing
            lag = np.maximum(self.store.ages(rows, steps) - 1, 0).astype(np.uint32)
        self._before(rows)
        began = self.timing.clock()
        self.store.update(self.kernel, rows, grads, max(1, steps), lag)
        self.timing.seconds += self.timing.clock() - began
        self.timing.num += 1
        self.store.stamps[rows] = steps % _STAMPS
        self.steps = steps
        with suppress(MemoryError):  # the update is done, and must not be taken for one that has failed
            self._sweep(ids.size)

    def put(self, ids: Array, values: Array, *, promised: bool = False) -> None:
        """Let rows have some values, past the rule; their slots stay as they are. It is no update of the table."""
        self.make_room(ids, promised=promised)
        steps, before = self._number(begins=False), self.store.num_rows
        found = self.store.insert(ids, steps % _STAMPS)
        new = self.store.num_rows - before
        self.counters["new"] += new
        self._renew(found, steps, new)
        self._before(found)
        self.store.put(found, values)
        self.store.stamps[found] = steps % _STAMPS
        self.steps = steps

    def _number(self, *, begins: bool) -> int:
        """Return the number of what changes rows now."""
        return self.expiry.number(self.steps, begins=begins)

    def _rows(self, ids: Array, now: int) -> tuple[Array, Array]:
        """Return the rows of ids, made where they are not there, and which ids these are if some are not admitted."""
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
        """Let those rows begin again that have expired; ``new`` of them have just begun."""
        oldest = self._oldest(now)
        if oldest is not None:
            late = rows[self.store.ages(rows, now) > oldest]
            if late.size:
                self._before(late)
                self.store.renew(late, now % _STAMPS)
                self.counters["expired"] += late.size - (new if oldest < 0 else 0)

    def _sweep(self, touched: int) -> None:
        """Free some of the rows that have expired."""
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
        """Take note of the time; return whether more rows have expired by it."""
        return self.expiry.tick(now, self.steps)

    # --- as it is ------------------------------------------------------------------------------

    def kept(self, rows: Array) -> Kept:
        """Return copies of some rows."""
        return self.store.kept(rows)

    def restore(self, kept: Kept, *, slots: bool = True) -> None:
        """Have rows as they were; raises as `make_room` does.

        Where ``slots`` are left out, they and counts are as they begin.
        """
        self.make_room(kept.ids)
        if slots:
            self.store.upsert(*kept)
            return
        rows = self.store.insert(kept.ids)
        self.store.put(rows, kept.values)
        self.store.stamps[rows] = kept.stamps

    def take(self, kept: Kept) -> None:
        """Have rows as another copy has them, though there be more of them than a share of the capacity.

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
        """Have rows as the leader of this copy has them, and none of some ids.

        Raises
        ------
        TableFullError
            As for `take`.
        """
        self.remove(gone)
        self.take(kept)
        self.version, self.steps, self.expiry.before = version, steps, expired_before

    def refill(self, over: Sequence[tuple[RowTable, slice, slice]]) -> None:
        """Have the rows of some buckets of other tables, which change no more; done again, they are the same.

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
        # rows are as old as they were, and expire no earlier
        self.expiry.before = max(0, min(other.expired_before + self.steps - other.steps for other, _, _ in over))
        for other, _, there in over:
            lo, hi = other.slice.start + there.start, other.slice.start + there.stop
            start = 0
            while start < other.store.end:
                rows, start = other.store.in_buckets(lo, hi, self.spec.bucket_seed, start, SCANNED_ROWS)
                kept = other.kept(rows)
                self.take(kept._replace(stamps=rebased(kept.stamps, self.steps, other.steps)))

    @property
    def times(self) -> Times:
        """By what its rows' stamps go."""
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
