"""The digits are learnt as well with each codec as without: the real job's model, data and optimizer."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.codecs.cases import AS_NAMED
from tests.net.cluster import Cluster
from zmqps import codecs
from zmqps.optim import adam, make_kernel, scale_linearly

#: As users name them.
CODECS = [name for name in AS_NAMED if name != "raw"]
POINT = 0.01
WORKERS = 2


def example() -> Any:
    """Return examples/digits.py as a module."""
    path = Path(__file__).resolve().parents[2] / "examples" / "digits.py"
    spec = importlib.util.spec_from_file_location("digits", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("digits", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits() -> Any:
    return example()


def learner(digits: Any) -> Callable[..., float]:
    """Return what trains with a codec, in steps of two workers, for some passes, and returns the accuracy."""
    x_train, x_test, y_train, y_test = digits.load_data()

    def once(spec: str, passes: int, seed: int) -> float:
        codec, initial = codecs.parse(spec), digits.initial_params()
        w = np.concatenate([value.reshape(-1) for value in initial.values()])
        cuts = np.cumsum([value.size for value in initial.values()])[:-1]
        params = {n: part.reshape(initial[n].shape) for n, part in zip(initial, np.split(w, cuts), strict=True)}
        (rule,), _ = adam(scale_linearly(2e-3, WORKERS, warmup_steps=50)).rules(["w"])
        update, slots = make_kernel(rule), tuple(np.full(w.size, fill, w.dtype) for fill in rule.slot_fill)
        residuals = [np.zeros_like(w) if codec.error_feedback else None for _ in range(WORKERS)]
        step = 0
        for number in range(passes):
            order = np.random.default_rng([seed, number]).permutation(len(y_train))
            batches = [order[i : i + 16] for i in range(0, len(order), 16)]
            for some in zip(*(batches[k::WORKERS] for k in range(WORKERS)), strict=False):
                total, step = np.zeros_like(w), step + 1
                for residual, batch in zip(residuals, some, strict=True):
                    _, gradients = digits.loss_and_gradients(params, x_train[batch], y_train[batch])
                    flat = np.concatenate([gradients[n].reshape(-1) for n in initial]).astype(w.dtype)
                    total += codec.decode(codec.encode(flat, residual, seed=step), w.size, w.dtype)[0]
                update(w, total / w.dtype.type(WORKERS), w, slots, step)
        return float(digits.accuracy(params, x_test, y_test))

    return once


@pytest.fixture(scope="module")
def learn(digits: Any) -> Callable[..., float]:
    """Return what trains with a codec and returns the mean accuracy of several runs."""
    once = learner(digits)
    return lambda spec, passes, runs: float(np.mean([once(spec, passes, seed) for seed in range(runs)]))


@pytest.fixture(scope="module")
def raw(learn: Callable[..., float]) -> float:
    return learn("raw", 5, 1)


@pytest.fixture(scope="module")
def whole(learn: Callable[..., float]) -> float:
    accuracy = learn("raw", 30, 3)
    assert accuracy > 0.965
    return accuracy


@pytest.mark.parametrize("codec", CODECS)
def test_a_few_passes_come_within_two_points_of_raw(learn: Callable[..., float], raw: float, codec: str) -> None:
    assert raw > 0.9
    assert learn(codec, 5, 1) > raw - 2 * POINT


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_the_whole_job_comes_within_one_point_of_raw(learn: Callable[..., float], whole: float, codec: str) -> None:
    assert learn(codec, 30, 3) > whole - POINT


@pytest.mark.parametrize(
    ("codec", "passes"),
    [("twobit", 3), *(pytest.param(codec, 30, marks=pytest.mark.slow) for codec in CODECS)],
)
def test_the_example_learns_through_a_cluster(digits: Any, codec: str, passes: int, capsys) -> None:
    options = argparse.Namespace(passes=passes, batch=16, mode="sync", share=WORKERS, codec=codec, report=os.devnull)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(2, 1 << 20, workers=WORKERS))
        workers = [stack.enter_context(zmqps.connect(cluster.address)) for _ in range(WORKERS)]
        pool = stack.enter_context(ThreadPoolExecutor(WORKERS))
        list(pool.map(lambda worker: digits.train(worker, options), workers))
    reached = [float(found) for found in re.findall(r"test accuracy ([\d.]+)", capsys.readouterr().out)]
    assert len(reached) == WORKERS
    assert min(reached) > (0.8 if passes < 30 else 0.95)


if __name__ == "__main__":  # the accuracy in the table of docs/codecs.md
    run = learner(example())
    for spec in sys.argv[1:] or ["raw", *CODECS]:
        reached = [100 * run(spec, 30, seed) for seed in range(5)]
        print(f"{spec}: {np.mean(reached):.1f} % ({min(reached):.1f})")
