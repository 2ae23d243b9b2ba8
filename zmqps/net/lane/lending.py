"""Frames that stay where they are: one side of a lane lends its memory, the other reads it there.

Each side has a directory in the lane's file, where it announces its arenas (`zmqps.net.lane.arena`), and
the other side answers once it has mapped one, or cannot. Only then do frames travel as references.

A message with references that must stay as they are takes a *loan*: a slot in the lane's file, where
the lender writes the loan's number and the borrower writes it back once the frames are
garbage-collected. Only the side that accepted the lane makes loans.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from zmqps.core.protocol.arrays import Bytes, Loan, borrow
from zmqps.net.lane.arena import Arena, ArenaError, Attached, Description, attach
from zmqps.net.lane.private import Private
from zmqps.net.lane.ring import Counter64, RingError

#: Arenas that one side can have announced at a time: the tables of a model, twice.
MAX_ARENAS = 16
#: number, pid, descriptor, bytes, key
ANNOUNCEMENT = struct.Struct("<QQQQ16s16x")
#: Loans at a time; frames beyond them are copied.
MAX_LOANS = 4096
REFUSED = 1 << 63


class Shelf(NamedTuple):
    """The part of a lane's file for what one side lends."""

    directory: Bytes  # MAX_ARENAS announcements
    answers: Counter64  # to each: its number, or that and REFUSED
    announced: Counter64  # one element: how many arenas were ever announced


class Counter(NamedTuple):
    """The part of a lane's file where loans are made and given back."""

    given: Counter64  # by slot: the number of the loan
    returned: Counter64  # by slot: the number of the last loan that came back


class LaneLoan(Loan):
    """One message's frames, which the other side reads in our memory."""

    __slots__ = ("_book", "number", "slot")

    def __init__(self, book: Lender, slot: int, number: int) -> None:
        self._book: Lender | None = book
        self.slot = slot
        self.number = number

    @property
    def done(self) -> bool:
        """Whether the borrower has returned it, or has ended."""
        if self._book is not None and self._book.is_over(self):
            self._book = None
        return self._book is None

    def over(self) -> None:
        """The borrower has disconnected; a holder of this loan no longer keeps the lane alive."""
        self._book = None

    def cancel(self) -> None:
        """Cancel the loan of a message that was not sent."""
        if self._book is not None:
            self._book.cancel(self)


class Lender:
    """What this side lends to the other one."""

    def __init__(self, shelf: Shelf, counter: Counter) -> None:
        self._shelf = shelf
        self._counter = counter
        self._arenas: list[Arena | None] = [None] * MAX_ARENAS
        self._numbers = [0] * MAX_ARENAS
        self._gone: dict[int, int] = {}  # arenas that are, by index -> the newest loan when that was found
        self._free = list(range(MAX_LOANS))
        self._loans: dict[int, LaneLoan] = {}
        self._number = 0
        self._closed = False

    @property
    def num_loans(self) -> int:
        """Loans that have not come back."""
        return sum(not loan.done for loan in list(self._loans.values()))

    def refer(self, arena: Arena) -> int | None:
        """Return the number by which the other side knows an arena; None while it does not, or never will."""
        if arena in self._arenas:
            index = self._arenas.index(arena)
            number = self._numbers[index]
            return number if int(self._shelf.answers[index]) == number else None
        self._announce(arena)
        return None

    def _announce(self, arena: Arena) -> None:
        first = int(self._shelf.announced[0]) + 1
        taken = {index for index, known in enumerate(self._arenas) if known is not None and known.alive}
        number = next((n for n in range(first, first + MAX_ARENAS) if n % MAX_ARENAS not in taken), None)
        if number is None:
            return  # as many as can be; what else there is travels as before
        index = number % MAX_ARENAS
        self._arenas[index], self._numbers[index] = arena, number
        self._gone.pop(index, None)
        self._write(index, ANNOUNCEMENT.pack(number, *arena.description), number)

    def _write(self, index: int, announcement: bytes, announced: int) -> None:
        at = index * ANNOUNCEMENT.size
        self._shelf.directory[at : at + ANNOUNCEMENT.size] = np.frombuffer(announcement, np.uint8)
        self._shelf.announced[0] = announced  # the other side looks

    def withdraw(self) -> None:
        """Let the other side release freed arenas, once all loans that may be of them are back."""
        oldest = min([loan.number for loan in list(self._loans.values()) if not loan.done], default=self._number + 1)
        for index, arena in enumerate(self._arenas):
            if arena is None or arena.alive:
                continue
            if self._gone.setdefault(index, self._number) < oldest:
                del self._gone[index]
                self._arenas[index], self._numbers[index] = None, 0
                self._write(index, bytes(ANNOUNCEMENT.size), int(self._shelf.announced[0]) + 1)

    def lend(self) -> LaneLoan | None:
        """Make a loan; None if too many are out."""
        if not self._free:
            for loan in list(self._loans.values()):
                loan.done  # noqa: B018 -- frees its slot
            if not self._free:
                return None
        slot = self._free.pop()
        self._number += 1
        self._counter.given[slot] = self._number
        loan = self._loans[slot] = LaneLoan(self, slot, self._number)
        return loan

    def is_over(self, loan: LaneLoan) -> bool:
        """Whether a loan has come back; its slot is free then."""
        if self._closed:
            return True
        if int(self._counter.returned[loan.slot]) != loan.number:
            return False
        del self._loans[loan.slot]
        self._free.append(loan.slot)
        return True

    def cancel(self, loan: LaneLoan) -> None:
        """Take back a loan that the other side does not know of yet."""
        self._counter.returned[loan.slot] = loan.number

    def close(self) -> None:
        """The other side has ended, and with it all that it read."""
        self._closed = True
        for loan in self._loans.values():
            loan.over()
        self._loans.clear()


