"""Facts that repeat: the first few are said, the others counted."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

#: Within this many seconds after a fact was logged first,
WINDOW_S = 10.0
#: … it is logged this often, which lets through the reports of waiting nodes every 5 s. The rest is counted.
BURST = 3
#: This many facts are remembered at a time; beyond that the oldest is dropped, and may be logged again.
MOST_FACTS = 1024

#: What changes from one time to the next of the same fact: how long, how much.
_QUANTITY = re.compile(r"\d[\d,.]*(?= ?(?:s|ms|min|h|%|B|kB|MB|GB|TB|KiB|MiB|GiB|bytes)\b)")

T = TypeVar("T")


def fact_of(message: str) -> str:
    """Return a message without how long and how much; what is left says which fact it is."""
    return _QUANTITY.sub("#", message)


@dataclass(slots=True)
class _Window(Generic[T]):
    until: float
    said: int
    held: int
    last: T


class Repeats(Generic[T]):
    """Decides what is said. Time is an argument.

    Parameters
    ----------
    window, burst, most
        As the constants of this module have it.
    """

    def __init__(self, window: float = WINDOW_S, burst: int = BURST, most: int = MOST_FACTS) -> None:
        self.window = window
        self._burst = burst
        self._most = most
        self._windows: OrderedDict[Hashable, _Window[T]] = OrderedDict()  # the oldest first
        self._made_way: list[tuple[T, int]] = []  # until `over` tells of them: at most one a call of `admit`

    @property
    def holds(self) -> bool:
        """Whether repeats are held back that were not reported."""
        return bool(self._made_way) or any(window.held for window in self._windows.values())

    def admit(self, fact: Hashable, record: T, now: float) -> bool:
        """Return whether to say it; if not it is counted. To be called after `over`, with the same time."""
        window = self._windows.get(fact)
        if window is None:
            if len(self._windows) >= self._most:
                _, oldest = self._windows.popitem(last=False)
                if oldest.held:
                    self._made_way.append((oldest.last, oldest.held))
            self._windows[fact] = _Window(now + self.window, 1, 0, record)
            return True
        if window.said < self._burst:
            window.said += 1
            return True
        window.held += 1
        window.last = record
        return False

    def over(self, now: float | None) -> list[tuple[T, int]]:
        """Return what was held back in windows that are over, or in all if ``now`` is None: the last one, how many."""
        told, self._made_way = self._made_way, []
        while self._windows:
            fact, window = next(iter(self._windows.items()))
            if now is not None and window.until > now:
                break
            del self._windows[fact]
            if window.held:
                told.append((window.last, window.held))
        return told
