"""Parameters one by one, in the order asked: the right values, each once, and errors where a value is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.net.cluster import PATIENCE, Cluster
from tests.tables import for_each
from zmqps.errors import (
    ClosedError,
    ConfigurationError,
    DeadlineError,
    DtypeError,
    ShapeError,
    UnknownParameterError,
    VersionError,
)

SLICE_NBYTES = 4096
#: Several to a slice, several slices each, none at all.
SIZES = {"embedding": 5000, "norm": 10, "empty": 0, "hidden": 3000, "bias": 1, "head": 1025}
VALUES = {name: np.arange(size, dtype=np.float32) + i for i, (name, size) in enumerate(SIZES.items())}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, SLICE_NBYTES) as it:
        yield it


@pytest.fixture
def worker(cluster: Cluster) -> Iterator[zmqps.Worker]:
    with zmqps.connect(cluster.address) as it:
        it.init(VALUES, optimizer=zmqps.optim.sgd(1.0), mode="async")
        yield it


def same(got: Any, names: list[str]) -> bool:
    return [n for n, _ in got] == names and all(np.array_equal(value, VALUES[n]) for n, value in got)


@for_each("names", [list(SIZES), list(SIZES)[::-1], ["head", "bias", "embedding"], ["empty"], ["norm", "norm"], []])
def test_each_comes_once_in_the_order_asked(worker: zmqps.Worker, names: list[str]) -> None:
    assert same(list(worker.pull_each(names)), list(dict.fromkeys(names)))
    assert same(list(worker.pull_each(iter(names), codec="raw")), list(dict.fromkeys(names)))
    assert same(worker.pull(names).items(), list(dict.fromkeys(names)))


def test_by_default_all_come_in_the_order_of_the_job_and_one_is_a_name(worker: zmqps.Worker) -> None:
    assert same(list(worker.pull_each()), list(SIZES))
    assert same(list(worker.pull_each("head")), ["head"])


def test_arrays_can_be_filled_in_place(worker: zmqps.Worker) -> None:
    out = {name: np.full(SIZES[name], np.nan, np.float64) for name in ("hidden", "head", "norm")}
    got = list(worker.pull_each(out=out))
    assert same(got, list(out))
    assert all(value is out[name] for name, value in got)
    assert same(list(worker.pull_each(["norm", "head"], out=out)), ["norm", "head"])


def test_futures_of_all_come_at_once_and_are_all_resolved(worker: zmqps.Worker) -> None:
    futures = worker.pull_each_async()
    assert same([(name, future.result(PATIENCE)) for name, future in futures.items()], list(SIZES))
    assert worker.statistics().pulls == 1


def test_it_can_be_awaited(cluster: Cluster) -> None:
    async def main() -> None:
        async with zmqps.aio.connect(cluster.address) as worker:
            await worker.init(VALUES, optimizer=zmqps.optim.sgd(1.0), mode="async")
            assert same([item async for item in worker.pull_each(["head", "norm"])], ["head", "norm"])
        with pytest.raises(ClosedError):
            async for _ in worker.pull_each():
                pass

    asyncio.run(main())


@for_each(
    "options, error",
    [
        ({"names": ["heads"]}, UnknownParameterError),
        ({"names": 3}, ConfigurationError),
        ({"out": {"bias": np.zeros(2, np.float32)}}, ShapeError),
        ({"out": {"norm": np.zeros(20, np.float32)[::2]}}, ConfigurationError),
        ({"out": {"norm": [0.0] * 10}}, DtypeError),
        ({"names": ["norm"], "out": {"bias": np.zeros(1, np.float32)}}, ConfigurationError),
        ({"codec": "topk"}, ConfigurationError),
        ({"at_least": -1}, ConfigurationError),
        ({"timeout": 0.0}, ConfigurationError),
    ],
)
def test_what_cannot_be_asked_for_is_refused_at_once(worker: zmqps.Worker, options: dict[str, Any], error: Any) -> None:
    with pytest.raises(error):
        worker.pull_each(**options)


def test_what_does_not_come_in_time_fails_where_it_is_missing(worker: zmqps.Worker) -> None:
    each = worker.pull_each(["norm", "head"], at_least=10**6, timeout=0.05)
    with pytest.raises(DeadlineError, match="pull"):
        next(each)


def test_closing_the_worker_ends_the_wait(worker: zmqps.Worker) -> None:
    futures = worker.pull_each_async(at_least=10**6)
    worker.close()
    for future in futures.values():
        with pytest.raises(ClosedError):
            future.result(PATIENCE)


def test_a_version_that_is_gone_is_an_error_and_no_mixture() -> None:
    ones = {name: np.ones(size, np.float32) for name, size in SIZES.items()}
    with Cluster(2, SLICE_NBYTES) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(VALUES, optimizer=zmqps.optim.sgd(1.0), mode="sync", steps=zmqps.Steps(retain=1))
        worker.push(ones)
        worker.push(ones)
        for name, value in worker.pull_each():
            assert np.array_equal(value, VALUES[name] - 2)
        with zmqps.connect(cluster.address, observer=True) as observer:
            for name, value in observer.pull_each(at_least=1):
                assert np.array_equal(value, VALUES[name] - 1), "of the version asked for, as it is retained"
            worker.push(ones)
            worker.pull()
            with pytest.raises(VersionError):
                list(observer.pull_each(at_least=1))
