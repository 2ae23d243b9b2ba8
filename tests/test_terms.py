"""The terms of updates with real servers: norms that are clipped, learning rates that are set, what schedules count."""

from __future__ import annotations

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.modes import MODES
from tests.team import PATIENCE, Team
from zmqps.errors import ConfigurationError, OptimizerError
from zmqps.optim import adam, group, linear_warmup, sgd

Arrays = dict[str, np.ndarray]

LIMIT = 1.5
START: Arrays = {"a": np.zeros((40, 30)), "b": np.zeros(1700), "frozen": np.zeros(10)}
OPTIONS = {"groups": [group("frozen", frozen=True)]}


def gradients(seed: int, size: float = 1.0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: size * rng.standard_normal(value.shape) for name, value in START.items()}


def clipped(grads: Arrays) -> Arrays:
    """As `torch.nn.utils.clip_grad_norm_` does it, over what is trained."""
    trained = {name: grads[name] for name in ("a", "b")}
    norm = np.sqrt(sum(float((g**2).sum()) for g in trained.values()))
    return {name: g * min(1.0, LIMIT / (norm + 1e-6)) for name, g in trained.items()}


def close(values: Arrays, expected: Arrays) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(values["frozen"], START["frozen"])


@pytest.mark.parametrize("servers", [1, 3])
def test_the_norm_of_a_synchronous_step_is_that_of_the_mean_over_all_shards(servers: int) -> None:
    options = {"optimizer": sgd(0.1, momentum=0.5, clip_norm=LIMIT, **OPTIONS), "mode": "sync"}
    expected, memory = {name: START[name].copy() for name in ("a", "b")}, {"a": 0.0, "b": 0.0}
    with (
        InProcessCluster(servers=servers, slice_size=4096, workers=2) as cluster,
        Team(cluster.address, 2, START, **options) as team,
    ):
        for step in range(6):
            size = 1.0 if step % 2 else 1e-3  # the norm of every other mean is small enough
            pulled = team.step(lambda rank, step=step, size=size: gradients(2 * step + rank, size))
            brought = [gradients(2 * step + rank, size) for rank in range(2)]
            for name, mean in clipped({name: (brought[0][name] + brought[1][name]) / 2 for name in START}).items():
                memory[name] = 0.5 * memory[name] + mean
                expected[name] = expected[name] - 0.1 * memory[name]
            for values in pulled:
                close(values, expected)


@pytest.mark.parametrize("mode", ["async", "bounded"])
def test_where_each_push_is_applied_the_norm_is_that_of_the_push(mode: str) -> None:
    expected = {name: START[name].copy() for name in ("a", "b")}
    with InProcessCluster(servers=2, slice_size=4096) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(START, optimizer=sgd(0.1, clip_norm=LIMIT, **OPTIONS), **MODES[mode], timeout=PATIENCE)
        for step in range(4):
            grads = gradients(step, 1.0 if step % 2 else 1e-3)
            values = worker.push_pull(grads, timeout=PATIENCE)
            for name, g in clipped(grads).items():
                expected[name] = expected[name] - 0.1 * g
            close(values, expected)
        worker.push({"b": gradients(9)["b"]}, timeout=PATIENCE)
        expected["b"] = expected["b"] - 0.1 * clipped({"a": np.zeros(1), "b": gradients(9)["b"]})["b"]
        close(worker.pull(timeout=PATIENCE), expected)


def test_a_step_that_all_skip_has_no_norm() -> None:
    options = {"optimizer": sgd(0.1, clip_norm=LIMIT), "mode": "sync"}
    with InProcessCluster(servers=2, workers=2) as cluster, Team(cluster.address, 2, START, **options) as team:
        team.all(lambda worker: worker.skip(timeout=PATIENCE))
        assert [values.version for values in team.all(lambda worker: worker.pull(timeout=PATIENCE))] == [1, 1]


def test_in_the_synchronous_mode_the_chief_sets_the_learning_rate_of_its_next_step() -> None:
    ones = {name: np.ones_like(value) for name, value in START.items()}
    options = {"optimizer": sgd(linear_warmup(1.0, warmup_steps=100)), "mode": "sync"}
    rates, expected = [0.5, 0.25, 0.25, 0.125], 0.0
    with InProcessCluster(servers=2, workers=2) as cluster, Team(cluster.address, 2, START, **options) as team:
        for rate in rates:
            held = team.all(lambda worker, rate=rate: worker.set_learning_rate(rate, timeout=PATIENCE))
            assert held[0] is True
            expected -= rate
            for values in team.step(lambda rank: ones):
                np.testing.assert_allclose(values["a"], expected)
        assert team.workers[1].set_learning_rate(9.0, timeout=PATIENCE) is False, "it is not the chief"
        for values in team.step(lambda rank: ones):
            np.testing.assert_allclose(values["a"], expected - rates[-1])


