"""The loops of a row store, as numba compiles them; plain Python runs them, too.

An index has 32 bits a place: the number of a row and 1, `EMPTY`, or `TOMBSTONE`. Ids are looked for from the place that
their hash names on, one after the other, up to `MOST_PROBES`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from zmqps.jit import AHEAD, prefetch

EMPTY = 0
TOMBSTONE = 0xFFFFFFFF
#: With a good hash and an index that is three quarters full nothing is looked for this long.
MOST_PROBES = 512

ZEROS, CONSTANT, UNIFORM, NORMAL = 0, 1, 2, 3


def mix(ids: Any, seed: Any, out: Any) -> None:
    for i in range(ids.size):
        x = np.uint64(ids[i]) ^ seed
        x ^= x >> np.uint64(33)
        x *= np.uint64(0xFF51AFD7ED558CCD)
        x ^= x >> np.uint64(33)
        x *= np.uint64(0xC4CEB9FE1A85EC53)
        x ^= x >> np.uint64(33)
        out[i] = x


def find(ids: Any, hashes: Any, index: Any, own: Any, rows: Any) -> int:
    """Write the rows of ids that are in an index, where ``rows`` has none (-1) yet; return how many these are."""
    mask, last = np.uint64(index.size - 1), ids.size - 1
    found = 0
    for i in range(ids.size):
        prefetch(index, np.int64(hashes[min(i + 2 * AHEAD, last)] & mask))
        likely = np.int64(index[hashes[min(i + AHEAD, last)] & mask])
        prefetch(own, likely - 1 if likely != TOMBSTONE and likely != EMPTY else 0)
        if rows[i] >= 0:
            continue
        place = hashes[i] & mask
        for _ in range(MOST_PROBES):
            entry = np.int64(index[place])
            if entry == EMPTY:
                break
            if entry != TOMBSTONE and own[entry - 1] == ids[i]:
                rows[i] = entry - 1
                found += 1
                break
            place = (place + np.uint64(1)) & mask
    return found


def insert(
    ids: Any, hashes: Any, index: Any, own: Any, live: Any, stamps: Any, stamp: Any, free: Any, end: int, rows: Any,
    fresh: Any, state: Any,
) -> bool:  # fmt: skip
    """Find rows that ``rows`` does not have yet, or make them; return whether all could be done.

    ``free`` has rows to take first, ``state`` how many of them there are left, then the first row that was never taken,
    then how many places of the index are taken that were empty. ``fresh`` is 1 for the ids whose row is new. Done
    again, it continues where it has ended.
    """
    mask, last = np.uint64(index.size - 1), ids.size - 1
    for i in range(ids.size):
        prefetch(index, np.int64(hashes[min(i + AHEAD, last)] & mask))
        if rows[i] >= 0:
            continue
        place = hashes[i] & mask
        target = np.int64(-1)
        done = False
        for _ in range(MOST_PROBES):
            entry = np.int64(index[place])
            if entry == EMPTY:
                if target < 0:
                    target = np.int64(place)
                    state[2] += 1
                done = True
                break
            if entry == TOMBSTONE:
                if target < 0:
                    target = np.int64(place)
            elif own[entry - 1] == ids[i]:
                rows[i] = entry - 1
                done = True
                break
            place = (place + np.uint64(1)) & mask
        if rows[i] >= 0:
            continue
        if not done:
            return False
        if state[0] > 0:
            state[0] -= 1
            row = free[state[0]]
        else:
            row = state[1]
            state[1] += 1
        index[target] = np.uint32(row + 1)
        own[row] = ids[i]
        live[row] = 1
        stamps[row] = stamp
        rows[i] = row
        fresh[i] = 1
    return True


def place(entries: Any, hashes: Any, index: Any) -> int:
    """Put rows that it does not have into an index; return how many could be."""
    mask = np.uint64(index.size - 1)
    for i in range(entries.size):
        prefetch(index, np.int64(hashes[min(i + AHEAD, entries.size - 1)] & mask))
        at = hashes[i] & mask
        done = False
        for _ in range(MOST_PROBES):
            if index[at] == EMPTY:
                index[at] = entries[i]
                done = True
                break
            at = (at + np.uint64(1)) & mask
        if not done:
            return i
    return int(entries.size)


def erase(ids: Any, hashes: Any, index: Any, own: Any) -> None:
    """Leave tombstones for ids in an index."""
    mask = np.uint64(index.size - 1)
    for i in range(ids.size):
        at = hashes[i] & mask
        for _ in range(MOST_PROBES):
            entry = np.int64(index[at])
            if entry == EMPTY:
                break
            if entry != TOMBSTONE and own[entry - 1] == ids[i]:
                index[at] = np.uint32(TOMBSTONE)
                break
            at = (at + np.uint64(1)) & mask


def mark(rows: Any, stamps: Any, stamp: Any) -> None:
    for i in range(rows.size):
        prefetch(stamps, rows[min(i + 2 * AHEAD, rows.size - 1)])
        stamps[rows[i]] = stamp


def copy(rows: Any, values: Any, out: Any) -> None:
    """Write the values of rows that there are (not -1)."""
    for i in range(rows.size):
        prefetch(values, max(0, rows[min(i + AHEAD, rows.size - 1)]))
        row = rows[i]
        if row >= 0:
            for j in range(out.shape[1]):
                out[i, j] = values[row, j]


def fill(ids: Any, rows: Any, out: Any, seed: Any, kind: int, a: float, b: float, low: float, high: float) -> None:
    """Write initial values: element j of a row is a function of the seed, its id and j.

    All of it are operations that IEEE 754 defines to the last bit, so they are the same on every host. The normal
    distribution's inverse is Wichura's AS 241 (Applied Statistics 37, 1988) for what 32 bits reach.
    """
    for i in range(ids.size):
        x = np.uint64(ids[i]) ^ seed
        x ^= x >> np.uint64(33)
        x *= np.uint64(0xFF51AFD7ED558CCD)
        x ^= x >> np.uint64(33)
        x *= np.uint64(0xC4CEB9FE1A85EC53)
        x ^= x >> np.uint64(33)
        for j in range(out.shape[1]):
            if kind == ZEROS:
                out[rows[i], j] = 0.0
                continue
            if kind == CONSTANT:
                out[rows[i], j] = np.float32(a)
                continue
            x += np.uint64(0x9E3779B97F4A7C15)  # SplitMix64: Steele, Lea, Flood, OOPSLA 2014
            z = x
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z ^= z >> np.uint64(31)
            p = low + (high - low) * ((float(z >> np.uint64(32)) + 0.5) * 2.3283064365386963e-10)
            if kind == UNIFORM:
                out[rows[i], j] = np.float32(a + (b - a) * p)
                continue
            q = p - 0.5
            if abs(q) <= 0.425:
                r = 0.180625 - q * q
                num = (((((((2.5090809287301226727e3 * r + 3.3430575583588128105e4) * r + 6.7265770927008700853e4) * r
                    + 4.5921953931549871457e4) * r + 1.3731693765509461125e4) * r + 1.9715909503065514427e3) * r
                    + 1.3314166789178437745e2) * r + 3.3871328727963666080e0) * q  # fmt: skip
                den = (((((((5.2264952788528545610e3 * r + 2.8729085735721942674e4) * r + 3.9307895800092710610e4) * r
                    + 2.1213794301586595867e4) * r + 5.3941960214247511077e3) * r + 6.8718700749205790830e2) * r
                    + 4.2313330701600911252e1) * r + 1.0)  # fmt: skip
                t = num / den
            else:
                tail = p if q <= 0.0 else 1.0 - p
                m, e = math.frexp(tail)  # log by its series: libraries differ in the last bit
                if m < 0.7071067811865476:
                    m, e = m * 2.0, e - 1
                s = (m - 1.0) / (m + 1.0)
                s2 = s * s
                series = 0.0
                for k in range(21, 0, -2):
                    series = series * s2 + 1.0 / k
                r = math.sqrt(-(e * 0.6931471805599453 + 2.0 * s * series)) - 1.6
                num = (((((((7.74545014278341407640e-4 * r + 2.27238449892691845833e-2) * r
                    + 2.41780725177450611770e-1) * r + 1.27045825245236838258e0) * r + 3.64784832476320460504e0) * r
                    + 5.76949722146069140550e0) * r + 4.63033784615654529590e0) * r
                    + 1.42343711074968357734e0)  # fmt: skip
                den = (((((((1.05075007164441684324e-9 * r + 5.47593808499534494600e-4) * r
                    + 1.51986665636164571966e-2) * r + 1.48103976427480074590e-1) * r + 6.89767334985100004550e-1) * r
                    + 1.67638483018380384940e0) * r + 2.05319162663775882187e0) * r + 1.0)  # fmt: skip
                t = num / den
                if q < 0.0:
                    t = -t
            out[rows[i], j] = np.float32(a + b * t)


def group(hashes: Any, ids: Any, shift: Any, table: Any, firsts: Any, buckets: Any, inverse: Any) -> int:
    """Number different ids in the order in which they come; return how many there are, and write the bucket of each."""
    mask = np.uint64(table.size - 1)
    num = 0
    for i in range(ids.size):
        at = hashes[i] & mask
        while True:
            entry = np.int64(table[at])
            if entry == 0:
                table[at] = np.uint32(num + 1)
                firsts[num] = ids[i]
                buckets[num] = np.int64(hashes[i] >> shift)
                inverse[i] = num
                num += 1
                break
            if firsts[entry - 1] == ids[i]:
                inverse[i] = entry - 1
                break
            at = (at + np.uint64(1)) & mask
    return num


def order(
    firsts: Any, buckets: Any, part_of_bucket: Any, inverse: Any, offsets: Any, numbers: Any, ids: Any, ordered: Any
) -> None:
    """Write different ids part by part, and ``inverse`` with their new numbers; ``offsets`` begins as zeros."""
    for u in range(buckets.size):
        offsets[part_of_bucket[buckets[u]] + 1] += 1
    for part in range(offsets.size - 1):
        offsets[part + 1] += offsets[part]
    for u in range(buckets.size):
        part = part_of_bucket[buckets[u]]
        numbers[u] = offsets[part]
        offsets[part] += 1
        ids[numbers[u]] = firsts[u]
    for part in range(offsets.size - 1, 0, -1):
        offsets[part] = offsets[part - 1]
    offsets[0] = 0
    for i in range(inverse.size):
        ordered[i] = numbers[inverse[i]]


def add(grads: Any, bits: Any, inverse: Any, seen: Any, out: Any, sums: Any) -> bool:
    """Write the sum of the gradients of each number, in the order in which they come; return whether all are finite.

    ``bits`` are the bits of ``grads``, ``sums`` of ``out``. What is not finite stays so, whatever is added to it.
    """
    bad, exponent = False, np.uint32(0x7F800000)
    for i in range(inverse.size):
        u = inverse[i]
        if seen[u] == 0:
            seen[u] = 1
            for j in range(out.shape[1]):
                bad |= (bits[i, j] & exponent) == exponent
                sums[u, j] = bits[i, j]
        else:
            for j in range(out.shape[1]):
                out[u, j] += grads[i, j]
            for j in range(out.shape[1]):
                bad |= (sums[u, j] & exponent) == exponent
    return not bad


def spread(rows: Any, first: int, inverse: Any, out: Any) -> None:
    """Write the rows of those numbers from ``first`` on that there are some of."""
    stop = first + rows.shape[0]
    for i in range(inverse.size):
        u = inverse[i]
        if first <= u < stop:
            for j in range(out.shape[1]):
                out[i, j] = rows[u - first, j]


def accumulate(rows: Any, inverse: Any, weight: float, out: Any) -> None:
    for i in range(inverse.size):
        for j in range(out.shape[1]):
            out[inverse[i], j] += weight * float(rows[i, j])


def put(places: Any, which: Any, rows: Any, out: Any) -> None:
    """Write some rows, each to its place."""
    for i in range(places.size):
        for j in range(out.shape[1]):
            out[places[i], j] = rows[which[i], j]


def mend(places: Any, which: Any, rows: Any, factor: Any, out: Any) -> None:
    """Add a multiple of some rows to those at their places, rounded as an optimizer's update is."""
    for i in range(places.size):
        for j in range(out.shape[1]):
            out[places[i], j] += np.float32(factor * rows[which[i], j])


