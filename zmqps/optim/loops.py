"""The loops numba compiles: one for each count of slots, with the equation left open.

`kernels` makes copies of these functions, each with its own `update` and `gradient`. `p` and `q`
are the scalars of the two, which every element shares. Each loop is written twice, because a compiler that cannot know
whether `w` and `out` are the same memory would not vectorise the case where they are.
"""

from __future__ import annotations

from typing import Any

from ..jit import prefetch, prefetch_to_write

#: Elements of a block of a copy, and how far ahead of it memory is asked for: two kilobytes of float64.
BLOCK, AHEAD = 64, 256


def update(w: Any, g: Any, *slots_and_scalars: Any) -> tuple[Any, ...]:
    """Placeholder for a rule's equation."""
    raise NotImplementedError


def gradient(w: Any, g: Any, *scalars: Any) -> Any:
    """Placeholder for what a rule does to the gradient first."""
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


def added_2(g: Any, i: Any) -> Any:
    return g[0][i] + g[1][i]


def added_3(g: Any, i: Any) -> Any:
    return g[0][i] + g[1][i] + g[2][i]


def added_4(g: Any, i: Any) -> Any:
    return g[0][i] + g[1][i] + g[2][i] + g[3][i]


def added_5(g: Any, i: Any) -> Any:
    return g[0][i] + g[1][i] + g[2][i] + g[3][i] + g[4][i]


def added_6(g: Any, i: Any) -> Any:
    return g[0][i] + g[1][i] + g[2][i] + g[3][i] + g[4][i] + g[5][i]


def added_7(g: Any, i: Any) -> Any:
    return g[0][i] + g[1][i] + g[2][i] + g[3][i] + g[4][i] + g[5][i] + g[6][i]


def added_8(g: Any, i: Any) -> Any:
    return g[0][i] + g[1][i] + g[2][i] + g[3][i] + g[4][i] + g[5][i] + g[6][i] + g[7][i]


#: By number of arrays, from two on; a loop over them inside the loop over elements would not be vectorised.
ADDED = (added_2, added_3, added_4, added_5, added_6, added_7, added_8)


def added(g: Any, i: Any) -> Any:
    """Placeholder for one of `ADDED`."""
    raise NotImplementedError


def mean(g: Any, share: Any, largest: Any, out: Any) -> bool:
    bad = False
    for i in range(out.size):
        total = added(g, i)
        bad |= not abs(total) <= largest
        out[i] = total * share
    return not bad


def finite(bits: Any, exponent: Any) -> bool:
    bad = False
    for i in range(bits.size):  # to the end, because a loop that may stop early is not vectorised
        bad |= (bits[i] & exponent) == exponent
    return not bad


def copy_finite(target: Any, bits: Any, line: Any, exponent: Any) -> bool:
    bad = False
    whole = bits.size // BLOCK * BLOCK
    for start in range(0, whole, BLOCK):
        for ahead in range(start + AHEAD, start + AHEAD + BLOCK, line):
            prefetch(bits, ahead)
            prefetch_to_write(target, ahead)
        for i in range(start, start + BLOCK):
            bad |= (bits[i] & exponent) == exponent
            target[i] = bits[i]
    for i in range(whole, bits.size):
        bad |= (bits[i] & exponent) == exponent
        target[i] = bits[i]
    return not bad
