"""What staleness saves and costs, in a small cluster."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from bench.scale.idle import Regression, lognormal, simulate, spread_for
from tests.bench.scale.test_cluster import FREE


def test_the_slowest_of_all_takes_as_many_times_the_mean_as_was_asked_for() -> None:
    sigma = spread_for(50, 0.5)
    draw, rng = lognormal(1.0, sigma), Random(5)
    times = np.array([[draw(rng) for _ in range(50)] for _ in range(500)])
    assert times.mean() == pytest.approx(1.0, rel=0.02)
    assert times.max(axis=1).mean() == pytest.approx(2.0, rel=0.05)
    assert spread_for(200, 0.5) < sigma < spread_for(50, 0.6)


def test_workers_wait_less_the_further_apart_they_may_be() -> None:
    sigma = spread_for(12, 0.5)
    idle = []
    for tau in (0, 1, 4, 16):
        outcome = simulate(tau, 12, 25, FREE, sigma)
        idle.append(outcome.idle_s / (outcome.idle_s + outcome.compute_s))
    assert idle == sorted(idle, reverse=True)
    assert idle[0] == pytest.approx(0.5, abs=0.1)
    assert idle[-1] < 0.05


def test_training_follows_what_happened() -> None:
    problem = Regression(4, batch=256)
    passes = [(float(step), kind, worker) for step in range(200) for kind in ("push", "pull") for worker in range(4)]
    at, brought = problem.train(passes, 4.0, lockstep=True)
    assert at == brought - 1 < 100
    values_never_read = [event for event in passes if event[1] == "push"]
    assert problem.train(values_never_read, 4.0, lockstep=True) == (math.inf, math.inf)
    assert problem.train(passes[:8], 4.0, lockstep=False) == (math.inf, math.inf), "it has not come near yet"