def touch(hashes: Any, counters: Any, out: Any) -> None:
    """Count touches in a count-min sketch, with conservative update; write the estimates after them."""
    width, low = np.uint64(counters.shape[1]), np.uint64(0xFFFFFFFF)
    for i in range(hashes.size):
        least: Any = 255
        for row in range(counters.shape[0]):
            at = ((hashes[i] & low) + np.uint64(row) * ((hashes[i] >> np.uint64(32)) | np.uint64(1))) % width
            least = min(least, np.int64(counters[row, at]))
        after = min(least + 1, 255)
        for row in range(counters.shape[0]):
            at = ((hashes[i] & low) + np.uint64(row) * ((hashes[i] >> np.uint64(32)) | np.uint64(1))) % width
            if counters[row, at] < after:
                counters[row, at] = np.uint8(after)
        out[i] = np.uint8(after)


def sweep(uses: Any, live: Any, hand: int, out: Any) -> int:
    """Let a hand go round rows until it has chosen as many as ``out`` has; return its position.

    It takes one use from each row that has some, and chooses those that have none. There are as many rows, at least.
    """
    found = 0
    hand = hand % uses.size
    while found < out.size:
        if live[hand] == 1:
            if uses[hand] > 0:
                uses[hand] -= 1
            else:
                live[hand] = 2  # it is chosen once
                out[found] = hand
                found += 1
        hand += 1
        if hand == uses.size:
            hand = 0
    return hand
