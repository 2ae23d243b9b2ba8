"""Schedules against their formulas, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.tables import for_each
from zmqps.errors import OptimizerError
from zmqps.optim import constant, cosine_decay, exponential_decay, linear_warmup, step_decay


@for_each(
    "schedule, formula",
    [
        (constant(0.3), lambda t: 0.3),
        (step_decay(2.0, every=7), lambda t: 2.0 * 0.1 ** (t // 7)),
        (exponential_decay(2.0, decay_rate=0.5, transition_steps=10), lambda t: 2.0 * 0.5 ** (t / 10)),
        (cosine_decay(2.0, decay_steps=30), lambda t: 1.0 + math.cos(math.pi * min(t, 30) / 30)),
        (linear_warmup(2.0, warmup_steps=5), lambda t: min(2.0, 2.0 * t / 5)),
        (
            linear_warmup(step_decay(2.0, every=4, factor=0.5), warmup_steps=5, init_value=1.0),
            lambda t: 1.0 + t / 5 if t < 5 else 2.0 * 0.5 ** ((t - 5) // 4),
        ),
    ],
)
def test_a_schedule_follows_its_formula(schedule, formula) -> None:
    steps = range(50)
    np.testing.assert_allclose([schedule(t) for t in steps], [formula(t) for t in steps], rtol=1e-12)


@for_each(
    "schedule",
    [
        step_decay(1.0, every=1),
        exponential_decay(1.0, decay_rate=0.1),
        cosine_decay(1.0, decay_steps=1),
        linear_warmup(1.0, warmup_steps=1),
    ],
)
def test_a_schedule_goes_on_for_ever(schedule) -> None:
    assert 0.0 <= schedule(10**12) <= 1.0


def test_schedules_compare_by_kind_and_numbers() -> None:
    assert cosine_decay(1.0, decay_steps=10) == cosine_decay(1, decay_steps=10)
    assert cosine_decay(1.0, decay_steps=10) != cosine_decay(1.0, decay_steps=11)
    assert len({constant(0.1), constant(0.1), constant(0.2)}) == 2


@for_each(
    "make, text",
    [
        (lambda: constant(-0.1), "constant: value must be a finite number at least 0"),
        (lambda: constant(math.nan), "not nan"),
        (lambda: step_decay(0.1, every=0), "every must be a whole number at least 1"),
        (lambda: step_decay(0.1, every=1.5), "every must be a whole number"),
        (lambda: step_decay(0.1, every=1, factor=1.5), "factor must be a finite number above 0 and at most 1"),
        (lambda: exponential_decay(0.1, decay_rate=0.0), "decay_rate must be a finite number above 0"),
        (lambda: cosine_decay("0.1", decay_steps=3), "init_value must be"),
        (lambda: cosine_decay(True, decay_steps=3), "not True"),
        (lambda: linear_warmup(linear_warmup(0.1, warmup_steps=1), warmup_steps=1), "cannot itself be a linear_warmup"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_range(make, text: str) -> None:
    with pytest.raises(OptimizerError, match=text):
        make()
