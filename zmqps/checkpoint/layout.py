"""Where each element of a shard is in its files, known before the first byte is written.

The files are in the safetensors format, with the header by which `torch.distributed.checkpoint` finds the pieces of
a tensor spread over several files. Each piece is a *block*: a rectangle of the tensor. What a shard holds of a
parameter is an interval of its flattened elements, which is a block if it was cut between rows, and several blocks if
it was not. A file cannot hold two pieces of one name, so the second block of each parameter goes to a second file.
"""

from __future__ import annotations

import json
import math
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from zmqps.core.job.keyspace import Placement, Table
from zmqps.errors import ConfigurationError

#: How safetensors writes the storage dtypes.
DTYPES = {
    **{"float32": "F32", "float64": "F64", "bool": "BOOL"},
    **{f"{kind}int{bits}": f"{letter}{bits}" for kind, letter in (("", "I"), ("u", "U")) for bits in (8, 16, 32, 64)},
}
#: What `torch.distributed.checkpoint` looks for in the header.
SHARDING_KEY, OFFSETS_KEY = "DCP_SHARDING_INFO", "saved_offsets"
#: What the safetensors library reads at most; it parses the header as a whole.
MAX_HEADER_NBYTES = 100_000_000
#: So that mapped values are aligned for vector loads.
HEADER_ALIGNMENT_NBYTES = 64


class Block(NamedTuple):
    """A rectangle of a parameter whose elements are contiguous."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    start: int  # first element within the flattened parameter

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Extent(NamedTuple):
    """Contiguous elements of a file."""

    file: int
    offset: int  # bytes from the file's start
    start: int  # first element within the table
    size: int  # elements


def blocks(shape: tuple[int, ...], start: int, stop: int) -> list[Block]:
    """Return the fewest rectangles that make up elements ``[start, stop)`` of a flattened tensor, in order."""
    if start == stop and math.prod(shape) > 0:
        return []
    if not shape or (start, stop) == (0, math.prod(shape)):
        return [Block((0,) * len(shape), shape, start)]
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # whole rows
    found = []
    if first > last:  # both ends inside one row
        return _in_row(shape, last, start, stop)
    if start < first * row:
        found += _in_row(shape, first - 1, start, first * row)
    if first < last:
        found.append(Block((first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:]), first * row))
    if last * row < stop:
        found += _in_row(shape, last, last * row, stop)
    return found


def _in_row(shape: tuple[int, ...], number: int, start: int, stop: int) -> list[Block]:
    row = math.prod(shape[1:])
    inner = blocks(shape[1:], start - number * row, stop - number * row)
    return [Block((number, *b.offsets), (1, *b.shape), number * row + b.start) for b in inner]


def slot_entry(slot: str, name: str) -> str:
    """Return the name under which an optimizer slot of a parameter is stored."""
    return f"optimizer.{slot}.{name}"


def data_file(shard: int, number: int, count: int) -> str:
    """Return the name of a shard's ``number``-th file of ``count``, from 0; PyTorch counts the files from 1."""
    return f"shard-{shard:05}-model-{number + 1:05}-of-{count:05}.safetensors"


def state_file(shard: int) -> str:
    """Return the name of the file with the state of a shard besides its arrays."""
    return f"shard-{shard:05}-state.json"


def check_names(names: Sequence[str], slot_names: Sequence[str]) -> None:
    """Raise `ConfigurationError` where two arrays would have one name in a file."""
    entries = {slot_entry(slot, name) for slot in slot_names for name in names}
    for name in names:
        if name in entries or name == "__metadata__":
            raise ConfigurationError(
                f"a parameter named {name!r} cannot be saved: a checkpoint uses that name for something else; "
                "rename the parameter"
            )


@dataclass(frozen=True)
class FileLayout:
    """One file: its name, how it begins, and how long it is."""

    name: str
    header: bytes
    nbytes: int


class _Piece(NamedTuple):
    """A rectangle of a parameter: which one, where it begins in the shard, and in which file it is."""

    name: str
    origin: int
    file: int
    block: Block


def _pieces(placement: Placement, index: int, number: int, table: Table) -> list[_Piece]:
    """Return what a shard has of a table; the first shard, also parameters without elements, which are in no file."""
    keyspace, cuts = placement.keyspace, placement.cuts[number]
    pieces = []
    for part in keyspace.segments(number, cuts[index], cuts[index + 1]):
        parameter, origin = keyspace.parameters[part.parameter], cuts[index] + part.position - part.start
        found = blocks(parameter.shape, part.start, part.start + part.size)
        pieces += [_Piece(parameter.name, origin, nth, block) for nth, block in enumerate(found)]
    if index == 0:
        empty = [keyspace.parameters[i] for i in table.parameters if not keyspace.parameters[i].size]
        pieces += [_Piece(p.name, 0, 0, Block((0,) * len(p.shape), p.shape, 0)) for p in empty]
    return pieces


