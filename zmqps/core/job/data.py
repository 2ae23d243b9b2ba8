"""A data set as its workers describe it: examples, range size, passes; and one of its ranges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zmqps import checks
from zmqps.core.protocol.messages import Range, Take
from zmqps.errors import JobMismatchError

Words = NDArray[np.uint64]

#: Luby and Rackoff need 4 rounds for a random function; more because ours is only a mixer.
ROUNDS = 8

_MASK = (1 << 64) - 1


def mix(*words: int) -> int:
    """Return a 64-bit number that depends on every bit of the words (SplitMix64's finalizer, chained)."""
    state = 0
    for word in words:
        state = (state + word + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def permuted(start: int, stop: int, size: int, seed: int, data_pass: int) -> NDArray[np.int64]:
    """Return the examples at positions ``[start, stop)`` of a shuffled pass over ``size`` examples.

    A Feistel network permutes the numbers of 2h bits, the fewest that hold ``size``; a position that
    leaves ``[0, size)`` goes through it again until it is back (cycle walking: Black and Rogaway,
    Ciphers with Arbitrary Finite Domains, 2002), three times on average at most.

    Parameters
    ----------
    start, stop
        Positions in the pass.
    size
        The number of examples.
    seed, data_pass
        Each pair has its own permutation.

    Returns
    -------
    ndarray of int64
        Indices of examples; those of all positions together are a permutation.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = [np.uint64(mix(seed, data_pass, number)) for number in range(ROUNDS)]
    values = _feistel(np.arange(start, stop, dtype=np.uint64), half, keys)
    outside = np.flatnonzero(values >= size)
    while outside.size:
        values[outside] = _feistel(values[outside], half, keys)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _feistel(values: Words, half: int, keys: list[Any]) -> Words:
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        x = (right + key) * np.uint64(0xBF58476D1CE4E5B9)  # overflow is intended
        x = (x ^ (x >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
        left, right = right, left ^ ((x ^ (x >> np.uint64(29))) & mask)
    return (left << shift) | right


MAX_NAME_CHARS = 200
MAX_EXAMPLES = (1 << 48) - 1

Number = tuple[int, int]  # pass, and number of the range in it


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """The description that all workers of a data set must share.

    Parameters
    ----------
    name
        Of the data set in this job.
    num_examples, range_size
        The number of examples, and of those in a range; the last one of a pass may be smaller.
    passes
        How often every example is used.
    shuffle_seed
        Of the order of each pass; None: unshuffled.
    """

    name: str
    num_examples: int
    range_size: int
    passes: int = 1
    shuffle_seed: int | None = None

    def __post_init__(self) -> None:
        checks.name("a data set's name", self.name, MAX_NAME_CHARS)
        for what in ("num_examples", "range_size", "passes"):
            object.__setattr__(self, what, checks.whole(what, getattr(self, what), 1, MAX_EXAMPLES))
        seed = checks.whole("shuffle_seed", self.shuffle_seed, 0, (1 << 63) - 1, optional=True)
        object.__setattr__(self, "shuffle_seed", seed)

    @classmethod
    def of(cls, message: Take) -> DataSpec:
        """Return the data set of a request."""
        seed = message.shuffle[0] if message.shuffle else None
        return cls(
            name=message.name,
            num_examples=message.num_examples,
            range_size=message.range_size,
            passes=message.passes,
            shuffle_seed=seed,
        )

    def take(self, request: int, used: Number | None) -> Take:
        """Return the request for the next range."""
        shuffle = () if self.shuffle_seed is None else (self.shuffle_seed,)
        return Take(request, self.name, self.num_examples, self.range_size, self.passes, shuffle, used or ())

    @property
    def num_ranges(self) -> int:
        """The number of ranges in a pass."""
        return -(-self.num_examples // self.range_size)

    def check_same(self, ours: DataSpec, owner: str) -> None:
        """Raise `JobMismatchError` unless ``ours``, a later worker's description, is the same."""
        for what in ("num_examples", "range_size", "passes", "shuffle_seed"):
            if getattr(self, what) != getattr(ours, what):
                raise JobMismatchError(
                    what=f"{what} of the data set {self.name!r}",
                    ours=repr(getattr(ours, what)),
                    theirs=repr(getattr(self, what)),
                    owner=owner,
                    advice="give this data set another name: ranges(..., name=...)",
                )


@dataclass(frozen=True, kw_only=True)
class DataRange:
    """A range of a pass over a data set.

    Attributes
    ----------
    data : DataSpec
        The data set.
    data_pass, number : int
        Which pass, and which range of it, both from 0.
    start, stop : int
        The range's positions in the pass. Without a shuffle seed they are the examples' indices.
    """

    data: DataSpec
    data_pass: int
    number: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @cached_property
    def indices(self) -> NDArray[np.int64]:
        """Indices of the range's examples; with a shuffle seed a slice of the pass's permutation of all."""
        if self.data.shuffle_seed is None:
            return np.arange(self.start, self.stop, dtype=np.int64)
        return permuted(self.start, self.stop, self.data.num_examples, self.data.shuffle_seed, self.data_pass)

    @classmethod
    def of(cls, data: DataSpec, message: Range) -> DataRange | None:
        """Return the range that the coordinator has handed out; None if there is no more."""
        if message.start >= message.stop:
            return None
        return cls(
            data=data, data_pass=message.data_pass, number=message.number, start=message.start, stop=message.stop
        )
