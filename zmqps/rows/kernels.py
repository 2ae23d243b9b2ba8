"""The loops of `loops`, compiled when they are first needed: the one door of this room to numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from zmqps.jit import compiled
from zmqps.rows import loops

#: Of each loop its arguments, and what it returns. Arrays: i of int64, h of uint64, x of uint32, b of uint8, f of
#: float32 and d of float64, of two dimensions; B and X the same of uint8 and uint32; r and R of float32 and uint32 that
#: were received, read-only and maybe unaligned. Numbers: n, u, w, g, e of int64, uint32, uint64, float32, float64.
SIGNATURES: dict[Callable[..., Any], tuple[str, str]] = {
    loops.mix: ("iwh", ""),
    loops.find: ("ihxii", "n"),
    loops.insert: ("ihxibxuinibi", "?"),
    loops.place: ("xhx", "n"),
    loops.erase: ("ihxi", ""),
    loops.mark: ("ixu", ""),
    loops.copy: ("iff", ""),
    loops.fill: ("iifwneeee", ""),
    loops.group: ("hiwxiii", "n"),
    loops.order: ("iiiiiiii", ""),
    loops.add: ("rRibfX", "?"),
    loops.spread: ("rnif", ""),
    loops.accumulate: ("ried", ""),
    loops.put: ("iiff", ""),
    loops.mend: ("iifgf", ""),
    loops.touch: ("hBb", ""),
    loops.sweep: ("bbni", "n"),
}


def warm_up() -> None:
    """Compile all loops, or load them, so that the first rows need not wait for it."""
    for loop in SIGNATURES:
        kernel(loop)


@cache
def kernel(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loop as compiled code, which runs without the interpreter lock."""
    import numba
    from numba import types

    kinds = {
        "i": numba.int64[::1],
        "h": numba.uint64[::1],
        "x": numba.uint32[::1],
        "b": numba.uint8[::1],
        "B": numba.uint8[:, ::1],
        "f": numba.float32[:, ::1],
        "X": numba.uint32[:, ::1],
        "d": numba.float64[:, ::1],
        "r": types.Array(numba.float32, 2, "C", readonly=True, aligned=False),
        "R": types.Array(numba.uint32, 2, "C", readonly=True, aligned=False),
        "n": numba.int64,
        "u": numba.uint32,
        "w": numba.uint64,
        "g": numba.float32,
        "e": numba.float64,
        "?": numba.boolean,
        "": numba.void,
    }
    letters, result = SIGNATURES[loop]
    return compiled(loop, kinds[result](*(kinds[letter] for letter in letters)))
