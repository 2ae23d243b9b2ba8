"""The header of a safetensors file: read, and checked before anything is believed."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from zmqps.checkpoint.layout import DTYPES, MAX_HEADER_NBYTES, OFFSETS_KEY, SHARDING_KEY, blocks
from zmqps.checkpoint.manifest import FileFact, corrupt
from zmqps.checkpoint.storage import join
from zmqps.core.job.spec import Parameter

_LENGTH = struct.Struct("<Q")


class Piece(NamedTuple):
    """Where elements of an array are; sorted, they are in order."""

    start: int  # first element within the flattened array
    size: int
    file: str
    offset: int  # bytes from the file's start
    itemsize: int


class Header(NamedTuple):
    """What a file says of itself."""

    nbytes: int  # where its data begin
    entries: dict[str, Any]
    sharding: dict[str, Any]


def read_header(directory: str, fact: FileFact, read: Callable[[int, int], bytes]) -> Header:
    """Return the header of a file.

    Parameters
    ----------
    directory, fact
        Where it is, and what the manifest says of it.
    read
        Returns bytes from an offset.

    Raises
    ------
    CheckpointCorruptError
        It is not a file in the safetensors format.
    """
    path = join(directory, fact.name)
    try:
        [nbytes] = _LENGTH.unpack(read(0, _LENGTH.size))
        if nbytes > min(MAX_HEADER_NBYTES, fact.nbytes):
            raise ValueError("it is too long")
        entries = json.loads(read(_LENGTH.size, nbytes))
        metadata = entries.pop("__metadata__")
        sharding = json.loads(metadata[SHARDING_KEY])
        if not isinstance(sharding, dict) or set(sharding) != set(entries):
            raise ValueError("its sharding names other arrays")
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise corrupt(path, f"its header cannot be used ({error})") from error
    return Header(_LENGTH.size + nbytes, entries, sharding)


def pieces_of(
    path: str, header: Header, fact: FileFact, parameters: Mapping[str, Parameter]
) -> Iterator[tuple[str, Piece]]:
    """Yield name and place of each array in a file; raise `CheckpointCorruptError` where they cannot be true."""
    dtypes = {dtype: (DTYPES[dtype.name], dtype.itemsize) for dtype in {p.storage_dtype for p in parameters.values()}}
    for name, entry in header.entries.items():
        try:
            parameter = parameters[name]
            dtype, itemsize = dtypes[parameter.storage_dtype]
            shape, (begin, end) = entry["shape"], entry["data_offsets"]
            offsets = header.sharding[name][OFFSETS_KEY]
            start = _flat(parameter.shape, offsets)
            size = math.prod(shape)
            [block] = blocks(parameter.shape, start, start + size)
            if [list(block.offsets), list(block.shape)] != [offsets, shape] and size:
                raise ValueError("it is not contiguous")
            if entry["dtype"] != dtype:
                raise ValueError("another dtype")
            if end - begin != size * itemsize or not 0 <= begin <= end <= fact.nbytes - header.nbytes:
                raise ValueError("it is outside the file")
        except (ValueError, KeyError, TypeError, ArithmeticError) as error:
            raise corrupt(path, f"what its header says of {name[:80]!r} cannot be used ({error})") from error
        yield name, Piece(start, size, fact.name, header.nbytes + begin, itemsize)


def check_tiles(path: str, name: str, parameter: Parameter, pieces: Sequence[Piece]) -> None:
    """Raise `CheckpointCorruptError` unless pieces in order make up an array."""
    end = 0
    for piece in pieces:
        if piece.start != end:
            break
        end += piece.size
    if end != parameter.size:
        raise corrupt(path, f"elements of {name[:80]!r} from {end} on are missing")


def _flat(shape: Sequence[int], offsets: Sequence[int]) -> int:
    """Return the number of an element in the flattened array."""
    number = 0
    for extent, offset in zip(shape, offsets, strict=True):
        number = number * extent + offset
    return number
