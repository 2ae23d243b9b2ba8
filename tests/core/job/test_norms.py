"""Norms: sums of squares in float64, whatever the dtype, and the scale that makes a norm small enough."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.tables import for_each
from zmqps.core.job.norms import BLOCK_SIZE, LARGEST, scale_to, squares


@for_each("dtype", ["float16", "float32", "float64"])
@for_each("size", [0, 1, BLOCK_SIZE, 3 * BLOCK_SIZE + 7])
def test_squares_are_summed_as_in_float64(dtype: str, size: int) -> None:
    array = np.random.default_rng(size).standard_normal(size).astype(dtype)
    assert squares(array) == pytest.approx(float((array.astype(np.float64) ** 2).sum()), rel=1e-6)


def test_squares_that_a_float32_cannot_hold_are_summed_all_the_same() -> None:
    array = np.full(BLOCK_SIZE + 1, 1e30, np.float32)
    assert squares(array) == pytest.approx((BLOCK_SIZE + 1) * 1e60, rel=1e-6)


@for_each("value", [np.inf, -np.inf, np.nan, 1e200])
def test_what_is_beyond_all_bounds_is_the_largest_number_there_is(value: float) -> None:
    assert squares(np.array([1.0, value])) == LARGEST


def test_a_norm_that_is_too_large_is_scaled_to_the_limit_and_another_one_is_not() -> None:
    assert scale_to(2.0, 16.0) == pytest.approx(0.5, rel=1e-6)
    assert scale_to(2.0, 3.0) == 1.0
    assert scale_to(2.0, 0.0) == 1.0
    assert 0.0 <= scale_to(1.0, LARGEST) < 1e-150
    assert scale_to(1.0, 1.0) == 1.0 / (1.0 + 1e-6), "as torch.nn.utils.clip_grad_norm_"
    assert math.isfinite(scale_to(1e20, 0.0))
