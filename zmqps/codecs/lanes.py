"""Sums of several blocks at the same time: each adds its values one by one, and no addition waits for another block's.

The order of additions makes the bits of a sum, so a loop over one block can only wait for one addition after the
other, three cycles each. Eight blocks side by side keep the processor busy.
"""

from __future__ import annotations

from typing import Any

#: Blocks that are added up together. Bits of so many blocks always fill their bytes.
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
