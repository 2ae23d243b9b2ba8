"""What the tests of all codecs go through: a new codec needs a line of `CASES`, and nothing else here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from zmqps import codecs


@dataclass(frozen=True)
class Case:
    """A codec with some options, and what must be true of it.

    Parameters
    ----------
    spec
        Its text. Blocks are small, so that small arrays have several.
    error
        By how much decoded values may differ from these (float64, finite, up to `largest`); None: only a codec with
        error feedback has no such bound.
    largest
        Larger values may become this one.
    settled
        Whether what was decoded is encoded again without another loss.
    """

    spec: str
    error: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]] | None = None
    largest: float = float(np.finfo(np.float32).max)
    settled: bool = False

    @property
    def codec(self) -> codecs.Codec:
        return codecs.parse(self.spec)


def nothing(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the error of a codec that loses nothing."""
    return np.zeros_like(values)


def half_a_step(relative: float, absolute: float) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Return the error of a float: a part of the value, and near zero a fixed one."""
    return lambda values: np.maximum(relative * np.abs(values), absolute)


def of_the_largest(block: int, steps: float) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Return the error of codes from -127 to 127 of the largest value in each block."""

    def error(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        blocks = (values[start : start + block] for start in range(0, values.size, block))
        scales = [np.full(part.size, np.abs(part).max() / 127) for part in blocks]
        return np.concatenate([np.zeros(0), *scales]) * (steps + 1e-4) + 1.5e-36

    return error


#: Every codec, and options that change what it does.
CASES = [
    Case("raw", nothing, settled=True),
    Case("bf16", half_a_step(2.0**-8, 2.0**-134), settled=True),
    Case("fp16", half_a_step(2.0**-11, 2.0**-25), largest=65504.0, settled=True),
    Case("int8:block=16", of_the_largest(16, 0.5)),
    Case("int8:block=100,stochastic", of_the_largest(100, 1.0)),
    Case("topk:fraction=0.1"),
    Case("topk:fraction=1.0", nothing, settled=True),
    Case("onebit:block=24"),
    Case("onebit:block=101"),
    Case("twobit:block=24"),
    Case("twobit:block=101"),
]
SPECS = [case.spec for case in CASES]
LOSSY = [spec for spec in SPECS if spec != "raw"]
FEEDBACK = [case.spec for case in CASES if case.codec.error_feedback]
#: What values may travel in.
FOR_VALUES = [case.spec for case in CASES if not case.codec.error_feedback]
#: What claims to give the same bits on every device: each test with a device goes through these.
PORTABLE = [case.spec for case in CASES if case.codec.portable]
CHECKABLE = [case.spec for case in CASES if case.codec.checkable]
#: Every codec as its name alone makes it, and with each of its options that can be switched on.
AS_NAMED = [
    text
    for name, cls in codecs.CODECS.items()
    for text in (name, *(f"{name}:{option.name}" for option in fields(cls) if option.type in (bool, "bool")))
]
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
