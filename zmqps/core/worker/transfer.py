"""What goes to the servers and what comes from them: a push, a pull, the upload of initial values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from zmqps.core.protocol.arrays import Array, gather, scatter
from zmqps.core.worker.plan import Cargo

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer


def all_finite(arrays: Sequence[Array]) -> bool:
    """Whether there is no NaN and no infinity."""
    return all(np.isfinite(array).all() for array in arrays)


@dataclass(slots=True, eq=False, kw_only=True)
class Source:
    """What to send."""

    arrays: Sequence[Array | None] = ()  # flat arrays by parameter; any floating dtype, converted slice by slice
    tables: Sequence[Array] | None = None  # the flat tables that all of them lie in, where they do
    codec: str = "raw"  # how they travel
    in_place: int = 0  # where servers read the tables in place: the bytes of a message. They do not count as in flight
    checked: bool = False  # they are known to be finite
    # whether what servers read in place is left alone until the step is over, which the caller waits for: a push_pull
    # of everything in a step that needs one gradient of each worker. They are finite then
    stays: bool = False
    # gradients that are encoded already, in place of arrays: for each cargo the codec and the blob. Or the names of
    # those that were found not to be finite; then nothing is sent
    encoded: Mapping[Cargo, tuple[str, Array]] | None = None
    nonfinite: Sequence[str] = ()

    def payload(self, cargoes: Sequence[Cargo]) -> list[Array]:
        """Return buffers that hold what to send of some cargoes."""
        one = len(cargoes) == 1
        pieces = self.pieces(cargoes[0]) if one else [piece for cargo in cargoes for piece in self.pieces(cargo)]
        return pieces if len(pieces) == 1 and pieces[0].nbytes else gather(pieces)

    def pieces(self, cargo: Cargo) -> list[Array]:
        """Return what to send of a cargo, in the dtype of the wire."""
        if self.tables is not None:
            return _of_table(self.tables, cargo)
        found, as_sent = [], True
        for parameter, start, stop in cargo.extents:
            if (array := self.arrays[parameter]) is not None:
                as_sent = as_sent and array.dtype == cargo.dtype
                found.append(array[start:stop])
        if as_sent:
            return found
        with np.errstate(over="ignore"):  # what becomes infinite is refused, or was allowed
            return [piece.astype(cargo.dtype, copy=False) for piece in found]


@dataclass(slots=True, eq=False, kw_only=True)
class Target:
    """Where values go, and what has come."""

    arrays: Sequence[Array | None] = ()  # flat writable arrays by parameter; not with ``tables``
    tables: Sequence[Array] | None = None  # the flat tables that all of them lie in
    codec: str = "raw"  # how values travel
    in_place: int = 0  # where values stay in place: the bytes of a message. They do not count as in flight
    # how many elements of each parameter are missing, if the caller wants to know when one is complete; else None
    missing: dict[int, int] | None = None
    arrived: list[int] = field(default_factory=list)  # the parameters that are complete and not reported yet
    versions: dict[Cargo, int] = field(default_factory=dict)  # those that were read of each slice

    def places(self, cargo: Cargo) -> list[Array]:
        """Return where the values of a cargo go, in their order on the wire."""
        if self.tables is not None:
            return _of_table(self.tables, cargo)
        arrays = [(self.arrays[parameter], start, stop) for parameter, start, stop in cargo.extents]
        return [array[start:stop] for array, start, stop in arrays if array is not None]

    def size_of(self, cargo: Cargo) -> int:
        """Return how many elements a cargo brings."""
        return cargo.nbytes // cargo.dtype.itemsize

    def land(self, cargoes: Sequence[Cargo], payload: Sequence[Buffer], versions: Sequence[int]) -> None:
        """Put values of cargoes where they belong; none, but a `ProtocolError`, if they are not of their size."""
        places = [(place, cargo.dtype) for cargo in cargoes for place in self.places(cargo)]
        if len(cargoes) == len(places) == len(payload) == 1:  # as of most messages
            [(place, dtype)], nbytes = places, memoryview(payload[0]).nbytes
            if nbytes and nbytes == place.size * dtype.itemsize:
                np.copyto(place, np.frombuffer(payload[0], dtype), casting="unsafe")
                self.landed(cargoes[0], versions[0])
                return
        # the wire has the table's dtype, the caller's arrays may have another
        for run, offset, array in scatter(payload, [(place.size, dtype) for place, dtype in places]):
            np.copyto(places[run][0][offset : offset + array.size], array, casting="unsafe")
        for cargo, version in zip(cargoes, versions, strict=True):
            self.landed(cargo, version)

    def landed(self, cargo: Cargo, version: int) -> None:
        """Note that the values of a cargo are where they belong."""
        self.versions[cargo] = version
        if self.missing is not None:
            for extent in cargo.extents:
                self.missing[extent.parameter] -= extent.stop - extent.start
                if not self.missing[extent.parameter]:
                    self.arrived.append(extent.parameter)

    def outdated(self) -> tuple[Cargo, ...]:
        """Return what was read of an older version than the rest."""
        newest = max(self.versions.values(), default=0)
        return tuple(cargo for cargo, version in self.versions.items() if version < newest)

    def forget(self, cargoes: Sequence[Cargo]) -> None:
        """The values of some cargoes are out of date, and will come again."""
        for cargo in cargoes:
            del self.versions[cargo]


def _of_table(tables: Sequence[Array], cargo: Cargo) -> list[Array]:
    """Return the pieces of flat tables that make a cargo."""
    table, origin = tables[cargo.slice.table], cargo.slice.start
    return [table[origin + start : origin + stop] for start, stop in cargo.bounds]


@dataclass(slots=True, eq=False, kw_only=True)
class Transfer:
    """Arrays on their way; they are there when nothing is ``remaining``."""

    cargoes: tuple[tuple[Cargo, ...], ...] = ()  # what to move, a tuple a shard (`zmqps.core.worker.plan.plan`)
    source: Source | None = None  # what is sent, if anything is
    target: Target | None = None  # where values go, if any come
    atomic: bool = False  # all cargoes of a shard make one message
    done: bool = False
    remaining: int = 0  # requests that are not answered

    kind: ClassVar[str]


@dataclass(slots=True, eq=False, kw_only=True)
class LoadTransfer(Transfer):
    """Upload initial values."""

    source: Source

    kind: ClassVar[str] = "load"


@dataclass(slots=True, eq=False, kw_only=True)
class PushTransfer(Transfer):
    """Send gradients; with a target it is answered with the values after them."""

    source: Source
    whole: bool = False  # these end the worker's step where steps matter: all gradients there are, or the user says so
    # otherwise: which parameters are trained and not among these, and how many are trained in all
    lacking: Collection[int] = ()
    expected: int = 0
    examples: int = 1  # how often the gradients count in a synchronous mean
    step: int = 0  # as in the message; set when it leaves
    attempt: int = 0
    terms: Sequence[float] = ()  # as in the message
    staleness: int = 0  # the largest that a server told of
    # what was sent encoded, by cargo, where it may have to be sent once more after it was answered; else None
    blobs: dict[Cargo, tuple[str, Array]] | None = None

    kind: ClassVar[str] = "push"


@dataclass(slots=True, eq=False, kw_only=True)
class PullTransfer(Transfer):
    """Fetch values, of at least a version or exactly that one."""

    target: Target
    version: int = 0
    exact: bool = False
    slowest: int = 0  # bounded: what was pushed before this clock, by whomever, is in them; set when it leaves

    kind: ClassVar[str] = "pull"


AnyTransfer = PushTransfer | PullTransfer | LoadTransfer


@dataclass(slots=True, eq=False, kw_only=True)
class Delay:
    """Why a request that has left is not answered yet, as far as it is known."""

    doubted: bool = False  # the server has answered a question that was asked after it, and not this
    refused_at: float | None = None  # when the server lacked the memory for it, at first
    retry_at: float | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One message of a transfer, and its answer."""

    transfer: AnyTransfer
    cargoes: tuple[Cargo, ...]
    nbytes: int  # that it takes of the window
    head: bool = False  # the first of its transfer on this link
    codec: str = "raw"  # its gradients are to travel in
    number: int = 0  # in the order asked
    seq: int = 0  # a push's, in the order in which they leave
    encoded: tuple[str, list[Array]] | None = None
    sent_nbytes: int = 0  # of its payload, as it travels
    sent_as: int = 0  # ordinal of the last send among those of the connection
    behind: int = 0  # a pull's: the number of the last push before it that touches its slices
    delay: Delay | None = None

    @property
    def raw_nbytes(self) -> int:
        """What it moves each way, as plain arrays."""
        return sum([cargo.nbytes for cargo in self.cargoes])

    @property
    def retry_at(self) -> float | None:
        """When it is sent again, while it is put off."""
        return None if self.delay is None else self.delay.retry_at

    @property
    def slices(self) -> set[int]:
        """The numbers of the slices it is about."""
        return {cargo.slice.index for cargo in self.cargoes}
