"""Kernels over elements: CUDA C around what is done for one of them, and calls of what a GPU makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

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


class Compiler(Protocol):
    """What a kernel needs of its GPU (`zmqps.gpu.device.CudaDevice`)."""

    xp: Any

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """What is raised by a GPU that fails."""

    def failure(self, error: Exception) -> Exception:
        """Return the error of a GPU that has failed."""

    def compiled(self, name: str, source: str) -> Callable[..., None]:
        """Return a function of CUDA C."""


class _Launch(NamedTuple):
    """A kernel compiled for what is an array and what a number in a call."""

    function: Any
    arrays: tuple[tuple[int, Parameter], ...]  # which arguments
    casts: tuple[tuple[int, type], ...]  # of which numbers


class Kernel:
    """A kernel over elements, compiled when it is first called.

    One of CuPy's own (`ElementwiseKernel`) took 1.1 to 1.4 times as long over large arrays of an H200.
    """

    def __init__(self, device: Compiler, name: str, inputs: str, outputs: str, body: str, preamble: str) -> None:
        self._device = device
        self._name = name
        self._parameters = parse(inputs, outputs)
        self._texts = body, preamble
        self._functions: dict[tuple[bool, ...], Any] = {}  # by which of the parameters are arrays
        self._launches: dict[tuple[type, ...], _Launch] = {}

    def __call__(self, *arguments: Any, size: int | None = None) -> None:
        types = tuple(map(type, arguments))
        try:
            function, arrays, casts = self._launches.get(types) or self._made(types)
            for at, (name, dtype, is_raw, _) in arrays:
                array = arguments[at]
                if array.dtype != dtype or not array.flags.c_contiguous:
                    raise TypeError(f"{name} is not an array of {dtype} without gaps")
                if not is_raw and array.size != size:
                    if size is not None:
                        raise TypeError(f"{name} has {array.size} elements, and not {size}")
                    size = array.size
            if size is None:
                raise TypeError(f"{self._name} needs the number of elements")
            if not size:
                return
            passed = [*arguments, np.int64(size)]
            for at, cast in casts:
                passed[at] = cast(passed[at])
            function((-(-size // BLOCK_SIZE), 1, 1), (BLOCK_SIZE, 1, 1), passed)
        except self._device.failures as error:
            raise self._device.failure(error) from error

    def _made(self, types: tuple[type, ...]) -> _Launch:
        are_arrays = tuple(issubclass(one, self._device.xp.ndarray) for one in types)
        kinds = list(enumerate(zip(self._parameters, types, are_arrays, strict=True)))
        function = self._functions.get(are_arrays)
        if function is None:
            text = source(self._name, self._parameters, are_arrays, *self._texts)
            function = self._functions[are_arrays] = self._device.compiled(self._name, text)
        arrays = tuple((at, parameter) for at, (parameter, _, is_array) in kinds if is_array)
        casts = tuple(
            (at, parameter.dtype.type)
            for at, (parameter, kind, is_array) in kinds
            if not is_array and kind is not parameter.dtype.type
        )
        launch = self._launches[types] = _Launch(function, arrays, casts)
        return launch
