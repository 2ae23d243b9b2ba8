"""Rows of a table that a reader keeps for a while, and what it has yet to add to them: fixed room, the hottest stay.

Rows are found as those of a server are (`RowStore`). A clock hand chooses which of them makes way (Corbató, *A
Paging Experiment with the Multics System*, 1969; with a count in place of one bit): it goes round, takes one from the
count of each row that was read again, and stops at those that have none left. A row that was read once has none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zmqps.rows import arena, loops
from zmqps.rows.hashing import Array
from zmqps.rows.initial import Initial, filler
from zmqps.rows.kernels import kernel
from zmqps.rows.store import RowStore

#: A row is passed over by the hand so often at most: what was hot once and is not any more goes in the end.
MOST_USES = 7
#: One part of this many makes way for what one call requests, so no scan of a table takes all: of calls as large as the
#: cache, by Zipf's law, it finds more rows than with a half.
MOST_EVICTED = 8
NEVER, TAKEN = -1, -2
#: This many times the existing rows may wait to be due, with what was taken before: then that is forgotten.
MOST_DUE = 4
NO_IDS = np.empty(0, np.int64)


class Kept(NamedTuple):
    """Ids, which are different, and the sum to add to the row of each."""

    ids: Array
    sums: Array


class Reservation(NamedTuple):
    """Places for rows that are on their way: they are filled if nothing has made that wrong meanwhile."""

    places: Array
    number: int


class Cache:
    """Some rows of one table.

    A *clock* is a whole number that grows; a row has one up to which it may be read. Ids of one call are different.

    Parameters
    ----------
    num_rows
        How many there are at most.
    dim
        Elements of a row.
    keeps
        Whether sums to add to rows are kept (`keep`): as much memory again.
    seed
        Of the index.

    Attributes
    ----------
    evicted : int
        Rows that have made way for others.
    """

    def __init__(self, num_rows: int, dim: int, *, keeps: bool = False, seed: int = 0) -> None:
        self.num_rows = num_rows
        self.evicted = 0
        begin = filler(Initial("zeros"), "")
        self._store = RowStore(dim, begin, slots=(0.0,) * keeps, seed=seed, reserve_rows=num_rows)
        self._until = arena.reserve(num_rows, dtype=np.int64)  # the last clock a row may be read at; or `NEVER`
        self._awaits = arena.reserve(num_rows, dtype=np.int64)  # the number of the reservation that fills it; 0: none
        self._last = arena.reserve(num_rows, dtype=np.int64)  # the last clock for which something is kept; or `NEVER`
        self._uses = arena.reserve(num_rows, dtype=np.uint8)
        self._hand = 0
        self._number = 0
        self._due: dict[int, list[Array]] = {}  # by last clock, places where something was kept for it
        self._num_due = 0  # of all of them
        self._nothing = Kept(NO_IDS, np.empty((0, dim), np.float32))

    def __len__(self) -> int:
        return self._store.num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are in use."""
        return self._store.nbytes + (3 * 8 + 1) * self._store.end

    # --- reading -------------------------------------------------------------------------------

    def read(self, ids: Array, clock: int, out: Array) -> tuple[Array, Array]:
        """Write the rows that may be read at a clock to where their ids are.

        Parameters
        ----------
        ids
            int64 ``(n,)``.
        clock
            Of the reader.
        out
            float32 ``(n, dim)``, contiguous.

        Returns
        -------
        lacking : int64 array
            The numbers of the ids that lack theirs.
        places : int64 array
            The places of these, -1 where there is none.
        """
        places = self._store.find(ids)
        there = np.flatnonzero(places >= 0)
        own = places[there]
        self._uses[own] = np.minimum(self._uses[own] + 1, MOST_USES)
        good = places.copy()
        good[there[self._until[own] < clock]] = -1
        kernel(loops.copy)(good, self._store.values, out)
        lacking = np.flatnonzero(good < 0)
        return lacking, places[lacking]

    def reserve(self, ids: Array, places: Array) -> tuple[Reservation, Kept]:
        """Find room for rows that are asked for now, as far as there is; what makes way may have something to add.

        Parameters
        ----------
        ids
            int64 ``(n,)``: those that `read` has not found.
        places
            Theirs, as it has returned them; those of new ones are written there.
        """
        room = self.num_rows - len(self)
        most = min(room + max(1, self.num_rows // MOST_EVICTED), self.num_rows)
        new = np.flatnonzero(places < 0)[:most]
        left = self._nothing
        if new.size > room:
            left = self._evict(new.size - room)
            own = np.flatnonzero(places >= 0)
            places[own[self._store.live[places[own]] == 0]] = -1  # one of these has made way for another one
        if new.size:
            places[new] = fresh = self._store.insert(ids[new])
            self._until[fresh] = self._last[fresh] = NEVER
            self._uses[fresh] = 0
        self._number += 1
        self._awaits[places[places >= 0]] = self._number
        return Reservation(places, self._number), left

    def fill(self, reservation: Reservation, rows: Array, until: int) -> None:
        """Keep rows that have come, but for those that have changed, made way, or were asked for again meanwhile.

        Parameters
        ----------
        reservation
            Of the ids that they are of.
        rows
            float32 ``(n, dim)``, contiguous.
        until
            The last clock at which they may be read.
        """
        places, number = reservation
        which = np.flatnonzero(places >= 0)
        which = which[self._awaits[places[which]] == number]
        places = places[which]
        kernel(loops.put)(places, which, rows, self._store.values)
        self._until[places], self._awaits[places] = until, 0

    def _evict(self, number: int) -> Kept:
        """Let that many rows make way."""
        places = np.empty(number, np.int64)
        end = self._store.end
        self._hand = kernel(loops.sweep)(self._uses[:end], self._store.live[:end], self._hand, places)
        kept = self.take(places)
        self._awaits[places] = 0
        self._store.remove(places)
        self.evicted += number
        return kept

    # --- changing ------------------------------------------------------------------------------

    def places(self, ids: Array) -> Array:
        """Return where ids have a place, int64; -1 where there is none."""
        return self._store.find(ids)

    def drop(self, places: Array) -> None:
        """Let rows be read no more: they have changed, or what was known of them is wrong."""
        self._until[places], self._awaits[places] = NEVER, 0

    def drop_all(self) -> None:
        """Let none be read any more; what is kept stays."""
        self.drop(np.arange(self._store.end))

    def has_value(self, places: Array) -> Array:
        """Return which of some places have a row, be it one that may be read no more, and await none."""
        found: Array = (self._until[places] != NEVER) & (self._awaits[places] == 0)
        return found

    def is_hot(self, places: Array) -> Array:
        """Return which of some places have been read again, as far as the hand has not forgotten it."""
        found: Array = self._uses[places] > 0
        return found

    def add(self, places: Array, which: Array, rows: Array, factor: float) -> None:
        """Change rows that have a value: add to those at some places a multiple of some others.

        Parameters
        ----------
        places
            int64 ``(n,)``.
        which
            int64 ``(n,)``: which row is for each place.
        rows
            float32, contiguous.
        factor
            Rounded to float32.
        """
        kernel(loops.mend)(places, which, rows, np.float32(factor), self._store.values)

    def keep(self, places: Array, which: Array, rows: Array, clock: int, most: int) -> None:
        """Keep sums to add to rows elsewhere: as long as they may be read, for fewer than ``most`` clocks else.

        Parameters
        ----------
        places, which, rows
            As for `add`.
        clock
            Of the writer.
        most
            After that many clocks nothing of it is kept.
        """
        kernel(loops.mend)(places, which, rows, np.float32(1.0), self._store.slots[0])
        fresh = places[self._last[places] == NEVER]
        if not fresh.size:
            return
        until = self._until[fresh]
        self._last[fresh] = last = np.where(until >= clock, until, clock + most - 1)
        for number in np.unique(last).tolist():
            self._due.setdefault(number, []).append(fresh[last == number])
        self._num_due += fresh.size
        if self._num_due > MOST_DUE * self.num_rows:
            self._forget_taken()

    def _forget_taken(self) -> None:
        """Forget when what is not kept any more was due."""
        waiting = {last: np.unique(np.concatenate(some)) for last, some in self._due.items()}
        left = {last: places[self._last[places] == last] for last, places in waiting.items()}
        self._due = {last: [places] for last, places in left.items() if places.size}
        self._num_due = sum(places.size for places in left.values())

    def take_due(self, clock: int) -> Kept:
        """Return the sums that expire at a clock."""
        found = []
        for last in [last for last in self._due if last < clock]:
            for places in self._due.pop(last):
                self._num_due -= places.size
                kept = places[self._last[places] == last]
                self._last[kept] = TAKEN  # it may be there twice
                found.append(kept)
        return self.take(np.concatenate(found)) if found else self._nothing

    def take_all(self) -> Kept:
        """Return all that is kept, and keep it no more."""
        return self.take(self._kept())

    def take(self, places: Array) -> Kept:
        """Return what is kept of some places, which are different, and keep it no more."""
        if not self._store.slots:
            return self._nothing
        places = places[self._last[places] != NEVER]
        if not places.size:
            return self._nothing
        [own] = self._store.slots
        kept = Kept(self._store.ids[places], own[places])
        own[places] = 0.0
        self._last[places] = NEVER
        return kept

    @property
    def num_kept(self) -> int:
        """Of how many rows something is kept."""
        return int(self._kept().size)

    def _kept(self) -> Array:
        end = self._store.end
        return np.flatnonzero((self._last[:end] != NEVER) & (self._store.live[:end] != 0))

    def validate(self) -> None:
        """Assert the invariants."""
        self._store.validate()
        assert len(self) <= self.num_rows
        end = self._store.end
        there = self._store.live[:end] != 0
        assert not self._awaits[:end][~there].any()
        assert (self._last[:end][~there] == NEVER).all()
        waiting = np.concatenate([NO_IDS, *(places for some in self._due.values() for places in some)])
        assert waiting.size == self._num_due
        assert np.isin(self._kept(), waiting).all()
