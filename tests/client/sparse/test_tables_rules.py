"""Each rule on the rows of a table, trained by workers on clusters of processes, equals one process on one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.team import PATIENCE, Team
from zmqps import optim
from zmqps.client.futures import begins
from zmqps.core.protocol.arrays import Array
from zmqps.initial import constant, normal, uniform, zeros

pytestmark = pytest.mark.processes

WORKERS, STEPS, DIM = 4, 50, 5
#: After so many steps all rows are compared.
LOOKED_AT = (1, 10, 11, 30, 31, STEPS)
DECAY, LIMIT = 0.05, 1.25

#: What an equation makes of a row: its values, its slots; in float64.
Rule = Callable[[Any, Any, list[Any], int], Any]


def sgd(w: Any, g: Any, slots: list[Any], step: int) -> Any:
    return w - 0.25 * g


def momentum(w: Any, g: Any, slots: list[Any], step: int) -> Any:
    slots[0] = 0.8 * slots[0] + (1.0 if step == 1 else 0.75) * g
    return w - 0.1 * slots[0]


def adagrad(w: Any, g: Any, slots: list[Any], step: int) -> Any:
    slots[0] = slots[0] + g**2
    return w - 0.2 / (1 + 0.1 * (step - 1)) * g / (np.sqrt(slots[0] + 0.25) + 1e-10)


def rowwise_adagrad(w: Any, g: Any, slots: list[Any], step: int) -> Any:
    slots[0] = slots[0] + (g**2).mean()
    return w - 0.2 * g / (np.sqrt(slots[0] + 0.5) + 1e-8)


def adam(w: Any, g: Any, slots: list[Any], step: int) -> Any:
    slots[0] = 0.9 * slots[0] + 0.1 * g
    slots[1] = 0.99 * slots[1] + 0.01 * g**2
    return w - 0.02 * (slots[0] / (1 - 0.9**step)) / (np.sqrt(slots[1] / (1 - 0.99**step)) + 1e-8)


def adamw(w: Any, g: Any, slots: list[Any], step: int) -> Any:
    return adam(w, g, slots, step) - 0.02 * DECAY * w


def ftrl(w: Any, g: Any, slots: list[Any], step: int) -> Any:
    before = np.sqrt(slots[1] + 0.1)
    slots[1] = slots[1] + g**2
    after = np.sqrt(slots[1] + 0.1)
    slots[0] = slots[0] + g - (after - before) / 0.5 * w
    return (np.clip(slots[0], -0.25, 0.25) - slots[0]) / ((1.0 + after) / 0.5 + 0.5)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A table, and the equation that it is trained by."""

    rule: Rule
    options: zmqps.TableOptions
    decay: float = 0.0  # added to the gradient
    limit: float = np.inf  # of a row's gradient
    by_table: bool = False  # the number of an update is that of the table
    lazy: float = 1.0  # what a row is multiplied by for each update of the table that it has missed


SPECS: dict[Rule, Callable[..., optim.OptimizerSpec]] = {
    sgd: lambda **more: optim.sgd(0.25, **more),
    momentum: lambda **more: optim.sgd(0.1, momentum=0.8, dampening=0.25, **more),
    adagrad: lambda **more: optim.adagrad(0.2, initial_accumulator_value=0.25, learning_rate_decay=0.1, **more),
    rowwise_adagrad: lambda **more: optim.rowwise_adagrad(0.2, initial_accumulator_value=0.5, **more),
    adam: lambda **more: optim.adam(0.02, b2=0.99, **more),
    adamw: lambda **more: optim.adamw(0.02, b2=0.99, **{"weight_decay": DECAY, **more}),
    ftrl: lambda **more: optim.ftrl(0.5, l1=0.25, l2=0.5, initial_accumulator_value=0.1, **more),
}


def all_trained() -> dict[str, Trained]:
    """Return a table for each rule as it is, with weight decay, and with a limit for norms."""
    found: dict[str, Trained] = {}
    begins = [zeros(), constant(0.75), uniform(-1.0, 1.0, seed=3), normal(0.5)]
    for number, (rule, spec) in enumerate(SPECS.items()):
        begin, name = begins[number % len(begins)], rule.__name__
        found[name] = Trained(rule=rule, options=zmqps.table(DIM, optimizer=spec(), initial=begin))
        clipped = zmqps.table(DIM, optimizer=spec(clip_norm=LIMIT), initial=begin)
        found[f"{name} with clip_norm"] = Trained(rule=rule, options=clipped, limit=LIMIT)
        if rule is not adamw:  # which has it
            decayed = zmqps.table(DIM, optimizer=spec(weight_decay=DECAY), initial=begin)
            found[f"{name} with weight_decay"] = Trained(rule=rule, options=decayed, decay=DECAY)
    both = optim.adam(0.02, b2=0.99, weight_decay=DECAY, clip_norm=LIMIT)
    options = zmqps.table(DIM, optimizer=both, initial=normal(0.5), step_counts="table")
    found["adam that counts the table's updates"] = Trained(
        rule=adam, options=options, decay=DECAY, limit=LIMIT, by_table=True
    )
    lazy = zmqps.table(DIM, optimizer=SPECS[adamw](), initial=normal(0.5), lazy_decay=True)
    found["adamw that makes up for decay"] = Trained(rule=adamw, options=lazy, lazy=1 - 0.02 * DECAY)
    return found


