"""What staleness buys and what it costs: less waiting for others, and older values to compute gradients with.

Workers compute for a time that is drawn anew for each step. They wait for each other as the shipped coordinator lets
them; then a logistic regression is trained in just the order in which gradients were applied and values read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, TypeAlias

import numpy as np

from bench.scale import published
from bench.scale.cluster import Cluster, Network, Outcome, Size
from bench.scale.costs import Costs

Vector: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

#: The bounds that are looked at; 0: synchronous.
TAUS = (0, 1, 2, 4, 8, 16)
#: Mean seconds of a step's computing: next to it wires and servers count for nothing here.
COMPUTE_S = 1.0
#: Learning rates that are tried for each bound; the best counts, as one would choose it.
RATES = (2.0, 2.8, 4.0, 5.6, 8.0, 11.0, 16.0)
#: How near to the least loss training has to come, as a part of where it began.
NEAR = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One bound of staleness.

    Attributes
    ----------
    tau
        It.
    idle
        The part of their time that workers waited for others.
    step_s
        Mean seconds of a step.
    passes
        How many gradients each worker had to bring until the loss was near its least.
    total_s
        Simulated seconds until then; infinite if it never was.
    rate
        The learning rate of that.
    """

    tau: int
    idle: float
    step_s: float
    passes: float
    total_s: float
    rate: float


@cache
def spread_for(workers: int, idle: float) -> float:
    """Return σ of the lognormal time of a step with which workers in lockstep are idle for that part of their time.

    The slowest of them takes 1/(1−idle) times as long as one does on average.
    """
    draws = np.random.default_rng(0).standard_normal((400, workers)).max(axis=1)
    low, high = 0.0, 3.0
    for _ in range(40):
        sigma = (low + high) / 2
        slowest = float(np.exp(sigma * draws - sigma**2 / 2).mean())
        low, high = (sigma, high) if slowest < 1 / (1 - idle) else (low, sigma)
    return sigma


def lognormal(mean_s: float, sigma: float) -> Callable[[Random], float]:
    """Return what draws the times of steps."""
    return lambda rng: mean_s * math.exp(sigma * rng.gauss(0.0, 1.0) - sigma**2 / 2)


def simulate(tau: int, workers: int, steps: int, costs: Costs, sigma: float) -> Outcome:
    """Let workers take steps that are at most so far apart."""
    mode, staleness = ("bounded", tau) if tau else ("sync", None)
    size = Size(servers=4, workers=workers, mode=mode, staleness=staleness, nbytes=1 << 16, steps=steps)
    return Cluster(size, costs, Network(), lognormal(COMPUTE_S, sigma), seed=tau, interval_s=10.0).run()


class Regression:
    """A logistic regression whose examples are spread over workers, each of which takes a few for a gradient."""

    def __init__(self, workers: int, batch: int = 16, num: int = 4096, dim: int = 64) -> None:
        rng = np.random.default_rng(1)
        scales = 10 ** rng.uniform(-0.5, 0.0, dim)  # so that it takes some twenty steps
        self._x = rng.standard_normal((num, dim)) * scales
        truth = 2 * rng.standard_normal(dim) / scales / math.sqrt(dim)  # half of the labels are noise
        self._y = np.where(rng.random(num) < 1 / (1 + np.exp(-self._x @ truth)), 1.0, -1.0)
        self._workers, self._batch = workers, batch
        self.start = np.zeros(dim)
        w = self.start
        for _ in range(3000):
            w = w - 2.0 * self._gradient(w, self._x, self._y)
        least = self.loss(w)
        self.near = least + NEAR * (self.loss(self.start) - least)

    def loss(self, w: Vector) -> float:
        """Return the mean loss over all examples."""
        return float(np.logaddexp(0.0, -self._y * (self._x @ w)).mean())

    @staticmethod
    def _gradient(w: Vector, x: Vector, y: Vector) -> Vector:
        factors = -y / (1 + np.exp(np.clip(y * (x @ w), -500, 500)))
        gradient: Vector = factors @ x / len(y)
        return gradient

    def train(self, events: Sequence[tuple[float, str, int]], rate: float, *, lockstep: bool) -> tuple[float, float]:
        """Do what happened; return when the loss was near its least, and how many gradients a worker had brought.

        ``lockstep``: the mean of all workers' gradients is applied at once, else a part of it as each comes.
        """
        rng = np.random.default_rng(2)
        w, brought = self.start.copy(), 0
        copies = [w] * self._workers
        mean = np.zeros_like(w)
        for at, kind, worker in events:
            if kind == "pull":
                copies[worker] = w
                continue
            chosen = rng.integers(0, len(self._y), self._batch)
            mean = mean + self._gradient(copies[worker], self._x[chosen], self._y[chosen]) / self._workers
            brought += 1
            if not lockstep or brought % self._workers == 0:
                w, mean = w - rate * mean, np.zeros_like(w)
            if brought % self._workers == 0:
                loss = self.loss(w)
                if loss <= self.near:
                    return at, brought / self._workers
                if not loss < 1e6:
                    break  # it diverges
        return math.inf, math.inf


def sweep(costs: Costs, workers: int, steps: int) -> tuple[list[Waiting], float]:
    """Return what each bound does, and the σ of the times that workers compute."""
    sigma = spread_for(workers, published.WAITING[0])
    problem, found = Regression(workers), []
    for tau in TAUS:
        outcome = simulate(tau, workers, steps, costs, sigma)
        ends = [(*problem.train(outcome.events, rate, lockstep=tau == 0), rate) for rate in RATES]
        total_s, passes, rate = min(ends)
        idle = outcome.idle_s / (outcome.idle_s + outcome.compute_s)
        step_s = sum(outcome.step_s) / len(outcome.step_s)
        found.append(Waiting(tau=tau, idle=idle, step_s=step_s, passes=passes, total_s=total_s, rate=rate))
    return found, sigma
