"""What a checkpoint holds that is only what has changed since another one: some slices, each as a whole.

A shard's slices lie in one safetensors file, as arrays of one dimension named ``slice-<index>``, and
``optimizer.<slot>.slice-<index>`` for the slots. What it does not hold is in its *base*.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from zmqps.checkpoint.header import Header, Piece
from zmqps.checkpoint.layout import DTYPES, Extent, FileLayout, header_of, slot_entry
from zmqps.checkpoint.manifest import FileFact, corrupt
from zmqps.core.job.keyspace import Placement, Slice


def delta_file(shard: int) -> str:
    """Return the name of the file with a shard's slices."""
    return f"shard-{shard:05}-delta.safetensors"


def slice_entry(index: int, slot: str | None = None) -> str:
    """Return the name under which a slice is stored."""
    return f"slice-{index}" if slot is None else slot_entry(slot, f"slice-{index}")


class DeltaLayout:
    """Where the slices of a shard lie that have changed; as `ShardLayout` for all of them.

    Parameters
    ----------
    placement, index
        Of the job, and of the shard.
    slot_names
        Of the optimizer's slots, in order.
    only
        Numbers of the slices.
    """

    def __init__(self, placement: Placement, index: int, slot_names: Sequence[str], only: Collection[int]) -> None:
        self.num_arrays = 1 + len(slot_names)
        tables = placement.keyspace.tables
        slices = [placement.slices[index][number] for number in sorted(set(only))]
        entries: dict[str, Any] = {}
        end = 0
        self._places: dict[tuple[int, int, int], int] = {}
        for slice_ in sorted(slices, key=lambda s: -tables[s.table].dtype.itemsize):  # wide elements first: aligned
            dtype = tables[slice_.table].dtype
            for array, slot in enumerate((None, *slot_names)):
                nbytes = slice_.size * dtype.itemsize
                self._places[array, slice_.table, slice_.start] = end
                entries[slice_entry(slice_.index, slot)] = {
                    "dtype": DTYPES[dtype.name],
                    "shape": [slice_.size],
                    "data_offsets": [end, end + nbytes],
                }
                end += nbytes
        header = header_of(entries, {name: {"saved_offsets": [0]} for name in entries})
        self._begin = len(header)
        self.files = (FileLayout(delta_file(index), header, len(header) + end),)
        self.nbytes = len(header) + end

    def extents(self, array: int, table: int, start: int, stop: int) -> Iterator[Extent]:
        """Yield where a slice of a table lies."""
        yield Extent(0, self._begin + self._places[array, table, start], start, stop - start)


def held(path: str, header: Header, num_slices: int) -> list[int]:
    """Return the numbers of the slices in a file; raise `CheckpointCorruptError` where there are none such."""
    found = [name.removeprefix("slice-") for name in header.entries if name.startswith("slice-")]
    try:
        numbers = sorted(map(int, found))
        if numbers and not 0 <= numbers[0] <= numbers[-1] < num_slices:
            raise ValueError("there are not so many slices")
    except ValueError as error:
        raise corrupt(path, f"its header cannot be used ({error})") from error
    return numbers


def delta_pieces(
    path: str, header: Header, fact: FileFact, slices: Sequence[Slice], placement: Placement, slot_names: Sequence[str]
) -> Iterator[tuple[str, Piece]]:
    """Yield name and place of each array's part in a file of slices."""
    keyspace = placement.keyspace
    for number in held(path, header, len(slices)):
        slice_ = slices[number]
        dtype = keyspace.tables[slice_.table].dtype
        for slot in (None, *slot_names):
            try:
                entry = header.entries[slice_entry(number, slot)]
                begin, end = entry["data_offsets"]
                if (entry["dtype"], entry["shape"]) != (DTYPES[dtype.name], [slice_.size]):
                    raise ValueError("another dtype or size")
                if end - begin != slice_.size * dtype.itemsize or not 0 <= begin <= end <= fact.nbytes - header.nbytes:
                    raise ValueError("it lies outside the file")
            except (ValueError, KeyError, TypeError) as error:
                raise corrupt(path, f"what its header says of slice {number} cannot be used ({error})") from error
            for segment in slice_.segments:
                name = keyspace.parameters[segment.parameter].name
                offset = header.nbytes + begin + segment.position * dtype.itemsize
                piece = Piece(segment.start, segment.size, fact.name, offset, dtype.itemsize)
                yield name if slot is None else slot_entry(slot, name), piece


def overlaid(old: Sequence[Piece], new: Sequence[Piece]) -> list[Piece]:
    """Return the pieces of an array, those of ``new`` in place of what ``old`` has there; both in order."""
    ends = [piece.start + piece.size for piece in new]
    starts = [piece.start for piece in new]
    found = list(new)
    for piece in old:
        start, stop = piece.start, piece.start + piece.size
        for over in new[bisect_right(ends, start) : bisect_left(starts, stop)]:
            found += piece.part(start, over.start)
            start = max(start, over.start + over.size)
        found += piece.part(start, stop) if piece.size else [piece]
    return sorted(found, key=lambda piece: piece.start)


def merged(base: Mapping[str, Sequence[Piece]], changed: Mapping[str, Sequence[Piece]]) -> dict[str, list[Piece]]:
    """Return the pieces of all arrays, those that have changed in place of the base's."""
    return {
        name: overlaid(pieces, sorted(changed.get(name, ()), key=lambda p: p.start)) for name, pieces in base.items()
    }
