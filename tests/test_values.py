"""Buffers, and values that are set or averaged instead of trained, with real servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.modes import MODES
from tests.team import PATIENCE, Team
from zmqps.errors import (
    ConfigurationError,
    DtypeError,
    IdentityError,
    JobMismatchError,
    ShapeError,
    UnknownParameterError,
)
from zmqps.optim import adam, sgd

Arrays = dict[str, np.ndarray]

START: Arrays = {"w": np.zeros((40, 30)), "b": np.zeros(1700), "half": np.zeros(5, np.float16)}
#: Of each kind of number, and what is no number.
BUFFERS: Arrays = {
    "mean": np.linspace(-1, 1, 900, dtype=np.float32),
    "count": np.array(0, np.int64),
    "mask": np.array([0.0, -np.inf, np.nan]),
    "flags": np.array([True, False, True]),
    "table": np.arange(3000, dtype=np.int64) << 40,
    "bytes": np.arange(7, dtype=np.uint8),
    "empty": np.empty((0, 3), np.int32),
}


def equal(values: Any, expected: Arrays) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value)


@pytest.mark.parametrize("mode", ["async", "bounded", "sync"])
@pytest.mark.parametrize("pull_codec", ["raw", "bf16"])
def test_buffers_of_any_dtype_are_kept_as_they_are(mode: str, pull_codec: str) -> None:
    with (
        InProcessCluster(servers=3, slice_size=4096) as cluster,
        zmqps.connect(cluster.address) as worker,
        zmqps.connect(cluster.address, observer=True) as observer,
    ):
        worker.init(START, optimizer=sgd(0.5), buffers=BUFFERS, **MODES[mode], pull_codec=pull_codec, timeout=PATIENCE)
        assert [p.name for p in worker.parameters if p.buffer] == list(BUFFERS)
        equal(observer.pull(timeout=PATIENCE), BUFFERS)
        worker.push({name: np.ones(value.shape) for name, value in START.items()}, timeout=PATIENCE)
        values = worker.pull(timeout=PATIENCE)
        equal(values, BUFFERS | {"w": np.full((40, 30), -0.5), "half": np.full(5, -0.5)})
        assert {name: values[name].dtype for name in BUFFERS} == {name: v.dtype for name, v in BUFFERS.items()}
        new: Arrays = {"count": np.array(2**62 + 1), "mean": BUFFERS["mean"] * 2, "flags": ~BUFFERS["flags"]}
        worker.set(new | {"table": BUFFERS["table"] + 1}, step=True, timeout=PATIENCE)
        values = worker.pull(timeout=PATIENCE)
        equal(values, BUFFERS | new | {"table": BUFFERS["table"] + 1, "b": np.full(1700, -0.5)})
        out = {"count": np.zeros((), np.int64), "flags": np.zeros(3, bool)}
        worker.pull(out=out, timeout=PATIENCE)
        equal(out, {"count": new["count"], "flags": new["flags"]})
        equal(observer.pull(["mask", "table"], timeout=PATIENCE), {"mask": BUFFERS["mask"]})


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_parameter_that_is_set_keeps_the_slots_and_steps_of_its_optimizer(mode: str) -> None:
    rng = np.random.default_rng(1)
    w, m, v = np.zeros(1700), np.zeros(1700), np.zeros(1700)
    with InProcessCluster(servers=2, slice_size=4096) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init({"w": w}, optimizer=adam(0.1), **MODES[mode], timeout=PATIENCE)
        for step in range(1, 7):
            g = rng.standard_normal(1700)
            worker.push({"w": g}, timeout=PATIENCE)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            w = w - 0.1 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
            np.testing.assert_allclose(worker.pull(timeout=PATIENCE)["w"], w, rtol=1e-9, atol=1e-12)
            if step % 2:
                w = rng.standard_normal(1700)
                worker.set({"w": w}, step=True, timeout=PATIENCE)
                equal(worker.pull(timeout=PATIENCE), {"w": w})


@pytest.mark.parametrize("servers", [1, 3])
def test_what_is_set_in_a_step_is_there_with_its_version_and_that_of_the_lowest_rank(servers: int) -> None:
    with (
        InProcessCluster(servers=servers, slice_size=4096, workers=3) as cluster,
        Team(cluster.address, 3, START, optimizer=sgd(1.0), buffers=BUFFERS, mode="sync") as team,
    ):

        def step(worker: zmqps.Worker) -> Any:
            rank = worker.rank
            if rank:  # the first of these is 1
                worker.set({"w": np.full((40, 30), 10.0 * rank), "count": rank}, timeout=PATIENCE)
            worker.average({"mean": np.full(900, 3.0 * rank), "b": np.full(1700, float(rank))}, timeout=PATIENCE)
            before = worker.pull(timeout=PATIENCE)
            assert before.version == 0
            equal(before, START | BUFFERS)
            worker.push({name: np.full(value.shape, 2.0) for name, value in START.items()}, timeout=PATIENCE)
            return worker.pull(timeout=PATIENCE)

        for values in team.all(step):
            assert values.version == 1
            new = {"w": np.full((40, 30), 10.0), "count": np.array(1), "mean": np.full(900, 3.0), "b": np.ones(1700)}
            equal(values, BUFFERS | new | {"half": np.full(5, -2.0)})
        assert {
            values.version for values in team.step(lambda rank: {n: np.ones(v.shape) for n, v in START.items()})
        } == {2}


def test_each_counts_in_the_mean_as_often_as_it_has_examples() -> None:
    with (
        InProcessCluster(servers=1, workers=2) as cluster,
        Team(cluster.address, 2, START, optimizer=sgd(1.0), buffers=BUFFERS, mode="sync") as team,
    ):
        team.all(
            lambda worker: worker.average(
                {"mean": np.full(900, float(worker.rank))}, examples=1 + 2 * worker.rank, step=True, timeout=PATIENCE
            )
        )
        for values in team.all(lambda worker: worker.pull(timeout=PATIENCE)):
            equal(values, {"mean": np.full(900, 0.75), "w": START["w"]})


def test_what_is_set_before_a_step_is_skipped_does_not_count() -> None:
    with (
        InProcessCluster(servers=1, workers=1) as cluster,
        Team(cluster.address, 1, START, optimizer=sgd(1.0), buffers=BUFFERS, mode="sync") as team,
    ):
        [worker] = team.workers
        worker.set({"count": 5}, timeout=PATIENCE)
        worker.skip(timeout=PATIENCE)
        values = worker.pull(timeout=PATIENCE)
        assert values.version == 1
        equal(values, BUFFERS)


def test_the_norm_of_a_step_is_of_what_is_trained_in_it() -> None:
    options = {"optimizer": sgd(1.0, clip_norm=1.0), "buffers": BUFFERS, "mode": "sync"}
    with InProcessCluster(servers=2, workers=1) as cluster, Team(cluster.address, 1, START, **options) as team:
        [worker] = team.workers
        worker.set({"w": np.full((40, 30), 1e6), "mean": np.full(900, 1e6)}, timeout=PATIENCE)
        grads = {"w": np.full((40, 30), 1e6), "b": np.zeros(1700), "half": np.array([0.3, 0, 0, 0, 0.4])}
        worker.push(grads, timeout=PATIENCE)
        values = worker.pull(timeout=PATIENCE)
        equal(values, {"w": np.full((40, 30), 1e6)})
        np.testing.assert_allclose(values["half"], -grads["half"], rtol=1e-6)


def test_gradients_in_memory_that_servers_read_are_of_what_is_trained() -> None:
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(START, optimizer=sgd(1.0), mode="async", buffers=BUFFERS, timeout=PATIENCE)
        grads = worker.gradient_buffers()
        assert list(grads) == list(START)
        for gradient in grads.values():
            gradient.fill(1.0)
        worker.push(grads, timeout=PATIENCE)
        equal(worker.pull(timeout=PATIENCE), BUFFERS | {"w": np.full((40, 30), -1.0)})


def test_what_cannot_be_set_changes_nothing_and_says_why() -> None:
    with (
        InProcessCluster(servers=1) as cluster,
        zmqps.connect(cluster.address) as worker,
        zmqps.connect(cluster.address, observer=True) as observer,
        zmqps.connect(cluster.address) as other,
    ):
        with pytest.raises(ConfigurationError, match="at least one parameter"):
            worker.init({}, optimizer=sgd(0.1), mode="async", buffers=BUFFERS)
        with pytest.raises(DtypeError, match="complex64"):
            worker.init(START, optimizer=sgd(0.1), mode="async", buffers={"c": np.zeros(2, np.complex64)})
        with pytest.raises(ConfigurationError, match="two parameters are named 'w'"):
            worker.init(START, optimizer=sgd(0.1), mode="async", buffers={"w": np.zeros(2)})
        worker.init(START, optimizer=sgd(0.1), mode="async", buffers=BUFFERS, timeout=PATIENCE)
        with pytest.raises(JobMismatchError, match="a buffer"):
            other.init(START | {"mean": BUFFERS["mean"]}, optimizer=sgd(0.1), mode="async", timeout=PATIENCE)
        for call in (worker.push, worker.push_pull):
            with pytest.raises(ConfigurationError, match=r"'mean' is a buffer.*worker\.set"):
                call({"w": START["w"], "mean": BUFFERS["mean"]})
        with pytest.raises(DtypeError, match="count"):
            worker.set({"count": 0.5})
        with pytest.raises(DtypeError, match="float64"):
            worker.set({"w": np.zeros((40, 30), np.int64)})
        with pytest.raises(ShapeError, match="mean"):
            worker.set({"mean": np.zeros(3)})
        with pytest.raises(UnknownParameterError, match="did you mean 'count'"):
            worker.set({"counts": 1})
        with pytest.raises(ConfigurationError, match="'w' contains NaN"):
            worker.set({"w": np.full((40, 30), np.nan)})
        with pytest.raises(ConfigurationError, match=r'mode="sync".*worker\.set'):
            worker.average({"mean": BUFFERS["mean"]})
        with pytest.raises(DtypeError, match="float32"):
            worker.pull(out={"mean": np.zeros(900, np.int64)})
        with pytest.raises(IdentityError, match="an observer may not push"):
            observer.set({"count": 1}, timeout=PATIENCE)
        equal(worker.pull(timeout=PATIENCE), START | BUFFERS)


def test_whole_numbers_have_no_mean() -> None:
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(START, optimizer=sgd(0.1), buffers=BUFFERS, mode="sync", timeout=PATIENCE)
        with pytest.raises(DtypeError, match="whole numbers have no mean"):
            worker.average({"count": 1})
