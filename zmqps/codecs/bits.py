"""Truth values packed eight to a byte, the first in the lowest bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ProtocolError
from .base import Bytes

#: Moves the lowest bit of byte k to bit 56 + k: no two products of its bits meet in one place.
TO_THE_TOP = np.uint64(0x0102040810204080)


def num_octets(size: int) -> int:
    """Return how many bytes hold that many bits."""
    return -(-size // 8)


def pack_loop(flags: Any, octets: Any) -> None:
    """Write the bits of zeros and ones, eight for each octet; for compiled loops.

    Eight of them are one integer, whose product with `TO_THE_TOP` has them side by side in its highest byte.
    """
    words = flags.view(np.uint64)
    for i in range(octets.size):
        octets[i] = np.uint8((words[i] * TO_THE_TOP) >> np.uint64(56))


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
