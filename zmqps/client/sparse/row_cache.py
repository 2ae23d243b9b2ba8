"""A worker's own copies of hot rows of a table, which it reads again for some clocks, and its deferred gradients.

After HET (Miao et al., VLDB 2022). `zmqps.rows.cache` decides which rows stay, and until when they may be read; this
module applies that to pulls and pushes.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from zmqps.client.futures import Joint, done
from zmqps.client.sparse.cache_options import CacheOptions, CacheStatistics, rate_of
from zmqps.client.sparse.rows import Brought, RowRequests, Wanted
from zmqps.client.thread import in_callback
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import RAW
from zmqps.core.worker.operations import Exchange
from zmqps.core.worker.rows import RowCargo, RowSource
from zmqps.core.worker.transfer import PullTransfer, PushTransfer
from zmqps.errors import ClosedError, PSError
from zmqps.rows.cache import Cache, Kept, Reservation
from zmqps.rows.hashing import seed_of
from zmqps.rows.unique import Grouped, spread

if TYPE_CHECKING:
    from zmqps.core.worker.operations import Operation

log = logging.getLogger("zmqps.worker")

#: Seconds that a close waits for a cache in use, and for its deferred gradients to be applied.
FAREWELL_S = 2.0


class Member(Protocol):
    """What a cache requires of its member of the cluster."""

    def submit(
        self, operation: Operation, timeout: float | None, result: Callable[[Any], Any] | None = ...
    ) -> Future[Any]:
        """Begin an operation."""

    def reads_at(self) -> int | None:
        """Return the clock of a read requested now; None: it ends no steps."""


class Call(NamedTuple):
    """A call of a table: of whose, by which requests, and how long it may take."""

    member: Member
    requests: RowRequests
    timeout: float | None

    def submit(self, exchange: Exchange, result: Callable[[Any], Any] | None = None) -> Future[Any]:
        """Begin an operation."""
        return self.member.submit(exchange, self.timeout, result)


class Write(NamedTuple):
    """The part of a push to be sent; ``push`` is that part, if it is all, and nothing else."""

    brought: Brought
    push: PushTransfer | None


class Read(NamedTuple):
    """The rows to request, and the functions that make the result of a pull of them, and of its transfer."""

    missing: Array
    result: Callable[[Array | None, PullTransfer | None], Any]


class RowCache:
    """Pulls and pushes of a table, some of which this worker answers itself.

    The background thread never waits for it: arrivals are queued for the next call.

    Parameters
    ----------
    options
        What the user requests.
    job, spec
        The job, and the table.

    Raises
    ------
    ConfigurationError
        The options do not suit the job.
    """

    def __init__(self, options: CacheOptions, job: JobSpec, spec: TableSpec) -> None:
        self.options = options
        self._spec = spec
        self._staleness = options.bound(job, spec)
        self._rate = rate_of(job, spec)
        self._is_bounded, self._bound = job.mode == "bounded", job.staleness or 0
        self._by_steps = False  # its clock counts steps
        self._lock = threading.Lock()
        self._arrived: deque[tuple[Reservation, Array, int]] = deque()
        self._is_stale = False  # the job went back to a checkpoint, or was placed elsewhere
        self._applied: list[tuple[Future[Any], Array]] = []  # pending pushes already applied to copies, and their ids
        self._sending: list[Future[Any]] = []  # pushes of deferred gradients, which no caller waits for
        self._counts = Counter[str]()
        self._now, self._has_pulled = 0, False
        self._is_closed = self._ended = False
        self._cache = self._new()

    def _new(self) -> Cache:
        seed = seed_of("cache", self._spec.name)
        return Cache(self.options.rows, self._spec.dim, keeps=self.options.defer, seed=seed)

    # --- operations of a table -----------------------------------------------------------------

    def begin(self, call: Call, brought: Brought | None, wanted: Wanted | None) -> Future[Any]:
        """Begin to push and pull, in one round trip; for a pull with its own codec all rows come from the servers."""
        push = None if brought is None else call.requests.exchange(brought)[0].push
        if wanted is not None and (wanted.codec is not None or (self._is_bounded and in_callback())):
            return self._read_all(call, brought, push, wanted)
        looked = None if wanted is None else call.requests.look(wanted)
        step = call.member.reads_at() if wanted is not None and self._is_bounded else None
        if step is not None and push is not None:
            step += push.whole
        with self._lock:
            self._absorb()
            now = self._clock(step, pulls=wanted is not None, pushes=push is not None)
            write = None
            if brought is not None and push is not None:
                write = self._write(call, brought, push, now)
            else:
                self._send(call, self._cache.take_due(now))
            return self._exchange(call, write, None if looked is None else self._read(call, looked, now))

    def _read_all(self, call: Call, brought: Brought | None, push: PushTransfer | None, wanted: Wanted) -> Future[Any]:
        """Read all rows from the servers, after all gradients; in a callback the clock of a step is unknown."""
        exchange, result = call.requests.exchange(None, wanted)
        with self._lock:
            self._absorb()
            sent = None
            if brought is not None and push is not None:
                sent = self._exchange(call, self._write(call, brought, push, self._clock(pushes=True)), None)
            self._send(call, self._cache.take_all())
            pulled = call.submit(exchange, result)
        return pulled if sent is None else Joint([pulled, sent])

    def load(self, call: Call, ids: Any, values: Any, step: bool) -> Future[Any]:
        """Start `zmqps.Table.load`, after the deferred gradients, which were pushed before."""
        push = call.requests.load(ids, values, step)
        with self._lock:
            self._absorb()
            self._clock(pushes=True)
            self._send(call, self._cache.take_all())
            places = self._cache.places(pushed_ids(push))
            self._cache.drop(places[places >= 0])
            return call.submit(Exchange(push=push))

    def end(self) -> None:
        """Stop deferring: another cache, or none, replaces this one."""
        with self._lock:
            self._ended = True

    def flush(self, call: Call) -> Future[Any]:
        """Send the deferred gradients; the future fails if any, also of those sent since the last flush, has failed."""
        with self._lock:
            self._absorb()
            self._send(call, self._cache.take_all())
            sending, self._sending = self._sending, []
        return Joint(sending) if sending else done()

    def statistics(self) -> CacheStatistics:
        """Return its contents and savings."""
        with self._lock:
            counts, cache = self._counts, self._cache
            saved = counts["hits"] + counts["deferred"] - counts["sent"] - cache.num_kept
            return CacheStatistics(
                rows=len(cache),
                bytes=cache.nbytes,
                evicted=cache.evicted,
                bytes_saved=saved * (8 + self._spec.nbytes),
                **{name: counts[name] for name in ("hits", "misses", "deferred", "sent")},
            )

    # --- validity of copies --------------------------------------------------------------------

    def outdate(self) -> None:
        """Invalidate all copies; also from the background thread."""
        self._is_stale = True

    def forget(self) -> int:
        """Forget everything at the beginning of a new life; return the number of rows whose gradients are lost."""
        with self._lock:
            lost = self._cache.num_kept
            self._cache = self._new()
            self._arrived.clear()
            self._applied.clear()
            self._sending.clear()
        return lost

    def leave(self, call: Call | None) -> None:
        """Send the deferred gradients and wait a little for them; then stop answering."""
        if not self._lock.acquire(timeout=FAREWELL_S):  # a signal handler may have interrupted a call
            log.warning("the cache of %r is in use: what it keeps is lost", self._spec.name)
            return
        has_some = self._cache.num_kept > 0 or bool(self._sending)
        self._lock.release()
        if has_some and not self._is_closed:
            try:
                if call is None:
                    raise ClosedError("the worker no longer has a job")
                self.flush(call).result(FAREWELL_S)
            except (PSError, TimeoutError) as error:
                why = str(error) or "they were not applied in time"
                log.warning("gradients that the cache of %r kept may be lost: %s", self._spec.name, why)
        self._is_closed = True

    def _clock(self, step: int | None = None, *, pulls: bool = False, pushes: bool = False) -> int:
        """Return the clock of a call; without steps it counts pushes, and every pull but the first after one."""
        if pulls and self._by_steps != (step is not None):  # it has become one that ends steps
            self._by_steps = step is not None
            self._cache.drop_all()
        if step is not None:
            return step
        if pushes or self._has_pulled:
            self._now += 1
        self._has_pulled = pulls
        return self._now

    def _absorb(self) -> None:
        """Process what has happened since the last call."""
        while self._arrived:
            self._cache.fill(*self._arrived.popleft())
        if self._is_stale:
            self._is_stale = False
            self._cache.drop_all()
        under_way = []
        for future, ids in self._applied:
            if not future.done():
                under_way.append((future, ids))
            elif future.cancelled() or future.exception() is not None:  # copies have what the servers may not have
                places = self._cache.places(ids)
                self._cache.drop(places[places >= 0])
        self._applied = under_way
        failed = [future for future in self._sending if future.done() and future.exception() is not None]
        self._sending = [*failed[:1], *(future for future in self._sending if not future.done())]

    def _read(self, call: Call, wanted: tuple[Grouped, Array, Callable[[], Any]], now: int) -> Read:
        """Look up rows; missing ones get a place, after the deferred gradients of the rows evicted for them."""
        grouped, array, deliver = wanted
        values = np.empty((grouped.size, self._spec.dim), np.float32)
        lacking, places = self._cache.read(grouped.ids, now, values)
        missing, reservation, arrived = grouped.ids[lacking], None, self._arrived
        self._counts["hits"] += grouped.size - missing.size
        self._counts["misses"] += missing.size
        if missing.size:
            self._send(call, self._cache.take(places[places >= 0]))
            reservation, left = self._cache.reserve(missing, places)
            self._send(call, left)
        latest, bound = now + self._staleness, self._bound if self._by_steps else None

        def result(rows: Array | None, pull: PullTransfer | None) -> Any:
            if rows is not None and pull is not None and reservation is not None:
                values[lacking] = rows
                # a worker may be ahead of the clock that these rows are known to have
                until = latest if bound is None else min(latest, pull.slowest + bound)
                arrived.append((reservation, rows, until))
            spread(values, 0, grouped.inverse, array)
            return deliver()

        return Read(missing, result)

    def _write(self, call: Call, brought: Brought, push: PushTransfer, now: int) -> Write:
        """Apply a push to copies, or invalidate them; keep deferred gradients, and take those that are due."""
        assert isinstance(push.source, RowSource)
        sent = brought._replace(ids=pushed_ids(push), grads=push.source.rows)
        if push.source.nonfinite:  # it will be refused
            return Write(sent, push)
        cache, options = self._cache, self.options
        places = cache.places(sent.ids)
        at = np.flatnonzero(places >= 0)
        own, held = places[at], at[:0]
        is_known = self._rate is not None and sent.codec in (None, RAW)
        has_value = cache.has_value(own) & is_known
        if options.defer and sent.codec is None and not self._ended:
            held = at[cache.is_hot(own) & (has_value | (not options.read_own))]
            cache.keep(places[held], held, sent.grads, now, self._staleness)
        if options.read_own:
            if is_known:
                cache.add(own[has_value], at[has_value], sent.grads, -(self._rate or 0.0))
            cache.drop(own[~has_value])
        due = cache.take_due(now)
        if sent.codec is not None:
            self._send(call, due)
        elif held.size or due.ids.size:
            rest = np.ones(sent.ids.size, np.bool_)
            rest[held] = False
            self._counts["deferred"] += held.size
            self._counts["sent"] += due.ids.size
            ids, sums = np.concatenate([sent.ids[rest], due.ids]), np.concatenate([sent.grads[rest], due.sums])
            return Write(sent._replace(ids=ids, grads=sums), None)
        return Write(sent, push)

    # --- messages ------------------------------------------------------------------------------

    def _exchange(self, call: Call, write: Write | None, read: Read | None) -> Future[Any]:
        """Start the transfers that cannot be answered here."""
        brought = write.brought if write is not None and (write.push is not None or write.brought.ids.size) else None
        missing = Wanted(read.missing) if read is not None and read.missing.size else None
        exchange, receive = Exchange(), None
        if write is not None and write.push is not None and missing is None:
            exchange.push = write.push
        elif brought is not None or missing is not None:
            exchange, receive = call.requests.exchange(brought, missing)

        def result(value: Any) -> Any:
            rows = None if receive is None else receive(value)
            return None if read is None else read.result(rows, exchange.pull)

        if exchange.push is None and exchange.pull is None:
            if self._is_closed:
                raise ClosedError("the worker is closed")
            return done(result(None))
        future = call.submit(exchange, result)
        if write is not None:
            self._watch(future, write.brought.ids)
        return Joint([future]) if write is not None and write.push is None else future

    def _send(self, call: Call, kept: Kept) -> None:
        """Push deferred gradients, for which no caller waits."""
        if kept.ids.size:
            future = call.submit(call.requests.exchange(Brought(*kept))[0])
            future.add_done_callback(self._sent)
            self._counts["sent"] += kept.ids.size
            self._sending.append(future)
            self._watch(future, kept.ids)

    def _sent(self, future: Future[Any]) -> None:
        if (error := future.exception()) is not None:
            log.warning("gradients that the cache of %r kept were not applied: %s", self._spec.name, error)

    def _watch(self, future: Future[Any], ids: Array) -> None:
        """Note that copies include a push, for as long as it may fail."""
        if self._rate is not None and self.options.read_own:
            self._applied.append((future, ids))


def pushed_ids(push: PushTransfer) -> Array:
    """Return the ids with gradients in a push, in the order of these."""
    assert isinstance(push.source, RowSource)
    ids = np.empty(len(push.source.rows), np.int64)
    for row in push.cargoes:
        for cargo in row:
            assert isinstance(cargo, RowCargo)
            ids[cargo.first : cargo.first + cargo.pushed.size] = cargo.pushed
    return ids


class RowCaches(dict[str, RowCache]):
    """The caches of one member, by the name of the table."""

    def choose(self, name: str, options: CacheOptions, job: JobSpec, call: Call) -> None:
        """Set or remove the cache of a table.

        Raises
        ------
        ConfigurationError
            The options do not suit the job.
        """
        old = self.get(name)
        if old is not None and old.options == options:
            return
        new = RowCache(options, job, call.requests.spec) if options.rows else None
        if old is not None:
            old.end()
            old.flush(call).result()
            del self[name]
        if new is not None:
            self[name] = new

    def outdate(self) -> None:
        """Invalidate all copies; also from the background thread."""
        for cache in tuple(self.values()):
            cache.outdate()

    def forget(self) -> None:
        """Forget everything that caches keep."""
        for name, cache in self.items():
            if lost := cache.forget():
                log.warning("gradients of %d rows of %r that were not sent are lost", lost, name)
