"""What rows begin with, as `zmqps.table` takes it."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.pace import allow
from tests.tables import for_each
from zmqps import initial
from zmqps.core.protocol.arrays import Array
from zmqps.errors import ConfigurationError
from zmqps.initial import Initial, constant, normal, truncated_normal, uniform, zeros
from zmqps.rows.initial import filler

EVERY = [zeros(), constant(-0.5), uniform(-2.0, 1.0), normal(0.1), truncated_normal(0.1)]


def rows(rule: Initial, number: int = 20_000, dim: int = 8, table: str = "items") -> Array:
    """Return what rows begin with that nobody has trained."""
    out = np.full((number, dim), np.nan, np.float32)
    filler(rule, table).fill(np.arange(number) - number // 2, out)
    return out


def test_zeros_and_constants_are_the_same_everywhere() -> None:
    assert not rows(zeros()).any()
    assert (rows(constant(-0.5)) == -0.5).all()
    assert (rows(constant(3)) == 3.0).all()


def test_uniform_numbers_lie_between_their_bounds_evenly() -> None:
    found = rows(uniform(-2.0, 1.0))
    assert -2.0 <= found.min() < -1.999
    assert 0.999 < found.max() <= 1.0
    counts, _ = np.histogram(found, 10, (-2.0, 1.0))
    assert np.abs(counts / found.size - 0.1).max() < 0.005


def test_normal_numbers_have_their_mean_and_their_deviation() -> None:
    found = rows(normal(0.25, mean=3.0)).astype(np.float64)
    assert found.mean() == pytest.approx(3.0, abs=0.005)
    assert found.std() == pytest.approx(0.25, rel=0.01)
    assert ((found - 3.0) ** 3).mean() == pytest.approx(0.0, abs=0.001)
    assert (np.abs(found - 3.0) > 0.5).mean() == pytest.approx(0.0455, abs=0.003)


def test_truncated_numbers_lie_within_two_deviations() -> None:
    found = rows(truncated_normal(0.25, mean=3.0)).astype(np.float64)
    assert np.abs(found - 3.0).max() <= 0.5 + 1e-6
    assert found.mean() == pytest.approx(3.0, abs=0.005)
    assert found.std() == pytest.approx(0.25 * 0.8796, rel=0.01)


@for_each("rule", [uniform, normal, truncated_normal])
def test_another_seed_makes_other_numbers_and_the_same_one_the_same(rule: Any) -> None:
    arguments = (0.0, 1.0) if rule is uniform else (1.0,)
    made = rows(rule(*arguments, seed=5))
    assert np.array_equal(made, rows(rule(*arguments, seed=5)))
    others = [rows(rule(*arguments)), rows(rule(*arguments, seed=6)), rows(rule(*arguments, seed=5), table="users")]
    for other in others:
        assert (made == other).mean() < 0.01
    assert len(np.unique(made[:, 0])) > 0.99 * len(made), "each row begins with its own"


@for_each("rule", EVERY)
def test_every_rule_is_finite_travels_and_makes_a_table(rule: Initial) -> None:
    assert np.isfinite(rows(rule)).all()
    assert Initial.from_wire(rule.to_wire()) == rule
    assert zmqps.table(4, optimizer=zmqps.optim.sgd(1.0), initial=rule).named("t").initial == rule.to_wire()


@for_each("rule", EVERY)
def test_a_row_begins_with_the_same_whoever_asks_for_it_with_whichever_others(rule: Initial) -> None:
    ids = np.array([-(2**63), -1, 0, 5, 2**63 - 1])
    made = np.empty((ids.size, 8), np.float32)
    filler(rule, "items").fill(ids, made)
    for number, row in zip(ids, made, strict=True):
        alone = np.empty((1, 8), np.float32)
        filler(Initial.from_wire(rule.to_wire()), "items").fill(np.array([number]), alone)
        assert np.array_equal(alone[0], row)


def test_another_process_makes_the_same_bits() -> None:
    program = (
        "import sys, numpy as np; from tests.test_initial import rows; from zmqps.initial import normal;"
        "sys.stdout.write(rows(normal(0.1, seed=3), 50).tobytes().hex())"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=allow(50)
    )
    assert bytes.fromhex(said.stdout) == rows(normal(0.1, seed=3), 50).tobytes()


def test_no_deviation_is_the_mean() -> None:
    assert (rows(normal(0.0, mean=2.0)) == 2.0).all()
    assert (rows(truncated_normal(0.0, mean=2.0)) == 2.0).all()
    assert (rows(uniform(2.0, 2.0)) == 2.0).all()


@for_each(
    "rule, arguments",
    [
        (constant, (math.nan,)),
        (constant, (math.inf,)),
        (constant, (1e39,)),
        (constant, ("1",)),
        (constant, (None,)),
        (uniform, (1.0, 0.0)),
        (uniform, (0.0, math.inf)),
        (normal, (-0.1,)),
        (normal, (math.nan,)),
        (truncated_normal, (-0.1,)),
        (truncated_normal, (True,)),
    ],
)
def test_what_no_row_can_begin_with_is_refused(rule: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigurationError):
        rule(*arguments)


@for_each("seed", [-1, 1.5, "7", 1 << 63, None])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(ConfigurationError, match="seed must be a whole number"):
        normal(0.1, seed=seed)


def test_the_package_names_all_rules() -> None:
    assert zmqps.initial is initial
    assert all(callable(getattr(initial, name)) for name in initial.__all__)
    assert set(initial.__all__) == {"Initial", *(rule.kind for rule in EVERY)}
