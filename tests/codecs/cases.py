"""What the tests of all codecs go through."""

from __future__ import annotations

from typing import Any

import numpy as np

from zmqps import codecs

#: Every codec, and options that change what it does; blocks are small so that small arrays have several.
SPECS = [
    "raw",
    "bf16",
    "fp16",
    "int8:block=16",
    "int8:block=100,stochastic",
    "topk:fraction=0.1",
    "topk:fraction=1.0",
    "onebit:block=24",
    "onebit:block=101",
    "twobit:block=24",
    "twobit:block=101",
]
FEEDBACK = [spec for spec in SPECS if codecs.parse(spec).error_feedback]
BACKENDS: list[codecs.Backend] = ["numpy", "numba"]
DTYPES = ["float32", "float64"]
#: Nothing, one, primes, and each block size and byte of bits, one less and one more.
SIZES = [0, 1, 2, 7, 8, 9, 15, 16, 17, 23, 24, 25, 99, 100, 101, 102, 997, 4096]


def gradient(size: int, dtype: str = "float32", seed: int = 0) -> np.ndarray[Any, Any]:
    """Return values of many magnitudes, some of them zero, read-only as the caller's are."""
    rng = np.random.default_rng([seed, size])
    values = rng.standard_normal(size) * 10.0 ** rng.uniform(-6, 2, size) * (rng.random(size) < 0.9)
    array = values.astype(dtype)
    array.flags.writeable = False
    return array


#: Where rounding, saturation and special cases are decided, as float32.
EDGES = np.array(
    [
        *(0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan, 3.4028235e38, -3.4028235e38, 3.38e38, 3.3953139e38),
        *(65504.0, 65519.996, 65520.0, -65520.0, 1e6, 2.0**-14, 2.0**-14 * (1 - 2.0**-12), 2.0**-24, 2.0**-25),
        *(2.0**-25 * 1.0001, 3 * 2.0**-25, 2.0**-26, 1.1754944e-38, 1e-40, 1e-45, 1.00390625, 1.01171875, 1.0 + 2**-11),
        *(1.0 + 3 * 2**-11, 2.0**-133, 2.0**-134, 3 * 2.0**-134, 1.4e-36, 1.5e-36, 127.0, 126.5, 0.5, 1.5),
    ],
    np.float32,
)
