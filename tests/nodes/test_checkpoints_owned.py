"""Clusters that share a directory: each removes its own checkpoints, and what is reported as made is whole."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.saved import owner
from tests.core.machines import placement
from tests.nodes.test_checkpoints import save, spec, trained
from tests.nodes.test_checkpoints_chained import JOB, WHERE, Cluster, Files
from zmqps.checkpoint import Checkpoint, good_ones, open_checkpoint, owners, storage_of
from zmqps.checkpoint.owners import ENDED_AFTER_S
from zmqps.checkpoint.storage import LocalStorage, Storage
from zmqps.core.server.saves import Saves
from zmqps.errors import CheckpointCorruptError, CheckpointNotFoundError, CheckpointStorageError
from zmqps.nodes.checkpoints import CheckpointStore
from zmqps.nodes.restoring import restored
from zmqps.settings.saving import Saving

KEEP = 3


@pytest.fixture(params=["locks", "none", "objects"])
def place(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory on a file system with locks, on one without them, and in an object store."""
    if request.param == "objects":
        pytest.importorskip("fsspec")
        return f"memory://{tmp_path.name}"
    if request.param == "none":
        no_locks(monkeypatch)
    return str(tmp_path / "runs")


def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.checkpoint.owners.fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError(95, "no")))


