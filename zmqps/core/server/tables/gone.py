"""Ids of removed rows of a table, kept for followers."""

from __future__ import annotations

import numpy as np

from zmqps.core.protocol.arrays import Array

#: The most ids kept, the last ones: 8 MiB per followed table. A follower that missed more reads all rows again.
MAX_GONE = 1 << 20
#: Seconds they are kept after the last request.
FOLLOWED_S = 600.0


class GoneLog:
    """The number of removed rows and, while there are followers, the ids of the last ones.

    Parameters
    ----------
    most
        How many ids are kept.

    Attributes
    ----------
    end : int
        How many rows were removed. The next one has this number.
    """

    def __init__(self, most: int = MAX_GONE) -> None:
        self._most = most
        self._ids: Array | None = None  # each at its number modulo their length; None: no followers
        self._start = self.end = 0  # ids are known from this number on
        self._until = 0.0

    def follow(self, now: float) -> None:
        """A follower has asked: keep ids from now on, for a while."""
        if self._ids is None:
            self._ids = np.empty(self._most, np.int64)  # address space: only written pages take memory
        self._until = now + FOLLOWED_S

    def tick(self, now: float) -> None:
        """Keep nothing if there was no request for long."""
        if self._ids is not None and now > self._until:
            self._ids = None
            self._start = self.end

    def add(self, ids: Array) -> None:
        """Some rows were removed."""
        self.end += ids.size
        if self._ids is None:
            self._start = self.end
            return
        kept = ids[-self._most :]
        self._ids[np.arange(self.end - kept.size, self.end) % self._most] = kept
        self._start = max(self._start, self.end - self._most)

    def since(self, number: int) -> Array | None:
        """Return the ids from a number on, in order; None: they are unknown."""
        if not self._start <= number <= self.end:
            return None
        if self._ids is None:
            return np.empty(0, np.int64)
        found: Array = self._ids[np.arange(number, self.end) % self._most]
        return found
