"""Rows of sparse tables in transfer: their division into messages, and the targets of received ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from zmqps.core.job.keyspace import ROW_DTYPE, Placement, Slice
from zmqps.core.job.tables import NUM_BUCKETS
from zmqps.core.protocol.arrays import Array, gather, scatter
from zmqps.core.protocol.encoding import RAW
from zmqps.core.protocol.messages import PullRows, PushRows, ScanRows
from zmqps.core.protocol.messages.rows import CURSOR, SCANNED
from zmqps.core.worker.transfer import Cargo, PullTransfer, PushTransfer, Request, Source, Target
from zmqps.errors import ProtocolError
from zmqps.rows.unique import Different, Grouped, different, group, spread

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: Bytes of rows in a message, about; as of slices of dense parameters.
CHUNK_NBYTES = 4 << 20
NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RowCargo(Cargo):
    """What one message moves of a shard's part of a table.

    ``first`` and ``wanted_first`` are the numbers of the first row that it brings, and that it requests; ``begins``: it
    is the first message on its shard that brings rows.
    """

    first: int = 0
    pushed: Array = field(default_factory=lambda: NO_IDS)
    wanted_first: int = 0
    wanted: Array = field(default_factory=lambda: NO_IDS)
    begins: bool = False


class RowParts:
    """The division of a table's buckets into messages: first by shard, then into parts of about one size."""

    def __init__(self, placement: Placement, number: int) -> None:
        spec = placement.keyspace.tables[number].rows
        assert spec is not None
        self.spec = spec
        self._num_shards = placement.num_shards
        self._slices = [slice_ for row in placement.row_slices for slice_ in row if slice_.table == number]
        self._maps: dict[int, tuple[Array, list[Slice]]] = {}

    @property
    def slices(self) -> Sequence[Slice]:
        """The shards' parts of the table."""
        return self._slices

    def different(self, ids: Array) -> Different:
        """Return the distinct ids among some."""
        return different(ids, self.spec.bucket_seed)

    def part_of_bucket(self, num_rows: int) -> tuple[Array, list[Slice]]:
        """Return, for this many distinct rows, the part each bucket belongs to, and the slice of each part."""
        nbytes = num_rows * (self.spec.nbytes + 8)
        pieces = max(1, -(-nbytes // (CHUNK_NBYTES * len(self._slices))))
        pieces = 1 << (min(pieces, NUM_BUCKETS) - 1).bit_length()  # few different maps
        if pieces not in self._maps:
            parts, of_part = np.empty(NUM_BUCKETS, np.int64), list[Slice]()
            for slice_ in self._slices:
                number = min(pieces, slice_.size)
                numbers = np.arange(slice_.size) * number // slice_.size
                parts[slice_.start : slice_.stop] = len(of_part) + numbers
                of_part += [slice_] * number
            self._maps[pieces] = parts, of_part
        return self._maps[pieces]

    def group(self, found: Different, parts: tuple[Array, list[Slice]]) -> Grouped:
        """Return distinct ids by part."""
        return group(found, parts[0], len(parts[1]))

    def cargoes(
        self,
        parts: tuple[Array, list[Slice]],
        pushed: Grouped | None,
        wanted: Grouped | None,
        *,
        everywhere: bool = False,
    ) -> tuple[tuple[RowCargo, ...], ...]:
        """Return, for each shard, the messages that move some rows there, and others back.

        Ids are grouped by ``parts``, as returned by `part_of_bucket`. ``everywhere``: shards of the table without rows
        also get a message, to be informed of the push.
        """
        rows: list[list[RowCargo]] = [[] for _ in range(self._num_shards)]
        for number, slice_ in enumerate(parts[1]):
            ours = rows[slice_.shard]
            first, ids = _of(pushed, number)
            wanted_first, wanted_ids = _of(wanted, number)
            is_last = number + 1 == len(parts[1]) or parts[1][number + 1] is not slice_
            if not ids.size and not wanted_ids.size and not (everywhere and is_last and not ours):
                continue
            size = ids.size + wanted_ids.size
            ours.append(
                RowCargo(
                    slice=slice_,
                    ranges=(),
                    extents=(),
                    dtype=ROW_DTYPE,
                    nbytes=max(1, size * (self.spec.nbytes + 8)),
                    first=first,
                    pushed=ids,
                    wanted_first=wanted_first,
                    wanted=wanted_ids,
                    begins=bool(ids.size or everywhere) and not any(cargo.begins for cargo in ours),
                )
            )
        return tuple(map(tuple, rows))

    def whole(self, slice_: Slice) -> tuple[tuple[RowCargo, ...], ...]:
        """Return the request to one shard for its part in storage order."""
        cargo = RowCargo(slice=slice_, ranges=(), extents=(), dtype=ROW_DTYPE, nbytes=CHUNK_NBYTES)
        return tuple((cargo,) if shard == slice_.shard else () for shard in range(self._num_shards))


def _of(grouped: Grouped | None, part: int) -> tuple[int, Array]:
    if grouped is None:
        return 0, NO_IDS
    first, stop = grouped.offsets[part : part + 2].tolist()
    return first, grouped.ids[first:stop]


@dataclass(slots=True, eq=False, kw_only=True)
class RowSource(Source):
    """Gradients of rows, or values: float32 ``(n, dim)``, contiguous, one for each distinct id, grouped by message."""

    rows: Array = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def pieces(self, cargo: Cargo) -> list[Array]:
        """Return the payload of a cargo."""
        assert isinstance(cargo, RowCargo)
        return [self.rows[cargo.first : cargo.first + cargo.pushed.size].reshape(-1)]


@dataclass(slots=True, eq=False, kw_only=True)
class RowTarget(Target):
    """The target of rows: ``out`` is contiguous float32 ``(len(inverse), dim)``, ``inverse`` the row of each id."""

    inverse: Array = field(default_factory=lambda: NO_IDS)
    out: Array = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def size_of(self, cargo: Cargo) -> int:
        """Return the number of elements of a cargo."""
        assert isinstance(cargo, RowCargo)
        return int(cargo.wanted.size * self.out.shape[1])

    def places(self, cargo: Cargo) -> list[Array]:
        """Return nothing: rows are not stored in the order in which they arrive."""
        return []

    def land(self, cargoes: Sequence[Cargo], payload: Sequence[Buffer], versions: Sequence[int]) -> None:
        """Copy each row once to its place; none, but a `ProtocolError`, if the size is wrong."""
        [cargo] = cargoes
        assert isinstance(cargo, RowCargo)
        pieces = [array for _, _, array in scatter(payload, [(self.size_of(cargo), ROW_DTYPE)])]
        if pieces:
            rows = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            spread(rows.reshape(-1, self.out.shape[1]), cargo.wanted_first, self.inverse, self.out)
        self.landed(cargo, versions[0])


@dataclass(slots=True, eq=False, kw_only=True)
class ScanTarget(Target):
    """Rows in a server's storage order, from place ``start`` on, of at most ``most`` places.

    With ``since``, a cursor, only the changes since. Received: numbers by their names (`SCANNED`), ids and rows, and
    the ids of ``gone`` (removed) rows.
    """

    start: int = 0
    most: int = 0
    dim: int = 1
    since: tuple[int, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    ids: Array = field(default_factory=lambda: NO_IDS)
    rows: Array = field(default_factory=lambda: np.empty((0, 0), np.float32))
    gone: Array = field(default_factory=lambda: NO_IDS)

    @property
    def cursor(self) -> tuple[int, ...]:
        """The start of the scan, if this was its first answer."""
        return tuple([self.counters[name] for name in CURSOR])

    @property
    def next_start(self) -> int:
        """Where to continue; 0 at the end."""
        return self.counters["next"]

    def places(self, cargo: Cargo) -> list[Array]:
        """Return nothing: answers are kept as they are."""
        return []

    def land(self, cargoes: Sequence[Cargo], payload: Sequence[Buffer], versions: Sequence[int]) -> None:
        """Store an answer; `ProtocolError`: it is malformed."""
        [cargo] = cargoes
        whole = np.concatenate([np.empty(0, np.uint8), *(np.frombuffer(buffer, np.uint8) for buffer in payload)])
        head = whole[: 8 * len(SCANNED)]
        if head.size < 8 * len(SCANNED):
            raise ProtocolError("an answer to a scan begins with counters")
        counters = dict(zip(SCANNED, head.view("<u8").tolist(), strict=True))
        number, num_gone, rest = counters["count"], counters["gone"], whole[head.size :]
        end = number * (8 + ROW_DTYPE.itemsize * self.dim)
        if rest.size != end + 8 * num_gone:
            raise ProtocolError("an answer to a scan has other bytes than the rows that it tells of")
        self.counters = counters
        self.ids = rest[: 8 * number].view("<i8").astype(np.int64)
        self.rows = rest[8 * number : end].view(ROW_DTYPE).astype(np.float32).reshape(number, self.dim)
        self.gone = rest[end:].view("<i8").astype(np.int64)
        self.landed(cargo, versions[0])


def row_message(
    request: Request, epoch: int, versions: Sequence[int], encoded: Callable[[Request, Source], tuple[str, list[Array]]]
) -> PushRows | PullRows | ScanRows:
    """Return a request about one part of one table in wire form.

    ``epoch`` is of the copy of the shard, ``versions`` are those at which slices were last read, and ``encoded``
    returns the gradients of a request and their codec.
    """
    [cargo] = request.cargoes
    assert isinstance(cargo, RowCargo)
    transfer, index = request.transfer, cargo.slice.index
    target = transfer.target
    if isinstance(target, ScanTarget):
        return ScanRows(request.number, epoch, index, target.start, target.most, target.since)
    wanted = cargo.wanted if isinstance(target, RowTarget) else NO_IDS
    if isinstance(transfer, PullTransfer):
        codec = transfer.target.codec
        return PullRows(request.number, epoch, transfer.version, codec, index, wanted.size, [wanted])
    assert isinstance(transfer, PushTransfer)
    source = transfer.source
    codec, grads = encoded(request, source)
    reply, reply_codec = (0, RAW) if target is None else (1, target.codec)
    return PushRows(
        request.number, request.seq, epoch, transfer.step, transfer.attempt, transfer.examples,
        reply, int(source.checked), codec, reply_codec, transfer.terms, int(cargo.begins),
        index, versions[index], cargo.pushed.size, wanted.size, gather((cargo.pushed, wanted, *grads)),
    )  # fmt: skip
