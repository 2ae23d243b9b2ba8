"""The thread that feeds a sink: whatever the sink does, no node waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from zmqps.errors import counted
from zmqps.sinks.sink import Sink

#: Bytes of memory that values waiting for one sink may take; beyond it the oldest are dropped.
MOST_NBYTES = 16 << 20
#: Of an entry, and of each of its values: what Python needs for them.
ENTRY_NBYTES, VALUE_NBYTES = 400, 120
#: While values come they are flushed so often.
FLUSH_S = 2.0
#: What goes wrong is said so often.
SAY_S = 60.0
#: So long the end of a coordinator waits for all sinks together.
CLOSE_S = 5.0

#: (step, at, values): one call of `zmqps.Worker.log`.
Call = tuple[int | None, float, Mapping[str, float]]

log = logging.getLogger("zmqps.coordinator")


class Feed:
    """One sink, its thread and its queue.

    Parameters
    ----------
    name
        How ``--values`` calls it.
    sink
        It; only the thread touches it.
    """

    def __init__(
        self, name: str, sink: Sink, most_nbytes: int = MOST_NBYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.num_dropped = 0
        self.num_failed = 0
        self._sink = sink
        self._most_nbytes = most_nbytes
        self._clock = clock
        self._waiting: deque[tuple[str, str, Sequence[Call], int]] = deque()
        self._nbytes = 0
        self._changed = threading.Condition()
        self._ends = False
        self._flush_due: float | None = None
        self._say_due: float | None = None  # nothing is said before
        self._unsaid = 0
        self._thread = threading.Thread(target=self._run, name="zmqps-values", daemon=True)
        self._thread.start()

    def put(self, job: str, node: str, calls: Sequence[Call]) -> None:
        """Let the thread write calls of a node; where too much waits, what came first is dropped."""
        nbytes = sum(ENTRY_NBYTES + VALUE_NBYTES * len(values) for _, _, values in calls)
        with self._changed:
            self._waiting.append((job, node, calls, nbytes))
            self._nbytes += nbytes
            while self._nbytes > self._most_nbytes and self._waiting:
                _, _, dropped, nbytes = self._waiting.popleft()
                self._nbytes -= nbytes
                self.num_dropped += len(dropped)
            self._changed.notify()

    def end(self) -> None:
        """Nothing more comes; what waits is still written."""
        with self._changed:
            self._ends = True
            self._changed.notify()

    def join(self, timeout: float) -> bool:
        """Wait until all is written; return whether it is."""
        self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def _run(self) -> None:
        told_dropped = 0
        while True:
            with self._changed:
                wait_s = SAY_S if self._flush_due is None else max(0.0, self._flush_due - self._clock())
                self._changed.wait_for(lambda: self._waiting or self._ends, wait_s)
                batch = self._waiting.popleft() if self._waiting else None
                self._nbytes -= batch[3] if batch is not None else 0
                is_over = self._ends and batch is None
                dropped, told_dropped = self.num_dropped - told_dropped, self.num_dropped
            if dropped:
                self._say(f"is too slow: {counted(dropped, 'call')} of log dropped", dropped)
            if batch is not None:
                self._write(*batch[:3])
            if is_over or (self._flush_due is not None and self._clock() >= self._flush_due):
                self._flush_due = None
                self._try(self._sink.flush)
            if is_over:
                self._try(self._sink.close)
                return

    def _write(self, job: str, node: str, calls: Sequence[Call]) -> None:
        if self._flush_due is None:
            self._flush_due = self._clock() + FLUSH_S
        for step, at, values in calls:
            self._try(partial(self._sink.values, job, node, step, at, values))

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self.num_failed += 1
            self._say(f"cannot be written to: {type(error).__name__}: {error}"[:500], 1)

    def _say(self, text: str, number: int) -> None:
        now = self._clock()
        if self._say_due is not None and now < self._say_due:
            self._unsaid += number
            return
        more = f"; {self._unsaid} more since the last line" if self._unsaid else ""
        self._say_due, self._unsaid = now + SAY_S, 0
        log.warning("--values %s %s%s; training continues", self.name, text, more)


class Feeds:
    """All sinks of a coordinator; a context manager that writes what is left, and closes them.

    Parameters
    ----------
    sinks
        By name.
    """

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self.feeds = [Feed(name, sink) for name, sink in sinks.items()]

    def put(self, job: str, node: str, calls: Sequence[Call]) -> None:
        """Let all write calls of a node."""
        for feed in self.feeds:
            feed.put(job, node, calls)

    def close(self, timeout: float = CLOSE_S) -> None:
        """Let all write what is left, and wait for it as long as the end of a process can."""
        ends_at = time.monotonic() + timeout
        for feed in self.feeds:
            feed.end()
        for feed in self.feeds:
            if not feed.join(ends_at - time.monotonic()):
                log.warning("--values %s has not written all within %g s: the rest is lost", feed.name, timeout)

    def __enter__(self) -> Feeds:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
