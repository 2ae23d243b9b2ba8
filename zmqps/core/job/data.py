"""A data set as its workers name it: how many examples, in ranges of how many, how often."""

from __future__ import annotations

from dataclasses import dataclass

from zmqps.core.protocol.messages import Take
from zmqps.errors import ConfigurationError, JobMismatchError

MAX_NAME_CHARS = 200

Number = tuple[int, int]  # pass, and number of the range in it


@dataclass(frozen=True, slots=True)
class DataSpec:
    """What must be equal on all workers that share a data set.

    Parameters
    ----------
    name
        Of the data set in this job.
    num_examples, shard_size
        How many there are, and how many make a range; the last one of a pass may be smaller.
    passes
        How often every example is used.
    shuffle_seed
        Of the order of each pass; None: as they are.
    """

    name: str
    num_examples: int
    shard_size: int
    passes: int = 1
    shuffle_seed: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= MAX_NAME_CHARS:
            raise ConfigurationError(f"a data set's name has 1 to {MAX_NAME_CHARS} characters, not {self.name!r:.60}")
        for what in ("num_examples", "shard_size", "passes"):
            value = getattr(self, what)
            if type(value) is not int or not 0 < value < 1 << 48:
                raise ConfigurationError(f"{what} is a number from 1, not {value!r:.60}")
        seed = self.shuffle_seed
        if seed is not None and (type(seed) is not int or not 0 <= seed < 1 << 63):
            raise ConfigurationError(f"shuffle_seed is None or an integer from 0, not {seed!r:.60}")

    @classmethod
    def of(cls, message: Take) -> DataSpec:
        """Return what a request is about."""
        seed = message.shuffle[0] if message.shuffle else None
        return cls(message.name, message.num_examples, message.shard_size, message.passes, seed)

    def take(self, request: int, used: Number | None) -> Take:
        """Return the request for the next range."""
        shuffle = () if self.shuffle_seed is None else (self.shuffle_seed,)
        return Take(request, self.name, self.num_examples, self.shard_size, self.passes, shuffle, used or ())

    @property
    def num_ranges(self) -> int:
        """How many ranges make a pass."""
        return -(-self.num_examples // self.shard_size)

    def check_same(self, ours: DataSpec, owner: str) -> None:
        """Raise `JobMismatchError` unless ``ours``, a later worker's word, is the same."""
        for what in ("num_examples", "shard_size", "passes", "shuffle_seed"):
            if getattr(self, what) != getattr(ours, what):
                raise JobMismatchError(
                    what=f"{what} of the data set {self.name!r}",
                    ours=repr(getattr(ours, what)),
                    theirs=repr(getattr(self, what)),
                    owner=owner,
                )
