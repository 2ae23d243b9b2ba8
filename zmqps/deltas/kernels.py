"""The loops of deltas: where differences are not zero, and the bits in which they travel.

Gaps between changed words and differences are both nearly geometric, so both have a Rice code: of a number, its
quotient by ``2**k`` in ones, a zero, and its ``k`` lowest bits. A quotient of `MOST_ONES` or more is that many ones,
then the number in all its bits. Bits fill their bytes from the lowest on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..codecs.kernels import VALUES, CodecKernel

#: Words of a block: a gap has `GAP_BITS`, and a block of float32 stays in a core's second cache.
BLOCK = 1 << 16
GAP_BITS = 16
#: Of a quotient; beyond, the number itself follows.
MOST_ONES = 24
#: k of the gaps, k of the differences, and one less than there are, in two bytes.
HEAD_NBYTES = 4
#: Two numbers are not longer than this; arrays to write to have as many bytes to spare.
SLACK_NBYTES = 32
#: Bytes of words that are looked at together.
LINE_NBYTES = 64


def _length(number: Any) -> Any:
    """Return how many bits a number has, from the exponent of a float: 54 and more may be one too many."""
    return np.uint64(np.float64(number).view(np.int64) >> 52) - np.uint64(1022) if number else np.uint64(0)


def _fold(word: Any, width: Any) -> Any:
    """Return a difference as a number, the nearer to zero the smaller: 0 for -1, then for 1, -2, 2 and so on."""
    below = np.uint64(0) - (word >> (width - np.uint64(1)))
    folded = ((word << np.uint64(1)) ^ below) - np.uint64(1)
    return folded & (np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - width))


def _best_k(lengths: Any, width: Any) -> Any:
    """Return the k in which numbers of up to ``width`` bits need the fewest, by how many there are of each length."""
    best, least = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
    for k in range(width):
        total = np.uint64(0)
        for length in range(width + np.uint64(1)):
            half = (np.uint64(1) << np.uint64(length)) >> np.uint64(1) if length < 64 else np.uint64(1) << np.uint64(63)
            quotient = (half + (half >> np.uint64(1))) >> np.uint64(k)  # of one in the middle
            is_short = quotient < np.uint64(MOST_ONES)
            bits = quotient + np.uint64(1) + np.uint64(k) if is_short else np.uint64(MOST_ONES) + np.uint64(width)
            total += np.uint64(lengths[length]) * bits
        if total < least:
            best, least = np.uint64(k), total
    return best


def _pack_loop(differences: Any, positions: Any, out: Any, most: Any) -> int:
    width = np.uint64(8 * differences.itemsize)
    lengths, gap_lengths = np.zeros(66, np.uint32), np.zeros(66, np.uint32)
    words = differences.view(np.uint64)
    per_line = LINE_NBYTES // differences.itemsize
    count = 0
    for line in range(differences.size // per_line):
        at = line * 8
        several = words[at] | words[at + 1] | words[at + 2] | words[at + 3]
        if several | words[at + 4] | words[at + 5] | words[at + 6] | words[at + 7]:
            for i in range(line * per_line, (line + 1) * per_line):
                positions[count] = i  # each, and counted if it is one: a branch would be mispredicted
                count += differences[i] != 0
    if count == 0:
        return 0
    last = np.int64(-1)
    for i in range(count):
        position = np.int64(positions[i])
        gap_lengths[_length(np.uint64(position - last - 1))] += 1
        lengths[_length(_fold(np.uint64(differences[position]), width))] += 1
        last = position
    gap_k, k = _best_k(gap_lengths, np.uint64(GAP_BITS)), _best_k(lengths, width)
    out[0] = gap_k | (k << np.uint64(8)) | np.uint64((count - 1) << 16)
    at, held, num_held = 1, np.uint64(0), np.uint64(0)
    last = np.int64(-1)
    for i in range(2 * count):
        if 4 * at > most:
            return -1
        position = np.int64(positions[i >> 1])
        if i & 1:
            number, its_k, its_width = _fold(np.uint64(differences[position]), width), k, width
            last = position
        else:
            number, its_k, its_width = np.uint64(position - last - 1), gap_k, np.uint64(GAP_BITS)
        quotient = min(number >> its_k, np.uint64(MOST_ONES))
        bits, num, rest = (np.uint64(1) << quotient) - np.uint64(1), quotient + np.uint64(1), its_k
        if quotient == np.uint64(MOST_ONES):
            num, rest = quotient, its_width
        for _ in range(3):  # its ones, its 32 lowest bits, and those above
            held |= bits << num_held
            num_held += num
            if num_held >= np.uint64(32):
                out[at] = held & np.uint64(0xFFFFFFFF)
                held >>= np.uint64(32)
                num_held -= np.uint64(32)
                at += 1
            if not rest:
                break
            num = min(rest, np.uint64(32))
            bits = number & ((np.uint64(1) << num) - np.uint64(1))
            number >>= np.uint64(32)
            rest -= num
    out[at] = held
    nbytes = 4 * at + int((num_held + np.uint64(7)) >> np.uint64(3))
    return nbytes if nbytes <= most else -1


def _pack_numpy(xp: Any, differences: Any, positions: Any, out: Any, most: Any) -> int:
    width = np.uint64(8 * differences.itemsize)
    at = np.flatnonzero(differences)
    if at.size == 0:
        return 0
    gaps = (np.diff(at, prepend=-1) - 1).astype(np.uint64)
    folded = _fold(differences[at].astype(np.uint64), width)
    gap_k, k = (
        _best_k(np.bincount([_length(number) for number in numbers], minlength=66), of_width)
        for numbers, of_width in ((gaps, np.uint64(GAP_BITS)), (folded, width))
    )
    numbers = np.stack([gaps, folded], 1).ravel()
    ks, widths = (np.tile(np.array(pair, np.uint64), at.size) for pair in ((gap_k, k), (GAP_BITS, width)))
    escapes = numbers >> ks >= MOST_ONES
    ones = np.where(escapes, MOST_ONES, numbers >> ks).astype(np.int64)
    rests = np.where(escapes, widths, ks).astype(np.int64)
    ends = np.cumsum(ones + ~escapes + rests)
    starts = ends - ones - ~escapes - rests
    bits = np.zeros(ends[-1], np.uint8)
    for i in range(MOST_ONES):
        bits[starts[ones > i] + i] = 1
    for i in range(64):
        those = rests > i
        bits[(ends - rests)[those] + i] = numbers[those] >> np.uint64(i) & np.uint64(1)
    blob = np.append(
        np.array([gap_k, k, at.size - 1 & 0xFF, at.size - 1 >> 8], np.uint8), np.packbits(bits, bitorder="little")
    )
    if blob.size > most:
        return -1
    out.view(np.uint8)[: blob.size] = blob
    return int(blob.size)


def _add_loop(data: Any, words: Any, count: Any, gap_k: Any, k: Any, width: Any, minus: Any) -> bool:
    at, held, num_held = 0, np.uint64(0), np.uint64(0)
    position = np.int64(-1)
    for i in range(2 * count):
        its_k, its_width = (k, width) if i & 1 else (gap_k, np.uint64(GAP_BITS))
        ones, number, shift, rest = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
        for part in range(3):  # its ones, its 32 lowest bits, and those above
            if num_held < np.uint64(32):
                if at + 4 <= data.size:
                    low = np.uint64(data[at]) | np.uint64(data[at + 1]) << np.uint64(8)
                    high = np.uint64(data[at + 2]) | np.uint64(data[at + 3]) << np.uint64(8)
                    held |= (low | high << np.uint64(16)) << num_held
                else:  # behind the end there are zeros
                    for j in range(at, data.size):
                        held |= np.uint64(data[j]) << (num_held + np.uint64(8 * (j - at)))
                at += 4
                num_held += np.uint64(32)
            if part == 0:
                ones = min(_length(~held & (held + np.uint64(1))) - np.uint64(1), np.uint64(MOST_ONES))
                num, rest = ones + np.uint64(1), its_k
                if ones == np.uint64(MOST_ONES):
                    num, rest = ones, its_width
            else:
                num = min(rest, np.uint64(32))
                number |= (held & ((np.uint64(1) << num) - np.uint64(1))) << shift
                shift = np.uint64(32)
                rest -= num
            held >>= num
            num_held -= num
            if not rest:
                break
        if ones < np.uint64(MOST_ONES):
            number |= ones << its_k
        if i & 1:
            number += np.uint64(1)
            difference = (number >> np.uint64(1)) ^ (np.uint64(0) - (number & np.uint64(1)))
            words[position] += words.dtype.type((difference ^ minus) - minus)
        else:
            position += np.int64(number) + 1
            if position >= words.size:
                return False
    used = np.int64(at) * 8 - np.int64(num_held)
    return bool(used <= data.size * 8 < used + 8 and held == np.uint64(0))  # all of it; its last byte ends in zeros


def _add_numpy(xp: Any, data: Any, words: Any, count: Any, gap_k: Any, k: Any, width: Any, minus: Any) -> bool:
    bits = np.unpackbits(data, bitorder="little").tobytes()
    at, position = 0, -1

    def take(k: int, width: int) -> int:
        nonlocal at
        ones = bits.find(0, at, at + MOST_ONES) - at
        at, rest = (at + MOST_ONES, width) if ones < 0 else (at + ones + 1, k)
        number = sum(bit << i for i, bit in enumerate(bits[at : at + rest]))
        at += rest
        return number if ones < 0 else number | ones << k

    for _ in range(count):
        position += take(int(gap_k), GAP_BITS) + 1
        if position >= words.size:
            return False
        folded = take(int(k), int(width)) + 1
        difference = -(folded >> 1) - 1 if folded & 1 else folded >> 1
        words[position] += words.dtype.type((-difference if minus else difference) & ((1 << int(width)) - 1))
    return bool(at <= len(bits) < at + 8 and not any(bits[at:]))


PACK = CodecKernel(
    _pack_loop, _pack_numpy, reads=(VALUES,), writes=("u2", "u4"), scalars=("i8",), returns="i8",
    calls=(_length, _fold, _best_k),
)  # fmt: skip
ADD = CodecKernel(
    _add_loop, _add_numpy, reads=("u1",), writes=(VALUES,), scalars=("i8", "u8", "u8", "u8", "u8"), returns="?",
    calls=(_length,),
)  # fmt: skip
