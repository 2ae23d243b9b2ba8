"""How many rows a table may have, which ids are admitted, and how long rows live in seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from zmqps.core.protocol.arrays import Array
from zmqps.rows.hashing import Sketch

#: A table without a capacity requests memory in pieces of this many bytes.
GRANT_NBYTES = 16 << 20
#: The precision of expiry by seconds: this fraction of the time.
EXPIRY_PARTS = 64


class RowRoom:
    """The room for a table's rows, and the window in which rows are evicted."""

    def __init__(
        self,
        limit: int,  # the most rows
        # requests memory for a table without a capacity: ``more(nbytes)``, whether it is granted
        more: Callable[[int], bool],
        sketch: Sketch | None = None,  # counts touches of ids not admitted yet; None: each is admitted at once
    ) -> None:
        self.limit = limit
        self.sketch = sketch
        self.granted_nbytes = 0
        self.more = more
        self._hand = 0  # the next row to be examined

    def has(self, nbytes: int) -> bool:
        """Whether rows may take this many bytes in total, if necessary after a request for memory."""
        needed = nbytes - self.granted_nbytes
        if needed <= 0:
            return True
        asked = max(needed, GRANT_NBYTES)
        if not self.more(asked):
            return False
        self.granted_nbytes += asked
        return True

    def window(self, size: int, end: int) -> Array:
        """Return the next rows to examine, in a circle of this many rows."""
        found = (self._hand + np.arange(size)) % end
        self._hand = int((self._hand + size) % end)
        return found


class Expiry:
    """The expiry by seconds of rows without changes."""

    def __init__(self, seconds: float | None) -> None:  # how long; None: no expiry
        self._seconds = seconds
        self.before = 0  # rows last updated before this update of the table have expired
        self._ticked: float | None = None  # when it last got the time
        self._marks: deque[tuple[float, int]] = deque()  # the number of updates at some times

    def number(self, steps: int, *, begins: bool) -> int:
        """Return the number of the present update; rows expire by it, so it is not of an earlier time."""
        if self._seconds is None:
            return steps + begins
        steps += begins or self.before > steps
        while self._marks and self._marks[-1][1] >= steps:  # there is an update of this number after that time
            self._marks.pop()
        return steps

    def tick(self, now: float, steps: int) -> bool:
        """Record the time, after this many updates; return whether more rows have expired by it."""
        if self._seconds is None:
            return False
        # updates tick first: present rows are from the tick before, even if that is long ago
        then = now if self._ticked is None else self._ticked
        self._ticked = now
        part = self._seconds / EXPIRY_PARTS
        if not self._marks or max(then - self._marks[-1][0], now - then) >= part:
            self._marks.append((then, steps))
        earlier = self.before
        while self._marks and self._marks[0][0] <= now - self._seconds:
            # rows last updated up to then have not been since for that long; updates are numbered from 1
            self.before = max(self.before, self._marks.popleft()[1] + 1)
        return self.before != earlier
