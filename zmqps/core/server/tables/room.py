"""How many rows a table may have, and which ids are given one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from zmqps.core.protocol.arrays import Array
from zmqps.rows.sketch import Sketch

#: Of the memory that a table without a capacity takes: it is asked for in pieces of so many bytes.
GRANT_NBYTES = 16 << 20


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
