"""What codecs of a few bits share: truth values packed eight to a byte, and sums of several blocks at the same time.

The order of additions makes the bits of a sum, so a loop over one block can only wait for one addition after the
other, three cycles each. Eight blocks side by side keep the processor busy.
"""

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


#: Blocks that are added up together. Bits of eight blocks always fill their bytes.
LANES = 8
#: Values of each that are added up in one go: all fit into the fastest cache.
TILE = 128


def add_up(tile: Any, sums: Any) -> None:
    """Add to each lane's sum its `TILE` values, one by one; they follow those of the lane before."""
    a, b, c, d, e, f, g, h = sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7]
    for i in range(TILE):
        a += tile[i]
        b += tile[TILE + i]
        c += tile[2 * TILE + i]
        d += tile[3 * TILE + i]
        e += tile[4 * TILE + i]
        f += tile[5 * TILE + i]
        g += tile[6 * TILE + i]
        h += tile[7 * TILE + i]
    sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7] = a, b, c, d, e, f, g, h
