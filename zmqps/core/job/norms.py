"""The norm of a gradient in many pieces, and the scale that limits it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

#: The largest sum of squares in a message.
LARGEST = float(np.finfo(np.float64).max)
#: Elements whose products are summed in the array's own precision: few enough to lose nothing.
BLOCK_SIZE = 1 << 14
#: As in `torch.nn.utils.clip_grad_norm_`: avoids a division by zero.
EPSILON = 1e-6


def squares(array: Any) -> float:
    """Return the sum of the squares of a flat array, on this host or a device: `LARGEST` if that is not finite."""
    if not isinstance(array, np.ndarray):
        total = float((array.astype("float64") ** 2).sum())
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            blocks = [array[start : start + BLOCK_SIZE] for start in range(0, array.size, BLOCK_SIZE)]
            if array.dtype.itemsize < 4:
                blocks = [block.astype(np.float32) for block in blocks]
            total = math.fsum(float(np.dot(block, block)) for block in blocks) if blocks else 0.0
            if not math.isfinite(total) and array.dtype.itemsize < 8:  # float32 overflows where float64 does not
                total = sum(squares(block.astype(np.float64)) for block in blocks)
    return min(total, LARGEST) if total == total else LARGEST


def scale_to(clip_norm: float, total: float) -> float:
    """Return the factor that limits the norm of gradients with this sum of squares."""
    return min(1.0, clip_norm / (math.sqrt(total) + EPSILON))
