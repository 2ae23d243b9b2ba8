"""What goes to the servers and what comes from them: a push, a pull, the upload of initial values.

Each has a plan: which elements of which parameters travel with which slice. Gradients may be encoded on the way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from zmqps.codecs import Codec
from zmqps.core.job.keyspace import Placement, Slice
from zmqps.core.protocol.arrays import Array, gather, scatter
from zmqps.core.protocol.encoding import RAW, Coding, choose

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer


class Extent(NamedTuple):
    """Elements ``[start, stop)`` of one flattened parameter."""

    parameter: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Cargo:
    """What one transfer moves of one slice."""

    slice: Slice
    ranges: tuple[int, ...]  # as in `zmqps.core.protocol.messages.Part`
    extents: tuple[Extent, ...]
    dtype: np.dtype[Any]
    nbytes: int
    bounds: tuple[tuple[int, int], ...] = field(init=False)  # the ranges as pairs, relative to the slice

    def __post_init__(self) -> None:
        bounds = tuple(pairwise(self.ranges))[::2] if self.ranges else ((0, self.slice.size),)
        object.__setattr__(self, "bounds", bounds)


def plan(placement: Placement, parameters: frozenset[int] | None = None) -> tuple[tuple[Cargo, ...], ...]:
    """Return, for each shard, the cargoes that cover some parameters (None: all)."""
    return tuple(
        tuple(cargo for slice_ in slices if (cargo := _cargo(placement, slice_, parameters)) is not None)
        for slices in placement.slices
    )


def batches(cargoes: Sequence[Cargo], nbytes: int) -> Iterator[tuple[Cargo, ...]]:
    """Yield cargoes in groups of a limited number of bytes, or one by one."""
    batch: list[Cargo] = []
    room = nbytes
    for cargo in cargoes:
        if batch and cargo.nbytes > room:
            yield tuple(batch)
            batch, room = [], nbytes
        room -= cargo.nbytes
        batch.append(cargo)
    yield tuple(batch)


def in_order(cargoes: tuple[tuple[Cargo, ...], ...], parameters: Sequence[int]) -> tuple[tuple[Cargo, ...], ...]:
    """Return a plan that moves its parameters in the order in which they are named, as far as slices allow."""
    place = {parameter: i for i, parameter in enumerate(parameters)}

    def first(cargo: Cargo) -> int:
        return min(place[extent.parameter] for extent in cargo.extents)

    return tuple(tuple(sorted(row, key=first)) for row in cargoes)


def _cargo(placement: Placement, slice_: Slice, parameters: frozenset[int] | None) -> Cargo | None:
    wanted = [s for s in slice_.segments if parameters is None or s.parameter in parameters]
    if not wanted:
        return None
    ranges: list[int] = []
    if len(wanted) < len(slice_.segments):
        for segment in wanted:
            if ranges and ranges[-1] == segment.position:
                ranges[-1] += segment.size
            else:
                ranges += [segment.position, segment.position + segment.size]
    dtype = placement.keyspace.tables[slice_.table].dtype
    extents = tuple(Extent(s.parameter, s.start, s.start + s.size) for s in wanted)
    nbytes = sum(s.size for s in wanted) * dtype.itemsize
    return Cargo(slice=slice_, ranges=tuple(ranges), extents=extents, dtype=dtype, nbytes=nbytes)


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

    cargoes: tuple[tuple[Cargo, ...], ...] = ()  # what to move, a tuple a shard (`zmqps.core.worker.transfer.plan`)
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


class Packer:
    """Encodes the gradients for one shard."""

    def __init__(self, coding: Coding) -> None:
        self.left_out: dict[int, Array] = {}  # by slice: what lossy codecs have not sent yet
        self.saved_nbytes = 0  # of what was to be sent, by codecs
        self._coding = coding

    def pack(self, request: Request, source: Source) -> tuple[str, list[Array]]:
        """Return the gradients of a request and the codec they are in.

        Encoding changes the residuals, so it is done once and kept for a resend.
        """
        if request.encoded is not None:
            return request.encoded
        if source.encoded is not None:
            found = [source.encoded[cargo] for cargo in request.cargoes]
            return found[0][0], [blob for _, blob in found]
        codec = None if request.codec == RAW else choose(request.codec, request.nbytes)
        if codec is not None and codec.error_feedback:
            residuals = [self._residuals(cargo) for cargo in request.cargoes]
            return self._keep(request, codec, self._encode(request, codec, source, residuals))
        if codec is None:
            return RAW, source.payload(request.cargoes)
        return self._keep(request, codec, self._encode(request, codec, source))

    def _encode(
        self, request: Request, codec: Codec, source: Source, residuals: list[list[Array]] | None = None
    ) -> list[Array]:
        return self._coding.compress(codec, map(source.pieces, request.cargoes), residuals, request.seq)

    def _keep(self, request: Request, codec: Codec, blobs: list[Array]) -> tuple[str, list[Array]]:
        self.saved_nbytes += request.raw_nbytes - sum([blob.nbytes for blob in blobs])
        request.encoded = codec.spec, blobs
        if isinstance(request.transfer, PushTransfer) and request.transfer.blobs is not None:
            request.transfer.blobs |= {c: (codec.spec, blob) for c, blob in zip(request.cargoes, blobs, strict=True)}
        return request.encoded

    def _residuals(self, cargo: Cargo) -> list[Array]:
        slice_ = cargo.slice
        if slice_.index not in self.left_out:
            self.left_out[slice_.index] = np.zeros(slice_.size, cargo.dtype)
        return [self.left_out[slice_.index][start:stop] for start, stop in cargo.bounds]
