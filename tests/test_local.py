"""Local steps: against their equations with a worker in memory, and against a single process over real ones."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.modes import MODES
from tests.pace import allow
from tests.tables import for_each
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.errors import ConfigurationError, DeadlineError
from zmqps.local import ElasticAveraging, LocalSteps
from zmqps.optim import OptimizerSpec

SGD = zmqps.optim.sgd(1.0)
START = {"w": np.array([1.0, -2.0], "f4"), "b": np.array(0.5, "f4")}


class MemoryWorker:
    """A worker whose servers apply plain SGD at once, in this process."""

    def __init__(self, learning_rate: float = 1.0, optimizer: OptimizerSpec = SGD) -> None:
        self.values = {name: value.copy() for name, value in START.items()}
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.trips: list[str] = []
        self.fails = False
        self._member = SimpleNamespace(job=self.find_job)

    def find_job(self, timeout: float | None) -> SimpleNamespace:
        parameters = tuple(Parameter(name, value.shape, value.dtype.name) for name, value in START.items())
        return SimpleNamespace(job=JobSpec(parameters=parameters, optimizer=self.optimizer.to_wire(), mode="async"))

    def pull(
        self, names: Any = None, *, out: dict[str, np.ndarray] | None = None, timeout: float | None = None
    ) -> dict[str, np.ndarray]:
        self.trips.append("pull")
        out = {name: np.empty_like(value) for name, value in self.values.items()} if out is None else out
        for name, value in self.values.items():
            out[name][...] = value
        return out

    def push(self, grads: dict[str, np.ndarray], *, timeout: float | None = None) -> None:
        self.trips.append("push")
        if self.fails:
            raise DeadlineError(operation="push", seconds=1.0, waiting_for="server 0")
        for name, value in self.values.items():
            value -= self.learning_rate * grads[name]

    def push_pull(self, grads: dict[str, np.ndarray], **options: Any) -> dict[str, np.ndarray]:
        self.push(grads)
        return self.pull(**options)


def shift(local: LocalSteps | ElasticAveraging, by: float) -> bool:
    """Train: move all parameters; tell whether that was exchanged."""
    for value in local.params.values():
        value += by
    return local.step()


def test_the_change_of_k_steps_is_the_gradient_of_the_outer_optimizer() -> None:
    worker = MemoryWorker(learning_rate=0.5)
    local = LocalSteps(worker, every=3)  # type: ignore[arg-type]
    arrays = dict(local.params)
    assert [shift(local, 1.0) for _ in range(6)] == [False, False, True] * 2
    for name, value in START.items():
        np.testing.assert_allclose(worker.values[name], value + 2 * 0.5 * 3.0)  # half of each change
        np.testing.assert_array_equal(local.params[name], worker.values[name])
        assert local.params[name] is arrays[name]
    assert worker.trips == ["pull", "push", "pull", "push", "pull"]
    assert local.steps == 6


def test_params_are_the_workers_own() -> None:
    worker = MemoryWorker()
    local = LocalSteps(worker, every=9)  # type: ignore[arg-type]
    shift(local, 1.0)
    for name, value in START.items():
        np.testing.assert_array_equal(worker.values[name], value)


def test_steps_since_the_last_exchange_are_not_lost_at_the_end() -> None:
    worker = MemoryWorker()
    local = LocalSteps(worker, every=4)  # type: ignore[arg-type]
    for _ in range(5):
        shift(local, 1.0)
    final = local.finish()
    np.testing.assert_allclose(final["w"], START["w"] + 5)
    trips = len(worker.trips)
    local.finish()
    assert len(worker.trips) == trips, "there is nothing to exchange a second time"


def test_an_exchange_that_failed_leaves_the_worker_where_it_was_and_reset_begins_anew() -> None:
    worker = MemoryWorker()
    local = LocalSteps(worker, every=2)  # type: ignore[arg-type]
    worker.fails = True
    shift(local, 1.0)
    with pytest.raises(DeadlineError):
        shift(local, 1.0)
    np.testing.assert_allclose(local.params["w"], START["w"] + 2)
    worker.fails = False
    local.reset()
    np.testing.assert_array_equal(local.params["w"], START["w"])
    assert [shift(local, 1.0) for _ in range(2)] == [False, True]
    np.testing.assert_allclose(worker.values["w"], START["w"] + 2)


def test_elastic_averaging_draws_worker_and_centre_together() -> None:
    worker = MemoryWorker()
    local = ElasticAveraging(worker, alpha=0.25, every=2)  # type: ignore[arg-type]
    assert [shift(local, 2.0) for _ in range(2)] == [False, True]
    for name, value in START.items():
        np.testing.assert_allclose(worker.values[name], value + 0.25 * 4.0)
        np.testing.assert_allclose(local.params[name], value + 0.75 * 4.0)
    local.reset()
    np.testing.assert_allclose(local.params["w"], worker.values["w"])


@for_each("every", [0, 1.5, True])
def test_every_is_a_number_of_steps(every) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigurationError, match="every"):
        LocalSteps(MemoryWorker(), every=every)  # type: ignore[arg-type]


@for_each("alpha", [0.0, 1.0, "x"])
def test_alpha_lies_between_0_and_1(alpha) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigurationError, match="alpha"):
        ElasticAveraging(MemoryWorker(), alpha, 2)  # type: ignore[arg-type]


def test_elastic_averaging_needs_an_optimizer_that_only_adds() -> None:
    in_a_group = zmqps.optim.sgd(1.0, groups=[zmqps.optim.group("*", momentum=0.9)])
    for optimizer, named in (
        (zmqps.optim.adam(), "adam"), (zmqps.optim.sgd(momentum=0.9), "sgd with momentum"),
        (in_a_group, "sgd with momentum"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=f"this job has {named}\n"):
            ElasticAveraging(MemoryWorker(optimizer=optimizer), 0.5, 2)  # type: ignore[arg-type]


# --- real processes -------------------------------------------------------------------------------

WORKERS, EVERY, ROUNDS, INNER = 2, 3, 4, 0.1
TARGETS = [np.linspace(0.0, 1.0, 5), np.linspace(2.0, -1.0, 5)]  # worker i minimises |w − target_i|²/2


@pytest.fixture
def address() -> Iterator[str]:
    with InProcessCluster(servers=2, workers=WORKERS) as cluster:
        yield cluster.address


def diloco(address: str, rank: int) -> tuple[np.ndarray, zmqps.Statistics]:
    with zmqps.connect(address, timeout=allow(30.0)) as worker:
        worker.init({"w": np.zeros(5)}, optimizer=zmqps.optim.sgd(0.7, momentum=0.9, nesterov=True), mode="sync")
        local = LocalSteps(worker, every=EVERY, timeout=allow(30.0))
        for _ in range(ROUNDS * EVERY):
            local.params["w"] -= INNER * (local.params["w"] - TARGETS[rank])
            local.step()
        values = local.finish()["w"].copy()
        worker.finish(timeout=allow(30.0))
        return values, worker.statistics()


def test_synchronous_local_steps_are_diloco(address) -> None:  # type: ignore[no-untyped-def]
    w, velocity = np.zeros(5), np.zeros(5)
    for _ in range(ROUNDS):
        changes = []
        for target in TARGETS:
            own = w.copy()
            for _ in range(EVERY):
                own -= INNER * (own - target)
            changes.append(w - own)
        g = np.mean(changes, axis=0)
        velocity = 0.9 * velocity + g
        w = w - 0.7 * (g + 0.9 * velocity)
    with ThreadPoolExecutor(WORKERS) as pool:
        results = list(pool.map(lambda rank: diloco(address, rank), range(WORKERS)))
    for values, statistics in results:
        np.testing.assert_allclose(values, w, rtol=1e-12)
        assert (statistics.pushes, statistics.clock) == (ROUNDS, ROUNDS)


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("elastic", [False, True])
def test_buffers_are_the_scripts_own_and_set_in_the_step_of_an_exchange(mode, elastic) -> None:  # type: ignore[no-untyped-def]
    with (
        InProcessCluster(servers=2, workers=1) as cluster,
        zmqps.connect(cluster.address, timeout=allow(30.0)) as worker,
    ):
        buffers = {"bn.mean": np.zeros(3), "bn.count": np.array(0)}
        sgd = zmqps.optim.sgd(1.0)
        worker.init({"w": np.zeros(4)}, buffers=buffers, optimizer=sgd, **MODES[mode])
        local = ElasticAveraging(worker, 0.5, every=2) if elastic else LocalSteps(worker, every=2)
        assert set(local.params) == {"w"}
        for step in range(4):
            local.params["w"] -= 1
            if step % 2:  # of several in one step of the synchronous mode the first counts
                worker.set({"bn.mean": np.full(3, step)})
            local.step()
        local.finish()
        found = worker.pull()
        np.testing.assert_array_equal(found["bn.mean"], np.full(3, 3.0))
        assert found["bn.count"] == 0
        np.testing.assert_array_equal(found["w"], np.full(4, -2.0 if elastic else -4.0))
        local.reset()
        np.testing.assert_array_equal(local.params["w"], found["w"])
