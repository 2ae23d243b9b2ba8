"""Where a worker's step ends, with real servers: none stalls or vanishes in silence, whatever is pushed in it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.modes import MODES
from tests.tables import for_each
from tests.team import PATIENCE, Team
from zmqps import aio, optim
from zmqps.errors import ConfigurationError, NonFiniteGradientError, OptimizerError, UnknownParameterError

#: The first two are frozen.
START = {name: np.zeros(3, np.float32) for name in ("embed.w", "embed.b", "body", "head")}
FROZEN = optim.sgd(1.0, groups=[optim.group("embed.*", frozen=True)])


@contextmanager
def team(size: int = 2, optimizer: optim.OptimizerSpec = FROZEN, **options: Any) -> Iterator[Team]:
    options = {"mode": "sync", **options}
    with (
        InProcessCluster(servers=2, workers=size) as cluster,
        Team(cluster.address, size, START, optimizer=optimizer, **options) as team,
    ):
        yield team


def of(value: float, *names: str) -> dict[str, np.ndarray]:
    return {name: np.full(3, value, np.float32) for name in names}


def values(params: Mapping[str, np.ndarray]) -> dict[str, float]:
    assert all((array == array[0]).all() for array in params.values())
    return {name: float(array[0]) for name, array in params.items()}


def all_pull(trio: Team) -> dict[str, float]:
    pulled = [worker.pull(timeout=PATIENCE) for worker in trio.workers]
    assert len({params.version for params in pulled}) == 1
    assert all(values(params) == values(pulled[0]) for params in pulled)
    return {"version": pulled[0].version, **values(pulled[0])}


@for_each("mode", ["sync", "bounded"])
def test_a_push_without_the_frozen_ones_completes_the_step(mode: str) -> None:
    with team(**MODES[mode]) as pair:
        for _ in range(3):  # a bounded worker whose steps did not count would be held here
            pair.all(lambda worker: worker.push_pull(of(1.0, "body", "head"), timeout=PATIENCE))
        read = pair.workers[0].pull(timeout=PATIENCE)
        steps = 3.0 if mode == "sync" else 6.0
        assert values(read) == {"embed.w": 0.0, "embed.b": 0.0, "body": -steps, "head": -steps}
        assert pair.workers[0].statistics().clock == 3


def test_where_all_are_frozen_every_push_completes_the_step() -> None:
    with team(optimizer=optim.sgd(groups=[optim.group("*", frozen=True)])) as pair:
        pair.all(lambda worker: worker.push(of(1.0, "body"), timeout=PATIENCE))
        assert all_pull(pair)["version"] == 1


def test_none_is_nothing_for_a_parameter_in_a_step() -> None:
    with team(optimizer=optim.sgd(1.0)) as pair:
        pair.workers[0].push({**of(2.0, "body", "head"), "embed.w": None, "embed.b": None}, timeout=PATIENCE)
        pair.workers[1].push({**of(4.0, "body"), "head": None, **of(8.0, "embed.w", "embed.b")}, timeout=PATIENCE)
        assert all_pull(pair) == {"version": 1, "embed.w": -8.0, "embed.b": -8.0, "body": -3.0, "head": -2.0}
        with pytest.raises(UnknownParameterError, match="did you mean 'head'"):
            pair.workers[0].push({"haed": None})


@for_each("mode", ["async", "sync"])
def test_values_of_what_had_no_gradient_are_returned_by_a_push_pull(mode: str) -> None:
    with team(1, optim.sgd(1.0), **MODES[mode]) as one:
        [worker] = one.workers
        grads = {**of(1.0, "body", "head"), "embed.w": None, "embed.b": None}
        assert values(worker.push_pull(grads)) == {"body": -1.0, "head": -1.0, "embed.w": 0.0, "embed.b": 0.0}
        assert values(worker.push_pull({"body": None, "head": np.ones(3)}, step=True)) == {"body": -1.0, "head": -2.0}


def test_a_push_ends_the_step_where_it_is_told_to() -> None:
    with team(optimizer=optim.sgd(1.0)) as pair:
        pair.workers[0].push(of(2.0, "body"), step=True, timeout=PATIENCE)
        pair.workers[1].push(of(4.0, "body"), timeout=PATIENCE)
        pair.workers[1].push(of(6.0, "head"), step=True, timeout=PATIENCE)
        assert all_pull(pair) == {"version": 1, "embed.w": 0.0, "embed.b": 0.0, "body": -3.0, "head": -6.0}
        pair.workers[0].push({}, step=True, timeout=PATIENCE)
        pair.workers[1].push(of(1.0, *START), timeout=PATIENCE)
        assert all_pull(pair) == {"version": 2, "embed.w": -1.0, "embed.b": -1.0, "body": -4.0, "head": -7.0}


def test_several_batches_make_a_step_where_their_pushes_do_not_end_it() -> None:
    with team(optimizer=optim.sgd(1.0)) as pair:
        for worker in pair.workers:
            worker.push(of(1.0, *START), step=False, timeout=PATIENCE)
            worker.push(of(3.0, *START), timeout=PATIENCE)
        assert all_pull(pair) == {"version": 1, **dict.fromkeys(START, -2.0)}
    with pytest.raises(ConfigurationError, match="step must be True or False"):
        pair.workers[0].push(of(1.0, "body"), step="yes")  # type: ignore[arg-type]


@for_each("how", ["skip", "advance", "push"])
def test_the_mean_is_over_those_who_did_not_skip_the_step(how: str) -> None:
    def nothing(worker: zmqps.Worker) -> None:
        if how == "push":
            worker.push(dict.fromkeys(START), timeout=PATIENCE)
        else:
            getattr(worker, how)(timeout=PATIENCE)

    with team(3, optim.sgd(1.0)) as trio:
        for worker in trio.workers:
            if worker.rank == 1:
                nothing(worker)
            else:
                worker.push(of(1.0 + worker.rank, *START), timeout=PATIENCE)
        assert all_pull(trio) == {"version": 1, **dict.fromkeys(START, -2.0)}
        trio.all(nothing)
        assert all_pull(trio) == {"version": 2, **dict.fromkeys(START, -2.0)}
        trio.step(lambda rank: of(1.0, *START))
        assert all_pull(trio) == {"version": 3, **dict.fromkeys(START, -3.0)}
        assert [worker.statistics().dropped for worker in trio.workers] == [0, 0, 0]


def test_a_step_that_is_skipped_takes_nothing_of_what_was_pushed_in_it() -> None:
    with team(optimizer=optim.sgd(1.0)) as pair:
        pair.workers[0].push(of(9.0, "body"), timeout=PATIENCE)
        pair.workers[0].skip(timeout=PATIENCE)
        pair.workers[1].push(of(1.0, *START), timeout=PATIENCE)
        assert all_pull(pair) == {"version": 1, **dict.fromkeys(START, -1.0)}


def test_a_gradient_that_is_not_finite_is_refused_and_its_worker_skips_the_step() -> None:
    with team(optimizer=optim.sgd(1.0)) as pair:
        with pytest.raises(NonFiniteGradientError):
            pair.workers[0].push(of(math.nan, *START), timeout=PATIENCE)
        pair.workers[1].push(of(1.0, *START), timeout=PATIENCE)
        pair.workers[0].skip(timeout=PATIENCE)
        assert all_pull(pair) == {"version": 1, **dict.fromkeys(START, -1.0)}


def test_a_bounded_worker_that_skips_holds_up_nobody() -> None:
    with team(optimizer=optim.sgd(1.0), mode="bounded", staleness=1) as pair:
        for _ in range(4):
            pair.workers[1].skip(timeout=PATIENCE)
            pair.workers[0].push(of(1.0, *START), timeout=PATIENCE)
        assert values(pair.workers[0].pull(timeout=PATIENCE)) == dict.fromkeys(START, -4.0)


def test_nothing_happens_in_the_asynchronous_mode() -> None:
    with team(1, optim.sgd(1.0), mode="async") as one:
        one.workers[0].skip()
        one.workers[0].advance()
        one.workers[0].push({}, step=True)
        assert all_pull(one)["version"] == 0


def test_an_observer_has_no_steps() -> None:
    with team(1) as one, zmqps.connect(one.workers[0].address, observer=True) as observer:
        for end in (observer.skip, observer.advance):
            with pytest.raises(ConfigurationError, match="an observer is not waited for, so it has no steps to end"):
                end()


def test_who_reads_in_a_step_that_nothing_has_ended_is_warned_once(caplog: pytest.LogCaptureFixture) -> None:
    with team(1, optim.sgd(1.0)) as one, caplog.at_level(logging.WARNING, "zmqps"):
        [worker] = one.workers
        worker.push(of(1.0, "embed.w", "embed.b", "body"))
        for _ in range(2):
            assert worker.pull().version == 0
        worker.push(of(1.0, "head"), step=True)
        assert worker.pull().version == 1
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "in this step" in text] == [
        "3 of 4 parameters pushed in this step, not 'head'; push(step=True) or advance() ends it, "
        "and values change only then"
    ]


@pytest.mark.parametrize(
    ("names", "said"),
    [([], "0 of 4 parameters pushed, not 'embed.w', 'embed.b', 'body', 'head'"),
     (["body"], "1 of 4 parameters pushed, not 'embed.w', 'embed.b', 'head'")],
)  # fmt: skip
def test_who_pushes_nothing_or_a_part_asynchronously_is_warned_once(
    names: list[str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with team(1, optim.sgd(1.0), mode="async") as one, caplog.at_level(logging.WARNING, "zmqps"):
        [worker] = one.workers
        worker.push(of(1.0, "body"), step=False)
        worker.push(of(1.0, "body"), step=True)
        worker.push(of(1.0, *worker.pull()))
        assert not [record for record in caplog.records if "parameters pushed" in record.getMessage()]
        for _ in range(2):
            worker.push(of(1.0, *names))
    texts = [record.getMessage() for record in caplog.records]
    assert [text for text in texts if "parameters pushed" in text] == [
        f"{said}, and only what is pushed is updated; push(step=True) says that this is meant"
    ]


def test_a_group_that_no_parameter_is_in_is_refused_before_the_job_begins() -> None:
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        for group, text in (
            (optim.group("haed*"), r"group: no parameter matches 'haed\*'; did you mean 'head'\?"),
            (optim.group(names=["bodi"]), r"group: there is no parameter 'bodi'; did you mean 'body'\?"),
            (optim.group("nothing*"), r"no parameter matches 'nothing\*'; the job has 'embed.w', 'embed.b'"),
            (optim.group("[body]"), r"brackets make it match one character"),
        ):
            with pytest.raises(OptimizerError, match=text):
                worker.init(START, optimizer=optim.sgd(1.0, groups=[group]), mode="async")
        worker.init(START, optimizer=optim.sgd(1.0, groups=[optim.group(names=["head"], frozen=True)]), mode="async")


def test_an_awaited_worker_skips_as_well() -> None:
    async def train(address: str) -> int:
        async with aio.connect(address) as worker:
            await worker.init(START, optimizer=optim.sgd(1.0), mode="sync")
            await worker.skip()
            return (await worker.pull()).version

    with InProcessCluster(servers=1, workers=1) as cluster:
        assert asyncio.run(train(cluster.address)) == 1
