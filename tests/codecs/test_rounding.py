"""Error bounds of the codecs that round."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.codecs.cases import BACKENDS, CASES, DTYPES, Case, gradient
from tests.tables import for_each
from zmqps import codecs


def floats(largest: float) -> st.SearchStrategy[np.ndarray]:
    elements = st.floats(-largest, largest, width=32)
    return hnp.arrays(np.float32, st.integers(0, 70), elements=elements)


def round_trip(codec: codecs.Codec, values: np.ndarray, **options) -> np.ndarray:
    return codec.decode(codec.encode(values, **options), values.size, values.dtype)[0]


def test_what_has_no_error_feedback_has_a_bound() -> None:
    assert [case.spec for case in CASES if case.error is None and not case.codec.error_feedback] == []


@pytest.mark.parametrize("case", [case for case in CASES if case.error is not None], ids=lambda case: case.spec)
@hypothesis.given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_an_error_is_within_its_bound(case: Case, data: st.DataObject, dtype: str) -> None:
    assert case.error is not None
    values = data.draw(floats(case.largest)).astype(dtype)
    error = np.abs(round_trip(case.codec, values).astype(np.float64) - values)
    assert (error <= case.error(values.astype(np.float64))).all()


@for_each("case", [case for case in CASES if case.error is not None])
def test_what_is_beyond_the_largest_becomes_it(case: Case) -> None:
    values = np.array([2.0, -2.0, 1e6, -1e6], np.float64) * case.largest
    with np.errstate(over="ignore"):
        values = np.clip(values, -np.finfo(np.float32).max, np.finfo(np.float32).max).astype(np.float32)
    expected = np.copysign(case.largest, values)
    error = np.abs(round_trip(case.codec, values).astype(np.float64) - expected)
    assert case.error is not None
    assert (error <= case.error(expected)).all()


@for_each("backend", BACKENDS)
@for_each(
    "value, rounded",
    [
        (1.0 + 2.0**-8, 1.0),  # ties go to the even one
        (1.0 + 3 * 2.0**-8, 1.0 + 2.0**-6),
        (1.0 + 2.0**-8 + 2.0**-20, 1.0 + 2.0**-7),
        (3.4028235e38, 3.3895314e38),
        (-3.4028235e38, -3.3895314e38),
        (np.inf, np.inf),
        (-np.inf, -np.inf),
        (np.nan, np.nan),
        (2.0**-134, 0.0),
        (-0.0, -0.0),
    ],
)
def test_bf16_of_one_value(value: float, rounded: float, backend) -> None:
    got = round_trip(codecs.bf16(), np.full(9, value, "float32"), backend=backend)
    np.testing.assert_array_equal(got, np.full(9, rounded, "float32"))
    assert (np.signbit(got) == np.signbit(rounded)).all()


@for_each("backend", BACKENDS)
@for_each("payload", [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0x7FC00000, 0xFFFFFFFF])
def test_bf16_keeps_every_nan_a_nan(payload: int, backend) -> None:
    values = np.full(9, payload, np.uint32).view(np.float32)
    assert np.isnan(round_trip(codecs.bf16(), values, backend=backend)).all()


@for_each("backend", BACKENDS)
def test_fp16_is_numpys_except_that_the_finite_stays_finite(backend) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 1 << 32, 100_000, np.uint32).view(np.float32)
    near = rng.standard_normal(100_000) * 2.0 ** rng.uniform(-28, 17, 100_000)  # where halves are
    values = np.concatenate([values, near.astype(np.float32)])
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    beyond = np.isinf(expected) & np.isfinite(values)
    expected[beyond] = np.copysign(np.float32(65504), values[beyond])
    np.testing.assert_array_equal(round_trip(codecs.fp16(), values, backend=backend), expected)


@for_each("backend", BACKENDS)
def test_every_half_survives_fp16(backend) -> None:
    with np.errstate(invalid="ignore"):
        values = np.arange(65536).astype(np.uint16).view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(round_trip(codecs.fp16(), values, backend=backend), values)


def test_stochastic_rounding_is_right_on_average() -> None:
    values = gradient(2000)
    codec = codecs.int8(block=500, stochastic=True)
    repeats = 400
    mean = sum(round_trip(codec, values, seed=seed).astype(np.float64) for seed in range(repeats)) / repeats
    step = np.abs(values.reshape(-1, 500)).max(axis=1).repeat(500) / 127
    deviations = (mean - values) / step * np.sqrt(repeats)  # a standard deviation is at most a half
    assert np.abs(deviations).max() < 3.0
    assert abs(deviations.mean()) < 3.0 * 0.5 / np.sqrt(values.size)


def test_stochastic_rounding_depends_on_nothing_but_the_seed() -> None:
    codec = codecs.int8(stochastic=True)
    assert codec.encode(gradient(500), seed=1).tobytes() == codec.encode(gradient(500), seed=1).tobytes()
    assert codec.encode(gradient(500), seed=1).tobytes() != codec.encode(gradient(500), seed=2).tobytes()


def test_a_block_too_small_to_scale_becomes_zero() -> None:
    values = np.array([1e-37] * 16 + [1.0] * 16, np.float32)
    assert round_trip(codecs.int8(block=16), values).tolist() == [0.0] * 16 + [1.0] * 16


@for_each("backend", BACKENDS)
@for_each("codec", [codecs.bf16(), codecs.fp16()])
def test_the_sign_of_zero_and_what_is_subnormal_survive_as_far_as_there_are_bits(codec, backend) -> None:
    smallest = {"bf16": 2.0**-133, "fp16": 2.0**-24}[codec.name]  # each one's smallest subnormal
    values = np.array([0.0, -0.0, smallest, -smallest, 3 * smallest, smallest / 4, -smallest / 4], np.float32)
    got = round_trip(codec, values, backend=backend)
    expected = [0.0, -0.0, smallest, -smallest, 3 * smallest, 0.0, -0.0]
    assert got.tolist() == expected
    assert np.signbit(got).tolist() == np.signbit(expected).tolist()


@for_each("backend", BACKENDS)
@for_each("value", [0.0, -0.0, 1e-45, -3.0, 65504.0, 3e38])
def test_one_value_alone_is_as_good_as_in_a_crowd(value: float, backend) -> None:
    alone = np.array([value], np.float32)
    for codec in (codecs.bf16(), codecs.fp16(), codecs.int8(), codecs.int8(stochastic=True)):
        crowd = np.full(1024, value, np.float32)
        assert round_trip(codec, alone, backend=backend)[0] == round_trip(codec, crowd, backend=backend)[0]
