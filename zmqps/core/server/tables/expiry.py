"""Which rows of a table have expired by the time."""

from __future__ import annotations

from collections import deque

#: Into so many parts is the time divided after which rows expire: it is kept to this part of it.
EXPIRY_PARTS = 64


class Expiry:
    """Until when the rows of a table live that nothing changes."""

    def __init__(self, seconds: float | None) -> None:  # how long; None: time does not count
        self._seconds = seconds
        self.before = 0  # rows that were last updated before this update of the table are gone
        self._ticked: float | None = None  # when it was told the time last
        self._marks: deque[tuple[float, int]] = deque()  # at which time the table had had how many updates

    def number(self, steps: int, *, begins: bool) -> int:
        """Return the number of what changes rows now; by it they expire, so it is of no time before."""
        if self._seconds is None:
            return steps + begins
        steps += begins or self.before > steps
        while self._marks and self._marks[-1][1] >= steps:  # there is an update of this number after that time
            self._marks.pop()
        return steps

    def tick(self, now: float, steps: int) -> bool:
        """Take note of the time, after so many updates; return whether more rows have expired by it."""
        if self._seconds is None:
            return False
        # whoever updates rows ticks first: what there is by now has come by the tick before, also if that is long ago
        then = now if self._ticked is None else self._ticked
        self._ticked = now
        part = self._seconds / EXPIRY_PARTS
        if not self._marks or max(then - self._marks[-1][0], now - then) >= part:
            self._marks.append((then, steps))
        earlier = self.before
        while self._marks and self._marks[0][0] <= now - self._seconds:
            # what was updated up to then has not been since for as long; updates are numbered from 1
            self.before = max(self.before, self._marks.popleft()[1] + 1)
        return self.before != earlier
