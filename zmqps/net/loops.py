"""The event loop of every node, whose time stands still while the node does; questions to a loop of another thread."""

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
    """Has a node's own time, of which it takes note before each wait, and often enough.

    Attributes
    ----------
    clock
        That time's.
    real
        The real time when somebody asked last: a loop does so in each turn, and to read the clock once more takes
        longer than all the rest here.
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
    """An event loop with a node's own time (`zmqps.core.node.awake`): timers and timeouts go by it.

    Attributes
    ----------
    clock
        That time.
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
    """Return for how many seconds a loop has stood still, in all."""
    return loop.clock.stood_s if isinstance(loop, AwakeLoop) else 0.0


def look(loop: asyncio.AbstractEventLoop) -> None:
    """Let a loop take note of the time now, so that what comes next is told apart from what was before."""
    if isinstance(loop, AwakeLoop):
        loop.clock.look(time.monotonic(), LOOK_S)


def new_runner() -> asyncio.Runner:
    """Return what runs coroutines in an `AwakeLoop`."""
    return asyncio.Runner(loop_factory=AwakeLoop)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in an `AwakeLoop`."""
    with new_runner() as runner:
        return runner.run(work)


def ask_loop(loop: asyncio.AbstractEventLoop, question: Callable[[], T]) -> Future[T]:
    """Let a loop answer a question when it has time; whoever does not wait any more cancels the future.

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
        except Exception as error:  # whoever waits is told; the loop goes on
            answer.set_exception(error)

    loop.call_soon_threadsafe(run)
    return answer
