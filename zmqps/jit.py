"""The one way zmqps compiles a loop: for one signature, without the interpreter lock, kept on disk.

Only modules named ``kernels`` use it, and `zmqps.optim.rows`. Numba is imported on the first call, so that
importing zmqps stays quick and a process that never computes never pays for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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

    try:
        return numba.njit([signature], nogil=True, error_model="numpy", cache=True)(loop)
    except (RuntimeError, OSError):  # no cache directory; one that is full or was made read-only
        return numba.njit([signature], nogil=True, error_model="numpy")(loop)


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
