"""The linear scaling rule: how long a step of several workers is, and how it gets there."""

from __future__ import annotations

import math

import pytest

from tests.tables import for_each
from zmqps.errors import OptimizerError
from zmqps.optim import (
    adam,
    constant,
    cosine_decay,
    exponential_decay,
    group,
    linear_decay,
    linear_warmup,
    one_cycle,
    piecewise,
    polynomial_decay,
    scale_linearly,
    sgd,
    step_decay,
)

SCHEDULES = [
    constant(0.2),
    step_decay(0.2, every=7),
    exponential_decay(0.2, decay_rate=0.5, transition_steps=10),
    cosine_decay(0.2, decay_steps=30, end_value=0.01),
    linear_decay(0.2, decay_steps=30, end_value=0.01),
    polynomial_decay(0.2, decay_steps=30, power=2.0, end_value=0.01),
    one_cycle(0.2, total_steps=40),
    piecewise(0.2, {10: 0.5, 30: 3.0}),
]


@for_each("schedule", SCHEDULES)
def test_every_rate_of_a_schedule_is_scaled(schedule) -> None:
    scaled = scale_linearly(schedule, 4)
    assert type(scaled) is type(schedule)
    assert [scaled(t) for t in range(50)] == pytest.approx([4 * schedule(t) for t in range(50)])


@for_each("schedule", SCHEDULES)
def test_a_warm_up_leads_from_the_rate_of_one_worker_to_that_of_all_and_then_to_the_schedule(schedule) -> None:
    scaled = scale_linearly(schedule, 4, warmup_steps=10)
    assert scaled(0) == pytest.approx(schedule(0))
    assert scaled(5) == pytest.approx(2.5 * schedule(0))
    assert [scaled(10 + t) for t in range(50)] == pytest.approx([4 * schedule(t) for t in range(50)])


def test_a_number_stays_one_unless_it_has_to_be_warmed_up() -> None:
    assert scale_linearly(0.1, 4) == pytest.approx(0.4)
    assert scale_linearly(0.1, 4, warmup_steps=2) == linear_warmup(0.4, warmup_steps=2, init_value=0.1)
    assert scale_linearly(0.1, 1) == 0.1


def test_a_warm_up_of_its_own_is_kept_and_gets_no_second_one() -> None:
    own = linear_warmup(cosine_decay(0.2, decay_steps=30), warmup_steps=5, init_value=0.1)
    scaled = scale_linearly(own, 3)
    assert (scaled(0), scaled(5)) == pytest.approx((0.1, 0.6))
    with pytest.raises(OptimizerError, match="cannot itself be a linear_warmup"):
        scale_linearly(own, 3, warmup_steps=5)


def test_an_optimizer_keeps_everything_but_its_rates_and_those_of_its_groups() -> None:
    groups = [group("*.bias", learning_rate=0.5), group("norm.*", weight_decay=0.0), group("old.*", frozen=True)]
    spec = sgd(0.1, momentum=0.8, weight_decay=1e-4, clip_value=1.0, groups=groups)
    scaled = scale_linearly(spec, 8)
    assert scaled == sgd(
        0.1 * 8,
        momentum=0.8,
        weight_decay=1e-4,
        clip_value=1.0,
        groups=[group("*.bias", learning_rate=4.0), *groups[1:]],
    )
    assert scaled.to_wire()["learning_rate"] == 0.8
    warm = scale_linearly(adam(1e-3), 2, warmup_steps=100)
    assert warm == adam(linear_warmup(2e-3, warmup_steps=100, init_value=1e-3))


@for_each(
    "arguments, options, text",
    [
        ((sgd(0.1), 0), {}, "workers must be a whole number at least 1"),
        ((0.1, 2.5), {}, "workers must be a whole number"),
        ((0.1, 2), {"warmup_steps": -1}, "warmup_steps must be a whole number at least 0"),
        ((math.nan, 2), {}, "rate must be a finite number"),
        (("0.1", 2), {}, "rate must be a finite number"),
        ((None, 2), {}, "rate must be a finite number"),
    ],
)
def test_what_is_no_rate_or_number_is_refused(arguments, options, text: str) -> None:
    with pytest.raises(OptimizerError, match=text):
        scale_linearly(*arguments, **options)
