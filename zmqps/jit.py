"""The one way zmqps compiles a loop: for one signature, without the interpreter lock, cached on disk.

Only modules named ``kernels`` use it, and `zmqps.optim.rows`. Numba is imported on the first call, so that
importing zmqps stays quick and a process that never computes never pays for it. What loops may ask the processor for
beyond Python is here as well.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

#: How many rows before it is needed a loop over scattered rows asks for one: at 10 ns to compute a row, memory that
#: answers in 100 ns has done so by then.
AHEAD = 8
#: Of a row that is longer the processor loads the rest by itself once the first elements are read.
MOST_ELEMENTS = 128
_LINE_ELEMENTS = 16  # of float32, which a cache line has


def prefetch(array: Any, row: Any) -> None:
    """Ask for a row of an array, or for an element, that is needed soon; does nothing where nothing is compiled."""


def prefetch_to_write(array: Any, element: Any) -> None:
    """Ask for an element of an array that is written to soon; the element may be beyond the array's end."""


def compiled(loop: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """Compile a loop for one signature, or load it from disk; only compile it where no directory can be written.

    Parameters
    ----------
    loop : function
        Numba files it by source file and name.
    signature : numba signature

    Raises
    ------
    numba.errors.NumbaError
        The loop cannot be compiled.
    """
    import numba
    from numba.core.caching import FunctionCache
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock:  # a server's shards are made in several threads
        _teach_prefetch()
    how: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    with suppress(RuntimeError, OSError):  # no cache directory; one that is full or was made read-only
        try:
            return numba.njit([signature], cache=True, **how)(loop)
        except (ImportError, AttributeError):  # kept by another version, for functions that have other modules now
            FunctionCache(loop).flush()  # type: ignore[no-untyped-call]
            return numba.njit([signature], cache=True, **how)(loop)
    return numba.njit([signature], **how)(loop)


def inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let compiled loops have a function inside; nothing else may call it.

    That it has no wrappers for Python and C saves a tenth of the time that a loop takes to compile, a third of one over
    rows.

    Parameters
    ----------
    function : function
    """
    import numba

    unwrapped: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # which its types leave out
    made: Callable[..., Any] = numba.njit(error_model="numpy", **unwrapped)(function)
    return made


@cache
def callable_in_loops(function: Callable[..., Any]) -> None:
    """Let compiled loops call a function, which is compiled into each; Python may continue to call it as well.

    Numba caches a loop by its own source only: after a change of such a function, touch the loops that call it.
    """
    from numba.extending import register_jitable

    register_jitable(function)


@cache
def _teach_prefetch() -> None:
    """Let numba know what `prefetch` is in compiled code: the processor's instruction for it."""
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic, overload

    ir = cgutils.ir  # type: ignore[attr-defined]
    number, pointer = ir.IntType(32), ir.IntType(8).as_pointer()

    def asking(writes: int) -> Any:
        def line(context: Any, array: Any, row: Any, element: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                found = context.make_array(signature.args[0])(context, builder, arguments[0])
                strides = cgutils.unpack_tuple(builder, found.strides)  # type: ignore[no-untyped-call]
                offset = builder.mul(arguments[1], strides[0])
                if len(strides) == 2:
                    offset = builder.add(offset, builder.mul(arguments[2], strides[1]))
                kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
                instruction = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
                place = builder.gep(builder.bitcast(found.data, pointer), [offset])
                builder.call(instruction, [place, number(writes), number(3), number(1)])  # into all caches, data
                return context.get_dummy_value()

            return types.void(array, types.int64, types.int64), generate

        return intrinsic(line)

    load_line, own_line = asking(writes=0), asking(writes=1)

    @overload(prefetch)
    def compile_prefetch(array: Any, row: Any) -> Any:
        def of_rows(array: Any, row: Any) -> None:
            for element in range(0, min(array.shape[1], MOST_ELEMENTS), _LINE_ELEMENTS):
                load_line(array, row, element)

        def of_elements(array: Any, row: Any) -> None:
            load_line(array, row, 0)

        return of_rows if array.ndim == 2 else of_elements

    @overload(prefetch_to_write)
    def compile_prefetch_to_write(array: Any, element: Any) -> Any:
        def of_elements(array: Any, element: Any) -> None:
            own_line(array, element, 0)

        return of_elements