class Hold:
    """The borrower's side of a loan, which is returned once this is garbage-collected."""

    __slots__ = ("_borrower", "_number", "_pid", "_slot")

    def __init__(self, borrower: Borrower, slot: int, number: int, nbytes: int) -> None:
        self._borrower = borrower
        self._slot = slot
        self._number = number
        self._pid = os.getpid()
        borrower.held[number] = nbytes

    def __del__(self) -> None:
        if os.getpid() == self._pid:  # a forked child has a copy of this, but the loan is its parent's
            self._borrower.give_back(self._slot, self._number)


class Borrower:
    """What this side reads in the other side's memory; trusts nothing it receives."""

    def __init__(self, shelf: Shelf, counter: Counter) -> None:
        self._shelf = shelf
        self._counter = counter
        self._memories: dict[int, Attached] = {}  # by number
        self._seen = 0
        self._number = 0  # of the newest loan
        self.held: dict[int, int] = {}  # loans by number -> bytes

    @property
    def knows(self) -> bool:
        """Whether any of the other side's arenas are mapped here."""
        return bool(self._memories)

    def attend(self) -> None:
        """Map what the other side has announced, and say so."""
        announced = int(self._shelf.announced[0])
        if announced == self._seen:
            return
        self._seen = announced
        for index in range(MAX_ARENAS):
            number, *rest = ANNOUNCEMENT.unpack_from(self._shelf.directory.data, index * ANNOUNCEMENT.size)
            for old in [old for old in self._memories if old % MAX_ARENAS == index and old != number]:
                del self._memories[old]  # views of it keep it mapped
            if not 0 < number <= announced or int(self._shelf.answers[index]) & ~REFUSED == number:
                continue
            try:
                self._memories[number] = attach(Description(*rest))
                self._shelf.answers[index] = number
            except ArenaError:  # its frames will be copied
                self._shelf.answers[index] = number | REFUSED

    def check_loan(self, slot: int, number: int, frames: Sequence[tuple[int, int, int]]) -> None:
        """Raise `RingError` unless a message can come with this loan (0: none) and these (arena, position, nbytes)."""
        if number and (slot >= MAX_LOANS or number <= self._number or int(self._counter.given[slot]) != number):
            raise RingError(f"loan {number} in slot {slot}, after loan {self._number}")
        for arena, position, nbytes in frames:
            memory = self._memories.get(arena)
            if memory is None or not 0 < nbytes <= memory.data.size - position:
                raise RingError(f"no frame of {nbytes} bytes can be at {position} of arena {arena}")

    def take(self, slot: int, number: int, frames: Sequence[tuple[int, int, int]]) -> list[memoryview]:
        """Return views of a message's frames, after `check_loan`; the loan is returned once they are garbage."""
        hold = None
        if number:
            if number > self._number + 1:  # messages were lost on the way, and their loans with them
                given = np.array(self._counter.given)
                for lost in np.flatnonzero((given > self._number) & (given < number)):
                    self.give_back(int(lost), int(given[lost]))
            self._number = number
            hold = Hold(self, slot, number, sum(nbytes for *_, nbytes in frames))
        return [borrow(self._memories[arena].data, at, at + nbytes, hold) for arena, at, nbytes in frames]

    def private(self, memory: Bytes, hold: Any) -> Private | None:
        """Return a private mapping of a memory that is mapped here (`PrivateMappings.take`); None: it is freed."""
        for attached in list(self._memories.values()):
            if attached.data is memory:
                return attached.private.take(hold)
        return None

    def give_back(self, slot: int, number: int) -> None:
        """Return a loan whose frames are no longer used; may be called in any thread."""
        with threading.Lock():  # what was read, was read before: see `zmqps.net.lane.ring`
            self._counter.returned[slot] = number
        self.held.pop(number, None)
