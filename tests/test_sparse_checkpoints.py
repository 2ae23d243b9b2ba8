"""Real clusters with sparse tables that are saved while they train, killed, and begun again from the disk."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.core.server.followed import followed
from tests.team import PATIENCE, Team
from tests.test_checkpoints import cluster
from tests.test_fallback import kill, server
from zmqps.checkpoint import open_checkpoint

pytestmark = pytest.mark.processes

DIM = 6
START = {"w": np.linspace(-1, 1, 300, dtype=np.float32)}
MODES: dict[str, dict[str, Any]] = {"async": {"mode": "async"}, "sync": {"mode": "sync"}}


def tables(**options: Any) -> dict[str, Any]:
    return {
        "items": zmqps.table(
            DIM, optimizer=zmqps.optim.adam(0.05), initial=zmqps.initial.normal(1.0, seed=3), **options
        ),
        "words": zmqps.table(DIM + 1, optimizer=zmqps.optim.rowwise_adagrad(0.1)),
    }


def joined(address: str, mode: str, workers: int, **options: Any) -> Team:
    return Team(
        address, workers, START, optimizer=zmqps.optim.sgd(0.1), tables=tables(**options), **MODES[mode]
    )  # fmt: skip


def ids_of(rank: int, step: int) -> Any:
    return np.random.default_rng((rank, step)).zipf(1.3, 40).astype(np.int64) % 1000 - 100


def train(team: Team, mode: str, steps: range) -> None:
    """Let workers take steps in which all depends on what came before."""
    for step in steps:
        values = team.workers[0].pull(timeout=PATIENCE)["w"]

        def step_of(worker: Any, step: int = step, values: Any = values) -> None:
            for name in ("items", "words"):
                ids = ids_of(worker.rank, step)
                rows = worker.table(name).pull(ids, timeout=PATIENCE)
                worker.table(name).push(ids, np.sin(3 * rows) + 0.1, timeout=PATIENCE)
            worker.push({"w": np.sin(values) + worker.rank}, timeout=PATIENCE)

        if mode == "sync":
            team.all(step_of)
        else:
            for worker in team.workers:
                step_of(worker)


def everything(worker: Any) -> tuple[Any, ...]:
    """Return the dense values, and all rows by id."""
    ids = np.arange(-150, 1000)
    found = [worker.table(name).rows(ids, timeout=PATIENCE) for name in ("items", "words")]
    return np.array(worker.pull(timeout=PATIENCE)["w"]), *found, len(worker.table("items")), len(worker.table("words"))


@pytest.mark.parametrize(("mode", "servers", "via"), [("async", 1, "shared"), ("sync", 3, "coordinator")])
def test_training_that_was_restored_equals_training_that_was_not_interrupted(
    tmp_path: Path, mode: str, servers: int, via: str
) -> None:
    with (
        cluster(tmp_path, full_every=3, via=via) as first,
        joined(first.address, mode, 2) as team,
    ):
        for steps in (range(6), range(6, 7), range(7, 8)):  # the last one builds upon those before
            train(team, mode, steps)
            made = team.workers[0].checkpoint(consistent=True, timeout=PATIENCE)
        train(team, mode, range(8, 11))
        expected = everything(team.workers[0])
    assert open_checkpoint(made.path).base is not None
    assert sum(open_checkpoint(made.path).verify()) > 0
    with (
        cluster(tmp_path, servers, restore=made.path, via=via) as second,
        joined(second.address, mode, 2) as team,
    ):
        train(team, mode, range(8, 11))
        found = everything(team.workers[0])
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("mode", MODES)
def test_after_the_loss_of_a_server_a_job_goes_on_from_its_checkpoint(tmp_path: Path, mode: str) -> None:
    with cluster(tmp_path, full_every=9, keep=9) as nodes, joined(nodes.address, mode, 2) as team:
        for step in range(2):
            train(team, mode, range(step, step + 1))
            made = team.workers[0].checkpoint(consistent=True, timeout=PATIENCE)
        assert open_checkpoint(made.path).base is not None
        saved = everything(team.workers[0])
        train(team, mode, range(2, 4))
        expected = everything(team.workers[0])
        back = [threading.Event() for _ in team.workers]
        for worker, event in zip(team.workers, back, strict=True):
            worker.on_rollback(lambda rollback, event=event: event.set())  # type: ignore[misc]
        kill(nodes, "server-1")
        with server(nodes.address):
            assert all(event.wait(PATIENCE) for event in back)
            found = everything(team.workers[0])
            if mode == "sync":  # all servers have gone back
                assert all(np.array_equal(one, other) for one, other in zip(found, saved, strict=True))
                train(team, mode, range(2, 4))
                assert all(
                    np.array_equal(one, other) for one, other in zip(everything(team.workers[0]), expected, strict=True)
                )
            else:  # a row is as it was on the server that was lost, and as it is on the other
                for one, before, after in zip(found[1:3], saved[1:3], expected[1:3], strict=True):
                    old, new = (one == before).all(axis=1), (one == after).all(axis=1)
                    assert (old | new).all()
                    assert not old.all()
                    assert not new.all()
                train(team, mode, range(4, 6))
            after = []
            for step in range(6, 8):
                train(team, mode, range(step, step + 1))
                after.append(team.workers[0].checkpoint(consistent=True, timeout=PATIENCE))
    assert [open_checkpoint(one.path).base is not None for one in after] == [False, True]


def test_after_a_backup_has_taken_over_the_next_checkpoint_is_whole(tmp_path: Path) -> None:
    with cluster(tmp_path, replicas=1, full_every=9, keep=9) as nodes, joined(nodes.address, "async", 2) as team:
        made = []
        for step in range(5):
            if step == 2:
                kill(nodes, "server-0")
            train(team, "async", range(step, step + 1))
            made.append(team.workers[0].checkpoint(timeout=PATIENCE))
        expected = np.array(team.workers[0].pull(timeout=PATIENCE)["w"])
    assert [open_checkpoint(one.path).base is not None for one in made] == [False, True, False, True, True]
    assert np.array_equal(zmqps.load(made[-1].path)["w"], expected)


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_of_a_table_goes_back_with_it(tmp_path: Path, mode: str) -> None:
    with (
        cluster(tmp_path) as nodes,
        joined(nodes.address, mode, 2) as team,
        zmqps.connect(nodes.address, observer=True, timeout=PATIENCE) as observer,
    ):
        copy: dict[int, list[float]] = {}
        feed = observer.table("items").changes()
        train(team, mode, range(2))
        team.workers[0].checkpoint(consistent=True, timeout=PATIENCE)
        followed(feed, copy)
        train(team, mode, range(2, 4))
        assert not any(part.reset for part in followed(feed, copy))
        before = dict(copy)
        back = threading.Event()
        observer.on_rollback(lambda rollback: back.set())
        kill(nodes, "server-1")
        with server(nodes.address):
            assert any(part.reset for part in followed(feed, copy))  # it waits for the shard that goes back
            assert back.wait(PATIENCE)
            assert copy != before
            train(team, mode, range(4, 6))
            everything(team.workers[0])  # synchronous: the last step is committed then, on each server; no scan waits
            followed(feed, copy)
            rows: dict[int, list[float]] = {}
            for ids, values in team.workers[0].table("items").chunks(timeout=PATIENCE):
                rows |= dict(zip(ids.tolist(), values.tolist(), strict=True))
            assert copy == rows


def test_a_job_of_tables_alone_is_saved_and_restored(tmp_path: Path) -> None:
    only = {"items": zmqps.table(2, optimizer=zmqps.optim.sgd(1.0))}
    with cluster(tmp_path) as first, zmqps.connect(first.address) as worker:
        worker.init({}, tables=only, mode="async", timeout=PATIENCE)
        worker.table("items").push([1, 2, 1], np.ones((3, 2), np.float32), timeout=PATIENCE)
        made = worker.checkpoint(timeout=PATIENCE)
    with cluster(tmp_path, 3, restore=made.path) as second, zmqps.connect(second.address) as worker:
        worker.init({}, tables=only, mode="async", timeout=PATIENCE)
        assert worker.table("items").rows([1, 2, 3], timeout=PATIENCE)[:, 0].tolist() == [-2.0, -1.0, 0.0]
        assert len(worker.table("items")) == 2
