"""Checksums of files that are written in no particular order and read in parts.

A file is divided into *chunks*, as it was written: the header, then what each slice has in it. Each chunk has its
XXH3-64, so that a reader of a part can check it. The checksum of the file is the XXH3-128 of its list of chunks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import xxhash

from zmqps.checkpoint.storage import Bytes

_CHUNK = struct.Struct("<QQQ")


class Chunk(NamedTuple):
    """A part of a file, and its checksum."""

    offset: int
    nbytes: int
    xxh3_64: str  # 16 hexadecimal digits


def chunk_of(offset: int, data: Bytes) -> Chunk:
    """Return the chunk that ``data`` makes at an offset of a file."""
    return Chunk(offset, memoryview(data).nbytes, xxhash.xxh3_64_hexdigest(data))


def of_bytes(data: Bytes) -> str:
    """Return the checksum of a file that is read as a whole: its XXH3-128."""
    return xxhash.xxh3_128_hexdigest(data)


def of_chunks(chunks: Sequence[Chunk]) -> str:
    """Return the checksum of a file of chunks.

    It is the XXH3-128 of offset, length and checksum of each chunk, in the order of their offsets, as three unsigned
    64-bit little-endian numbers. Raises ``ValueError`` if they are invalid.
    """
    digest = xxhash.xxh3_128()
    for chunk in chunks:
        try:
            digest.update(_CHUNK.pack(chunk.offset, chunk.nbytes, int(chunk.xxh3_64, 16)))
        except struct.error as error:
            raise ValueError(f"a chunk with other numbers: {error}") from None
    return digest.hexdigest()


def covered_nbytes(chunks: Sequence[Chunk]) -> int:
    """Return how many bytes from a file's start are covered by chunks in order, without holes or overlaps."""
    end = 0
    for chunk in chunks:
        if chunk.offset != end:
            break
        end += chunk.nbytes
    return end
