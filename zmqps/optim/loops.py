"""The loops numba compiles: one for each count of slots, with the equation left open.

`kernels` makes copies of these functions, with an `update` and a `gradient` of their own. `p` and `q`
are the scalars of the two, which every element shares. Each loop is written twice, because a compiler that cannot know
whether `w` and `out` are the same memory would not vectorise the case where they are.
"""

from __future__ import annotations

from typing import Any


def update(w: Any, g: Any, *slots_and_scalars: Any) -> tuple[Any, ...]:
    """Stand for a rule's equation."""
    raise NotImplementedError


def gradient(w: Any, g: Any, *scalars: Any) -> Any:
    """Stand for what a rule does to the gradient first."""
    raise NotImplementedError


def loop_0(w: Any, g: Any, out: Any, p: Any, q: Any) -> None:
    if w.ctypes.data == out.ctypes.data:
        for i in range(out.size):
            (out[i],) = update(out[i], gradient(out[i], g[i], *p), *q)
    else:
        for i in range(out.size):
            (out[i],) = update(w[i], gradient(w[i], g[i], *p), *q)


def loop_1(w: Any, g: Any, out: Any, a: Any, p: Any, q: Any) -> None:
    if w.ctypes.data == out.ctypes.data:
        for i in range(out.size):
            out[i], a[i] = update(out[i], gradient(out[i], g[i], *p), a[i], *q)
    else:
        for i in range(out.size):
            out[i], a[i] = update(w[i], gradient(w[i], g[i], *p), a[i], *q)


def loop_2(w: Any, g: Any, out: Any, a: Any, b: Any, p: Any, q: Any) -> None:
    if w.ctypes.data == out.ctypes.data:
        for i in range(out.size):
            out[i], a[i], b[i] = update(out[i], gradient(out[i], g[i], *p), a[i], b[i], *q)
    else:
        for i in range(out.size):
            out[i], a[i], b[i] = update(w[i], gradient(w[i], g[i], *p), a[i], b[i], *q)


def loop_3(w: Any, g: Any, out: Any, a: Any, b: Any, c: Any, p: Any, q: Any) -> None:
    if w.ctypes.data == out.ctypes.data:
        for i in range(out.size):
            out[i], a[i], b[i], c[i] = update(out[i], gradient(out[i], g[i], *p), a[i], b[i], c[i], *q)
    else:
        for i in range(out.size):
            out[i], a[i], b[i], c[i] = update(w[i], gradient(w[i], g[i], *p), a[i], b[i], c[i], *q)


BY_SLOTS = (loop_0, loop_1, loop_2, loop_3)


def finite(bits: Any, exponent: Any) -> bool:
    bad = False
    for i in range(bits.size):  # to the end, because a loop that may stop early is not vectorised
        bad |= (bits[i] & exponent) == exponent
    return not bad
