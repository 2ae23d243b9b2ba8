"""Timeouts of a blocking thread, by its own time, which stops while the process is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from zmqps.core.node.awake import LOOK_S, AwakeClock

T = TypeVar("T")


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
