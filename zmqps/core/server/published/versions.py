"""The versions of one slice that readers can still get: its newest words, and a delta for each version before.

Nothing is kept whole but the newest version. What a reader lacks is the sum of the deltas since the one it holds;
an older version is the newest one less the deltas since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import xxhash

from zmqps import deltas
from zmqps.codecs import Backend
from zmqps.core.protocol.arrays import Array

Words = np.ndarray[Any, np.dtype[Any]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class _Kept(NamedTuple):
    """A version, and what it changed."""

    number: int
    checksum: int
    delta: Bytes | None  # from the version before; None: that is not kept


class SliceVersions:
    """The versions of a slice.

    Parameters
    ----------
    bits
        Returns the words of values as readers get them: a new array.
    keep
        How many versions readers can get, the newest included.
    most_nbytes
        How many bytes their deltas may take; the oldest versions are dropped beyond.
    backend
        Of the loops.
    """

    def __init__(self, bits: Callable[[Array], Words], keep: int, most_nbytes: int, backend: Backend = "numba") -> None:
        self.nbytes = 0  # of the newest version, and of all deltas
        self._bits = bits
        self._keep = keep
        self._most_nbytes = most_nbytes
        self._backend: Backend = backend
        self._newest: Words | None = None
        self._kept: deque[_Kept] = deque()  # from the oldest to the newest

    @property
    def newest(self) -> int | None:
        """The newest version; None: there is none yet."""
        return self._kept[-1].number if self._kept else None

    @property
    def oldest(self) -> int | None:
        """The oldest version that readers can get."""
        return self._kept[0].number if self._kept else None

    def checksum(self, number: int) -> int:
        """Return the XXH3-64 of the words of a version that is kept."""
        return next(kept.checksum for kept in self._kept if kept.number == number)

    def cut(self, number: int, values: Array) -> None:
        """Let values, as they are now, be a version with a higher number than the last one."""
        words = self._bits(values)
        delta = None
        if self._newest is None:
            self.nbytes += words.nbytes
        else:
            delta = deltas.between(self._newest, words, backend=self._backend)
            self.nbytes += delta.nbytes
        self._newest = words
        self._kept.append(_Kept(number, xxhash.xxh3_64_intdigest(words.data), delta))
        while len(self._kept) > self._keep or self.nbytes > words.nbytes + self._most_nbytes:
            self._drop_oldest()

    def since(self, held: int, number: int) -> Bytes | None:
        """Return the delta from one version to a later one; None: one of them is not kept.

        Raises
        ------
        ValueError
            The first is not the older one.
        """
        if held >= number:
            raise ValueError(f"version {number} does not follow {held}")
        return None if held not in self or number not in self else self._sum(held, number)

    def words(self, number: int) -> Words | None:
        """Return the words of a version, which may be those that are kept: only read them. None: it is not kept."""
        if number not in self:
            return None
        assert self._newest is not None
        if number == self.newest:
            return self._newest
        words = self._newest.copy()
        deltas.add(self._sum(number, self._kept[-1].number), words, subtract=True, backend=self._backend)
        return words

    def forget(self) -> None:
        """Keep no version: what follows has nothing to do with those before."""
        self._kept.clear()
        self._newest, self.nbytes = None, 0

    def __contains__(self, number: int) -> bool:
        return any(kept.number == number for kept in self._kept)

    def _sum(self, held: int, number: int) -> Bytes:
        assert self._newest is not None
        between = [kept.delta for kept in self._kept if held < kept.number <= number]
        one = [delta for delta in between if delta is not None]
        assert len(one) == len(between), "only the oldest has no delta"
        if len(one) == 1:
            return one[0]
        return deltas.merge(one, self._newest.size, self._newest.dtype, backend=self._backend)

    def _drop_oldest(self) -> None:
        self._kept.popleft()
        oldest = self._kept[0]
        if oldest.delta is not None:
            self.nbytes -= oldest.delta.nbytes
            self._kept[0] = oldest._replace(delta=None)

    def validate(self) -> None:
        """Assert that versions ascend, that all but the oldest have a delta, and that bytes add up."""
        numbers = [kept.number for kept in self._kept]
        assert numbers == sorted(set(numbers))
        assert len(numbers) <= self._keep
        assert (self._newest is None) == (not numbers)
        assert all((kept.delta is None) == (number == 0) for number, kept in enumerate(self._kept))
        if self._newest is not None:
            assert xxhash.xxh3_64_intdigest(self._newest.data) == self._kept[-1].checksum
            sizes = [kept.delta.nbytes for kept in islice(self._kept, 1, None) if kept.delta is not None]
            assert self.nbytes == self._newest.nbytes + sum(sizes)
            assert sum(sizes) <= self._most_nbytes
