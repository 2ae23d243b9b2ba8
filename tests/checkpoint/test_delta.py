"""A chain of changes is read as if each checkpoint held all; compacted it does."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.saved import NOW, Model, job, jobs, placements, save
from zmqps.checkpoint.compact import compact
from zmqps.checkpoint.delta import overlaid
from zmqps.checkpoint.find import good_ones, open_checkpoint
from zmqps.checkpoint.header import Piece
from zmqps.checkpoint.manifest import Manifest
from zmqps.checkpoint.publish import Save, prune
from zmqps.checkpoint.storage import Storage
from zmqps.checkpoint.writer import ShardWriter
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.errors import CheckpointCorruptError, ConfigurationError
from zmqps.testing.disk import Disk

SPEC = job(Parameter("w", (5, 3), "float32"), Parameter("b", (3,), "float64"), Parameter("e", (0, 2), "float32"))
PLACEMENT = Placement(KeySpace(SPEC.parameters), ((0, 7, 15), (0, 2, 3)), 16)
JOB = "/ckpt/default"


def save_changes(
    storage: Storage,
    model: Model,
    placement: Placement,
    base: str,
    version: int,
    changed: list[list[int]],
    begun: Save | None = None,
) -> str:
    """Change slices of a model, by shard, and save them as what has changed since a checkpoint."""
    one = begun or Save.begin(storage, "/ckpt", "default", version, "me", NOW)
    shards = []
    for index, numbers in enumerate(changed):
        writer = ShardWriter(storage, one.directory, placement, index, model.slots, only=numbers)
        for number in numbers:
            slice_ = placement.slices[index][number]
            arrays = [array[slice_.start : slice_.stop] for array in model.tables[slice_.table]]
            for array in arrays:
                array += version
            writer.write(number, arrays[0], arrays[1:], version=version, steps=[version] * len(slice_.segments))
        shards.append(tuple(writer.close({"ledger": version})))
    found = open_checkpoint(base, storage=storage)
    manifest = Manifest(
        job_name="default",
        job=model.spec,
        placement=placement,
        version=version,
        slots=model.slots,
        shards=tuple(shards),
        created_at=NOW,
        base=(base.rpartition("/")[2], found.manifest.digest),
    )
    return one.commit(manifest)


def check(storage: Storage, path: str, model: Model, counts: list[list[int]], other: Placement) -> None:
    checkpoint = open_checkpoint(path, storage=storage)
    list(checkpoint.verify())
    for parameter in model.spec.parameters:
        for slot in (None, *model.slots):
            assert checkpoint.array(parameter.name, slot).tobytes() == model.array(parameter.name, slot).tobytes()
    assert [shard.versions for shard in checkpoint.shards] == counts
    restorer = checkpoint.onto(model.spec.parameters, model.slots)
    for slices in other.slices:
        for slice_ in slices:
            found = restorer.read(slice_, other.keyspace.tables[slice_.table].dtype)
            for array, whole in zip((found.value, *found.slots), model.tables[slice_.table], strict=True):
                assert array.tobytes() == whole[slice_.start : slice_.stop].tobytes()


@settings(max_examples=60)
@given(st.data())
def test_any_chain_is_read_under_any_placement_and_compacted(data: st.DataObject) -> None:
    spec = data.draw(jobs(4))
    keyspace = KeySpace(spec.parameters)
    placement, other = data.draw(placements(keyspace)), data.draw(placements(keyspace))
    model, disk = Model.random(spec, data.draw(st.sampled_from([(), ("m", "v")]))), Disk()
    path = save(disk, "/ckpt", model, placement, version=1, steps=1)
    counts = [[1 + number for number in range(len(slices))] for slices in placement.slices]
    for version in range(100, 100 + data.draw(st.integers(1, 3))):
        changed = [
            sorted(data.draw(st.sets(st.integers(0, len(slices) - 1)))) if slices else [] for slices in placement.slices
        ]
        path = save_changes(disk, model, placement, path, version, changed)
        for of_shard, numbers in zip(counts, changed, strict=True):
            for number in numbers:
                of_shard[number] = version
        check(disk, path, model, counts, other)
    whole = compact(open_checkpoint(path, storage=disk), "/ckpt", "compactor", NOW)
    assert prune(disk, JOB, 1, [one.path for one in good_ones(disk, JOB)])
    assert disk.names(JOB) == [whole.rpartition("/")[2]]
    check(disk, whole, model, counts, other)
    assert open_checkpoint(whole, storage=disk).shards[0].state == {"ledger": version}


def chain() -> tuple[Disk, Model, list[str]]:
    disk, model = Disk(), Model.random(SPEC)
    paths = [save(disk, "/ckpt", model, PLACEMENT, version=1)]
    for version, changed in ((2, [[0], []]), (3, [[1], [0, 1]])):
        paths.append(save_changes(disk, model, PLACEMENT, paths[-1], version, changed))
    return disk, model, paths


def test_what_others_build_upon_is_not_pruned() -> None:
    disk, model, paths = chain()
    paths.append(save(disk, "/ckpt", model, PLACEMENT, version=4))
    good = [one.path for one in good_ones(disk, JOB)]
    assert prune(disk, JOB, 2, good) == []
    assert prune(disk, JOB, 1, good) == paths[2::-1]


@pytest.mark.parametrize("damage", ["missing", "damaged", "another"])
def test_without_its_base_a_checkpoint_is_refused(damage: str) -> None:
    disk, model, paths = chain()
    if damage == "missing":
        for name in disk.names(paths[0]):
            disk.remove(f"{paths[0]}/{name}")
        says = f"it builds upon {paths[1]}, which cannot be used: it builds upon {paths[0]}, which cannot be used"
    elif damage == "damaged":
        disk.cut(f"{paths[0]}/shard-00000-state.json", 3)
        says = "it has 3 bytes and should have"
    else:
        for name in disk.names(paths[0]):
            disk.remove(f"{paths[0]}/{name}")
        disk.remove(paths[0])
        other = save(disk, "/elsewhere", model, PLACEMENT, version=1)
        for name in disk.names(other):
            if not disk.is_directory(paths[0]):
                disk.make_directory(paths[0])
            disk.create(f"{paths[0]}/{name}").write_at(disk.read(f"{other}/{name}"), 0)
        says = f"{paths[0]} is not what it builds upon"
    with pytest.raises(CheckpointCorruptError, match=says):
        open_checkpoint(paths[2], storage=disk)


def test_a_base_that_is_damaged_inside_is_noticed_where_it_is_read() -> None:
    disk, _, paths = chain()
    name = "shard-00001-model-00001-of-00002.safetensors"
    disk.flip(f"{paths[0]}/{name}", disk.size(f"{paths[0]}/{name}") - 1)
    with pytest.raises(CheckpointCorruptError, match=f"{paths[0]}/{name}: bytes"):
        list(open_checkpoint(paths[2], storage=disk).verify())


def test_only_the_slices_that_were_said_are_taken() -> None:
    disk = Disk()
    disk.make_directory("/here")
    writer = ShardWriter(disk, "/here", PLACEMENT, 0, (), only=[1])
    with pytest.raises(ConfigurationError, match="slice 0 of shard 0 has been written already, or is not to be"):
        writer.write(0, np.zeros(4, "<f4"), [])


def test_a_compaction_that_fails_leaves_nothing() -> None:
    disk, _, paths = chain()
    file = f"{paths[0]}/{next(name for name in disk.names(paths[0]) if name.endswith('.safetensors'))}"
    disk.flip(file, 8 + int.from_bytes(disk.read(file, 0, 8), "little"))  # of a slice that has not changed since
    with pytest.raises(CheckpointCorruptError):
        compact(open_checkpoint(paths[2], storage=disk), "/ckpt", "compactor", NOW)
    assert len(disk.names(JOB)) == 3


INTERVALS = st.lists(st.integers(0, 30), max_size=12, unique=True).map(sorted)


@given(INTERVALS, INTERVALS)
def test_what_is_laid_over_hides_what_is_below(olds: list[int], news: list[int]) -> None:
    def pieces(cuts: list[int], file: str) -> list[Piece]:
        return [Piece(a, b - a, file, 2 * a, 2) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]

    def elements(found: list[Piece]) -> dict[int, tuple[str, int]]:
        return {p.start + i: (p.file, p.offset + 2 * i) for p in found for i in range(p.size)}

    old, new = pieces(olds, "old"), pieces(news, "new")
    found: list[Any] = overlaid(old, new)
    assert elements(found) == elements(old) | elements(new)
    assert all(a.start + a.size <= b.start for a, b in pairwise(found))
