"""Kernels written as CUDA C, run by numpy: every statement of a body is also one of Python.

What kernels of rows call to reach the chunks of a table reads and writes this host's memory by its address.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def at_address(address: int, size: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_float * size).from_address(address))


def load(chunk: Array, at: Array) -> Array:
    out = np.empty(at.shape, np.float32)
    for address in np.unique(chunk):
        here = chunk == address
        out[here] = at_address(int(address), int(at[here].max()) + 1)[at[here]]
    return out


def store(chunk: Array, at: Array, x: Any) -> None:
    numbers = np.broadcast_to(x, at.shape)
    for address in np.unique(chunk):
        here = chunk == address
        at_address(int(address), int(at[here].max()) + 1)[at[here]] = numbers[here]


FUNCTIONS = {
    **{name: getattr(np, name) for name in ("minimum", "maximum", "sign", "where", "sqrt", "exp", "log", "fabs")},
    **{"float": np.float32, "double": np.float64, "load": load, "store": store, "quotient": np.floor_divide},
}


def elementwise(name: str, inputs: str, outputs: str, body: str, preamble: str) -> Callable[..., None]:
    """Return the kernel, as `zmqps.gpu.device.Device.elementwise` does."""
    assert name.isidentifier()
    declared = f"{inputs}, {outputs}".split(", ")
    names = [one.split()[-1] for one in declared]
    whole = {one.split()[-1] for one in declared if one.startswith("raw ")}
    first_output = len(inputs.split(", "))
    statements = re.sub(r"^const \w+ ", "", body, flags=re.MULTILINE).replace(";", "")

    def run(*arguments: Any, size: int | None = None) -> None:
        values = dict(zip(names, arguments, strict=True))
        sizes = {value.size for key, value in values.items() if isinstance(value, np.ndarray) and key not in whole}
        assert len(sizes) == (size is None), "all arrays that are not raw have one size, else it is said"
        [size] = sizes or {size}
        # an output is read before it is written, so these are what the kernel finds there
        local = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in values.items()}
        local["i"] = np.arange(size)
        exec(statements, dict(FUNCTIONS), local)
        for key in names[first_output:]:
            values[key][:] = local[key]

    return run
