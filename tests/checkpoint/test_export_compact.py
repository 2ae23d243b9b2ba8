"""A chain of checkpoints with the rows that have changed: kept, refused where it is damaged, and written anew."""

from __future__ import annotations

import json

import pytest

from tests.checkpoint.saved import NOW, Model, job, save
from tests.checkpoint.test_rows import Servers, job_of, spec_of
from tests.simulator.disk import Disk
from tests.tables import for_each
from zmqps.checkpoint import manifest as manifests
from zmqps.checkpoint.export import compact
from zmqps.checkpoint.find import good_ones, open_checkpoint
from zmqps.checkpoint.publish import prune
from zmqps.checkpoint.storage import Storage
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.errors import CheckpointCorruptError, CheckpointFormatError

JOB = "/run/job"


def chain(storage: Storage, directory: str = "/run", num: int = 3) -> tuple[Servers, list[str]]:
    """Return a job of a table, a checkpoint of it, and others that each build upon the one before."""
    servers, base, paths = Servers(job_of(spec_of("items")), 2), None, [""]
    servers.push(range(60), 1.0)
    for number in range(1, num + 1):
        servers.push(range(10 * number), 1.0)
        paths.append(servers.save(storage, base, paths[-1].rpartition("/")[2], number, directory))
        base = open_checkpoint(paths[-1], storage=storage).manifest
    return servers, paths[1:]


def rows_file(disk: Disk, path: str) -> str:
    return f"{path}/{next(name for name in disk.names(path) if '-rows-' in name)}"


def test_what_others_build_upon_is_not_pruned() -> None:
    disk = Disk()
    servers, paths = chain(disk)
    paths.append(servers.save(disk, number=4))
    good = [one.path for one in good_ones(disk, JOB)]
    assert prune(disk, JOB, 2, good) == []
    assert prune(disk, JOB, 1, good) == paths[2::-1]


@for_each("damage", ["missing", "damaged", "another"])
def test_without_its_base_a_checkpoint_is_refused(damage: str) -> None:
    disk = Disk()
    _, paths = chain(disk)
    if damage == "damaged":
        disk.cut(f"{paths[0]}/shard-00000-state.json", 3)
        says = "it has 3 bytes and should have"
    else:
        for name in disk.names(paths[0]):
            disk.remove(f"{paths[0]}/{name}")
        says = f"it builds upon {paths[1]}, which cannot be used: it builds upon {paths[0]}, which cannot be used"
    if damage == "another":
        other = Servers(job_of(spec_of("items")), 2).save(disk, directory="/elsewhere")
        for name in disk.names(other):
            disk.create(f"{paths[0]}/{name}").write_at(disk.read(f"{other}/{name}"), 0)
        says = f"{paths[0]} is not what it builds upon"
    with pytest.raises(CheckpointCorruptError, match=says):
        open_checkpoint(paths[2], storage=disk)


def test_a_base_that_is_damaged_inside_is_noticed_where_it_is_read() -> None:
    disk = Disk()
    _, paths = chain(disk)
    file = rows_file(disk, paths[0])
    disk.flip(file, disk.size(file) - 1)
    with pytest.raises(CheckpointCorruptError, match=f"{file}: bytes"):
        list(open_checkpoint(paths[2], storage=disk).verify())


def test_a_compaction_that_fails_leaves_nothing() -> None:
    disk = Disk()
    _, paths = chain(disk)
    file = rows_file(disk, paths[0])
    disk.flip(file, disk.size(file) - 1)
    with pytest.raises(CheckpointCorruptError):
        compact(open_checkpoint(paths[2], storage=disk), "/run", "compactor", NOW)
    assert len(disk.names(JOB)) == 3


def test_one_that_has_only_the_parameters_that_have_changed_is_refused_and_the_whole_ones_are_read() -> None:
    spec = job(Parameter("w", (5, 3), "float32"))
    model, disk = Model.random(spec), Disk()
    paths = [
        save(disk, "/ckpt", model, Placement.balance(KeySpace(spec.parameters), 2), version=version)
        for version in (1, 2)
    ]
    for path, base in zip(paths, (None, ["ckpt-000000000001-0001", "0" * 32]), strict=True):
        file = f"{path}/{manifests.NAME}"
        body = json.loads(disk.read(file, 0)) | {"format": 1, "base": base, "zmqps": "0.1"}
        del body["xxh3_128"]
        disk.remove(file)
        disk.create(file).write_at(manifests._sealed(body), 0)
    assert open_checkpoint("/ckpt", storage=disk).path == paths[0]
    with pytest.raises(CheckpointFormatError, match=f"no longer reads; {paths[0]} looks whole, of version 1"):
        open_checkpoint(paths[1], storage=disk)
    disk.remove(f"{paths[0]}/{manifests.NAME}")
    with pytest.raises(
        CheckpointFormatError, match=r"as a whole with the zmqps that wrote it .zmqps checkpoint compact"
    ):
        open_checkpoint(paths[1], storage=disk)
