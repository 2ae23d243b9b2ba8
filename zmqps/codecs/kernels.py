"""A codec's inner loop, twice: for numba, and in numpy as the reference the tests compare it with.

The reference takes the namespace it computes in: with CuPy's it runs on a GPU.

Every loop is compiled for one signature a dtype. Its arrays may be unaligned, and those it only reads
may be read-only, so a received frame needs neither a copy nor a second compilation. No loop may
reorder floating-point sums: what the two ways compute is the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Literal, Protocol

import numpy as np

from ..jit import callable_in_loops, compiled

Backend = Literal["numba", "numpy"]

#: In a kernel's types, the dtype of the values: float32 or float64.
VALUES = "values"

#: Values that a thread gets of an array, at least: fewer are encoded sooner than another thread has woken.
MIN_SPAN = 1 << 16


class Spread(Protocol):
    """Does several things, each by itself, perhaps at the same time.

    Attributes
    ----------
    width
        How many at once.
    """

    width: int

    def __call__(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return what each has returned, in their order, when all have ended; raise what one of them has raised."""


class Alone:
    """One after the other, in the thread that asks."""

    width = 1

    def __call__(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Do all."""
        return [task() for task in tasks]


ALONE = Alone()


def spans(size: int, unit: int, spread: Spread, backend: Backend | ModuleType) -> list[slice]:
    """Return parts of an array for as many threads, each from a multiple of `unit` on; at least one part.

    Compiled loops alone run at the same time: numpy's would only take turns.
    """
    number = max(1, min(spread.width, size // max(MIN_SPAN, unit))) if backend == "numba" else 1
    step = -(-size // (number * unit)) * unit or 1
    return [slice(start, min(start + step, size)) for start in range(0, max(size, 1), step)]


def namespace(backend: Backend | ModuleType) -> Any:
    """Return the namespace of the arrays that a backend works on."""
    return np if isinstance(backend, str) else backend


class CodecKernel:
    """One loop over arrays.

    Parameters
    ----------
    loop : function
        What numba compiles: plain loops over ``(*reads, *writes, *scalars)``.
    reference : function
        The same on whole arrays, with the same arguments and result; before them the namespace, ``numpy``
        or one with its functions.
    reads, writes : tuple of str
        Dtypes of the arrays it reads only, and of those it writes; ``VALUES`` or numpy's short names.
    scalars : tuple of str, optional
        Dtypes of its numbers.
    returns : str, optional
        Dtype of its result.
    calls : tuple of functions, optional
        What the loop calls.
    """

    def __init__(
        self,
        loop: Callable[..., Any],
        reference: Callable[..., Any],
        *,
        reads: tuple[str, ...],
        writes: tuple[str, ...],
        scalars: tuple[str, ...] = (),
        returns: str | None = None,
        calls: tuple[Callable[..., Any], ...] = (),
    ) -> None:
        self.reference = reference
        self._loop = loop
        self._reads = reads
        self.writes = writes
        self._scalars = scalars
        self._returns = returns
        self._calls = calls
        self._compiled: dict[np.dtype[Any], Callable[..., Any]] = {}

    def __call__(self, backend: Backend | ModuleType, dtype: np.dtype[Any], *arguments: Any) -> Any:
        """Run the loop for values of `dtype`."""
        if backend != "numba":
            with np.errstate(all="ignore"):  # compiled code does not warn either
                return self.reference(namespace(backend), *arguments)
        loop = self._compiled.get(dtype)
        if loop is None:
            for function in self._calls:
                callable_in_loops(function)
            loop = self._compiled[dtype] = compiled(self._loop, self._signature(dtype))
        return loop(*arguments)

    def _signature(self, dtype: np.dtype[Any]) -> Any:
        import numba
        from numba import types

        def scalar(name: str) -> Any:
            return numba.from_dtype(dtype if name == VALUES else np.dtype(name))

        reads = [types.Array(scalar(name), 1, "C", readonly=True, aligned=False) for name in self._reads]
        writes = [types.Array(scalar(name), 1, "C", aligned=False) for name in self.writes]
        result = types.void if self._returns is None else scalar(self._returns)
        return result(*reads, *writes, *(scalar(name) for name in self._scalars))
