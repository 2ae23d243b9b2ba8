"""What a shard is made of: parts that hold values, each in its own way, and are all asked for the same things."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from zmqps.codecs import Codec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.events import Reader
from zmqps.core.protocol.fields import Contributor
from zmqps.core.protocol.messages import Message, Pull, PullRows, Push, PushRows, ScanRows
from zmqps.core.server.clients import Client
from zmqps.core.server.dense.timing import Timing
from zmqps.core.server.ledger import Result

if TYPE_CHECKING:
    from zmqps.core.job.keyspace import Slice
    from zmqps.core.protocol.messages import Buffer
    from zmqps.core.server.replicas.record import ReplicationRecord

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


class SavedPiece(Protocol):
    """A piece of a snapshot."""

    @property
    def number(self) -> int:
        """The piece's own, in the snapshot of its shard."""

    @property
    def nbytes(self) -> int:
        """Bytes of all its arrays."""


class PartSnapshot(Protocol):
    """A part as it was at one moment, kept until it is written."""

    @property
    def failed(self) -> MemoryError | None:
        """Why it was given up; None: it was not."""

    @property
    def nbytes(self) -> int:
        """Bytes kept for it now, beside what the part has anyway."""

    @property
    def state(self) -> Mapping[str, Any]:
        """What is kept beside the arrays, as plain data."""

    def next(self) -> SavedPiece | None:
        """Return a piece that has not had its turn, None at the end; raise `MemoryError` where it is given up."""

    def done(self, number: int) -> None:
        """A piece is written; numbers of other parts' pieces change nothing."""

    def release(self) -> None:
        """Keep nothing more."""

    def validate(self) -> None:
        """Assert the invariants."""


class Mark(Protocol):
    """A part when it was saved: what has changed since is what the next save needs."""

    def drop(self) -> None:
        """Nothing is built upon that save any more."""

    def validate(self) -> None:
        """Assert the invariants."""


class Unmarked:
    """The mark of a part of which a save has everything, whatever was saved before."""

    def drop(self) -> None:
        """There is nothing to forget."""

    def validate(self) -> None:
        """There is nothing to assert."""


class PartNews(Protocol):
    """What backups are told of the changes of a part."""

    @property
    def is_empty(self) -> bool:
        """Whether they have been told all."""

    def entrust(self, message: Any, origin: bytes, note: Noted) -> tuple[Sequence[Buffer], Noted]:
        """Prepare to forward a push that is about to be applied.

        Returns
        -------
        payload
            To be applied: nobody else writes to it, so the backups apply the same.
        note
            To be called instead of ``note`` as soon as it is applied.

        Raises
        ------
        MemoryError
            Too much waits for the backups already, or there is no memory for a copy. Nothing has changed.
        """

    def tell(self) -> None:
        """Forward what has changed; what there was no memory for (`MemoryError`) comes again."""

    def stop(self) -> None:
        """Nobody is told any more."""


class Listener(NamedTuple):
    """Who is told the news of a part.

    ``queue`` takes a record of something that is done; ``check`` raises `MemoryError` where there is no room for so
    many bytes more.
    """

    queue: Callable[[ReplicationRecord], None]
    check: Callable[[int], None]


class ShardPart(Protocol):
    """A part of a shard: its dense slices (`DensePart`), or its sparse tables (`Rows`).

    Whoever saves, replicates, fills, cuts or counts a shard goes over its parts.
    """

    @property
    def members(self) -> Sequence[PartMember]:
        """Its slices or tables, in order."""

    @property
    def numbers(self) -> range:
        """Those that messages have for them."""

    # --- messages ------------------------------------------------------------------------------

    @property
    def applies(self) -> Mapping[type[Message], Apply]:
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

    def note_sent(self, message: Any, puller: bytes) -> None:
        """The answer to a push or pull is made."""

    def unanswered(self, message: Any) -> AnyPush:
        """Return what is kept of a push that is applied: what its answer needs."""

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

    def end_step(self, step: int) -> None:
        """End a step that another copy has committed."""

    # --- copies --------------------------------------------------------------------------------

    def snapshot(self, first: int, base: Any) -> PartSnapshot:
        """Keep it as it is; ``first``: the first number for its pieces; ``base``: of an earlier save, or None."""

    def mark(self) -> Mark:
        """Take note of what is saved now."""

    def record(self, member: int, start: int, step: int) -> tuple[ReplicationRecord, int]:
        """Return what fills a backup with a piece of a slice or table, and where it goes on; 0: it is whole."""

    def news(self, listener: Listener) -> PartNews:
        """Tell of all that changes from now on."""

    def refill(self, parents: Sequence[Any]) -> None:
        """Have what parts of other shards, which change no more, have of its elements; done again, it is the same."""

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

    def forget(self, incarnation: bytes) -> None:
        """A worker has gone."""

    def validate(self, version: int | None, missing: set[int]) -> None:
        """Assert the invariants; synchronous: ``version`` steps have been committed; ``missing`` have yet to come."""
