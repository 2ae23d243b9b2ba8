"""Truth values packed eight to a byte, the first in the lowest bit."""

from __future__ import annotations

import numpy as np

from ..errors import ProtocolError
from .base import Bytes


def num_octets(size: int) -> int:
    """Return how many bytes hold that many bits."""
    return -(-size // 8)


def pack(flags: Bytes) -> Bytes:
    """Return the bits of an array of zeros and ones."""
    return np.packbits(flags, bitorder="little")


def unpack(octets: Bytes, size: int) -> Bytes:
    """Return zeros and ones, `size` of them.

    Raises
    ------
    ProtocolError
        A bit behind the last one is set.
    """
    if size % 8 and octets[-1] >> (size % 8):
        raise ProtocolError(f"a blob of {size} bits has more of them set in its last byte")
    return np.unpackbits(octets, count=size, bitorder="little")
