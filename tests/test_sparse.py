"""Sparse tables with real servers: equal to one process, exact under losses, and what users may do wrong."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.modes import MODES
from tests.tables import one_in
from tests.team import PATIENCE, Team
from zmqps import initial, optim
from zmqps.client.futures import begins
from zmqps.errors import (
    ConfigurationError,
    DtypeError,
    IdentityError,
    JobMismatchError,
    NonFiniteGradientError,
    OptimizerError,
    PSError,
    ShapeError,
    TableFullError,
    UnknownParameterError,
)
from zmqps.optim import OptimizerSpec, make_kernel

Array = np.ndarray[Any, np.dtype[Any]]

DIM, STEPS = 6, 20
#: The rules that are compared, by the name of the table that has each.
RULES: dict[str, OptimizerSpec] = {
    "sgd": optim.sgd(0.3),
    "decayed": optim.sgd(0.3, weight_decay=0.01),
    "momentum": optim.sgd(0.1, momentum=0.9),
    "adagrad": optim.adagrad(0.2),
    "adam": optim.adam(0.01),
    "adamw": optim.adamw(0.01, weight_decay=0.1),
    "ftrl": optim.ftrl(0.5, l1=0.001, l2=0.01),
    "scheduled": optim.sgd(optim.exponential_decay(0.5, decay_rate=0.9, transition_steps=5)),
    "clipped": optim.sgd(0.3, clip_norm=0.5),
    "rowwise": optim.rowwise_adagrad(0.2),
}


class Dense:
    """A table as one process would train it: a row after the other, each with the rule of dense parameters."""

    def __init__(self, spec: OptimizerSpec, begin: Callable[[int], Array]) -> None:
        [self._rule], _ = spec.rules(["w"])
        self._is_rowwise = spec.name == "rowwise_adagrad"
        self._spec, self._begin = spec, begin
        self._rows: dict[int, tuple[Array, list[Array]]] = {}
        self._counts: Counter[int] = Counter()
        self.steps = 0

    def row(self, id_: int) -> Array:
        return self._rows[id_][0] if id_ in self._rows else self._begin(id_)

    def step(self, pushes: list[tuple[Array, Array, int]]) -> None:
        """Apply the mean over all examples of a step."""
        self.steps += 1
        total = sum(examples for _, _, examples in pushes)
        sums: dict[int, Array] = {}
        for ids, grads, examples in pushes:
            for id_, grad in zip(ids.reshape(-1).tolist(), grads.reshape(-1, DIM), strict=True):
                sums[id_] = sums.get(id_, np.zeros(DIM)) + examples * grad.astype(np.float64)
        for id_, total_grad in sums.items():
            self._update(id_, (total_grad / total).astype(np.float32))

    def _update(self, id_: int, g: Array) -> None:
        if id_ not in self._rows:
            fill = (0.0,) if self._is_rowwise else self._rule.slot_fill
            width = 1 if self._is_rowwise else DIM
            self._rows[id_] = self._begin(id_), [np.full(width, f, np.float32) for f in fill]
        w, slots = self._rows[id_]
        self._counts[id_] += 1
        if self._is_rowwise:
            slots[0] += np.mean(g * g)
            w -= 0.2 * g / (np.sqrt(slots[0]) + 1e-8)
            return
        if self._spec.clip_norm is not None:
            g = g * np.float32(min(1.0, self._spec.clip_norm / np.linalg.norm(g.astype(np.float64))))
        number = self.steps if self._spec is RULES["scheduled"] else self._counts[id_]
        unclipped = replace(self._rule, clip_norm=None)
        make_kernel(unclipped)(w, g, w, tuple(slots), number)


@pytest.mark.parametrize("servers", one_in(2, [3, 2]))
def test_four_synchronous_workers_train_what_one_process_does(servers: int) -> None:
    tables = {
        name: zmqps.table(DIM, optimizer=spec, initial=initial.normal(0.1, seed=servers))
        for name, spec in RULES.items()
    }
    rng = np.random.default_rng(servers)
    pool = rng.integers(-(1 << 62), 1 << 62, 60)
    batches = {
        (name, step, rank): (
            rng.choice(pool, size=rng.integers(0, 12)),
            rng.standard_normal((12, DIM)).astype(np.float32),
            int(rng.integers(1, 9)),
        )
        for name in RULES
        for step in range(STEPS)
        for rank in range(4)
    }
    with InProcessCluster(servers=servers) as cluster, Team(cluster.address, 4, {}, tables=tables, mode="sync") as team:
        begin = dict(
            zip(RULES, (team.workers[0].table(name).pull(pool, timeout=PATIENCE) for name in RULES), strict=True)
        )

        def train(worker: zmqps.Worker) -> None:
            for step in range(STEPS):
                pushes = []
                for name in RULES:
                    ids, grads, examples = batches[name, step, worker.rank]
                    table = worker.table(name)
                    pushes.append(table.push_async(ids, grads[: ids.size], examples=examples, timeout=PATIENCE))
                pushes.append(begins(zmqps.Worker.advance)(worker, timeout=PATIENCE))
                for push in pushes:
                    push.result()

        team.all(train)
        position = {int(id_): number for number, id_ in enumerate(pool)}
        for name, spec in RULES.items():
            of_table = begin[name]
            dense = Dense(spec, lambda id_, rows=of_table: rows[position[id_]].copy())  # type: ignore[misc]
            for step in range(STEPS):
                found = [batches[name, step, rank] for rank in range(4)]
                dense.step([(ids, grads[: ids.size], examples) for ids, grads, examples in found])
            expected = np.stack([dense.row(int(id_)) for id_ in pool])
            got = team.workers[1].table(name).rows(pool, timeout=PATIENCE)
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7, err_msg=name)


def test_asynchronous_sums_are_exact_with_workers_that_leave_and_come() -> None:
    pool = np.arange(-50, 50) * 7919
    with InProcessCluster(servers=3) as cluster:
        sums, lock = np.zeros((pool.size, 2)), threading.Lock()

        def train(number: int) -> None:
            rng = np.random.default_rng(number)
            for _ in range(3):  # lives
                with zmqps.connect(cluster.address, timeout=PATIENCE) as worker:
                    worker.init(
                        {}, tables={"t": zmqps.table(2, optimizer=optim.sgd(1.0))}, mode="async", timeout=PATIENCE
                    )
                    table = worker.table("t")
                    for _ in range(10):
                        which = rng.integers(0, pool.size, 40)
                        grads = rng.integers(-5, 6, (40, 2)).astype(np.float32)
                        table.push(pool[which], grads, timeout=PATIENCE)
                        with lock:
                            np.subtract.at(sums, which, grads)

        with zmqps.connect(cluster.address, timeout=PATIENCE) as keeps:  # else the job ends when nobody is there
            keeps.init({}, tables={"t": zmqps.table(2, optimizer=optim.sgd(1.0))}, mode="async", timeout=PATIENCE)
            threads = [threading.Thread(target=partial(train, number)) for number in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
                assert not thread.is_alive()
            np.testing.assert_array_equal(keeps.table("t").pull(pool, timeout=PATIENCE), sums)


def test_a_step_is_over_parameters_and_tables_together() -> None:
    table = zmqps.table(2, optimizer=optim.sgd(1.0))
    options: dict[str, Any] = {"optimizer": optim.sgd(1.0), "tables": {"t": table}, "mode": "sync"}
    with InProcessCluster(servers=2) as cluster, Team(cluster.address, 2, {"w": np.zeros(3)}, **options) as team:

        def step(worker: zmqps.Worker) -> tuple[Array, Array]:
            items = worker.table("t")
            items.push([1, 2 + worker.rank], np.ones((2, 2)), timeout=PATIENCE)
            before = items.pull([1], timeout=PATIENCE)
            assert not before.any()  # nothing changes before the step is over
            worker.push({"w": np.ones(3)}, timeout=PATIENCE)
            return worker.pull(timeout=PATIENCE)["w"], items.pull([[1, 2, 3]], timeout=PATIENCE)

        for w, rows in team.all(step):
            np.testing.assert_array_equal(w, -np.ones(3))
            np.testing.assert_array_equal(rows[0, :, 0], [-1.0, -0.5, -0.5])


@pytest.mark.parametrize("mode", ["async", "sync", "bounded"])
def test_a_batch_is_pushed_and_the_next_one_comes_in_one_call(mode: str) -> None:
    with InProcessCluster(servers=2) as cluster, zmqps.connect(cluster.address) as worker:
        options = {"optimizer": optim.sgd(1.0), "initial": initial.constant(2.0)}
        worker.init({}, tables={"t": zmqps.table(3, **options)}, **MODES[mode], timeout=PATIENCE)
        table = worker.table("t")
        assert table.dim == 3
        assert repr(table) == "<zmqps.Table 't'>"
        before = worker.statistics()
        rows = table.push_pull([5, 5, 6], np.ones((3, 3)), [[5], [6], [7]], timeout=PATIENCE)
        np.testing.assert_array_equal(rows[:, 0, 0], [0.0, 1.0, 2.0])
        assert rows.shape == (3, 1, 3)
        after = worker.statistics()
        assert (after.pushes, after.pulls) == (before.pushes + 1, before.pulls + 1)
        out = np.zeros((1, 3), np.float64)
        assert table.pull([5], out=out, timeout=PATIENCE) is out
        half = table.push_pull([7], np.ones((1, 3)), [7], out=np.zeros((1, 3), np.float16), timeout=PATIENCE)
        assert half.dtype == np.float16
        assert half[0, 0] == 1.0
        assert not table.push_pull([], np.empty((0, 3)), [], timeout=PATIENCE).size


def test_rows_are_loaded_counted_and_gone_through() -> None:
    with (
        InProcessCluster(servers=3) as cluster,
        zmqps.connect(cluster.address) as worker,
        zmqps.connect(cluster.address, observer=True) as observer,
    ):
        worker.init({}, tables={"t": zmqps.table(2, optimizer=optim.adam(0.1))}, mode="async", timeout=PATIENCE)
        table, ids = worker.table("t"), np.arange(5000) * 1_000_003
        values = np.random.default_rng(1).standard_normal((5000, 2)).astype(np.float32)
        table.load(ids, values, timeout=PATIENCE)
        assert len(table) == 5000
        seen = {}
        for some, rows in table.chunks(700):
            assert len(some) <= 700
            seen |= dict(zip(some.tolist(), rows, strict=True))
        np.testing.assert_array_equal(np.stack([seen[int(id_)] for id_ in ids]), values)
        assert sum(len(some) for some, _ in table) == 5000
        told = observer.table("t").statistics(timeout=PATIENCE)
        assert (told.rows, told.new, told.refused) == (5000, 5000, 0)
        assert told.bytes > values.nbytes
        np.testing.assert_array_equal(observer.table("t").pull(ids[:9], timeout=PATIENCE), values[:9])
        with pytest.raises(IdentityError, match="an observer may not push"):
            observer.table("t").push([1], np.ones((1, 2)), timeout=PATIENCE)


def test_what_is_wrong_is_said_and_changes_nothing() -> None:
    with (
        InProcessCluster(servers=2) as cluster,
        zmqps.connect(cluster.address) as worker,
        zmqps.connect(cluster.address) as other,
    ):
        tables = {"items": zmqps.table(4, optimizer=optim.sgd(1.0))}
        worker.init({}, tables=tables, mode="async", timeout=PATIENCE)
        items = worker.table("items")
        ones = np.ones((2, 4))
        with pytest.raises(ShapeError, match=r"gradients for items.*\(3, 4\), expected \(2, 4\)"):
            items.push([1, 2], np.ones((3, 4)))
        with pytest.raises(DtypeError, match="ids for items"):
            items.pull(np.array([1.5]))
        with pytest.raises(NonFiniteGradientError, match=r"items\[-7\]"):
            items.push([1, -7], ones * [[1.0], [np.nan]], timeout=PATIENCE)
        with pytest.raises(ConfigurationError, match="leaves values out"):
            items.push([1, 2], ones, codec=zmqps.codecs.topk(0.1))
        with pytest.raises(UnknownParameterError, match="did you mean 'items'"):
            worker.table("item")
        with pytest.raises(ConfigurationError, match=r"items\[2\] contains NaN"):
            items.load([1, 2], ones * [[1.0], [np.inf]])
        for different in (
            {"items": zmqps.table(5, optimizer=optim.sgd(1.0))},
            {"items": zmqps.table(4, optimizer=optim.sgd(2.0))},
            {"items": tables["items"], "others": tables["items"]},
        ):
            with pytest.raises(JobMismatchError, match=r"table '(items|others)'"):
                other.init({}, tables=different, mode="async")
        assert len(items) == 0
        with pytest.raises(OptimizerError, match="for tables of rows"):
            other.init({"w": np.ones(1)}, optimizer=optim.rowwise_adagrad(0.1), mode="async")


def test_a_full_table_refuses_new_rows_and_goes_on() -> None:
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        table = zmqps.table(8, optimizer=optim.sgd(1.0), capacity_nbytes=10_000)
        worker.init({}, tables={"t": table}, mode="async", timeout=PATIENCE)
        items, ids = worker.table("t"), np.arange(100)
        items.push(ids, np.ones((100, 8)), timeout=PATIENCE)
        with pytest.raises(TableFullError, match="'t' has no room for 1,000 new rows"):
            items.push(np.arange(1000, 2000), np.ones((1000, 8)), timeout=PATIENCE)
        items.push(ids, np.ones((100, 8)), timeout=PATIENCE)
        np.testing.assert_array_equal(items.pull(ids, timeout=PATIENCE), np.full((100, 8), -2.0))
        assert items.statistics().refused == 1000
        assert len(items) == 100


@pytest.mark.parametrize("codec", ["bf16", "fp16", "int8"])
def test_rows_travel_in_a_codec(codec: str) -> None:
    with InProcessCluster(servers=2) as cluster, zmqps.connect(cluster.address) as worker:
        tables = {"t": zmqps.table(32, optimizer=optim.sgd(1.0))}
        worker.init({}, tables=tables, mode="async", push_codec=codec, pull_codec=codec, timeout=PATIENCE)
        table, rng = worker.table("t"), np.random.default_rng(0)
        for size in (1, 40, 3000):
            ids, grads = rng.integers(0, 1 << 40, size), rng.standard_normal((size, 32))
            rows = table.push_pull(ids, grads, ids, timeout=PATIENCE)
            np.testing.assert_allclose(rows, -grads, atol=0.06)
            np.testing.assert_allclose(table.rows(ids, timeout=PATIENCE), -grads, atol=0.03)


def test_without_a_place_for_checkpoints_none_is_made() -> None:
    tables = {"t": zmqps.table(2, optimizer=optim.sgd(1.0))}
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init({}, tables=tables, mode="async", timeout=PATIENCE)
        with pytest.raises(PSError):
            worker.checkpoint(timeout=PATIENCE)


def test_who_goes_through_all_rows_begins_again_where_shards_are_cut_anew() -> None:
    with InProcessCluster(servers=2) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init({}, tables={"t": zmqps.table(2, optimizer=optim.sgd(1.0))}, mode="async", timeout=PATIENCE)
        table, ids = worker.table("t"), np.arange(400)
        table.load(ids, np.ones((400, 2)), timeout=PATIENCE)
        seen, times = Counter[int](), 0
        for some, _ in table.chunks(50, timeout=PATIENCE):
            seen.update(some.tolist())
            times += 1
            if times == 3:
                assert worker._member.requests is not None
                worker._member.requests.lie(worker._member.requests._planned[0])  # as when the job lies in other shards
        assert seen.keys() == set(ids.tolist())
        assert seen.total() == 400 + 3 * 50
        assert table.statistics(timeout=PATIENCE).rows == 400
