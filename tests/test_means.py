"""What the mean of a synchronous step is divided by, and steps that a worker leaves out for all.

Real workers and servers, against a few lines of numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.modes import MODES
from tests.team import PATIENCE, Team
from zmqps.core.protocol.messages import Proceed
from zmqps.errors import ConfigurationError, JobMismatchError

WORKERS, STEPS, IDS = 3, 14, np.arange(6)
START = {"a": np.zeros(5, "f4"), "b": np.zeros((2, 3)), "c": np.zeros(1, "f4")}
SGD = zmqps.optim.sgd(1.0)


class Brought(NamedTuple):
    """What a worker has of a step; ``rows`` None: nothing for the table."""

    way: str
    examples: int
    grads: dict[str, np.ndarray]
    rows: np.ndarray | None


def brought(rank: int, step: int) -> Brought:
    rng = np.random.default_rng([rank, step])
    names = [name for name in START if rng.random() < 0.6]
    grads = {name: rng.integers(-9, 9, START[name].shape).astype(START[name].dtype) for name in names}
    way = str(rng.choice(["whole", "parts", "advance", "skip"]))
    rows = rng.integers(-9, 9, (IDS.size, 2)).astype("f4") if rng.random() < 0.5 and way != "skip" else None
    return Brought(way, int(rng.integers(1, 9)), grads, rows)


def push(worker: zmqps.Worker, step: int) -> Any:
    """Bring what this worker has of a step, and read the values after it."""
    way, examples, grads, rows = brought(worker.rank, step)
    if rows is not None:
        worker.table("items").push(IDS, rows, examples=examples, step=False, timeout=PATIENCE)
    if way == "skip":
        worker.push(grads, examples=examples, step=False, timeout=PATIENCE)
        worker.skip(timeout=PATIENCE)
    elif way == "whole":
        worker.push(grads, examples=examples, step=True, timeout=PATIENCE)
    else:
        for name, grad in grads.items():
            worker.push({name: grad}, examples=examples, step=False, timeout=PATIENCE)
        if way == "parts":
            worker.push({}, examples=examples, step=True, timeout=PATIENCE)
        else:
            worker.advance(timeout=PATIENCE)
    values = worker.pull(timeout=PATIENCE)
    assert values.version == step + 1
    return {**values, "items": worker.table("items").pull(IDS, timeout=PATIENCE)}


def counts(one: Brought) -> int:
    """Return the weight of a worker that does not skip."""
    said = one.way != "advance" or one.grads or one.rows is not None
    return one.examples if said else 1


@pytest.fixture(params=["none", "host"])
def team(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    monkeypatch.setenv("ZMQPS_COMBINE", request.param)
    tables = {"items": zmqps.table(2, optimizer=SGD, initial=zmqps.initial.zeros())}
    with (
        InProcessCluster(servers=2, workers=WORKERS) as cluster,
        Team(
            cluster.address,
            WORKERS,
            START,
            optimizer=SGD,
            tables=tables,
            mode="sync",
            steps=zmqps.Steps(mean="workers"),
        ) as team,
    ):
        yield team


def test_a_mean_over_all_workers_is_that_of_one_process_with_the_whole_batch(team: Team) -> None:
    expected = {name: value.astype("f8") for name, value in START.items()} | {"items": np.zeros((IDS.size, 2))}
    for step in range(STEPS):
        all_of = [one for one in (brought(rank, step) for rank in range(WORKERS)) if one.way != "skip"]
        total = max(1, sum(map(counts, all_of)))
        for one in all_of:
            for name, grad in (one.grads | ({} if one.rows is None else {"items": one.rows})).items():
                expected[name] = expected[name] - one.examples * grad / total
        for found in team.all(lambda worker, step=step: push(worker, step)):  # type: ignore[misc]
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-12 if name == "b" else 1e-4)


def test_a_step_that_one_leaves_out_for_all_changes_nothing_but_what_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for combine in ("none", "host"):
        monkeypatch.setenv("ZMQPS_COMBINE", combine)
        left_out = {1: [0], 3: [1, 2], 4: [0, 1, 2]}  # who leaves out which step
        start, buffers = {"w": np.ones(4)}, {"count": np.array(0)}

        def train(worker: zmqps.Worker, left_out: dict[int, list[int]] = left_out) -> tuple[Any, list[bool]]:
            told = []
            for step in range(6):
                before = worker.steps_left_out
                worker.set({"count": np.array(step)}, timeout=PATIENCE)
                if worker.rank in left_out.get(step, []):
                    worker.skip(for_all=True, timeout=PATIENCE)
                    values = worker.pull(timeout=PATIENCE)
                else:
                    grads = {"w": np.full(4, worker.rank + step + 1.0)}
                    worker.push(grads, timeout=PATIENCE)
                    values = worker.pull(timeout=PATIENCE)
                told.append(worker.steps_left_out > before)
                assert (values.version, values["count"]) == (step + 1, step)
            assert worker.statistics().left_out == len(left_out)
            return values["w"], told

        adam = zmqps.optim.adam(0.1)
        with (
            InProcessCluster(servers=2, workers=WORKERS) as cluster,
            Team(cluster.address, WORKERS, start, buffers=buffers, optimizer=adam, mode="sync") as team,
        ):
            results = team.all(train)
        w, m, v, t = np.ones(4), np.zeros(4), np.zeros(4), 0
        for step in (step for step in range(6) if step not in left_out):
            g, t = np.full(4, np.mean([rank + step + 1.0 for rank in range(WORKERS)])), t + 1
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            w = w - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        for values, told in results:
            np.testing.assert_allclose(values, w, rtol=1e-10)
            assert told == [step in left_out for step in range(6)]


def test_a_step_left_out_is_known_with_the_values_that_another_worker_of_the_host_has_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZMQPS_COMBINE", "host")
    with (
        InProcessCluster(servers=1, workers=2) as cluster,
        Team(cluster.address, 2, {"w": np.ones(4)}, optimizer=SGD, mode="sync") as team,
    ):
        team.step(lambda rank: {"w": np.ones(4)})
        [member] = [worker for worker in team.workers if worker._exchanges._group.leader is None]  # type: ignore[attr-defined]
        thread, delayed = member._member.connection.thread, list[Any]()
        loop, driver, handle = thread._loop, thread._driver, thread.machine.handle
        assert loop is not None
        assert driver is not None

        def late(event: Any, now: float) -> Any:
            if isinstance(getattr(event, "message", None), Proceed) and not delayed:
                delayed.append(event)
                loop.call_later(0.3, driver.submit, event)
                return []
            return handle(event, now)

        monkeypatch.setattr(driver.machine, "handle", late)

        def leave_out(worker: zmqps.Worker) -> int:
            worker.skip(for_all=worker.rank == 0, timeout=PATIENCE)
            worker.pull(timeout=PATIENCE)
            return worker.steps_left_out

        assert team.all(leave_out) == [1, 1]
        assert delayed


def test_rows_of_a_step_that_is_left_out_are_not_trained() -> None:
    tables = {"items": zmqps.table(2, optimizer=zmqps.optim.adagrad(0.5), initial=zmqps.initial.zeros())}
    with (
        InProcessCluster(servers=2, workers=2) as cluster,
        Team(cluster.address, 2, {"w": np.zeros(2)}, optimizer=SGD, tables=tables, mode="sync") as team,
    ):

        def train(worker: zmqps.Worker) -> Any:
            items = worker.table("items")
            found = []
            for step in range(2):
                items.push(IDS, np.ones((IDS.size, 2), "f4"), step=False, timeout=PATIENCE)
                if worker.rank == step:
                    worker.skip(for_all=step == 0, timeout=PATIENCE)
                else:
                    worker.advance(timeout=PATIENCE)
                found.append(items.pull(IDS, timeout=PATIENCE))
            return found

        for first, second in team.all(train):
            assert not first.any()
            np.testing.assert_allclose(second, -0.5, rtol=1e-5)


def test_the_norm_that_is_clipped_is_that_of_the_mean_over_all() -> None:
    start, sgd = {"a": np.zeros(1), "b": np.zeros(1)}, zmqps.optim.sgd(1.0, clip_norm=1.0)
    with (
        InProcessCluster(servers=2, workers=2) as cluster,
        Team(cluster.address, 2, start, optimizer=sgd, mode="sync", steps=zmqps.Steps(mean="workers")) as team,
    ):
        pulled = team.all(lambda w: (w.push({"a": [6.0]} if w.rank else {"b": [8.0]}, step=True), w.pull())[1])
        for values in pulled:  # the mean is (3, 4), of norm 5
            assert [values["a"][0], values["b"][0]] == pytest.approx([-0.6, -0.8], rel=1e-5)


@pytest.mark.parametrize("mode", ["async", "bounded"])
def test_where_workers_share_no_steps_one_that_is_left_out_for_all_is_skipped(mode: str) -> None:
    with InProcessCluster(workers=1) as cluster, zmqps.connect(cluster.address, timeout=PATIENCE) as worker:
        worker.init({"w": np.zeros(2)}, optimizer=SGD, **MODES[mode])
        worker.skip(for_all=True)
        worker.push({"w": np.ones(2)})
        assert worker.pull()["w"].tolist() == [-1.0, -1.0]
        assert worker.steps_left_out == 0
        with pytest.raises(ConfigurationError, match="for_all"):
            worker.skip(for_all=1)  # type: ignore[arg-type]


def test_workers_of_a_job_agree_on_what_its_mean_is_over() -> None:
    start = {"w": np.zeros(2)}
    with (
        InProcessCluster() as cluster,
        zmqps.connect(cluster.address, timeout=PATIENCE) as one,
        zmqps.connect(cluster.address, timeout=PATIENCE) as other,
    ):
        one.init(start, optimizer=SGD, mode="sync", steps=zmqps.Steps(mean="workers"))
        with pytest.raises(JobMismatchError, match=r"differ in mean: .* has 'workers'; this worker has 'pushed'"):
            other.init(start, optimizer=SGD, mode="sync")
        with pytest.raises(ConfigurationError, match='belongs to mode="sync"'):
            other.init(start, optimizer=SGD, mode="async", steps=zmqps.Steps(mean="workers"))
