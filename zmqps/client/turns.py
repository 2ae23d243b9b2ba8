"""Which thread runs a worker's loop: its background thread, or a caller that waits anyway.

A blocking call costs two switches of threads if the background thread does the work: one to pass it on, one to be
woken. So after a blocking call, if nothing else is pending, that thread rests for a moment, and a caller that comes
meanwhile runs the loop itself until it has its answer. Otherwise the background thread continues.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

from zmqps.errors import ConfigurationError, InternalError, PSError

#: How long the background thread rests: a loop of small calls returns sooner, and other deadlines can wait.
REST_S = 2e-3
#: And how long at most after a caller that has run the loop for long.
MOST_REST_S = 0.1

#: Signals whose handlers raise exceptions, in programs that interrupt long work or are asked to end.
SIGNALS = [
    int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]

try:  # without their conversions to enumeration members, which take ten times as long
    import _signal as handlers  # type: ignore[import-not-found]
except ImportError:
    handlers = signal

#: Background threads, and threads that run a loop: callbacks of futures run there, which must not wait.
running: set[int] = set()


class Turns:
    """The turns of one loop.

    Parameters
    ----------
    loop
        Runs in one thread at a time.

    Attributes
    ----------
    holder
        The last thread that has run it.
    resting
        Whether the background thread rests, or is about to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.holder = get_ident()
        self._loop = loop
        self._turn = threading.Lock()  # held by the thread that runs the loop
        self.resting = False
        self._wanted = threading.Event()  # the background thread must continue
        self._used_at = 0.0  # by a caller, most recently
        self._is_over: Callable[[], bool] = lambda: False

    # --- the background thread ----------------------------------------------------------------

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Run the loop until it ends, except for the turns of other threads."""
        self._is_over = is_over
        while not is_over():
            with self._turn:
                self._run(is_over)
            if self.resting and not is_over():
                self._rest()

    def _rest(self) -> None:
        """Wait until no caller has come for a while, or pending work cannot wait."""
        pause = REST_S
        while not self._wanted.wait(pause):
            if self._turn.locked():  # a caller waits for something that may take long
                pause = min(2 * pause, max(REST_S, MOST_REST_S))
            elif time.monotonic() >= self._used_at + REST_S:
                break
            else:
                pause = REST_S
        self.resting = False
        self._wanted.clear()

    def pause(self) -> None:
        """Let the background thread rest once the loop has no more work; called in the loop."""
        self.resting = True  # before any thread learns that there is nothing to wait for
        self._loop.stop()

    def stop(self) -> None:
        """The caller's operation is done; called in the loop."""
        self._loop.stop()

    def wake(self) -> None:
        """Wake the resting background thread: there is work for it."""
        self._wanted.set()

    # --- callers ------------------------------------------------------------------------------

    def take(self, begin: Callable[[], None], is_done: Callable[[], bool], is_left: Callable[[], bool]) -> bool:
        """Run the loop in this thread until something is done; return False if it is not its turn.

        Signal handlers wait until the loop has stopped: their exceptions would leave a machine half changed.

        Parameters
        ----------
        begin
            Called first; it may do what is done in the loop.
        is_done
            Checked whenever the loop has stopped.
        is_left
            Whether there is more to do afterwards, with which the background thread then continues.
        """
        if not self.resting or asyncio._get_running_loop() is not None:
            return False
        me, taken, has_begun = get_ident(), False, False
        came, before = list[int](), list[tuple[int, Any]]()

        def note(number: int, frame: object) -> None:
            came.append(number)
            self._loop.call_soon_threadsafe(self._loop.stop)

        signals = SIGNALS if threading.current_thread() is threading.main_thread() else ()
        try:
            while True:
                try:
                    for number in signals:
                        if callable(handler := handlers.getsignal(number)):
                            before.append((number, handler))
                            handlers.signal(number, note)
                    # a resting thread is about to release it
                    taken = taken or self._turn.acquire(blocking=False) or self._turn.acquire(timeout=REST_S)
                    if taken and not has_begun:
                        has_begun, self.holder = True, me
                        begin()
                    if taken:
                        running.add(me)
                        self._run(is_done)
                    if taken and (is_done() or self._is_over()):
                        taken = self._give_back(wake=is_left())
                finally:
                    running.discard(me)
                    for number, handler in reversed(before):
                        handlers.signal(number, handler)
                    before.clear()
                while came:
                    signal.raise_signal(came.pop(0))
                if not taken:
                    return has_begun
        finally:
            if taken:
                self._give_back(wake=True)

    def _run(self, is_done: Callable[[], bool]) -> None:
        if not is_done():
            self.holder = get_ident()
            self._loop.run_forever()

    def _give_back(self, *, wake: bool) -> bool:
        self._used_at = time.monotonic()
        self._turn.release()
        if wake:
            self._wanted.set()
        return False


def not_started(cause: Exception) -> PSError:
    """Return the error of a background thread that could not start, or continue."""
    if isinstance(cause, PSError):
        return cause
    if isinstance(cause, NoThreadError):
        return ConfigurationError(
            "the worker's background thread is not a real thread: gevent, eventlet or another library has put "
            "its own in the place of threading's, and an asyncio loop runs in this one. Leave threads as they are, "
            "gevent.monkey.patch_all(thread=False), or connect where no asyncio loop runs"
        )
    return InternalError(node="this worker", what=f"its background thread failed, {cause!r}")


class NoThreadError(RuntimeError):
    """Code that normally runs on a thread shares the thread of an asyncio loop."""


def check_own_thread() -> None:
    """Raise `NoThreadError` if an asyncio loop of the user runs where our own thread is required."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise NoThreadError
