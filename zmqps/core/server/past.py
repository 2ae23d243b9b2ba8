"""Who has pushed to a job and has gone: remembered as long as the job lives, in memory that does not grow.

A ticket does not expire before its job, and what was applied of somebody is forgotten with it. So nobody of these may
come back, or a push that was applied could be applied once more.
"""

from __future__ import annotations

from hashlib import blake2b

#: So many are remembered one by one, …
MAX_EXACT = 4096
#: … and more as bits in a table: none is ever missed, and one in 7,000 of others is taken for one of 100,000.
TABLE_NBYTES = 256 << 10
BITS_OF_EACH = 7


class Past:
    """Incarnations that may not come back. Where there are very many, a new one may be taken for one of them.

    Parameters
    ----------
    key
        What members do not know: an incarnation is its owner's choice, and nobody is to choose the bits of another.
    """

    def __init__(self, key: bytes) -> None:
        self._exact: set[bytes] = set()
        self._table: bytearray | None = None
        self._key = key

    def add(self, incarnation: bytes) -> None:
        """Remember one."""
        if self._table is None:
            self._exact.add(incarnation)
            if len(self._exact) <= MAX_EXACT:
                return
            self._table = bytearray(TABLE_NBYTES)
        for one in (*self._exact, incarnation):
            for place, bit in self._bits(one):
                self._table[place] |= bit
        self._exact.clear()

    def __contains__(self, incarnation: object) -> bool:
        if not isinstance(incarnation, bytes):
            return False
        if self._table is None:
            return incarnation in self._exact
        return all([self._table[place] & bit for place, bit in self._bits(incarnation)])

    def _bits(self, incarnation: bytes) -> list[tuple[int, int]]:
        digest = blake2b(incarnation, digest_size=4 * BITS_OF_EACH, key=self._key).digest()
        numbers = (int.from_bytes(digest[i : i + 4], "little") for i in range(0, len(digest), 4))
        return [(number // 8 % TABLE_NBYTES, 1 << number % 8) for number in numbers]
