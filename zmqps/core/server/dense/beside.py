"""How much a shard may take besides its values, for those that are read while they are updated.

A buffer that is being read is not written to; an update goes to another one (`buffers.py`). So the server needs as
many extra bytes as others read, and no more, and bounds how much it lets them read. It counts the bytes it lends.
Beyond the admitted amount it asks for more; if there is none, readers get copies, which need not be kept as they are,
and no more copies wait for a peer than other answers do.
"""

from __future__ import annotations

from collections.abc import Callable

from zmqps.core.protocol.limits import MAX_ALL_BACKLOGS_NBYTES, MAX_BACKLOG_NBYTES

#: Asked for at once: to ask takes a look at the host.
GRANT_NBYTES = 64 << 20
#: No shard is so small that it has less: a few small values read by many are not worth a look.
LEAST_NBYTES = 4 << 20


def beside_nbytes(values_nbytes: int, num_workers: int) -> int:
    """Return the bytes to admit besides a shard's values.

    What waits to be sent to that many workers, with the bound that all answers have; that of a worker which copies what
    it reads in shared memory is a quarter of it.
    """
    return min(values_nbytes, num_workers * MAX_BACKLOG_NBYTES, MAX_ALL_BACKLOGS_NBYTES)


class Beside:
    """What a shard may take besides its values.

    A lender adds the bytes to ``read_nbytes``, and asks `may_lend` once that exceeds ``lendable_nbytes``.
    """

    def __init__(
        self,
        admitted_nbytes: int | None = None,  # without asking; None: as much as it likes
        more: Callable[[int], bool] = lambda nbytes: True,  # asks for more: ``more(nbytes)``, whether it may be had
    ) -> None:
        self._more = more
        self._second_nbytes = 0
        self._uncounted_nbytes = 0  # to copy before what is read is counted again
        self.admitted_nbytes = admitted_nbytes or 0
        self.granted_nbytes = 0
        self.limit = 1 << 62 if admitted_nbytes is None else max(admitted_nbytes, LEAST_NBYTES)
        self.read_nbytes = 0  # at most this many are needed for what is being read
        self.lendable_nbytes = self.limit

    def may_lend(self, nbytes: int, count: Callable[[], int]) -> bool:
        """Whether others may read the bytes added last in place; ``count`` returns how many are needed now.

        If not, they are taken off again.
        """
        if self._uncounted_nbytes >= nbytes:
            self._uncounted_nbytes -= nbytes
            self.read_nbytes -= nbytes
            return False
        needed = count()
        if self.fits(needed, nbytes):
            self.read_nbytes = needed - self._second_nbytes + nbytes
            return True
        self.read_nbytes = needed - self._second_nbytes
        self._uncounted_nbytes = self.limit // 8  # to count takes time that grows with the slices
        return False

    def may_double(self, nbytes: int) -> bool:
        """Whether a second arena of that many bytes is allowed, whatever is read of either."""
        return self.fits(self.read_nbytes + self._second_nbytes, nbytes)

    def doubled(self, nbytes: int) -> None:
        """There is a second arena."""
        self._second_nbytes += nbytes
        self.lendable_nbytes -= nbytes

    def fits(self, taken_nbytes: int, nbytes: int, *, ask: bool = True) -> bool:
        """Whether that many more bytes may be taken."""
        lacking = taken_nbytes + nbytes - self.limit
        if lacking <= 0:
            return True
        asked = max(lacking, GRANT_NBYTES)
        if not ask or not self._more(asked):
            return False
        self.granted_nbytes += asked
        self.limit += asked
        self.lendable_nbytes += asked
        return True
