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
