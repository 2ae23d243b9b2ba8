"""The loops numba compiles for rows of a table: one for each count of slots, with the equation left open.

As in `loops`, copies are made of these functions with an `update`, a `gradient`, a `row_update`, a `limits` and a
`pick` of their own. ``numbers`` has the scalars of some updates, one a line; ``which`` says which line holds for a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..jit import AHEAD, prefetch
from .loops import gradient, update


def row_update(mean_square: Any, a: Any, *scalars: Any) -> Any:
    """Placeholder for what a rule does to a slot of one number a row."""
    raise NotImplementedError


def pick(numbers: Any, line: Any) -> tuple[Any, ...]:
    """Placeholder for the function that makes a tuple of a line."""
    raise NotImplementedError


def limits(p: Any, scales: Any, i: Any) -> tuple[Any, ...]:
    """Placeholder for the function that makes the scalars of a row's gradient."""
    raise NotImplementedError


def as_they_are(p: Any, scales: Any, i: Any) -> Any:
    return p


def scaled(p: Any, scales: Any, i: Any) -> Any:
    return (scales[i], *p)


def shrink(values: Any, rows: Any, keep: Any) -> None:
    for i in range(rows.size):
        for j in range(values.shape[1]):
            values[rows[i], j] *= keep[i]


def loop_0(values: Any, rows: Any, grads: Any, p: Any, scales: Any, numbers: Any, which: Any) -> None:
    for i in range(rows.size):
        prefetch(values, rows[min(i + AHEAD, rows.size - 1)])
        r, s, q = rows[i], limits(p, scales, i), pick(numbers, which[i])
        for j in range(values.shape[1]):
            w = values[r, j]
            (values[r, j],) = update(w, gradient(w, grads[i, j], *s), *q)


def loop_1(values: Any, rows: Any, grads: Any, a: Any, p: Any, scales: Any, numbers: Any, which: Any) -> None:
    for i in range(rows.size):
        ahead = rows[min(i + AHEAD, rows.size - 1)]
        prefetch(values, ahead)
        prefetch(a, ahead)
        r, s, q = rows[i], limits(p, scales, i), pick(numbers, which[i])
        for j in range(values.shape[1]):
            w = values[r, j]
            values[r, j], a[r, j] = update(w, gradient(w, grads[i, j], *s), a[r, j], *q)


def loop_2(values: Any, rows: Any, grads: Any, a: Any, b: Any, p: Any, scales: Any, numbers: Any, which: Any) -> None:
    for i in range(rows.size):
        ahead = rows[min(i + AHEAD, rows.size - 1)]
        prefetch(values, ahead)
        prefetch(a, ahead)
        prefetch(b, ahead)
        r, s, q = rows[i], limits(p, scales, i), pick(numbers, which[i])
        for j in range(values.shape[1]):
            w = values[r, j]
            values[r, j], a[r, j], b[r, j] = update(w, gradient(w, grads[i, j], *s), a[r, j], b[r, j], *q)


def loop_3(
    values: Any, rows: Any, grads: Any, a: Any, b: Any, c: Any, p: Any, scales: Any, numbers: Any, which: Any
) -> None:
    for i in range(rows.size):
        ahead = rows[min(i + AHEAD, rows.size - 1)]
        prefetch(values, ahead)
        prefetch(a, ahead)
        prefetch(b, ahead)
        prefetch(c, ahead)
        r, s, q = rows[i], limits(p, scales, i), pick(numbers, which[i])
        for j in range(values.shape[1]):
            w, d = values[r, j], gradient(values[r, j], grads[i, j], *s)
            values[r, j], a[r, j], b[r, j], c[r, j] = update(w, d, a[r, j], b[r, j], c[r, j], *q)


def loop_row(values: Any, rows: Any, grads: Any, a: Any, p: Any, scales: Any, numbers: Any, which: Any) -> None:
    dim = values.shape[1]
    squares = np.empty(8, np.float32)
    for i in range(rows.size):
        ahead = rows[min(i + AHEAD, rows.size - 1)]
        prefetch(values, ahead)
        prefetch(a, ahead)
        r, s, q = rows[i], limits(p, scales, i), pick(numbers, which[i])
        # eight sums side by side, as numpy adds: they need not wait for each other, and every processor has the same
        for k in range(8):
            squares[k] = 0.0
        for block in range(dim // 8):
            for k in range(8):
                d = gradient(values[r, 8 * block + k], grads[i, 8 * block + k], *s)
                squares[k] += d * d
        total = ((squares[0] + squares[1]) + (squares[2] + squares[3])) + (
            (squares[4] + squares[5]) + (squares[6] + squares[7])
        )
        for j in range(dim // 8 * 8, dim):
            d = gradient(values[r, j], grads[i, j], *s)
            total += d * d
        slot = row_update(total / np.float32(dim), a[r], *q)
        a[r] = slot  # kept aside: what is read back from an array would be recomputed for each element
        for j in range(dim):
            w = values[r, j]
            (values[r, j],) = update(w, gradient(w, grads[i, j], *s), slot, *q)


BY_SLOTS = (loop_0, loop_1, loop_2, loop_3)
