"""`worker.steps`: how many turns a loop takes, and what it says of one that does not train."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.tables import one_in
from tests.team import Team
from zmqps.client.exchanges import Loop
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.errors import ConfigurationError

PARAMS = {"w": np.zeros(4, np.float32)}
GRADS = {"w": np.ones(4, np.float32)}
SGD = zmqps.optim.sgd(1.0)


@pytest.fixture
def address() -> Iterator[str]:
    with InProcessCluster() as cluster:
        yield cluster.address


def train(worker: zmqps.Worker, until: int) -> list[int]:
    """Train; return the version with which each step began."""
    versions = []
    for params in worker.steps(until):
        versions.append(params.version)
        worker.push(GRADS)
    return versions


@pytest.mark.parametrize("options", [{"mode": "sync"}, {"mode": "bounded", "staleness": 1}, {"mode": "async"}], ids=str)
def test_each_worker_takes_all_steps(address: str, options: dict[str, Any]) -> None:
    with Team(address, 2, PARAMS, optimizer=SGD, **options) as team:
        versions = team.all(lambda worker: train(worker, 5))
        assert [len(taken) for taken in versions] == [5, 5]
        if options["mode"] == "sync":
            assert versions == [list(range(5))] * 2
            assert team.workers[0].pull().version == 5
        with pytest.raises(ConfigurationError, match=r"trained up to step 5: for 5 more, call steps\(10\)"):
            team.workers[0].steps(5)
        assert [len(taken) for taken in team.all(lambda worker: train(worker, 7))] == [2, 2]


def test_a_worker_that_joins_later_goes_on_at_the_step_of_the_job(address: str) -> None:
    with Team(address, 1, PARAMS, optimizer=SGD) as team:
        team.all(lambda worker: train(worker, 3))
    with Team(address, 1, PARAMS, optimizer=SGD) as team:
        assert team.all(lambda worker: train(worker, 5)) == [[3, 4]]


@pytest.mark.parametrize(
    ("options", "turns"),
    one_in(3, [({"mode": "sync"}, 2), ({"mode": "bounded", "staleness": 1}, 2), ({"mode": "async"}, 5)]),
    ids=str,
)
def test_a_restored_job_goes_on_at_its_step(options: dict[str, Any], turns: int, tmp_path: Path) -> None:
    def start(**saving: Any) -> zmqps.LocalCluster:
        return zmqps.LocalCluster(zmqps.Servers(kernels="numpy"), saving=zmqps.Saving(**saving))

    with start(checkpoint=tmp_path) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(PARAMS, optimizer=SGD, **options)
        assert len(train(worker, 3)) == 3
        worker.checkpoint()
    with start(restore=tmp_path) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(PARAMS, optimizer=SGD, **options)
        assert len(train(worker, 5)) == turns
        np.testing.assert_array_equal(worker.pull()["w"], np.full(4, -3.0 - turns))


def test_a_body_may_skip_and_advance(address: str) -> None:
    with zmqps.connect(address) as worker:
        worker.init(PARAMS, optimizer=SGD)
        turns = 0
        for _ in worker.steps(3):
            (worker.skip, worker.advance, lambda: worker.push(GRADS))[turns]()
            turns += 1
        assert turns == 3


def test_a_body_that_ends_no_step_is_told_so(address: str) -> None:
    with zmqps.connect(address) as worker:
        worker.init({**PARAMS, "v": np.zeros(1, np.float32)}, optimizer=SGD)
        with pytest.raises(ConfigurationError, match="has not ended step 0: push the gradients of all parameters"):
            train(worker, 3)


def test_a_step_of_several_gradients_takes_several_turns(address: str) -> None:
    with zmqps.connect(address) as worker:
        worker.init(PARAMS, optimizer=SGD, steps=zmqps.Steps(aggregate=3))
        assert train(worker, 2) == [0, 0, 0, 1, 1, 1]


def test_one_gone_back_is_no_body_that_ends_no_step() -> None:
    steps = Loop(9, JobSpec(parameters=(Parameter("w", (4,), "float32"),), optimizer=SGD.to_wire(), mode="sync"), 0)
    assert all(map(steps.begin, (0, 1, 2, 3, 1, 1, 2)))
    assert not steps.begin(9)
    assert steps.is_over


def test_what_is_no_number_of_steps_is_refused(address: str) -> None:
    with zmqps.connect(address) as worker, zmqps.connect(address, observer=True) as observer:
        worker.init(PARAMS, optimizer=SGD)
        with pytest.raises(ConfigurationError, match="until must be a whole number at least 1, not 0"):
            worker.steps(0)
        with pytest.raises(ConfigurationError, match="takes no steps"):
            observer.steps(3)


def test_a_loop_that_was_left_goes_on_where_it_was(address: str) -> None:
    with zmqps.connect(address) as worker:
        worker.init(PARAMS, optimizer=SGD)
        for _ in worker.steps(4):
            worker.push(GRADS)
            break
        assert train(worker, 4) == [1, 2, 3]


def test_an_asynchronous_program_takes_steps_too(address: str) -> None:
    async def main() -> list[int]:
        versions = []
        async with zmqps.aio.connect(address) as worker:
            await worker.init(PARAMS, optimizer=SGD)
            async for params in worker.steps(4):
                versions.append(params.version)
                await worker.push(GRADS)
            with pytest.raises(ConfigurationError, match="for 4 more"):
                await anext(worker.steps(4))
        return versions

    assert asyncio.run(main()) == [0, 1, 2, 3]