class Clusters:
    """Clusters that come and go, and save the job of one name."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.storage, self.path = storage_of(place)
        self._job = spec()
        self._shards = trained(self._job, placement(self._job, 1, 64))
        self._stacks: dict[int, ExitStack] = {}

    def begin(self, number: int, host: str = "here", run: int | None = None) -> CheckpointStore:
        runs = {} if run is None else {"default": owner(run).run}
        store = CheckpointStore(self.place, KEEP, owner=owner(number, host=host), runs=runs)
        self._stacks[number] = ExitStack()
        self._stacks[number].enter_context(store.claim)
        return store

    def end(self, number: int) -> None:
        self._stacks.pop(number).close()

    def save(self, store: CheckpointStore) -> str:
        path: str = save(Path(), self._job, self._shards, store)[0]
        return path

    def good(self) -> list[Checkpoint]:
        return list(good_ones(self.storage, f"{self.path}/default"))

    def close(self) -> None:
        for stack in self._stacks.values():
            stack.close()


@pytest.fixture
def clusters(place: str) -> Iterator[Clusters]:
    made = Clusters(place)
    yield made
    made.close()


def numbers(found: list[Checkpoint]) -> list[int]:
    return sorted(int(one.path.rpartition("-")[2]) for one in found)


def test_of_checkpoints_made_in_turn_each_is_whole_or_its_cluster_was_refused(
    clusters: Clusters, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    stores = [clusters.begin(1)]
    if "locks" in request.node.name:
        with pytest.raises(CheckpointStorageError) as refused:
            clusters.begin(2)
        whose = "the cluster 00000001 (host here, pid 1001, since 2023-11-14 22:13:20 UTC)"
        assert f"{whose} saves its jobs there, and is alive" in str(refused.value)
        assert "name another directory (--checkpoint), or end that cluster first" in refused.value.advice
    else:
        stores.append(clusters.begin(2))
    made: dict[int, list[str]] = {0: [], 1: []}
    with caplog.at_level(logging.WARNING, "zmqps.coordinator"):
        for _ in range(12):
            for number, store in enumerate(stores):
                made[number].append(clusters.save(store))
    good = {one.path: one for one in clusters.good()}
    for number in range(len(stores)):
        inner = [storage_of(path)[1] for path in made[number][-KEEP:]]
        assert all(path in good for path in inner)
        assert all(sum(good[path].verify()) for path in inner)
    assert len(good) == KEEP * len(stores)
    config = Saving(restore=clusters.place)
    if len(stores) == 1:
        assert restored(config) is not None
    else:
        with pytest.raises(CheckpointNotFoundError, match="have written to it in turns") as unsure:
            restored(config)
        for paths in made.values():
            assert storage_of(paths[-1])[1] in str(unsure.value)
            assert restored(Saving(restore=paths[-1])) is not None
    named = [r.getMessage() for r in caplog.records if "publishes into the same directory" in r.getMessage()]
    assert len(named) == (2 if len(stores) == 2 else 0)  # each names the other once
    assert len(stores) == 1 or ("00000001" in named[0] and "00000002" in named[1])


def test_saves_that_begin_at_once_have_directories_of_their_own(clusters: Clusters, monkeypatch: Any) -> None:
    if clusters.storage.renames:
        stores = [CheckpointStore(clusters.place, KEEP, owner=owner(n)) for n in (1, 2)]
    else:
        stores = [clusters.begin(1), clusters.begin(2)]
    monkeypatch.setattr("zmqps.checkpoint.publish.entries", lambda *_: [])  # neither sees the other's yet
    paths = [store.begin("default", 7) for store in stores]
    assert paths[0] != paths[1]
    stores[0].abandon(paths[0])
    assert clusters.storage.is_directory(storage_of(paths[1])[1])


def check_how_many_are_kept(clusters: Clusters, *, restored: bool) -> None:
    """Run one cluster after the other, with its own identity each, and count what is left."""
    for number in range(1, 6):
        run = 1 if restored else number
        store = clusters.begin(number, run=run)
        paths = [clusters.save(store) for _ in range(2)]
        clusters.end(number)
        good = clusters.good()
        assert good[0].path == storage_of(paths[-1])[1]
        assert good[0].manifest.owner == owner(number, run)
        assert numbers(good) == list(range(max(1, 2 * number - KEEP + 1), 2 * number + 1))


def test_as_many_as_wanted_are_kept_over_runs_that_go_on_from_each_other(clusters: Clusters) -> None:
    check_how_many_are_kept(clusters, restored=True)


def test_as_many_as_wanted_are_kept_over_runs_that_begin_again_where_a_lock_tells(tmp_path: Path) -> None:
    check_how_many_are_kept(Clusters(str(tmp_path)), restored=False)


def test_where_no_lock_tells_what_others_made_stays_until_they_are_silent_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_locks(monkeypatch)
    clusters = Clusters(str(tmp_path))
    for number in (1, 2):
        store = clusters.begin(number)
        for _ in range(4):
            clusters.save(store)
        clusters.end(number)
    assert numbers(clusters.good()) == [2, 3, 4, 6, 7, 8]
    late = clusters.good()[0].manifest.created_at + ENDED_AFTER_S + 60
    store = clusters.begin(3)
    monkeypatch.setattr("zmqps.nodes.checkpoints.time.time", lambda: late)
    clusters.save(store)
    assert numbers(clusters.good()) == [7, 8, 9]


def test_a_lock_that_only_its_own_host_knows_takes_nothing_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clusters = Clusters(str(tmp_path))
    first = clusters.begin(1, host="there")
    for _ in range(KEEP):
        clusters.save(first)
    shutil.copy(tmp_path / ".lock", tmp_path / "note")
    clusters.end(1)
    assert not (tmp_path / ".lock").exists()
    shutil.copy(tmp_path / "note", tmp_path / ".lock")  # as if the lock were another one here
    with caplog.at_level(logging.WARNING, "zmqps.coordinator"):
        second = clusters.begin(2)
    assert "(host there, pid 1001," in caplog.text
    assert "has not ended in order" in caplog.text
    for _ in range(KEEP + 1):
        clusters.save(second)
    assert numbers(clusters.good()) == [1, 2, 3, 5, 6, 7]
    clusters.end(2)
    third = clusters.begin(3)
    clusters.save(third)
    assert numbers(clusters.good()) == [6, 7, 8]


def test_a_coordinator_that_comes_back_owns_what_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_locks(monkeypatch)
    clusters = Clusters(str(tmp_path))
    for _ in range(3):
        store = clusters.begin(1)
        clusters.save(store)
        clusters.save(store)
        clusters.end(1)
    assert numbers(clusters.good()) == [4, 5, 6]


def test_what_another_cluster_builds_upon_stays() -> None:
    first, second = Cluster(JOB, WHERE, 9, keep=2), Cluster(JOB, WHERE, 1)
    second.disk, second.saves = first.disk, Saves(Files(first.disk))
    second.store = CheckpointStore("/ckpt", 1, owner=owner(2), runs={"default": owner(1).run})  # restored from it
    second.store._storage = second.store.claim._storage = first.disk
    base = first.save()
    with second.store.claim:
        first.train({1})
        last = first.save()
        for _ in range(2):
            second.save()
        owned = second.store.claim.owned("default", good_ones(first.disk, "/ckpt/default"), 0.0)
    assert base in owned
    assert len(list(good_ones(first.disk, "/ckpt/default"))) == 3
    list(open_checkpoint(last, storage=first.disk).verify())


def test_what_lost_its_base_while_it_was_published_is_not_reported_as_made() -> None:
    cluster = Cluster(JOB, WHERE, 9)
    base = cluster.save()
    cluster.train({1})
    prune: Callable[..., Any] = cluster.store._prune

    def pruned_before(job: str, published: str) -> None:
        cluster.disk.remove(f"{base}/manifest.json")  # by `zmqps checkpoint prune`, say
        prune(job, published)

    cluster.store._prune = pruned_before  # type: ignore[method-assign]
    with pytest.raises(CheckpointCorruptError, match="it builds upon"):
        cluster.save()
    assert [name for name in cluster.disk.names("/ckpt/default") if name.startswith("ckpt-")] == [base.split("/")[-1]]


def test_a_directory_that_cannot_be_locked_is_used_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".lock").mkdir()
    clusters = Clusters(str(tmp_path))
    with caplog.at_level(logging.WARNING, "zmqps.coordinator"):
        store = clusters.begin(1)
    assert "there is no lock in" in caplog.text
    assert clusters.save(store)


def test_a_store_that_cannot_be_looked_at_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(LocalStorage):
        def make_directory(self, path: str) -> None:
            raise RuntimeError("no credentials")

    store = CheckpointStore(str(tmp_path), KEEP, owner=owner(1))
    broken: Storage = Broken()
    store.claim._storage = broken
    with caplog.at_level(logging.WARNING, "zmqps.coordinator"), store.claim:
        assert "no credentials" in caplog.text


def test_a_lock_that_is_let_go_while_another_cluster_opens_it_is_not_held_by_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = Clusters(str(tmp_path))
    clusters.begin(1)
    flock = owners.fcntl.flock
    ended: list[int] = []

    def flock_late(*call: int) -> None:
        if not ended:
            ended.append(1)
            clusters.end(1)  # which removes the file that was opened
        flock(*call)

    monkeypatch.setattr("zmqps.checkpoint.owners.fcntl.flock", flock_late)
    clusters.begin(2)
    with pytest.raises(CheckpointStorageError, match="the cluster 00000002 "):
        clusters.begin(3)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_others_have_put_where_the_lock_is_hangs_nobody_and_is_left_alone(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "runs").mkdir()
    lock = tmp_path / "runs" / ".lock"
    os.mkfifo(lock) if kind == "pipe" else lock.symlink_to(victim)
    clusters = Clusters(str(tmp_path / "runs"))
    assert clusters.save(clusters.begin(1))
    clusters.end(1)
    assert lock.is_fifo() or lock.is_symlink()
    assert victim.read_text() == "mine"
