"""A shard's record of applied pushes, so that a repeated push is applied once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from zmqps.core.protocol.message import PUSH_WINDOW
from zmqps.errors import LedgerError

#: This many are stored one by one, …
MAX_EXACT = 4096
#: … and more as bits in a table: none is ever missed, and with 100,000 of them one in 7,000 others is taken for one.
TABLE_NBYTES = 256 << 10
BITS_OF_EACH = 7

Result = tuple[tuple[int, ...], tuple[int, ...]]  # versions and staleness of the parts


class Ledger:
    """The pushes of one worker incarnation: a bounded window of results above a floor.

    Sequence numbers start at 1 and may arrive in any order within the window. At or below the floor only one thing is
    known: the worker has had its answer. A push gets its entry before it is applied, so that recording it afterwards
    needs no memory.
    """

    def __init__(self) -> None:
        self.floor = 0
        self.results: OrderedDict[int, Result | None] = OrderedDict()

    def look_up(self, seq: int) -> Result | None:
        """Return the result of an applied push, None for a new one, which has its place from now on.

        Raises
        ------
        LedgerError
            ``seq`` is below the window: it is unknown whether it was applied.
        """
        if seq <= self.floor:
            raise LedgerError(f"push {seq} is older than the {PUSH_WINDOW} pushes remembered; it was not applied now")
        found = self.results.setdefault(seq, None)
        if len(self.results) > PUSH_WINDOW:
            self._forget_oldest()
        return found

    def record(self, seq: int, result: Result) -> None:
        """Record that ``seq`` was applied with this result; a repeated call changes nothing."""
        assert self.results.get(seq) in (None, result)
        if seq in self.results:
            self.results[seq] = result  # the last action: a failure before leaves no record
        elif seq > self.floor:
            self.results[seq] = result
            if len(self.results) > PUSH_WINDOW:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = min(self.results) if next(iter(self.results)) > self.floor + 1 else next(iter(self.results))
        del self.results[oldest]
        self.floor = max(self.floor, oldest)

    def to_plain(self) -> list[Any]:
        """Return it as plain data: the floor, and each push with its versions and staleness."""
        known = [[seq, *map(list, result)] for seq, result in self.results.items() if result is not None]
        return [self.floor, known]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Ledger:
        """Return the ledger of plain data from `to_plain`."""
        ledger = cls()
        ledger.floor, known = plain
        for seq, versions, staleness in known:
            ledger.results[seq] = tuple(versions), tuple(staleness)
        return ledger

    def validate(self) -> None:
        """Assert that the window is bounded and above the floor."""
        assert len(self.results) <= PUSH_WINDOW
        assert not self.results or min(self.results) > self.floor


class Past:
    """Departed members that pushed to a job: recorded as long as the job lives, in memory that does not grow.

    A ticket does not expire before its job, and the record of a member's applied pushes is deleted with it. So none of
    these may come back, or a push could be applied twice. With very many of them, a new member may be taken for one.

    Parameters
    ----------
    key
        A secret from members: an incarnation is chosen by its member, which must not be able to imitate another's bits.
    """

    def __init__(self, key: bytes) -> None:
        self._exact: set[bytes] = set()
        self._table: bytearray | None = None
        self._key = key

    def add(self, incarnation: bytes) -> None:
        """Add one."""
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


class Ledgers(dict[bytes, Ledger]):
    """The ledgers of a shard, by incarnation; created on request. A ledger outlives its connection."""

    def __init__(self, past: Past) -> None:  # gets departed members
        self.past = past
        self.inherited = False  # whether there are some of workers that have not come here yet
        self.recalled = False  # whether these are from a checkpoint, which may lack acknowledged pushes

    def __missing__(self, incarnation: bytes) -> Ledger:
        found = self[incarnation] = Ledger()
        return found

    def to_plain(self) -> dict[str, Any]:
        """Return them as plain data: which worker has pushed what, so that nothing is applied twice."""
        return {who.hex(): ledger.to_plain() for who, ledger in self.items()}

    def restore(self, plain: Mapping[str, Any] | None) -> None:
        """Restore workers' pushes from a checkpoint, if they continue from it; None: from none."""
        if plain is not None:
            self.inherited = self.recalled = True
            for who, ledger in plain.items():
                self[bytes.fromhex(who)] = Ledger.from_plain(ledger)

    def forget(self, incarnation: bytes) -> None:
        """A worker has departed, and may not come back."""
        if self.pop(incarnation, None) is not None:
            self.past.add(incarnation)
