"""CUDA C around what a kernel does for one element; pure text, which a device compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from zmqps.optim import fused

#: numpy's dtype -> the type of CUDA C.
TYPES = {**fused.TYPES, "int64": "long long", "uint64": "unsigned long long"}
#: How many elements a block of threads does; each thread does one.
BLOCK_SIZE = 256


class Parameter(NamedTuple):
    """One of a kernel's."""

    name: str
    dtype: np.dtype[Any]
    is_raw: bool  # it is all of an array, not an element
    is_output: bool


def parse(inputs: str, outputs: str) -> tuple[Parameter, ...]:
    """Return the parameters that two lists name, as `zmqps.gpu.device.Device.elementwise` takes them."""
    found = []
    for text, is_output in ((inputs, False), (outputs, True)):
        for one in text.split(", "):
            *raw, dtype, name = one.split()
            found.append(Parameter(name, np.dtype(dtype), raw == ["raw"], is_output))
    return tuple(found)


def source(name: str, parameters: Sequence[Parameter], are_arrays: Sequence[bool], body: str, preamble: str) -> str:
    """Return a kernel; its last parameter is how many elements there are.

    Parameters
    ----------
    name
        Of the function.
    parameters
        As `parse` returns them.
    are_arrays
        Whether each is an array in this call; else it is a number.
    body, preamble
        As `zmqps.gpu.device.Device.elementwise` takes them.
    """
    declared, elements = [], []
    for parameter, is_array in zip(parameters, are_arrays, strict=True):
        ctype = TYPES[parameter.dtype.name] if parameter.is_output else f"const {TYPES[parameter.dtype.name]}"
        if not is_array or parameter.is_raw:
            declared.append(f"{ctype}{' *' if is_array else ' '}{parameter.name}")
            continue
        declared.append(f"{ctype} *all_{parameter.name}")
        elements.append(f"{ctype} {'&' * parameter.is_output}{parameter.name} = all_{parameter.name}[i];")
    lines = "\n".join(f"    {line}" for line in [*elements, *body.splitlines()])
    return f"""{preamble}
extern "C" __global__ void {name}({", ".join([*declared, "const ptrdiff_t num_elements"])}) {{
  const ptrdiff_t i = (ptrdiff_t)blockIdx.x * {BLOCK_SIZE} + threadIdx.x;
  if (i < num_elements) {{
{lines}
  }}
}}
"""
