"""Ids that occur several times: found once, their gradients summed, their rows handed out to all requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zmqps.rows import loops
from zmqps.rows.hashing import BUCKET_BITS, Array, mixed
from zmqps.rows.kernels import kernel


class Different(NamedTuple):
    """Different ids of some, in the order in which they came.

    Attributes
    ----------
    ids
        int64, each once.
    buckets
        int64: the bucket of each.
    inverse
        int64: which of them each id was.
    """

    ids: Array
    buckets: Array
    inverse: Array

    @property
    def size(self) -> int:
        """How many there are."""
        return int(self.ids.size)


class Grouped(NamedTuple):
    """Different ids, part by part.

    Attributes
    ----------
    ids
        int64, each once: those of part p are ``ids[offsets[p]:offsets[p + 1]]``, in the order in which they came.
    offsets
        int64, one more than parts.
    inverse
        int64: which of them each id was.
    """

    ids: Array
    offsets: Array
    inverse: Array

    @property
    def size(self) -> int:
        """How many different ids there are."""
        return int(self.ids.size)


def different(ids: Array, seed: int) -> Different:
    """Return the different ids of some.

    Parameters
    ----------
    ids
        int64, of one dimension.
    seed
        Of the buckets.
    """
    num = ids.size
    hashes = mixed(ids, seed)
    table = np.zeros(1 << max(4, (2 * num - 1).bit_length()), np.uint32)
    firsts, buckets, inverse = np.empty(num, np.int64), np.empty(num, np.int64), np.empty(num, np.int64)
    found = kernel(loops.group)(hashes, ids, np.uint64(64 - BUCKET_BITS), table, firsts, buckets, inverse)
    return Different(firsts[:found], buckets[:found], inverse)


def group(found: Different, part_of_bucket: Array, num_parts: int) -> Grouped:
    """Return different ids grouped by part.

    Parameters
    ----------
    found
        The ids.
    part_of_bucket
        int64: the part that each bucket belongs to.
    num_parts
        How many there are.
    """
    if num_parts == 1:
        return Grouped(found.ids, np.array([0, found.size]), found.inverse)
    ids, offsets, numbers = (
        np.empty(found.size, np.int64),
        np.zeros(num_parts + 1, np.int64),
        np.empty(found.size, np.int64),
    )
    ordered = np.empty(found.inverse.size, np.int64)
    kernel(loops.order)(found.ids, found.buckets, part_of_bucket, found.inverse, offsets, numbers, ids, ordered)
    return Grouped(ids, offsets, ordered)


def summed(grads: Array, inverse: Array, size: int) -> tuple[Array, bool]:
    """Return the sum of the gradients of each number, float32 ``(size, dim)``, and whether there is no NaN or infinity.

    They are added in the order in which they come.

    Parameters
    ----------
    grads
        float32 ``(n, dim)``; rows need not be contiguous.
    inverse
        int64: the number that each row is of; each number occurs.
    size
        How many numbers there are.
    """
    out = np.empty((size, grads.shape[1]), np.float32)
    grads, seen = np.ascontiguousarray(grads), np.zeros(size, np.uint8)
    return out, kernel(loops.add)(grads, grads.view(np.uint32), inverse, seen, out, out.view(np.uint32))


def spread(rows: Array, first: int, inverse: Array, out: Array) -> None:
    """Write row ``inverse[i] - first`` to ``out[i]``, for all i where there is one.

    Parameters
    ----------
    rows
        float32 ``(k, dim)``, contiguous: of the numbers from ``first`` on.
    first
        The number of the first row.
    inverse
        int64, as of `group`.
    out
        float32 ``(n, dim)``, contiguous; other rows are left as they are.
    """
    kernel(loops.spread)(rows, first, inverse, out)


def merged(parts: Sequence[tuple[Array, Array, int]], total: int, dim: int, seed: int) -> tuple[Array, Array]:
    """Return the different ids of several contributions, and the weighted sum of their rows divided by a total.

    Added in double precision in the order of the parts, so the same parts make the same bits, and the mean of finite
    gradients is finite.

    Parameters
    ----------
    parts
        Different ids, their rows float32 ``(n, dim)``, and how often these count.
    total
        What sums are divided by.
    dim
        Elements of a row.
    seed
        Unknown to the contributors, which could otherwise choose ids that take long.
    """
    found = different(np.concatenate([np.empty(0, np.int64), *(ids for ids, _, _ in parts)]), seed)
    sums, at = np.zeros((found.size, dim), np.float64), 0
    for own, rows, weight in parts:
        kernel(loops.accumulate)(rows, found.inverse[at : at + own.size], float(weight), sums)
        at += own.size
    with np.errstate(over="ignore"):  # a foreign client may send an id twice, and rows that add up beyond float32
        return found.ids, np.divide(sums, max(1, total), out=np.empty(sums.shape, np.float32))
