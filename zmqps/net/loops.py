"""The event loop of every node, whose time stops while the node is stopped; deadlines of threads by such a time."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from zmqps.core.node.awake import LOOK_S, AwakeClock

T = TypeVar("T")


class AwakeSelector(selectors.DefaultSelector):
    """Has a node's own time, which it updates before each wait, and often enough.

    Attributes
    ----------
    clock
        The clock of that time.
    real
        The real time of the last reading: a loop reads it in each turn, and reading the clock again takes longer than
        everything else here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.real = time.monotonic()
        self.clock = AwakeClock(self.real)

    def time(self) -> float:
        """Return the node's time, in seconds."""
        real = self.real = time.monotonic()
        return self.clock.now(real)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        wait_s = LOOK_S if timeout is None or timeout > LOOK_S else max(timeout, 0.0)
        self.clock.look(self.real, wait_s)
        return super().select(wait_s)


class AwakeLoop(asyncio.SelectorEventLoop):
    """An event loop with a node's own time (`zmqps.core.node.timers`) for timers and timeouts.

    Attributes
    ----------
    clock
        The clock of that time.
    """

    def __init__(self) -> None:
        self._awake = AwakeSelector()
        self.clock = self._awake.clock
        super().__init__(self._awake)

    def time(self) -> float:
        """Return the loop's time, in seconds."""
        real = self._awake.real = time.monotonic()
        return self.clock.now(real)


def stood_still_s(loop: asyncio.AbstractEventLoop) -> float:
    """Return for how many seconds a loop was stopped, in total."""
    return loop.clock.stood_s if isinstance(loop, AwakeLoop) else 0.0


def look(loop: asyncio.AbstractEventLoop) -> None:
    """Update a loop's time now, to separate what comes next from what was before."""
    if isinstance(loop, AwakeLoop):
        loop.clock.look(time.monotonic(), LOOK_S)


def new_runner() -> asyncio.Runner:
    """Return a runner of coroutines in an `AwakeLoop`."""
    return asyncio.Runner(loop_factory=AwakeLoop)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in an `AwakeLoop`."""
    with new_runner() as runner:
        return runner.run(work)


def ask_loop(loop: asyncio.AbstractEventLoop, question: Callable[[], T]) -> Future[T]:
    """Ask a loop a question, answered when it has time; to give up waiting, cancel the future.

    Raises
    ------
    RuntimeError
        The loop is closed.
    """
    answer: Future[T] = Future()

    def run() -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(question())
        except Exception as error:  # the caller gets it; the loop continues
            answer.set_exception(error)

    loop.call_soon_threadsafe(run)
    return answer


class Deadline:
    """Like a loop's timeouts for coroutines, for a thread without a loop: it waits in pieces.

    A process that is stopped for longer than a timeout loses one piece of it, and still receives an answer that arrived
    meanwhile.

    Parameters
    ----------
    seconds
        The timeout, from now.
    """

    def __init__(self, seconds: float) -> None:
        real = time.monotonic()
        self._clock = AwakeClock(real)
        self._ends_at = real + seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._clock.now(time.monotonic()) >= self._ends_at

    def wait_s(self, most: float = LOOK_S) -> float:
        """Return the seconds to wait now, at most ``most``; 0.0 if the time is over."""
        real = time.monotonic()
        wait_s = min(max(0.0, self._ends_at - self._clock.now(real)), most)
        self._clock.look(real, wait_s)
        return wait_s

    def wait(self, blocks: Callable[[float], T]) -> T:
        """Return the result of ``blocks(seconds)``, once that is true or the time is over."""
        while True:
            wait_s = self.wait_s()
            value = blocks(wait_s)
            if value or not wait_s:
                return value
