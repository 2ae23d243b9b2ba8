"""Synchronous and bounded training with real servers: one large batch, whoever comes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.tables import one_in
from tests.team import PATIENCE, Team
from zmqps.client.requests import Params
from zmqps.errors import ConfigurationError, DeadlineError, JobError, VersionError

Arrays = dict[str, np.ndarray]

#: A wait that is not to succeed is given up after so many seconds.
SHORTLY = 0.2
RETAIN = 2
#: Elements of a parameter: two slices and a half.
SIZE = 2500


# --- one large batch ----------------------------------------------------------------------------

WORKERS = 4
BATCH = 8
STEPS = 50
rng = np.random.default_rng(0)
X = rng.standard_normal((WORKERS * BATCH, 60)).astype(np.float32)
Y = X @ rng.standard_normal((60, 40)).astype(np.float32)
START = {"w": rng.standard_normal((60, 40)).astype(np.float32), "b": np.zeros(40, np.float32)}


def gradients(params: Arrays, x: np.ndarray, y: np.ndarray) -> Arrays:
    """Of half the mean squared error of a linear model."""
    error = (x @ params["w"] + params["b"] - y) / len(x)
    return {"w": x.T @ error, "b": error.sum(0)}


def sgd(g: np.ndarray, memory: list[np.ndarray], step: int) -> np.ndarray:
    return 0.01 * g


def momentum(g: np.ndarray, memory: list[np.ndarray], step: int) -> np.ndarray:
    memory[0] = 0.9 * memory[0] + g
    return 0.01 * memory[0]


def adam(g: np.ndarray, memory: list[np.ndarray], step: int) -> np.ndarray:
    memory[0] = 0.9 * memory[0] + 0.1 * g
    memory[1] = 0.999 * memory[1] + 0.001 * g**2
    return 0.01 * (memory[0] / (1 - 0.9**step)) / (np.sqrt(memory[1] / (1 - 0.999**step)) + 1e-8)


def alone(rule: Callable[..., np.ndarray]) -> Arrays:
    """Return what one process makes of the whole batch, in float64."""
    params = {name: value.astype(np.float64) for name, value in START.items()}
    memory = {name: [np.zeros(value.shape) for _ in range(2)] for name, value in START.items()}
    for step in range(1, STEPS + 1):
        grads = gradients(params, X.astype(np.float64), Y.astype(np.float64))
        params = {name: value - rule(grads[name], memory[name], step) for name, value in params.items()}
    return params


def together(servers: int, optimizer: zmqps.optim.OptimizerSpec) -> list[Arrays]:
    """Return what each of the workers reads after as many steps on its part of the batch."""

    def train(worker: zmqps.Worker) -> Arrays:
        mine = slice(worker.rank * BATCH, (worker.rank + 1) * BATCH)
        for step in range(STEPS):
            params = worker.pull(timeout=PATIENCE)
            assert params.version == step
            worker.push(gradients(params, X[mine], Y[mine]), timeout=PATIENCE)
        return worker.pull(timeout=PATIENCE)

    with (
        InProcessCluster(servers=servers, workers=WORKERS, slice_size=4096) as cluster,
        Team(
            cluster.address, WORKERS, START, optimizer=optimizer, mode="sync", steps=zmqps.Steps(deterministic=True)
        ) as team,
    ):
        return team.all(train)


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    one_in(
        3,
        [
            (zmqps.optim.adam(0.01), adam),
            (zmqps.optim.sgd(0.01, momentum=0.9), momentum),
            (zmqps.optim.sgd(0.01), sgd),
        ],
    ),
    ids=["adam", "momentum", "sgd"],
)
def test_four_workers_are_one_process_on_the_fourfold_batch_and_every_run_gives_the_same_bits(
    optimizer: zmqps.optim.OptimizerSpec, rule: Callable[..., np.ndarray]
) -> None:
    expected = alone(rule)
    runs = [*together(1, optimizer), *together(3, optimizer)]
    for name, value in expected.items():
        assert np.abs(runs[0][name] - value).max() <= 1e-5 * np.abs(value).max()
        assert all(np.array_equal(run[name], runs[0][name]) for run in runs)


# --- what a step is -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trio() -> Iterator[Team]:
    """Three workers on two servers; SGD at rate 1 subtracts the mean. Each test begins where the one before ended."""
    params = {name: np.zeros(SIZE, np.float32) for name in "abcd"}
    with (
        InProcessCluster(servers=2, workers=3, slice_size=4096) as cluster,
        Team(
            cluster.address,
            3,
            params,
            optimizer=zmqps.optim.sgd(1.0),
            mode="sync",
            steps=zmqps.Steps(retain=RETAIN, deterministic=True),
        ) as team,
    ):
        yield team


def both(a: float, b: float | None = None) -> Arrays:
    """Return gradients of these values of a and b; c and d stay as they are."""
    values = {"a": a, "b": a if b is None else b, "c": 0.0, "d": 0.0}
    return {name: np.full(SIZE, value, np.float32) for name, value in values.items()}


def change(before: Arrays, after: Arrays, name: str) -> float:
    """Return by how much a parameter went down; all its elements did."""
    (value,) = set((before[name] - after[name]).tolist())
    return float(value)


def test_everybody_reads_the_same_version_and_the_mean_is_applied_once(trio: Team) -> None:
    before = trio.workers[0].pull()
    for number in (1, 2):
        pulled = trio.step(lambda rank: both([1.0, 2.0, 6.0][rank]))
        assert [params.version for params in pulled] == [before.version + number] * 3
        assert [change(before, params, name) for params in pulled for name in "ab"] == [3.0 * number] * 6


def test_the_mean_is_weighted_by_the_examples(trio: Team) -> None:
    before = trio.workers[0].pull()
    trio.all(lambda w: w.push(both([8.0, 0.0, 4.0][w.rank]), examples=[1, 5, 2][w.rank]))
    assert change(before, trio.workers[0].pull(), "a") == 2.0


def test_push_pull_returns_the_values_after_the_step(trio: Team) -> None:
    before = trio.workers[0].pull()
    pulled = trio.all(lambda worker: worker.push_pull(both(worker.rank), timeout=PATIENCE))
    assert [params.version for params in pulled] == [before.version + 1] * 3
    assert [change(before, params, "b") for params in pulled] == [1.0] * 3


def test_partial_pushes_are_one_step_when_the_worker_says_so(trio: Team) -> None:
    before = trio.workers[0].pull()

    def push_in_parts(worker: zmqps.Worker) -> Params:
        grads = both(worker.rank, 2.0)
        worker.push({"b": grads["b"]}, timeout=PATIENCE)
        worker.push({"a": grads["a"]}, timeout=PATIENCE)
        assert worker.pull().version == before.version  # the step is not complete, the values are as they were
        worker.advance(timeout=PATIENCE)
        return worker.pull(timeout=PATIENCE)

    for params in trio.all(push_in_parts):
        assert params.version == before.version + 1
        assert [change(before, params, name) for name in "ab"] == [1.0, 2.0]


def test_workers_may_take_different_numbers_of_steps_between_two_barriers(trio: Team) -> None:
    before = trio.workers[0].pull()

    def train(worker: zmqps.Worker) -> Params:
        for _ in range(3 - worker.rank):
            worker.push(both(10.0**worker.rank), timeout=PATIENCE)
        worker.barrier("end of the pass", timeout=PATIENCE)
        return worker.pull(timeout=PATIENCE)

    steps = [(1 + 10 + 100) / 3, (1 + 10) / 2, 1]
    for params in trio.all(train):
        assert params.version == before.version + 3
        np.testing.assert_allclose(before["a"] - params["a"], sum(steps), rtol=1e-4)
    assert {params.version for params in trio.step(lambda rank: both(1.0))} == {before.version + 4}
    assert [worker.statistics().dropped for worker in trio.workers] == [0, 0, 0]


def test_contributions_are_added_in_the_order_of_ranks_whoever_comes_first(trio: Team) -> None:
    rng = np.random.default_rng(1)
    grads = [np.float32(scale * rng.standard_normal(SIZE)) for scale in (1e3, 1.0, 1e-3)]
    assert not np.array_equal(grads[0] + grads[1] + grads[2], grads[2] + grads[1] + grads[0])
    for worker in trio.workers:  # each acknowledged before the next begins
        worker.push({"c": grads[worker.rank]})
    for worker in reversed(trio.workers):
        worker.push({"d": grads[worker.rank]})
    trio.all(lambda worker: worker.advance())
    pulled = trio.workers[0].pull(timeout=PATIENCE)
    assert np.array_equal(pulled["c"], pulled["d"])


def test_versions_can_be_waited_for_and_read_while_they_are_retained(trio: Team) -> None:
    before = trio.workers[0].pull()
    with zmqps.connect(trio.workers[0].address, observer=True) as observer:
        coming = observer.pull_async(at_least=before.version + 2, timeout=PATIENCE)
        with pytest.raises(DeadlineError):
            observer.pull(at_least=before.version + 2, timeout=SHORTLY)
        for _ in range(RETAIN):
            trio.step(lambda rank: both(1.0))
        assert coming.result().version == before.version + RETAIN
        for ago in range(RETAIN + 1):
            kept = observer.pull(exact=before.version + ago)
            assert kept.version == before.version + ago
            assert change(before, kept, "a") == ago
        assert observer.pull("b", at_least=1).version == before.version + RETAIN
        trio.step(lambda rank: both(1.0))
        with pytest.raises(VersionError) as caught:
            observer.pull(exact=before.version)
        newest = before.version + RETAIN + 1
        assert (caught.value.version, caught.value.oldest) == (before.version, before.version + 1)
        assert caught.value.newest == newest
    with pytest.raises(ConfigurationError, match="at_least or exact"):
        trio.workers[0].pull(at_least=1, exact=1)


def test_a_thousand_that_wait_for_the_others_are_all_done_when_those_have_come() -> None:
    options = {"optimizer": zmqps.optim.sgd(1.0), "mode": "sync"}
    with (
        InProcessCluster(servers=1, workers=2) as cluster,
        Team(cluster.address, 2, {"w": np.zeros(4, np.float32)}, **options) as team,
    ):
        first, second = team.workers
        one = {"w": np.ones(4, np.float32)}
        first.push(one, timeout=PATIENCE)
        waiting = [first.pull_async("w", timeout=PATIENCE) for _ in range(1000)]
        second.push(one, timeout=PATIENCE)
        assert {future.result(timeout=PATIENCE).version for future in waiting} == {1}


# --- more and fewer gradients than workers ------------------------------------------------------


def test_backup_workers_are_dropped_and_told() -> None:
    options = {"optimizer": zmqps.optim.sgd(1.0), "mode": "sync", "steps": zmqps.Steps(aggregate=2)}
    with (
        InProcessCluster(servers=2, workers=3) as cluster,
        Team(cluster.address, 3, {"w": np.zeros(4, np.float32)}, **options) as team,
    ):
        for worker, arrived in zip(team.workers, (1, 0, 0), strict=True):  # one by one: the last is too late
            worker.push({"w": np.full(4, 10.0**worker.rank, np.float32)})
            cluster.wait_until(lambda status, n=arrived: status["jobs"]["default"]["steps"]["arrived"] == n)
        pulled = [worker.pull(timeout=PATIENCE) for worker in team.workers]
        assert [params.version for params in pulled] == [1, 1, 1]
        assert all((params["w"] == -5.5).all() for params in pulled)
        assert [worker.statistics().dropped for worker in team.workers] == [0, 0, 1]
        assert cluster.status()["jobs"]["default"]["steps"]["dropped"] == 1


def test_workers_bring_several_batches_to_a_step_of_more_gradients_than_workers() -> None:
    options = {"optimizer": zmqps.optim.sgd(1.0), "mode": "sync", "steps": zmqps.Steps(aggregate=5)}
    with (
        InProcessCluster(servers=2, workers=2) as cluster,
        Team(cluster.address, 2, {"w": np.zeros(4, np.float32)}, **options) as team,
    ):
        brought: list[float] = []

        def train(worker: zmqps.Worker) -> Params:
            while (params := worker.pull(timeout=PATIENCE)).version == 0:
                brought.append(10.0**worker.rank)
                worker.push({"w": np.full(4, brought[-1], np.float32)}, timeout=PATIENCE)
            return params

        for params in team.all(train):
            assert params.version == 1
            np.testing.assert_allclose(params["w"], -np.mean(brought), rtol=1e-6)
        assert len(brought) == 5


# --- more workers than are expected -------------------------------------------------------------


def test_of_more_workers_than_are_expected_one_takes_the_place_of_who_leaves_and_who_rejoins_has_its_own() -> None:
    params = {"w": np.zeros(4, np.float32)}
    options = {"optimizer": zmqps.optim.sgd(1.0), "mode": "sync"}
    with (
        InProcessCluster(servers=1, workers=2) as cluster,
        Team(cluster.address, 2, params, **options) as team,
    ):
        first, second = team.workers

        def push(*workers: zmqps.Worker) -> None:
            for worker in workers:
                worker.push({"w": np.ones(4, np.float32)}, timeout=PATIENCE)

        push(first, second)
        assert first.pull(timeout=PATIENCE).version == second.pull(timeout=PATIENCE).version == 1
        second.rejoin(timeout=PATIENCE)
        push(first, second)
        assert first.pull(timeout=PATIENCE).version == second.pull(timeout=PATIENCE).version == 2
        with zmqps.connect(cluster.address, timeout=PATIENCE) as reader:
            assert reader.pull().version == 2
            push(reader)
            with pytest.raises(JobError, match=r"expects 2 workers, and counts those that name it: call worker\.init"):
                reader.pull()
        with zmqps.connect(cluster.address, timeout=PATIENCE) as spare:
            spare.init(params, **options)
            assert spare.num_workers == 2
            push(spare)
            with pytest.raises(DeadlineError, match="a place among the 2 workers that the job expects: it is a spare"):
                spare.pull(timeout=SHORTLY)
            push(first)
            second.finish(timeout=PATIENCE)
            assert first.pull(timeout=PATIENCE).version == spare.pull(timeout=PATIENCE).version == 3
            push(first, spare)
            assert first.pull(timeout=PATIENCE).version == spare.pull(timeout=PATIENCE).version == 4


# --- bounded staleness --------------------------------------------------------------------------


def test_nobody_reads_further_ahead_of_the_slowest_than_allowed() -> None:
    bound, steps = 2, 20
    with (
        InProcessCluster(servers=2, workers=3) as cluster,
        Team(
            cluster.address,
            3,
            {"w": np.zeros(4, np.float32)},
            optimizer=zmqps.optim.sgd(1.0),
            mode="bounded",
            staleness=bound,
        ) as team,
    ):
        one = {"w": np.ones(4, np.float32)}
        fast = team.workers[0]
        for _ in range(bound + 1):
            fast.pull(timeout=PATIENCE)
            fast.push(one)
        with pytest.raises(DeadlineError) as caught:
            fast.pull(timeout=SHORTLY)
        assert "the slowest worker is at clock 0, at most 2 behind is allowed" in str(caught.value)
        assert "worker 1" in str(caught.value)
        assert "worker 2" in str(caught.value)
        pushed = [bound + 1, 0, 0]
        lock = threading.Lock()

        def train(worker: zmqps.Worker) -> None:
            for _ in range(steps - pushed[worker.rank]):
                params = worker.pull(timeout=PATIENCE)
                with lock:
                    clock, slowest = pushed[worker.rank], min(pushed)
                    pushed[worker.rank] += 1  # before it begins: others may be released as soon as it is done
                assert slowest >= clock - bound
                # whatever is at most so old has been read: of each worker all but its last `bound` updates
                assert -params["w"][0] >= 3 * (clock - bound)
                worker.push(one, timeout=PATIENCE)

        team.all(train)
        team.all(
            lambda worker: worker.pull(timeout=PATIENCE)
        )  # which waits until the coordinator knows of its last step
        found = cluster.status()["jobs"]["default"]["steps"]
        assert found | {"bound": bound, "slowest": steps} == found
        assert (fast.pull(timeout=PATIENCE)["w"] == -3 * steps).all()
        assert fast.statistics().mode == "bounded"