class _Contents:
    """What the files of a shard hold, array behind array."""

    def __init__(self) -> None:
        self.nbytes: list[int] = []  # of data, by file
        self._entries: list[dict[str, Any]] = []
        self._sharding: list[dict[str, Any]] = []

    def put(self, file: int, name: str, dtype: str, itemsize: int, shape: Sequence[int], offsets: Sequence[int]) -> int:
        """Append an array to a file's layout; return where its bytes begin."""
        self._open(file + 1)
        begin = self.nbytes[file]
        self.nbytes[file] = end = begin + math.prod(shape) * itemsize
        self._entries[file][name] = {"dtype": dtype, "shape": shape, "data_offsets": (begin, end)}
        self._sharding[file][name] = {OFFSETS_KEY: offsets}
        return begin

    def headers(self) -> list[bytes]:
        """Return how each file begins; a shard that nothing was left for has one, which says so."""
        self._open(1)
        return [header_of(e, s) for e, s in zip(self._entries, self._sharding, strict=True)]

    def _open(self, count: int) -> None:
        while len(self.nbytes) < count:
            self.nbytes.append(0)
            self._entries.append({})
            self._sharding.append({})


class ShardLayout:
    """Where the elements of a shard are in its files.

    Parameters
    ----------
    placement
        Of the job.
    index
        Of the shard.
    slot_names
        Of the optimizer's slots, in order.
    rows
        Of sparse tables, at the end of the first file: how many rows, of how many elements.

    Attributes
    ----------
    rows_at : dict of str to (int, int)
        Where the ids and the values of a table begin in that file, in bytes.

    Raises
    ------
    ConfigurationError
        A parameter has a name that cannot be stored.
    """

    def __init__(
        self,
        placement: Placement,
        index: int,
        slot_names: Sequence[str],
        rows: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        keyspace = placement.keyspace
        self.num_arrays = 1 + len(slot_names)
        check_names([p.name for p in keyspace.parameters], slot_names)
        contents = _Contents()
        placed: dict[tuple[int, int], list[Extent]] = {}
        # wide elements first, so that each array is aligned to its own
        for number, table in sorted(enumerate(keyspace.dense), key=lambda entry: -entry[1].dtype.itemsize):
            pieces = _pieces(placement, index, number, table)
            dtype, itemsize = DTYPES[table.dtype.name], table.dtype.itemsize
            for array in range(self.num_arrays):
                extents = placed.setdefault((array, number), [])
                for piece in pieces:
                    name = slot_entry(slot_names[array - 1], piece.name) if array else piece.name
                    begin = contents.put(piece.file, name, dtype, itemsize, piece.block.shape, piece.block.offsets)
                    if piece.block.size:
                        start = piece.origin + piece.block.start
                        _append(extents, Extent(piece.file, begin, start, piece.block.size), itemsize)
        places = {}
        for name, (num_rows, dim) in (rows or {}).items():
            ids = contents.put(0, f"{name}.ids", "I64", 8, (num_rows,), (0,))
            places[name] = ids, contents.put(0, f"{name}.values", "F32", 4, (num_rows, dim), (0, 0))
        headers = contents.headers()
        self.files = tuple(
            FileLayout(data_file(index, number, len(headers)), header, len(header) + contents.nbytes[number])
            for number, header in enumerate(headers)
        )
        self.rows_at = {name: (ids + len(headers[0]), data + len(headers[0])) for name, (ids, data) in places.items()}
        self._itemsizes = [table.dtype.itemsize for table in keyspace.tables]
        self._extents = {
            where: [e._replace(offset=e.offset + len(headers[e.file])) for e in found]
            for where, found in placed.items()
        }
        self._starts = {where: [e.start for e in found] for where, found in self._extents.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)

    def extents(self, array: int, table: int, start: int, stop: int) -> Iterator[Extent]:
        """Yield where elements ``[start, stop)`` of a table are: of the values (0), or of a slot (from 1)."""
        extents, starts = self._extents[array, table], self._starts[array, table]
        for extent in extents[max(0, bisect_right(starts, start) - 1) :]:
            lo, hi = max(start, extent.start), min(stop, extent.start + extent.size)
            if extent.start >= stop:
                return
            if lo < hi:
                skipped = (lo - extent.start) * self._itemsizes[table]
                yield Extent(extent.file, extent.offset + skipped, lo, hi - lo)


def _append(extents: list[Extent], extent: Extent, itemsize: int) -> None:
    """Append an extent, or lengthen the last one if it continues there in table and file."""
    if extents:
        file, offset, start, size = extents[-1]
        if file == extent.file and start + size == extent.start and offset + size * itemsize == extent.offset:
            extents[-1] = Extent(file, offset, start, size + extent.size)
            return
    extents.append(extent)


def header_of(entries: dict[str, Any], sharding: dict[str, Any], facts: Mapping[str, str] | None = None) -> bytes:
    """Return how a file with these arrays begins: the length of its header, and that; ``facts`` are more metadata."""
    metadata = {"DCP_VERSION": "1.0", SHARDING_KEY: json.dumps(sharding, separators=(",", ":")), "format": "pt"}
    metadata |= facts or {}
    text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % HEADER_ALIGNMENT_NBYTES)
    if len(text) > MAX_HEADER_NBYTES:
        raise ConfigurationError(
            f"the names of a shard's parameters take {len(text):,} bytes in a checkpoint, and at most "
            f"{MAX_HEADER_NBYTES:,} can be read; spread the job over more servers"
        )
    return struct.pack("<Q", len(text)) + text
