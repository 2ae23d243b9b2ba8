"""Whose turn it is to run a worker's loop: its background thread's, or that of a caller who waits anyway.

A call that blocks costs two changes of threads where the background thread does what it asks for: one to hand it over,
one to be told. So after a blocking call, if nothing else is under way, that thread rests for a moment, and a caller who
comes meanwhile runs the loop itself until it has its answer. If nobody comes, the background thread goes on.
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

#: So long the background thread rests: a loop of small calls comes back sooner, and whatever else is due can wait.
REST_S = 2e-3
#: And so long at most once a caller is done who has run the loop for long.
MOST_REST_S = 0.1

#: Whose handlers raise exceptions in programs that interrupt what takes too long, or are asked to end.
SIGNALS = [
    int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]

try:  # without their conversions to members of enumerations, which take ten times as long
    import _signal as handlers  # type: ignore[import-not-found]
except ImportError:
    handlers = signal

#: The numbers of background threads, and of those that run a loop: there callbacks of futures run, which must not wait.
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
        The number of the thread that has run it last.
    resting
        Whether the background thread rests, or is about to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.holder = get_ident()
        self._loop = loop
        self._turn = threading.Lock()  # held by the thread that runs the loop
        self.resting = False
        self._wanted = threading.Event()  # the background thread has to go on
        self._used_at = 0.0  # by a caller, at last
        self._is_over: Callable[[], bool] = lambda: False

    # --- the background thread ----------------------------------------------------------------

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Run the loop until it is over, but for the turns that others take."""
        self._is_over = is_over
        while not is_over():
            with self._turn:
                self._run(is_over)
            if self.resting and not is_over():
                self._rest()

    def _rest(self) -> None:
        """Wait until nobody has come for a while, or what is under way cannot wait."""
        pause = REST_S
        while not self._wanted.wait(pause):
            if self._turn.locked():  # somebody waits for what may take long
                pause = min(2 * pause, max(REST_S, MOST_REST_S))
            elif time.monotonic() >= self._used_at + REST_S:
                break
            else:
                pause = REST_S
        self.resting = False
        self._wanted.clear()

    def pause(self) -> None:
        """Let the background thread rest once the loop has done what is to be done; called in the loop."""
        self.resting = True  # before anybody hears that there is nothing to wait for
        self._loop.stop()

    def stop(self) -> None:
        """What a caller runs the loop for is done; called in the loop."""
        self._loop.stop()

    def wake(self) -> None:
        """Let the background thread go on, which rests: somebody has given it something to do."""
        self._wanted.set()

    # --- callers ------------------------------------------------------------------------------

    def take(self, begin: Callable[[], None], is_done: Callable[[], bool], is_left: Callable[[], bool]) -> bool:
        """Run the loop in this thread until something is done; return False where it is not its turn.

        Handlers of signals wait until the loop has stopped: what they raise would leave a machine half changed.

        Parameters
        ----------
        begin
            Called before; it may do what is done in the loop.
        is_done
            Asked whenever the loop has stopped.
        is_left
            Whether there is more to do afterwards, which the background thread then goes on with.
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
                    # whoever rests is about to let go of it
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
    """Return the error of a background thread that could not begin, or go on."""
    if isinstance(cause, PSError):
        return cause
    if isinstance(cause, NoThreadError):
        return ConfigurationError(
            "the worker's background thread is no thread of its own: gevent, eventlet or another library has put "
            "its own in the place of threading's, and an asyncio loop runs in this one. Leave threads as they are, "
            "gevent.monkey.patch_all(thread=False), or connect where no asyncio loop runs"
        )
    return InternalError(node="this worker", what=f"its background thread failed, {cause!r}")


class NoThreadError(RuntimeError):
    """What runs as a thread shares the one of somebody's asyncio loop."""


def check_own_thread() -> None:
    """Raise `NoThreadError` where somebody's loop runs in what should be a thread of our own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise NoThreadError
