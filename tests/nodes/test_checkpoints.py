"""What processes make of checkpoints: when, where, what is published, and a shard that comes back cut otherwise."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.saved import OWNER
from tests.core.machines import placement
from tests.simulator.jobs.training import ReferenceRules
from tests.tables import for_each
from zmqps.checkpoint import open_checkpoint, storage_of
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.server.dense.snapshot import Snapshot
from zmqps.core.server.shard import Shard
from zmqps.errors import CheckpointError, ConfigurationError
from zmqps.nodes.checkpoints import (
    CheckpointStore,
    ShardFiles,
)
from zmqps.nodes.processors import LONGEST_REST_S, Rests
from zmqps.nodes.restoring import numbers_of, restored, resumptions
from zmqps.optim import OptimizerSpec, adam, sgd
from zmqps.settings.saving import Saving


@for_each("options", [{"every": "5min"}, {"checkpoint": "d", "keep": 0}, {"checkpoint": "d", "every": "x"}])
def test_a_configuration_that_cannot_work_is_refused(options: Any) -> None:
    with pytest.raises(ConfigurationError):
        Saving(**options)


# --- a shard, written and read ----------------------------------------------------------------------


def spec(mode: str = "async", optimizer: OptimizerSpec | None = None, names: tuple[str, ...] = ("a", "b")) -> JobSpec:
    parameters = (
        Parameter(names[0], (7, 5), "float32"), Parameter(names[1], (9,), "float64"), Parameter("c", (), "float32")
    )  # fmt: skip
    return JobSpec(
        parameters=parameters,
        optimizer=(optimizer or adam(0.1)).to_wire(),
        mode=mode,
    )


def shard(job: JobSpec, where: Placement, index: int) -> Shard:
    return Shard(where, index, ReferenceRules(OptimizerSpec.from_wire(job.optimizer)), synchronous=job.mode == "sync")


def trained(job: JobSpec, where: Placement) -> list[Shard]:
    """Return shards after three pushes, the last one of a part."""
    shards = [shard(job, where, index) for index in range(where.num_shards)]
    rng = np.random.default_rng(0)
    for of in shards:
        states = [(state.slice.index, state.size, state.value.dtype) for state in of.slices]
        if not states:
            continue
        of.dense.load([(i, 0, ()) for i, _, _ in states], [rng.standard_normal(n).astype(t) for _, n, t in states])
        for step in range(3):
            some = states if step < 2 else states[:1]
            parts, payload = [(i, 0, ()) for i, _, _ in some], [rng.standard_normal(n).astype(t) for _, n, t in some]
            if job.mode == "sync":
                of.dense.collect(parts, payload, (b"w" * 16, step + 1), step, 1, "w")
                of.commit(step, ((b"w" * 16, (step + 1,)),))
            else:
                of.dense.push(parts, payload, "w")
    return shards


def save(tmp_path: Path, job: JobSpec, shards: list[Shard], store: CheckpointStore | None = None, **facts: Any) -> Any:
    """Write shards as servers do and publish them as the coordinator does."""
    store, files = store or CheckpointStore(str(tmp_path), 2, owner=OWNER), ShardFiles()
    path, written = store.begin("default", 3), []
    for of in shards:
        writer = files.open(path, job.to_wire(), of.placement, of.index)
        snapshot = Snapshot(of.slices, of.memory)
        while (piece := snapshot.next()) is not None:
            writer.write(piece)
            snapshot.done(piece.number)
        written.append(writer.close({"ledgers": {}}))
    manifest = {
        "name": "default", "job": job.to_wire(), "placement": shards[0].placement.to_wire(), "version": 3,
        "consistent": True, "state": {"epoch": 3}, "data": [[["d", 10, 4, 1, None], 0, 2, [1]]], "shards": written,
        "base": None,
        **facts,
    }  # fmt: skip
    return store.publish(path, manifest)


def flat(job: JobSpec, shards: list[Shard]) -> list[Any]:
    """Return each parameter with its slots and steps, wherever its parts are."""
    num_slots = max(len(state.slots) for of in shards for state in of.slices)
    out = [[np.full(p.size, np.nan) for _ in range(1 + num_slots)] for p in job.parameters]
    steps: list[set[int]] = [set() for _ in job.parameters]
    for of in shards:
        for state in of.slices:
            for segment, count in zip(state.slice.segments, state.steps.tolist(), strict=True):
                steps[segment.parameter].add(count)
                for number, array in enumerate((state.value, *state.slots)):
                    part = array[segment.position : segment.position + segment.size]
                    out[segment.parameter][number][segment.start : segment.start + segment.size] = part
    return [[array.tolist() for array in arrays] for arrays in out] + [sorted(s) for s in steps]


@pytest.mark.parametrize(("gently", "idle", "rests"), [(True, 0.1, True), (True, 1.9, False), (False, 0.1, False)])
def test_it_rests_between_slices_where_training_goes_on_and_no_processor_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gently: bool, idle: float, rests: bool
) -> None:
    rested: list[float] = []
    monkeypatch.setattr(Rests, "idle", lambda self: idle)
    monkeypatch.setattr("zmqps.nodes.processors.time.sleep", rested.append)
    job, store = spec(), CheckpointStore(str(tmp_path), 2, owner=OWNER)
    (of,) = trained(job, placement(job, 1, 64))
    writer = ShardFiles().open(store.begin("default", 3), job.to_wire(), of.placement, of.index)
    snapshot = Snapshot(of.slices, of.memory)
    while (piece := snapshot.next()) is not None:
        writer.write(piece, gently=gently)
        snapshot.done(piece.number)
    writer.abandon()
    assert len(rested) == len(of.slices) * rests
    assert all(0 < seconds <= LONGEST_REST_S for seconds in rested)


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize(("num_shards", "slice_nbytes"), [(1, 64), (2, 32), (3, 1 << 20), (5, 16)])
def test_a_shard_comes_back_under_another_placement(
    tmp_path: Path, mode: str, num_shards: int, slice_nbytes: int
) -> None:
    job = spec(mode)
    before = trained(job, placement(job, 2, 64))
    path, nbytes, _ = save(tmp_path, job, before)
    assert nbytes > 0
    where = placement(job, num_shards, slice_nbytes)
    after = [shard(job, where, index) for index in range(num_shards)]
    source = {"path": path, "version": 3, "optimizer": True, "names": {}}
    for of in after:
        ShardFiles().read(of, job, source)
        of.begin_at(3)
        assert of.loaded
        assert of.version == (3 if mode == "sync" else 0)
        of.validate()
    assert flat(job, after)[: len(job.parameters)] == flat(job, before)[: len(job.parameters)]


def test_values_alone_come_back_under_other_names_for_another_optimizer(tmp_path: Path) -> None:
    job = spec()
    before = trained(job, placement(job, 2, 64))
    path, _, _ = save(tmp_path, job, before)
    other = spec(optimizer=sgd(0.5), names=("x", "b"))
    after = shard(other, placement(other, 1, 64), 0)
    ShardFiles().read(after, other, {"path": path, "version": 3, "optimizer": False, "names": {"x": "a"}})
    got, expected = flat(other, [after]), flat(job, before)
    assert [arrays[0] for arrays in got[:3]] == [arrays[0] for arrays in expected[:3]]
    assert got[3:] == [[0], [0], [0]]


def test_another_model_is_refused(tmp_path: Path) -> None:
    job = spec()
    path, _, _ = save(tmp_path, job, trained(job, placement(job, 1, 64)))
    other = spec(names=("other", "b"))
    with pytest.raises(CheckpointError, match="other"):
        ShardFiles().read(
            shard(other, placement(other, 1, 64), 0), other,
            {"path": path, "version": 3, "optimizer": True, "names": {}},
        )  # fmt: skip


# --- what is published ------------------------------------------------------------------------------


def test_what_is_published_says_what_jobs_begin_from(tmp_path: Path) -> None:
    job = spec("sync")
    path, nbytes, version = save(tmp_path, job, trained(job, placement(job, 2, 64)))
    assert version == 3
    assert open_checkpoint(path).manifest.nbytes == nbytes
    config = Saving(restore=str(tmp_path), restore_names={"x": "a"})
    (found,) = resumptions(config, restored(config)).values()
    assert (found.path, found.version, found.state) == (path, 3, {"epoch": 3})
    assert [list(entry) for entry in found.data] == [[["d", 10, 4, 1, None], 0, 2, [1]]]
    assert found.names == {"x": "a"}
    assert found.job == job
    assert resumptions(Saving(), restored(Saving())) == {}


@for_each(
    "rates",
    [0.5, [], [1.0], [0.0, 0.5], [2.0, 0.5], [1.5, 0.5], [1.0, float("nan")], [1.0, 10**400], [1.0, "x"], [1, True]],
)
def test_numbers_that_no_update_could_have_count_as_none(rates: Any) -> None:
    manifest: Any = SimpleNamespace(run={"rates": rates})
    assert numbers_of(manifest) == ()
    manifest.run["rates"] = [2.0, 0.5, 0.25]
    assert numbers_of(manifest) == (2.0, 0.5, 0.25)


def test_an_asynchronous_checkpoint_has_the_version_of_its_oldest_slice(tmp_path: Path) -> None:
    job = spec()
    _, _, version = save(tmp_path, job, trained(job, placement(job, 1, 64)), version=99)
    assert version == 2


def test_so_many_are_kept_and_the_rest_removed(tmp_path: Path) -> None:
    job, store = spec(), CheckpointStore(str(tmp_path), 2, owner=OWNER)
    shards = trained(job, placement(job, 1, 64))
    paths = [save(tmp_path, job, shards, store)[0] for _ in range(4)]
    assert [os.path.exists(path) for path in paths] == [False, False, True, True]
    assert not list(tmp_path.glob("**/tmp-*"))


def test_what_cannot_be_removed_of_older_ones_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, store = spec(), CheckpointStore(str(tmp_path), 1, owner=OWNER)
    shards = trained(job, placement(job, 1, 64))
    save(tmp_path, job, shards, store)

    def busy(*_: Any, **__: Any) -> None:
        raise CheckpointError(path="/", what="it is busy", good="", advice="")

    monkeypatch.setattr("zmqps.nodes.checkpoints.prune", busy)
    path, _, _ = save(tmp_path, job, shards, store)
    assert open_checkpoint(path).version == 2


def test_what_cannot_be_published_is_removed_and_the_one_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, store = spec(), CheckpointStore(str(tmp_path), 3, owner=OWNER)
    shards = trained(job, placement(job, 1, 64))
    good, _, _ = save(tmp_path, job, shards, store)
    begun: list[str] = []
    begin = store.begin
    monkeypatch.setattr(store, "begin", lambda *a: begun.append(begin(*a)) or begun[-1])
    monkeypatch.setattr(store._storage, "rename", lambda old, new: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(CheckpointError):
        save(tmp_path, job, shards, store)
    assert os.path.isdir(begun[0])
    store.abandon(begun[0])
    store.abandon(begun[0])
    assert not os.path.exists(begun[0])
    assert open_checkpoint(str(tmp_path)).path == good


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("place", ["local", "objects"])
def test_what_was_given_up_takes_nothing_of_the_next_try_with_it(tmp_path: Path, place: str, order: str) -> None:
    store = CheckpointStore(str(tmp_path) if place == "local" else f"memory://{tmp_path.name}-{order}", 2, owner=OWNER)

    def is_there(path: str) -> bool:
        storage, directory = storage_of(path)
        return storage.is_directory(directory)

    first = store.begin("default", 7)
    if order == "before":
        store.abandon(first)
    second = store.begin("default", 7)
    if order == "after":  # both are done aside, and neither waits for the other
        with contextlib.suppress(CheckpointError):
            store.abandon(first)
    assert is_there(second)
    assert first == second or not is_there(first)
    store.abandon(second)
    assert not is_there(second)
    assert not store._replaced
    assert not store._saves
