"""Arrays sent to the servers and received from them: a push, a pull, the upload of initial values.

Each has a plan: which elements of which parameters travel with which slice. Gradients may be encoded.
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
    """The part of one transfer in one slice."""

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
    """Yield cargoes in groups of limited size, or one by one."""
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
    """Return a plan that moves its parameters in the order of their names in the call, as far as slices allow."""
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
    tables: Sequence[Array] | None = None  # the flat tables that all of them are in, if they are
    codec: str = "raw"  # their codec
    in_place: int = 0  # if servers read the tables in place: the bytes of a message. They do not count as in flight
    checked: bool = False  # they are known to be finite
    # whether the memory that servers read in place is not changed until the step is over, which the caller waits for:
    # a push_pull of everything in a step that needs one gradient of each worker. They are finite then
    stays: bool = False
    # encoded gradients, instead of arrays: for each cargo the codec and the blob. Or the names of those found not to be
    # finite; then nothing is sent
    encoded: Mapping[Cargo, tuple[str, Array]] | None = None
    nonfinite: Sequence[str] = ()

    def payload(self, cargoes: Sequence[Cargo]) -> list[Array]:
        """Return buffers with the payload of some cargoes."""
        one = len(cargoes) == 1
        pieces = self.pieces(cargoes[0]) if one else [piece for cargo in cargoes for piece in self.pieces(cargo)]
        return pieces if len(pieces) == 1 and pieces[0].nbytes else gather(pieces)

    def pieces(self, cargo: Cargo) -> list[Array]:
        """Return the payload of a cargo, in the dtype of the wire."""
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
    """The target of values, and what has arrived."""

    arrays: Sequence[Array | None] = ()  # flat writable arrays by parameter; not with ``tables``
    tables: Sequence[Array] | None = None  # the flat tables that all of them are in
    codec: str = "raw"  # the codec of values
    in_place: int = 0  # if values stay in place: the bytes of a message. They do not count as in flight
    # the number of missing elements of each parameter, if the caller wants to know when one is complete; else None
    missing: dict[int, int] | None = None
    arrived: list[int] = field(default_factory=list)  # the complete parameters that are not reported yet
    versions: dict[Cargo, int] = field(default_factory=dict)  # the read version of each slice

    def places(self, cargo: Cargo) -> list[Array]:
        """Return the targets of a cargo's values, in their order on the wire."""
        if self.tables is not None:
            return _of_table(self.tables, cargo)
        arrays = [(self.arrays[parameter], start, stop) for parameter, start, stop in cargo.extents]
        return [array[start:stop] for array, start, stop in arrays if array is not None]

    def size_of(self, cargo: Cargo) -> int:
        """Return the number of elements of a cargo."""
        return cargo.nbytes // cargo.dtype.itemsize

    def land(self, cargoes: Sequence[Cargo], payload: Sequence[Buffer], versions: Sequence[int]) -> None:
        """Copy the values of cargoes to their places; none, but a `ProtocolError`, if the size is wrong."""
        places = [(place, cargo.dtype) for cargo in cargoes for place in self.places(cargo)]
        if len(cargoes) == len(places) == len(payload) == 1:  # as in most messages
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
        """Note that the values of a cargo are in place."""
        self.versions[cargo] = version
        if self.missing is not None:
            for extent in cargo.extents:
                self.missing[extent.parameter] -= extent.stop - extent.start
                if not self.missing[extent.parameter]:
                    self.arrived.append(extent.parameter)

    def outdated(self) -> tuple[Cargo, ...]:
        """Return the cargoes that were read at an older version than the rest."""
        newest = max(self.versions.values(), default=0)
        return tuple(cargo for cargo, version in self.versions.items() if version < newest)

    def forget(self, cargoes: Sequence[Cargo]) -> None:
        """The values of some cargoes are out of date, and will arrive again."""
        for cargo in cargoes:
            del self.versions[cargo]


def _of_table(tables: Sequence[Array], cargo: Cargo) -> list[Array]:
    """Return the pieces of flat tables that make a cargo."""
    table, origin = tables[cargo.slice.table], cargo.slice.start
    return [table[origin + start : origin + stop] for start, stop in cargo.bounds]


@dataclass(slots=True, eq=False, kw_only=True)
class Transfer:
    """Arrays in transfer; complete when nothing is ``remaining``."""

    cargoes: tuple[tuple[Cargo, ...], ...] = ()  # what to move, a tuple per shard (`zmqps.core.worker.transfer.plan`)
    source: Source | None = None  # what is sent, if anything is
    target: Target | None = None  # the target of values, if any arrive
    atomic: bool = False  # all cargoes of a shard are one message
    done: bool = False
    remaining: int = 0  # unanswered requests

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
    whole: bool = False  # this push ends the worker's step, if there are steps: it has all gradients, or on request
    # otherwise: the trained parameters that are not in it, and the number of trained parameters
    lacking: Collection[int] = ()
    expected: int = 0
    examples: int = 1  # the weight of the gradients in a synchronous mean
    step: int = 0  # as in the message; set when it is sent
    attempt: int = 0
    terms: Sequence[float] = ()  # as in the message
    staleness: int = 0  # the largest one reported by a server
    # the encoded payload, by cargo, if it may have to be resent after its answer; else None
    blobs: dict[Cargo, tuple[str, Array]] | None = None

    kind: ClassVar[str] = "push"


@dataclass(slots=True, eq=False, kw_only=True)
class PullTransfer(Transfer):
    """Fetch values, of at least a version or exactly that one."""

    target: Target
    version: int = 0
    exact: bool = False
    slowest: int = 0  # bounded: all pushes before this clock are in the values; set when it is sent

    kind: ClassVar[str] = "pull"


AnyTransfer = PushTransfer | PullTransfer | LoadTransfer


@dataclass(slots=True, eq=False, kw_only=True)
class Delay:
    """Why a sent request is not answered yet, as far as known."""

    doubted: bool = False  # the server has answered a later question, but not this request
    refused_at: float | None = None  # when the server first lacked the memory for it
    retry_at: float | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One message of a transfer, and its answer."""

    transfer: AnyTransfer
    cargoes: tuple[Cargo, ...]
    nbytes: int  # its share of the window
    head: bool = False  # the first of its transfer on this link
    codec: str = "raw"  # the codec of its gradients
    number: int = 0  # in the requested order
    seq: int = 0  # of a push, in sending order
    encoded: tuple[str, list[Array]] | None = None
    sent_nbytes: int = 0  # of its encoded payload
    sent_as: int = 0  # ordinal of the last send among those of the connection
    behind: int = 0  # a pull's: the number of the last push before it that touches its slices
    delay: Delay | None = None

    @property
    def raw_nbytes(self) -> int:
        """Its payloads each way, as plain arrays."""
        return sum([cargo.nbytes for cargo in self.cargoes])

    @property
    def retry_at(self) -> float | None:
        """When it is resent, while it is put off."""
        return None if self.delay is None else self.delay.retry_at

    @property
    def slices(self) -> set[int]:
        """The numbers of its slices."""
        return {cargo.slice.index for cargo in self.cargoes}


class Packer:
    """Encodes the gradients for one shard."""

    def __init__(self, coding: Coding) -> None:
        self.left_out: dict[int, Array] = {}  # by slice: residuals of lossy codecs
        self.saved_nbytes = 0  # bytes saved by codecs
        self._coding = coding

    def pack(self, request: Request, source: Source) -> tuple[str, list[Array]]:
        """Return the gradients of a request and their codec.

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