def test_in_the_asynchronous_mode_the_chiefs_next_push_has_it_and_who_comes_later_too() -> None:
    ones = {name: np.ones_like(value) for name, value in START.items()}
    optimizer = sgd(1.0, groups=[group("b", learning_rate=2.0)])
    with InProcessCluster(servers=2) as cluster, zmqps.connect(cluster.address) as chief:
        chief.init(START, optimizer=optimizer, mode="async", timeout=PATIENCE)
        assert chief.set_learning_rate(0.5, timeout=PATIENCE) is True
        values = chief.push_pull(ones, timeout=PATIENCE)
        assert (values["a"][0, 0], values["b"][0]) == (-0.5, -2.0), "a group with its own keeps that"
        assert chief.set_learning_rate(0.5, groups=[0.25], timeout=PATIENCE) is True
        with zmqps.connect(cluster.address) as later:
            later.init(START, optimizer=optimizer, mode="async", timeout=PATIENCE)
            values = later.push_pull(ones, timeout=PATIENCE)
            assert (values["a"][0, 0], values["b"][0]) == (-1.0, -2.25)
            assert later.set_learning_rate(7.0, timeout=PATIENCE) is False
            assert chief.set_learning_rate(0.0, groups=[1.0], timeout=PATIENCE) is True
            cluster.wait_until(lambda status: True)  # the coordinator has told the other one by now
            values = chief.push_pull(ones, timeout=PATIENCE)
            assert (values["a"][0, 0], values["b"][0]) == (-1.0, -3.25)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_all_numbers_of_groups_are_set_and_groups_that_began_alike_part(mode: str) -> None:
    ones = {name: np.ones_like(value) for name, value in START.items()}
    optimizer = sgd(1.0, momentum=0.5, groups=[group("b"), group("frozen", frozen=True)])
    with InProcessCluster(servers=2, slice_size=4096) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init({**START, "c": np.ones(5)}, optimizer=optimizer, **MODES[mode], timeout=PATIENCE)
        ones["c"] = np.ones(5)
        said: list[tuple[dict[str, float], dict[str, float]]] = [
            ({}, {}),
            ({"momentum": 0.9, "weight_decay": 0.1}, {"learning_rate": 0.5}),
            ({"learning_rate": 0.25}, {"momentum": 0.0, "dampening": 0.5}),
            ({}, {}),
        ]
        expected = {"a": (0.0, 0.0), "b": (0.0, 0.0), "c": (1.0, 0.0)}
        for values, of_b in said:
            assert worker.set_hyperparameters(values, groups=[of_b, None], timeout=PATIENCE) is True
            pulled = worker.push_pull(ones, timeout=PATIENCE)
            for name, (w, u) in expected.items():
                own = {
                    "learning_rate": 1.0,
                    "momentum": 0.5,
                    "weight_decay": 0.0,
                    **values,
                    **(of_b if name == "b" else {}),
                }
                g = 1.0 + own["weight_decay"] * w
                if own["momentum"]:
                    u = own["momentum"] * u + g
                expected[name] = w - own["learning_rate"] * (u if own["momentum"] else g), u
                np.testing.assert_allclose(pulled[name], expected[name][0], rtol=1e-12)


def test_an_optimizer_that_has_no_such_number_says_so_and_which_it_has() -> None:
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(START, optimizer=sgd(0.1), mode="async", timeout=PATIENCE)
        with pytest.raises(OptimizerError, match=r"momentum of sgd cannot go from 0.0 to 0.9"):
            worker.set_hyperparameters({"momentum": 0.9})


def test_a_learning_rate_that_cannot_be_used_is_refused_at_once() -> None:
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(START, optimizer=adam(0.1), mode="async", timeout=PATIENCE)
        with pytest.raises(OptimizerError, match="learning_rate must be"):
            worker.set_learning_rate(-1.0)
        with pytest.raises(OptimizerError, match="groups has 1 entries"):
            worker.set_learning_rate(0.1, groups=[0.2])
        with pytest.raises(OptimizerError, match="set_hyperparameters: groups must be a sequence"):
            worker.set_learning_rate(0.1, groups=5)  # type: ignore[arg-type]
        with (
            zmqps.connect(cluster.address, observer=True) as observer,
            pytest.raises(ConfigurationError, match="an observer does not train, and cannot set hyperparameters"),
        ):
            observer.set_learning_rate(0.1)


@pytest.mark.parametrize(("count", "expected"), [("pushes", 1.0 + 0.5 + 0.25 + 0.125), ("steps", 2 * 1.0 + 2 * 0.5)])
def test_a_schedule_counts_pushes_or_the_steps_of_all_workers_together(count: str, expected: float) -> None:
    ones = {name: np.ones_like(value) for name, value in START.items()}
    schedule = zmqps.optim.exponential_decay(1.0, decay_rate=0.5)
    options = {"optimizer": sgd(schedule, count=count), "mode": "async", "workers": 2}
    with InProcessCluster(servers=2) as cluster, Team(cluster.address, 2, START, **options) as team:
        for _ in range(2):
            team.all(lambda worker: worker.push(ones, timeout=PATIENCE))
        np.testing.assert_allclose(team.workers[0].pull(timeout=PATIENCE)["a"], -expected)


def test_schedules_that_count_steps_must_know_how_many_workers_make_one() -> None:
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as worker:
        with pytest.raises(ConfigurationError, match="must know how many workers make one"):
            worker.init(START, optimizer=sgd(0.1, count="steps"), mode="async", timeout=PATIENCE)
        worker.init(START, optimizer=sgd(0.1, count="steps"), mode="sync", timeout=PATIENCE)  # a step is a step there
