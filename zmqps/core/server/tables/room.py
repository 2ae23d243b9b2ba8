"""How many rows a table may have, which ids are given one, and how long rows live by the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from zmqps.core.protocol.arrays import Array
from zmqps.rows.sketch import Sketch

#: Of the memory that a table without a capacity takes: it is asked for in pieces of so many bytes.
GRANT_NBYTES = 16 << 20
#: Into so many parts is the time divided after which rows expire: it is kept to this part of it.
EXPIRY_PARTS = 64


class RowRoom:
    """The room for a table's rows, and where those are looked for that make way."""

    def __init__(
        self,
        limit: int,  # how many rows there may be
        # asks for memory where the table has no capacity: ``more(nbytes)``, whether it may be had
        more: Callable[[int], bool],
        sketch: Sketch | None = None,  # counts touches of ids that are yet to be admitted; None: each is at once
    ) -> None:
        self.limit = limit
        self.sketch = sketch
        self.granted_nbytes = 0
        self.more = more
        self._hand = 0  # the next row to be looked at

    def has(self, nbytes: int) -> bool:
        """Whether rows may take so many bytes in all, if need be those that are asked for now."""
        needed = nbytes - self.granted_nbytes
        if needed <= 0:
            return True
        asked = max(needed, GRANT_NBYTES)
        if not self.more(asked):
            return False
        self.granted_nbytes += asked
        return True

    def window(self, size: int, end: int) -> Array:
        """Return the next rows to look at, in a circle of so many rows."""
        found = (self._hand + np.arange(size)) % end
        self._hand = int((self._hand + size) % end)
        return found


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
