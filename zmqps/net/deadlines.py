"""How long a thread that blocks goes on waiting: by its own time, which stands still while the process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from zmqps.core.node.awake import LOOK_S, AwakeClock

T = TypeVar("T")


class Deadline:
    """What a loop's timeouts are to coroutines, for a thread without a loop: it waits in pieces.

    A process that is stopped for longer than a timeout has waited for one piece of it, and hears the answer that came
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
        """Return for how many seconds to wait now, ``most`` of them at most; 0.0 if the time is over."""
        real = time.monotonic()
        wait_s = min(max(0.0, self._ends_at - self._clock.now(real)), most)
        self._clock.look(real, wait_s)
        return wait_s

    def wait(self, blocks: Callable[[float], T]) -> T:
        """Return what ``blocks(seconds)`` returns, once that is true or the time is over."""
        while True:
            wait_s = self.wait_s()
            value = blocks(wait_s)
            if value or not wait_s:
                return value
