"""The parts of a shard, which hold values in different ways and have one interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from zmqps.codecs import Codec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.events import Reader
from zmqps.core.protocol.message import Contributor
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

#: For each part of a message its pieces, its version, and its present readers.
Found: TypeAlias = tuple[list[list[Array]], tuple[int, ...], list[list[Reader]]]
#: Records the result of a push as soon as it is applied; called again with the same if memory is short.
Noted: TypeAlias = Callable[[Result], None]
#: The handler of a push: ``apply(message, client, payload, note, now)``.
Apply: TypeAlias = Callable[[Any, Client, Sequence["Buffer"], Noted, float], Result]
#: A slice, or all of them, and an awaited version.
Awaited: TypeAlias = tuple[int, int]
#: What pulls of a synchronous job wait for: not one slice, because all get their next version at once.
COMMITTED = -1


class Arrivals:
    """Which slices and tables of a shard do not have their initial values yet."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self.missing = set(numbers)  # their numbers
        self.loaded = not self.missing  # whether all have theirs
        # whether another copy sends them one by one: its changes to a missing one do not matter here
        self.filling = False

    def follow(self, numbers: Iterable[int]) -> None:
        """Another copy sends all of these."""
        self.missing.update(numbers)
        self.filling, self.loaded = True, False

    def add(self, *numbers: int) -> None:
        """Some have arrived."""
        self.missing.difference_update(numbers)
        self.loaded = not self.missing

    def adopt(self, *numbers: int) -> None:
        """Another copy has sent some; when it has sent all, this copy follows like any other."""
        self.add(*numbers)
        self.filling = not self.loaded


class PartMember(Protocol):
    """A slice or a table: the object of one number in a message."""

    slice: Slice
    version: int


class ShardPart(Protocol):
    """A part of a shard: its dense slices (`DensePart`), or an extension's.

    Counters and commits of a shard go over its parts.
    """

    @property
    def members(self) -> Sequence[PartMember]:
        """Its slices or tables, in order."""

    @property
    def numbers(self) -> range:
        """Their numbers in messages."""

    # --- messages ------------------------------------------------------------------------------

    @property
    def takes(self) -> Mapping[type[Message], Apply]:
        """The handler of each kind of push that it takes."""

    @property
    def pulls(self) -> Sequence[type[Message]]:
        """The kinds of pulls that it answers."""

    def find(self, message: Any, puller: bytes, now: float) -> Found:
        """Return the values that a push or pull requests; ``puller`` as in `DensePart.pull`."""

    def is_available(self, message: Any) -> bool:
        """Whether a pull can be answered now.

        Raises
        ------
        SliceRangeError
            It requests a slice that is not here.
        VersionError
            It requests exactly a version that is not kept any more.
        """

    def awaited(self, message: Any) -> list[Awaited]:
        """Return what a pull has to wait for."""

    def codec(self, message: Any, spec: str, nbytes: int) -> Codec | None:
        """Return the encoded size of an answer of this many bytes, if a codec is requested; None: it is raw."""

    # --- steps ---------------------------------------------------------------------------------

    @property
    def has_open_step(self) -> bool:
        """Whether gradients wait for a commit."""

    def commit(
        self, step: int, contributors: Sequence[Contributor], terms: Sequence[float], examples: int, *, left_out: bool
    ) -> None:
        """Apply the contributions to a step; a repeated call continues where it failed."""

    def close(self, step: int, contributors: Sequence[Contributor]) -> None:
        """A step is committed in all parts: free its contributions."""

    # --- figures -------------------------------------------------------------------------------

    @property
    def granted_nbytes(self) -> int:
        """Memory that was granted to it since it was admitted."""

    def held_nbytes(self, *, loaded: bool) -> int:
        """Return the part of it visible in the host's used memory; ``loaded``: its values are there."""

    @property
    def timings(self) -> Iterator[Timing]:
        """The clock of its updates."""

    def figures(self) -> Mapping[str, Any]:
        """Return its counters for the status."""

    def validate(self, version: int | None, missing: set[int]) -> None:
        """Assert the invariants; synchronous: ``version`` steps have been committed; ``missing`` are yet to arrive."""


class AddedPart(ShardPart, Protocol):
    """A part in addition to the slices of a shard."""

    def follow_steps(self, steps: ShardSteps | None) -> None:
        """Gradients wait for the commits of the shard that has this part; None: they are applied on arrival."""
