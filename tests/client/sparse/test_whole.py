"""Tables as a whole, with live nodes: an observer follows one, and files of one are written and read back."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import zmqps
from tests.core.server.followed import followed
from tests.inprocess import InProcessCluster
from tests.pace import allow
from tests.team import PATIENCE
from zmqps import initial, optim
from zmqps.client.sparse.feed import Changes, Feed
from zmqps.core.protocol.arrays import Array
from zmqps.errors import ConfigurationError, ShapeError

DIM = 3
SUFFIXES = (".safetensors", ".parquet", ".arrow")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with InProcessCluster(servers=2) as cluster:
        yield cluster.address


class Job:
    """A worker that has trained a table, and an observer of its job."""

    def __init__(self, address: str, name: str, **options: Any) -> None:
        tables = {
            "items": zmqps.table(DIM, optimizer=optim.sgd(1.0), initial=initial.normal(1.0, seed=3), **options),
            "other": zmqps.table(DIM, optimizer=optim.sgd(1.0)),
        }
        self.worker = zmqps.connect(address, job=name, timeout=PATIENCE)
        self.worker.init({}, tables=tables, mode="async", timeout=PATIENCE)
        self.observer = zmqps.connect(address, job=name, observer=True, timeout=PATIENCE)
        self.items = self.worker.table("items")

    def push(self, ids: Array, by: float = 1.0) -> None:
        self.items.push(ids, np.full((*ids.shape, DIM), by, np.float32), timeout=PATIENCE)

    def rows(self) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for ids, rows in self.items.chunks(timeout=PATIENCE):
            found |= dict(zip(ids.tolist(), rows.tolist(), strict=True))
        return found

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.observer.close()
        self.worker.close()


def test_an_observer_follows_a_table_that_is_trained(address: str) -> None:
    copy: dict[int, list[float]] = {}
    chance = np.random.default_rng(5)
    # no room for all, so rows make way for others
    with Job(address, "followed", capacity_nbytes=40_000, when_full="evict") as job:
        feed = job.observer.table("items").changes(most=100)
        parts: list[Changes] = []
        for step in range(21):
            job.push(chance.integers(0, 3000, 300), float(step))
            if step % 3:
                parts += followed(feed, copy)
        num_gone = sum(part.gone.size for part in parts)
        followed(feed, copy)
        assert copy == job.rows()
        assert len(copy) > 500
        assert num_gone > 0
        assert followed(feed, copy) == []
        before = feed.version
        job.push(np.arange(10))
        later = job.observer.table("items").changes(since=json.loads(json.dumps(feed.cursor)))
        assert not any(part.reset for part in followed(later, copy))
        assert (copy, later.version) == (job.rows(), before + 1)
        news = job.observer.table("items").changes(initial=False, timeout=PATIENCE)
        assert list(news.poll(timeout=PATIENCE)) == []
    assert (zmqps.Feed, zmqps.Changes) == (Feed, Changes)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_table_goes_into_a_file_and_comes_back(address: str, tmp_path: Path, suffix: str) -> None:
    if suffix != ".safetensors":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"items{suffix}"
    ids = np.concatenate([np.arange(999), [1 << 62, -(1 << 63)]])
    with Job(address, f"exported{suffix}") as job:
        job.push(ids)
        assert job.observer.table("items").export(path, most=64, timeout=PATIENCE) == ids.size
        assert os.listdir(tmp_path) == [path.name]
        with pytest.raises(ConfigurationError, match="is there already"):
            job.items.export(path)
        assert job.items.export(path, replace=True, timeout=PATIENCE) == ids.size
        before = job.rows()
        job.push(ids, 5.0)
        assert job.items.load_file(path, most=100, timeout=PATIENCE) == ids.size
        assert job.rows() == before
        with pytest.raises(ShapeError, match=f"{DIM + 1}"):
            next(zmqps.checkpoint.read_table(path, "items", DIM + 1, most=9))
        if suffix == ".safetensors":  # of another name, which does not matter
            assert job.worker.table("other").load_file(path, timeout=PATIENCE) == ids.size


def test_a_file_says_of_which_table_it_is(address: str, tmp_path: Path) -> None:
    path = tmp_path / "any.name"
    with Job(address, "named") as job:
        for _ in range(3):
            job.push(np.arange(1000))
        job.observer.table("items").export(path, format="safetensors", timeout=PATIENCE)
        rows = job.rows()
    with safetensors.safe_open(path, "np") as file:
        said = {name.removeprefix("zmqps."): value for name, value in file.metadata().items() if "zmqps." in name}
    version = importlib.metadata.version("zmqps")
    assert said == {"table": "items", "dim": str(DIM), "job": "named", "version": "3", "package": version}
    found = safetensors.numpy.load_file(path)
    assert dict(zip(found["items.ids"].tolist(), found["items.values"].tolist(), strict=True)) == rows


def test_what_a_cache_of_rows_keeps_is_in_the_file(address: str, tmp_path: Path) -> None:
    path = tmp_path / "items.safetensors"
    with Job(address, "cached") as job:
        items = job.worker.table("items", cache=zmqps.row_cache(100, staleness=50, defer=True), timeout=PATIENCE)
        ids = np.arange(20)
        job.push(ids)
        before = [items.pull(ids, timeout=PATIENCE) for _ in range(2)][1]  # read again, so gradients are kept
        items.push(ids, np.ones((20, DIM), np.float32), timeout=PATIENCE)
        assert items.export(path, timeout=PATIENCE) == 20
    found = safetensors.numpy.load_file(path)
    rows = dict(zip(found["items.ids"].tolist(), found["items.values"].tolist(), strict=True))
    assert [rows[number] for number in range(20)] == (before - 1).tolist()


def test_an_export_that_fails_leaves_nothing(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Job(address, "failed") as job:
        job.push(np.arange(1000))
        parts = iter(list(job.items.changes(most=10)))
        monkeypatch.setattr(Feed, "poll", lambda self, timeout: (next(parts) if n < 3 else 1 / 0 for n in range(9)))
        with pytest.raises(ZeroDivisionError):
            job.items.export(tmp_path / "items.safetensors", timeout=PATIENCE)
        assert os.listdir(tmp_path) == []
        with pytest.raises(ConfigurationError, match="name the format"):
            job.items.export(tmp_path / "items.csv")


def test_an_export_begins_anew_where_a_shard_has_gone_back(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "items.safetensors"
    with Job(address, "back") as job:
        job.push(np.arange(100))
        parts = list(job.items.changes(most=10))
        monkeypatch.setattr(Feed, "poll", lambda self, timeout: iter([*parts[:5], *parts]))
        assert job.items.export(path, timeout=PATIENCE) == 100
    assert sorted(safetensors.numpy.load_file(path)["items.ids"].tolist()) == list(range(100))


def test_rows_are_loaded_in_steps_of_the_synchronous_mode(address: str, tmp_path: Path) -> None:
    path = tmp_path / "items.safetensors"
    with Job(address, "source") as job:
        job.push(np.arange(100))
        job.items.export(path, timeout=PATIENCE)
        rows = job.rows()
    only = {"items": zmqps.table(DIM, optimizer=optim.sgd(1.0))}
    with zmqps.connect(address, job="sync", timeout=PATIENCE) as worker:
        worker.init({}, tables=only, mode="sync", timeout=PATIENCE)
        items = worker.table("items")
        assert items.load_file(path, most=30, step=True, timeout=PATIENCE) == 100
        found = items.rows(list(rows), timeout=PATIENCE)
        assert found.tolist() == list(rows.values())
        [version] = {part[3] for part in _followed(items)}
        assert version == 4


def _followed(items: zmqps.Table) -> list[list[int]]:
    feed = items.changes()
    list(feed.poll(timeout=PATIENCE))
    return feed.cursor


def test_neither_zmqps_nor_its_files_import_pyarrow_before_it_is_needed() -> None:
    code = "import sys, zmqps.client.sparse.tables, zmqps.checkpoint, zmqps.worker; print('pyarrow' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=allow(50))
    assert found.stdout.strip() == "False"
