"""How much memory a header takes once it is decoded, told from its bytes before that is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: First byte of a msgpack object -> bytes that it takes at most once it is decoded, for those that take much of little.
_COSTS = np.zeros(256, np.uint8)
_COSTS[0x80:0x90] = 240  # a map; one of many entries takes less for each than they have bytes
_COSTS[0x90:0xA0] = 72  # a list
_COSTS[0xDC:0xDE] = 72  # the same with lengths of their own
_COSTS[0xDE:0xE0] = 240
_COSTS[0xE0:] = 36  # a negative integer


def decoded_nbytes(header: Buffer) -> int:
    """Return how much memory a header takes at most once it is decoded.

    Bytes inside of strings and numbers are counted as well: too many rather than too few.
    """
    return int(_COSTS[np.frombuffer(header, np.uint8)].sum(dtype=np.uint64))
