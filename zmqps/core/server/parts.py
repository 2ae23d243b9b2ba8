"""What a shard is made of: parts that hold values, each in its own way, and are all asked for the same things."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from zmqps.codecs import Codec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.events import Reader
from zmqps.core.protocol.fields import Contributor
from zmqps.core.protocol.messages import Message, Pull, PullRows, Push, PushRows, ScanRows
from zmqps.core.server.clients import Client
from zmqps.core.server.dense.rules import Timing
from zmqps.core.server.ledger import Result

if TYPE_CHECKING:
    from zmqps.core.job.keyspace import Slice
    from zmqps.core.protocol.messages import Buffer
    from zmqps.core.server.dense.steps import ShardSteps

AnyPush: TypeAlias = Push | PushRows
AnyPull: TypeAlias = Pull | PullRows | ScanRows
PUSHES, PULLS = (Push, PushRows), (Pull, PullRows, ScanRows)

#: For each part of a message its pieces, its version, and who still reads it.
Found: TypeAlias = tuple[list[list[Array]], tuple[int, ...], list[list[Reader]]]
#: Remembers the result of a push as soon as that is true; called again with the same if memory is short.
Noted: TypeAlias = Callable[[Result], None]
#: What is done with a push: ``apply(message, client, payload, note, now)``.
Apply: TypeAlias = Callable[[Any, Client, Sequence["Buffer"], Noted, float], Result]
#: A slice, or all of them, and a version that it is to have.
Awaited: TypeAlias = tuple[int, int]
#: What pulls of a synchronous job wait for: not for one slice, as all get their next version at once.
COMMITTED = -1


class Arrivals:
    """Which slices and tables of a shard have yet to get what they begin with."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self.missing = set(numbers)  # their numbers
        self.loaded = not self.missing  # whether there are none
        # whether another copy sends them one by one: what it applies to one that is missing concerns the sender alone
        self.filling = False

    def follow(self, numbers: Iterable[int]) -> None:
        """Another copy sends all of these."""
        self.missing.update(numbers)
        self.filling, self.loaded = True, False

    def add(self, *numbers: int) -> None:
        """Some are there."""
        self.missing.difference_update(numbers)
        self.loaded = not self.missing

    def adopt(self, *numbers: int) -> None:
        """Another copy has sent some; when it has sent all, it follows like any other."""
        self.add(*numbers)
        self.filling = not self.loaded


class PartMember(Protocol):
    """A slice or a table: what one number of a message stands for."""

    slice: Slice
    version: int


class ShardPart(Protocol):
    """A part of a shard: its dense slices (`DensePart`), or what an extension adds to them.

    Whoever counts a shard, or commits its steps, goes over its parts.
    """

    @property
    def members(self) -> Sequence[PartMember]:
        """Its slices or tables, in order."""

    @property
    def numbers(self) -> range:
        """Those that messages have for them."""

    # --- messages ------------------------------------------------------------------------------

    @property
    def takes(self) -> Mapping[type[Message], Apply]:
        """What is done with each kind of push that it takes."""

    @property
    def pulls(self) -> Sequence[type[Message]]:
        """The kinds of pulls that it answers."""

    def find(self, message: Any, puller: bytes, now: float) -> Found:
        """Return the values that a push or pull asks for; ``puller`` as in `DensePart.pull`."""

    def is_available(self, message: Any) -> bool:
        """Whether a pull can be answered now.

        Raises
        ------
        SliceRangeError
            It asks for what is not here.
        VersionError
            It asks for exactly a version that is not kept any more.
        """

    def awaited(self, message: Any) -> list[Awaited]:
        """Return what a pull has to wait for."""

    def codec(self, message: Any, spec: str, nbytes: int) -> Codec | None:
        """Return what so many bytes of an answer travel in, where a codec is asked for; None: as they are."""

    # --- steps ---------------------------------------------------------------------------------

    @property
    def has_open_step(self) -> bool:
        """Whether gradients wait for a commit."""

    def commit(
        self, step: int, contributors: Sequence[Contributor], terms: Sequence[float], examples: int, *, left_out: bool
    ) -> None:
        """Apply what the contributors brought to a step; asked again, it goes on where it has failed."""

    def close(self, step: int, contributors: Sequence[Contributor]) -> None:
        """A step is committed in all parts: forget what was brought to it."""

    # --- figures -------------------------------------------------------------------------------

    @property
    def granted_nbytes(self) -> int:
        """Memory that was granted to it since it was admitted."""

    def held_nbytes(self, *, loaded: bool) -> int:
        """Return what shows of it in the memory that the host uses; ``loaded``: its values are there."""

    @property
    def timings(self) -> Iterator[Timing]:
        """By what its updates are timed."""

    def figures(self) -> Mapping[str, Any]:
        """Return what the status shows."""

    def validate(self, version: int | None, missing: set[int]) -> None:
        """Assert the invariants; synchronous: ``version`` steps have been committed; ``missing`` have yet to come."""


class AddedPart(ShardPart, Protocol):
    """A part beside the slices of a shard."""

    def follow_steps(self, steps: ShardSteps | None) -> None:
        """Gradients wait for the commits of the shard that has this part; None: they are applied on arrival."""
