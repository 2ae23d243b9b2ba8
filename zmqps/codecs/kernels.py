"""A codec's inner loop, twice: for numba, and in numpy as the reference the tests compare it with.

The reference takes the namespace it computes in: with CuPy's it runs on a GPU.

Every loop is compiled for one signature a dtype. Its arrays may be unaligned, and those it only reads
may be read-only, so a received frame needs neither a copy nor a second compilation. No loop may
reorder floating-point sums: what the two ways compute is the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

import numpy as np

from ..jit import compiled

Backend = Literal["numba", "numpy"]

#: Stands, among a kernel's types, for the dtype of the values: float32 or float64.
VALUES = "values"


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
        The same on whole arrays, with the same arguments and result; before them the namespace, `numpy`
        or one with its functions.
    reads, writes : tuple of str
        Dtypes of the arrays it reads only, and of those it writes; `VALUES` or numpy's short names.
    scalars : tuple of str, optional
        Dtypes of its numbers.
    returns : str, optional
        Dtype of its result.
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
    ) -> None:
        self.reference = reference
        self._loop = loop
        self._reads = reads
        self._writes = writes
        self._scalars = scalars
        self._returns = returns
        self._compiled: dict[np.dtype[Any], Callable[..., Any]] = {}

    def __call__(self, backend: Backend | ModuleType, dtype: np.dtype[Any], *arguments: Any) -> Any:
        """Run the loop for values of `dtype`."""
        if backend != "numba":
            with np.errstate(all="ignore"):  # compiled code does not warn either
                return self.reference(namespace(backend), *arguments)
        loop = self._compiled.get(dtype)
        if loop is None:
            loop = self._compiled[dtype] = compiled(self._loop, self._signature(dtype))
        return loop(*arguments)

    def _signature(self, dtype: np.dtype[Any]) -> Any:
        import numba
        from numba import types

        def scalar(name: str) -> Any:
            return numba.from_dtype(dtype if name == VALUES else np.dtype(name))

        reads = [types.Array(scalar(name), 1, "C", readonly=True, aligned=False) for name in self._reads]
        writes = [types.Array(scalar(name), 1, "C", aligned=False) for name in self._writes]
        result = types.void if self._returns is None else scalar(self._returns)
        return result(*reads, *writes, *(scalar(name) for name in self._scalars))
