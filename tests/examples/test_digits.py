"""The training script that users copy: its gradients, its length, its part in a job of its own."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from examples import digits
from tests.inprocess import PATIENCE, InProcessCluster
from tests.pace import stretch

pytestmark = pytest.mark.processes


@pytest.fixture
def batch() -> tuple[np.ndarray, np.ndarray]:
    x_train, _, y_train, _ = digits.load_data()
    return x_train[:20].astype(np.float64), y_train[:20]


@pytest.mark.parametrize("name", ["w1", "b1", "w2", "b2"])
def test_gradients_are_those_of_finite_differences(name: str, batch: tuple[np.ndarray, np.ndarray]) -> None:
    draw = np.random.default_rng(1).normal
    params = {key: value + draw(0, 0.1, value.shape) for key, value in digits.initial_params().items()}
    gradient = digits.loss_and_gradients(params, *batch)[1][name]
    direction = draw(0, 1, gradient.shape)
    step = 1e-6

    def loss(distance: float) -> float:
        return digits.loss_and_gradients({**params, name: params[name] + distance * direction}, *batch)[0]

    slope = (loss(step) - loss(-step)) / (2 * step)
    assert slope == pytest.approx((gradient * direction).sum(), rel=1e-5)


def test_gradients_have_the_shapes_and_dtypes_of_the_parameters(batch: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = batch
    params = digits.initial_params()
    _, gradients = digits.loss_and_gradients(params, np.float32(x), y)
    assert {name: (g.shape, g.dtype) for name, g in gradients.items()} == {
        name: (value.shape, value.dtype) for name, value in params.items()
    }


def test_the_split_is_the_same_in_every_process_and_leaves_a_fifth_for_testing() -> None:
    first, second = digits.load_data(), digits.load_data()
    assert [len(part) for part in first] == [1437, 360, 1437, 360]
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_script_is_short_enough_to_copy() -> None:
    assert len(Path(digits.__file__).read_text().splitlines()) < 82  # with what to do after an EvictedError


def test_a_worker_that_the_others_went_on_without_trains_to_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"passes": 2, "batch": 100, "mode": "async", "staleness": 3, "share": 1, "codec": "raw"}
    released, pushes, errors = threading.Event(), itertools.count(), []
    with (
        InProcessCluster(workers=1, heartbeat_interval=0.2, heartbeat_timeout=stretch(3.0)) as cluster,
        zmqps.connect(cluster.address, timeout=PATIENCE) as worker,
    ):
        push, rejoin = worker.push, worker.rejoin

        def push_late(*args: Any, **named: Any) -> None:
            if next(pushes) == 3:
                assert worker._member.connection.thread._loop is not None
                worker._member.connection.thread._loop.call_soon_threadsafe(
                    released.wait, PATIENCE
                )  # no heartbeats from now on
                cluster.wait_until(lambda status: any(gone["how"] == "lost" for gone in status["gone"]))
                released.set()
            push(*args, **named)

        def rejoin_and_tell(**named: Any) -> None:
            errors.append(sys.exc_info()[0])
            rejoin(**named)

        monkeypatch.setattr(worker, "push", push_late)
        monkeypatch.setattr(worker, "rejoin", rejoin_and_tell)
        digits.train(worker, Namespace(report=os.devnull, **options))
    assert errors == [zmqps.EvictedError]
    assert "test accuracy" in capsys.readouterr().out