class Alone:
    """A table as one process trains it on the whole batch, in float64."""

    def __init__(self, trained: Trained, ids: Array, begin: Array) -> None:
        self._trained = trained
        self.rows = {number: row.astype(np.float64) for number, row in zip(ids.tolist(), begin, strict=True)}
        self._slots: dict[int, list[Any]] = {number: [0.0, 0.0] for number in self.rows}
        self._counts = dict.fromkeys(self.rows, 0)
        self._updated: dict[int, int] = {}  # by which update of the table last
        self._steps = 0

    def step(self, pushes: list[tuple[Array, Array, int]]) -> set[int]:
        """Apply the mean over the examples of all who push; return whose rows have changed."""
        if not pushes:
            return set()
        self._steps += 1
        total = sum(examples for _, _, examples in pushes)
        sums: dict[int, Array] = {}
        for ids, grads, examples in pushes:
            for number, grad in zip(ids.reshape(-1).tolist(), grads.reshape(-1, DIM).astype(np.float64), strict=True):
                sums[number] = sums.get(number, np.zeros(DIM)) + examples * grad
        for number, gradient in sums.items():
            self._update(number, gradient / total)
        return set(sums)

    def _update(self, number: int, g: Array) -> None:
        trained, missed = self._trained, self._steps - 1 - self._updated.get(number, self._steps - 1)
        w = self.rows[number] * trained.lazy**missed
        self._updated[number] = self._steps
        self._counts[number] += 1
        g = g * min(1.0, trained.limit / max(float(np.linalg.norm(g)), 1e-300)) + trained.decay * w
        step = self._steps if trained.by_table else self._counts[number]
        self.rows[number] = trained.rule(w, g, self._slots[number], step)


def batches(names: list[str], pool: Array, seed: int) -> dict[tuple[str, int, int], tuple[Array, Array, int] | None]:
    """Return ids, gradients and examples by table, step and rank; None: nothing is pushed.

    Gradients are such that their sums are exact in float32, where rounding would decide which way Adam goes.
    """
    rng = np.random.default_rng(seed)
    made: dict[tuple[str, int, int], tuple[Array, Array, int] | None] = {}
    for name in names:
        for step in range(STEPS):
            for rank in range(WORKERS):
                ids = rng.choice(pool, size=rng.integers(0, 13))  # an id may come twice, and a batch be empty
                ids = ids.reshape(-1, 2) if ids.size % 2 == 0 else ids
                grads = (rng.integers(-64, 65, (*ids.shape, DIM)) / 32).astype(np.float32)
                made[name, step, rank] = None if rng.random() < 0.15 else (ids, grads, int(rng.integers(1, 9)))
    return made


@pytest.mark.parametrize("servers", [2, 3])
def test_four_workers_train_each_rule_as_one_process_does(servers: int) -> None:
    tables = all_trained()
    pool = np.random.default_rng(servers).integers(-(1 << 63), (1 << 63) - 1, 40)
    brought = batches(list(tables), pool, servers)
    looks: dict[int, dict[str, Array]] = {}

    def train(worker: zmqps.Worker) -> None:
        ways = {name: worker.table(name) for name in tables}
        if worker.rank == 0:
            looks[0] = {name: way.rows(pool, timeout=PATIENCE) for name, way in ways.items()}
        worker.barrier("begin", timeout=PATIENCE)
        for step in range(STEPS):
            under_way = []
            for name, way in ways.items():
                if (mine := brought[name, step, worker.rank]) is not None:
                    ids, grads, examples = mine
                    under_way.append(way.push_async(ids, grads, examples=examples, timeout=PATIENCE))
            under_way.append(begins(zmqps.Worker.advance)(worker, timeout=PATIENCE))
            for future in under_way:
                future.result()
            if worker.rank == step % WORKERS and step + 1 in LOOKED_AT:
                read = {name: way.pull_async(pool, timeout=PATIENCE) for name, way in ways.items()}
                looks[step + 1] = {name: future.result() for name, future in read.items()}

    with (
        zmqps.LocalCluster(zmqps.Servers(servers, kernels="numpy")) as cluster,
        Team(
            cluster.address,
            WORKERS,
            {},
            tables={name: trained.options for name, trained in tables.items()},
            mode="sync",
            workers=WORKERS,
        ) as team,
    ):
        team.all(train)
        names = [worker.table(name).statistics(timeout=PATIENCE) for worker in team.workers[:1] for name in tables]

    assert all(found.rows == found.new == pool.size for found in names)
    for name, trained in tables.items():
        alone, touched = Alone(trained, pool, looks[0][name]), set[int]()
        for step in range(STEPS):
            pushes = [brought[name, step, rank] for rank in range(WORKERS)]
            touched = alone.step([push for push in pushes if push is not None])
            if step + 1 in LOOKED_AT:
                got, expected = looks[step + 1][name], np.stack([alone.rows[number] for number in pool.tolist()])
                wrong = float(np.abs(got - expected).max() / np.abs(expected).max())
                assert wrong <= 1e-6, f"{name} after {step + 1} steps: {wrong}"
            if step + 1 in LOOKED_AT and step in looks:
                still = ~np.isin(pool, list(touched))
                assert still.any()
                assert np.array_equal(looks[step][name][still], looks[step + 1][name][still]), f"{name}: {step}"
