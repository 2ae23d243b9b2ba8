"""Schedules that rise and fall against their formulas, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.tables import for_each
from zmqps.errors import OptimizerError
from zmqps.optim import OptimizerSpec, linear_decay, linear_warmup, one_cycle, piecewise, polynomial_decay, sgd


def one_cycle_of_torch(step: int, peak: float, total: int, fraction: float, linear: bool) -> float:
    """As ``OneCycleLR.get_lr`` writes it, phase by phase; schedules.npz has what it gave itself."""
    first, last = peak / 25.0, peak / 25.0 / 1e4
    phases = [(fraction * total - 1, first, peak), (total - 1, peak, last)]
    began = 0.0
    for number, (end, start_lr, end_lr) in enumerate(phases):
        if step <= end or number == 1:
            done = (step - began) / (end - began)
            if linear:
                return (end_lr - start_lr) * done + start_lr
            return end_lr + (start_lr - end_lr) / 2.0 * (1 + math.cos(math.pi * done))
        began = end
    raise AssertionError


@for_each(
    "schedule, formula",
    [
        (linear_decay(2.0, decay_steps=30, end_value=0.5), lambda t: max(0.5, 2.0 - 1.5 * t / 30)),
        (linear_decay(0.5, decay_steps=30, end_value=2.0), lambda t: min(2.0, 0.5 + 1.5 * t / 30)),
        (polynomial_decay(2.0, decay_steps=30, power=3.0), lambda t: 2.0 * max(0.0, 1 - t / 30) ** 3),
        (polynomial_decay(2.0, decay_steps=30, power=0.5, end_value=1.0), lambda t: 1.0 + max(0.0, 1 - t / 30) ** 0.5),
        (piecewise(2.0, {30: 0.1, 10: 0.5}), lambda t: 2.0 * (0.5 if t >= 10 else 1.0) * (0.1 if t >= 30 else 1.0)),
        (
            linear_warmup(piecewise(2.0, {10: 3.0}), warmup_steps=5),
            lambda t: 0.4 * t if t < 5 else 2.0 * 3.0 ** (t >= 15),
        ),
    ],
)
def test_a_schedule_follows_its_formula(schedule, formula) -> None:
    np.testing.assert_allclose(
        [schedule(t) for t in range(50)], [formula(t) for t in range(50)], rtol=1e-12, atol=1e-15
    )


@for_each("linear", [False, True])
@for_each("total, fraction", [(50, 0.3), (50, 0.25), (7, 0.5), (1000, 0.01)])
def test_one_cycle_is_that_of_torch(total: int, fraction: float, linear: bool) -> None:
    schedule = one_cycle(3.0, total_steps=total, warmup_fraction=fraction, linear=linear)
    expected = [one_cycle_of_torch(t, 3.0, total, fraction, linear) for t in range(total)]
    np.testing.assert_allclose([schedule(t) for t in range(total)], expected, rtol=1e-9, atol=1e-12)


@for_each("total, fraction", [(2, 0.5), (3, 0.001), (10, 0.1)])
def test_a_cycle_too_short_to_rise_begins_about_its_peak(total: int, fraction: float) -> None:
    schedule = one_cycle(3.0, total_steps=total, warmup_fraction=fraction)
    rates = [schedule(t) for t in range(total + 5)]
    assert rates == sorted(rates, reverse=True)
    assert rates[total - 1] == rates[-1] == pytest.approx(3.0 / 25e4)


@for_each(
    "schedule",
    [linear_decay(1.0, decay_steps=1), polynomial_decay(1.0, decay_steps=1, power=2.0), one_cycle(1.0, total_steps=2),
     piecewise(1.0, {1: 0.5})],
)  # fmt: skip
def test_a_schedule_goes_on_for_ever(schedule) -> None:
    assert 0.0 <= schedule(10**12) <= 1.0


def test_multipliers_are_equal_in_whatever_order_they_come_and_from_whatever_peer() -> None:
    spec = sgd(piecewise(1.0, {20: 0.1, 10: 0.5}))
    assert spec.learning_rate == piecewise(1.0, [(10, 0.5), (20, 0.1)])
    assert OptimizerSpec.from_wire(spec.to_wire()) == spec
    assert spec.to_wire()["learning_rate"]["multipliers"] == [[10, 0.5], [20, 0.1]]


@for_each(
    "make, text",
    [
        (lambda: linear_decay(0.1, decay_steps=0), "decay_steps must be a whole number at least 1"),
        (lambda: linear_decay(-0.1, decay_steps=3), "init_value must be a finite number at least 0"),
        (lambda: polynomial_decay(0.1, decay_steps=3, power=0.0), "power must be a finite number above 0"),
        (lambda: polynomial_decay(0.1, decay_steps=3), "power"),
        (lambda: one_cycle(0.1, total_steps=1), "total_steps must be a whole number at least 2"),
        (lambda: one_cycle(0.1, total_steps=9, warmup_fraction=1.0), "warmup_fraction must be .* below 1"),
        (lambda: one_cycle(0.1, total_steps=9, linear=1), "linear"),
        (lambda: piecewise(0.1, {}), "must be 1 to 1024 steps with multipliers, not 0"),
        (lambda: piecewise(0.1, {n + 1: 0.5 for n in range(1025)}), "not 1025"),
        (lambda: piecewise(0.1, {0: 0.5}), "a step must be a whole number at least 1"),
        (lambda: piecewise(0.1, {10: -0.5}), "a multiplier must be a finite number at least 0"),
        (lambda: piecewise(0.1, [(10, 0.5), (10, 0.4)]), "has a step twice"),
        (lambda: piecewise(0.1, 7), "must be steps with multipliers"),
        (lambda: piecewise(0.1, "ab"), "must be steps with multipliers"),
        (lambda: piecewise(0.1, [1, 2]), "must be steps with multipliers"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_range(make, text: str) -> None:
    with pytest.raises((OptimizerError, TypeError), match=text):
        make()
