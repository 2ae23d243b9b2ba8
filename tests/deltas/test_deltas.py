"""Deltas are exact, add up, cost what they should, and a stranger's do no harm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps import deltas
from zmqps.codecs import bf16
from zmqps.errors import ProtocolError

Words = np.ndarray[Any, np.dtype[Any]]

DTYPES = [np.dtype(name) for name in ("u1", "u2", "u4", "u8")]
SIZES = (0, 1, 31, deltas.BLOCK - 1, deltas.BLOCK, deltas.BLOCK + 1, 150_001)


def changes(dtype: np.dtype[Any], size: int, density: float, bits: int, seed: int) -> Words:
    """Return differences: some are not zero, up or down by as many bits."""
    rng = np.random.default_rng(seed)
    differences = np.zeros(size, dtype)
    changed = rng.random(size) < density
    signed = rng.integers(-(1 << bits), 1 << bits, size, dtype=np.int64)
    differences[changed] = signed.astype(dtype)[changed]
    return differences


def pack(differences: Words, **how: Any) -> Any:
    return deltas.between(np.zeros_like(differences), differences, **how)


def applied(delta: Any, words: Words, **how: Any) -> Words:
    words = words.copy()
    deltas.add(delta, words, **how)
    return words


@given(
    st.sampled_from(DTYPES),
    st.sampled_from(SIZES),
    st.sampled_from([0.0, 0.0003, 0.01, 0.1, 1.0]),
    st.sampled_from([0, 3, 17, 62]),
    st.integers(0, 1000),
)
def test_old_words_become_the_new_ones_and_back(dtype, size: int, density: float, bits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 256, size * dtype.itemsize, dtype=np.uint8).view(dtype)
    new = old + changes(dtype, size, density, bits, seed)
    delta = deltas.between(old, new)
    assert np.array_equal(applied(delta, old), new)
    assert np.array_equal(applied(delta, new, subtract=True), old)


@for_each("dtype", DTYPES)
def test_the_reference_makes_the_same_bytes_and_reads_them_as_well(dtype: np.dtype[Any]) -> None:
    for seed, (size, density, bits) in enumerate(
        [(0, 1.0, 0), (1, 1.0, 0), (70_000, 0.01, 0), (70_000, 0.01, 40), (3000, 0.3, 6), (3000, 1.0, 62)]
    ):
        differences = changes(dtype, size, density, bits, seed)
        delta = pack(differences)
        assert np.array_equal(delta, pack(differences, backend="numpy"))
        for subtract in (False, True):
            expected = applied(delta, differences, subtract=subtract)
            assert np.array_equal(applied(delta, differences, subtract=subtract, backend="numpy"), expected)


def test_differences_of_several_versions_add_up_to_one_delta() -> None:
    for dtype in DTYPES:
        steps = [changes(dtype, 100_000, 0.02, 2, seed) for seed in range(5)]
        steps.append(-steps[0])  # what has come back to where it was is not sent
        packed = [pack(step) for step in steps]
        merged = deltas.merge(packed, 100_000, dtype)
        sum_ = np.sum(steps, axis=0, dtype=dtype)
        assert np.array_equal(merged, pack(sum_))
        assert merged.size <= sum(delta.size for delta in packed)
        assert np.array_equal(merged, deltas.merge(packed, 100_000, dtype, backend="numpy"))


def test_a_version_without_changes_costs_four_bytes_a_block() -> None:
    delta = pack(np.zeros(3 * deltas.BLOCK, np.uint16))
    assert delta.nbytes == 12


def test_one_percent_of_bf16_costs_less_than_a_byte_and_a_half_for_each_changed_element() -> None:
    """The positions alone need 8.1 bits each, wherever they are."""
    differences = np.zeros(1 << 20, np.uint16)
    rng = np.random.default_rng(0)
    changed = rng.random(differences.size) < 0.01
    differences[changed] = rng.choice([1, 0xFFFF], changed.sum())
    assert pack(differences).size < 1.25 * changed.sum()
    some = changed & (rng.random(differences.size) < 0.1)
    differences[some] = rng.integers(-9, 10, some.sum()).astype(np.uint16)
    assert pack(differences).size < 1.5 * changed.sum()


def test_a_small_step_of_weights_costs_a_fiftieth_of_their_bf16() -> None:
    rng = np.random.default_rng(0)
    old = rng.normal(0, 0.02, 1 << 18).astype(np.float32)
    new = old - np.float32(1e-6) * rng.uniform(-1, 1, old.size).astype(np.float32)
    halves = [bf16().encode(values).view(np.uint16) for values in (old, new)]
    assert deltas.between(*halves).nbytes < halves[0].nbytes / 50


def test_no_delta_is_longer_than_the_words_but_for_its_lengths() -> None:
    for dtype in DTYPES:
        rng = np.random.default_rng(0)
        differences = rng.integers(0, 256, 70_000 * dtype.itemsize, dtype=np.uint8).view(dtype)
        delta = pack(differences)
        assert delta.nbytes <= differences.nbytes + 2 * 5
        assert np.array_equal(applied(delta, np.zeros_like(differences)), differences)


def test_words_are_the_bits_of_an_array_and_no_copy() -> None:
    array = np.ones((2, 3), np.float32)
    words = deltas.words(array)
    words += 1
    assert words.shape == (6,)
    assert (array == np.nextafter(np.float32(1), np.float32(2))).all()


# --- of strangers -----------------------------------------------------------------------------


@given(st.sampled_from(DTYPES), st.integers(0, 200), st.binary(max_size=64), st.booleans())
def test_bytes_that_are_no_delta_are_refused_or_change_only_the_words(dtype, size: int, octets: bytes, whole) -> None:
    if whole and size:  # the lengths are right, the block is not
        octets = len(octets).to_bytes(4, "little") + octets
    delta = np.frombuffer(octets, np.uint8)
    outcomes = []
    for backend in ("numba", "numpy"):
        around = np.zeros(size + 64, dtype)
        try:
            deltas.add(delta, around[32 : 32 + size], backend=backend)
            outcomes.append(around.tobytes())
        except ProtocolError:
            outcomes.append(b"")
        assert not around[:32].any()
        assert not around[32 + size :].any()
    assert outcomes[0] == outcomes[1]


def test_a_delta_that_is_cut_short_continued_or_of_other_words_is_refused() -> None:
    differences = changes(np.dtype("u2"), 70_000, 0.01, 3, 0)
    delta = pack(differences)
    for wrong in (delta[:-1], delta[:3], np.append(delta, np.uint8(0))):
        with pytest.raises(ProtocolError, match="bytes are not a delta of"):
            deltas.add(wrong, differences.copy())
    with pytest.raises(ProtocolError, match="are not a delta of 140001 words"):
        deltas.add(delta, np.zeros(140_001, np.uint16))
    with pytest.raises(ProtocolError, match="a block of a delta does not fit 65000 words"):
        deltas.add(pack(changes(np.dtype("u2"), 65_536, 0.5, 3, 0)), np.zeros(65_000, np.uint16))
    with pytest.raises(ProtocolError, match="a block of a delta begins with"):
        deltas.add(np.array([4, 0, 0, 0, 16, 0, 0, 0], np.uint8), np.zeros(9, np.uint16))
    with pytest.raises(ProtocolError, match="a dense block of 4 bytes does not have 9 words"):
        deltas.add(np.array([4, 0, 0, 0, 255, 0, 0, 0], np.uint8), np.zeros(9, np.uint16))


def test_the_format_stays_as_it_is() -> None:
    differences = np.zeros(300, np.uint16)
    differences[[0, 2, 3, 290]] = [1, 0xFFFF, 3, 0x8000]
    assert pack(differences).tobytes().hex() == GOLDEN


#: Fourteen bytes follow; `k` is 6 for gaps and 1 for differences, and four words have changed.
GOLDEN = "0e00000006010300000500f679fffffffeff"
