"""Whenever the power fails, the last checkpoint that was published is there, and nothing else is taken for one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.checkpoint.saved import NOW, Model, job, save
from tests.simulator.disk import Disk, PowerFailure
from zmqps.checkpoint.find import good_ones, open_checkpoint
from zmqps.checkpoint.publish import ABANDONED_AFTER_S, Save, clean, entries, job_directory, job_of, prune
from zmqps.checkpoint.storage import LocalStorage
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.errors import CheckpointError, CheckpointNotFoundError, CheckpointStorageError

pytestmark = pytest.mark.repeats

SPEC = job(Parameter("w", (4, 3), "float32"), Parameter("b", (3,), "float64"))
OLD, NEW = Model.random(SPEC, seed=1), Model.random(SPEC, seed=2)
PLACEMENT = Placement.balance(KeySpace(SPEC.parameters), 2, 16)
JOB = "/ckpt/default"


def contents(disk: Disk) -> tuple[int, bytes]:
    """Return version and values of the latest good checkpoint, after checking every byte of it."""
    checkpoint = open_checkpoint("/ckpt", storage=disk)
    list(checkpoint.verify())
    return checkpoint.version, b"".join(array.tobytes() for array in checkpoint.arrays(optimizer=True).values())


def expected(model: Model, version: int) -> tuple[int, bytes]:
    arrays = [model.array(p.name) for p in SPEC.parameters]
    arrays += [model.array(p.name, slot) for slot in model.slots for p in SPEC.parameters]
    return version, b"".join(array.tobytes() for array in arrays)


def operations_of_a_save() -> tuple[int, int]:
    disk = Disk()
    save(disk, "/ckpt", OLD, PLACEMENT, version=1)
    before = disk.num_operations
    save(disk, "/ckpt", NEW, PLACEMENT, version=2)
    return before, disk.num_operations


FIRST, LAST = operations_of_a_save()


@settings(max_examples=400)
@given(st.integers(0, LAST), st.integers(0, 1 << 30))
def test_power_may_fail_at_any_operation_of_a_save(fails_at: int, seed: int) -> None:
    disk = Disk(fails_at, seed=seed)
    done = []
    try:
        done.append(save(disk, "/ckpt", OLD, PLACEMENT, version=1))
        done.append(save(disk, "/ckpt", NEW, PLACEMENT, version=2))
    except PowerFailure:
        pass
    disk = disk.after_power_failure()
    possible = [expected(OLD, 1), expected(NEW, 2)]
    try:
        found = contents(disk)
    except CheckpointNotFoundError:
        assert not done
    else:
        assert found in possible[max(0, len(done) - 1) :]
    save(disk, "/ckpt", NEW, PLACEMENT, version=3)
    assert contents(disk) == expected(NEW, 3)
    assert [name for name in disk.names(JOB) if name.startswith("tmp-")] == []
    assert contents(disk.after_power_failure()) == expected(NEW, 3)


@settings(max_examples=150)
@given(st.integers(0, 40), st.integers(0, 1 << 30))
def test_power_may_fail_at_any_operation_of_pruning(fails_at: int, seed: int) -> None:
    disk = Disk(seed=seed)
    for version in (1, 2, 3):
        save(disk, "/ckpt", OLD, PLACEMENT, version=version)
    save(disk, "/ckpt", NEW, PLACEMENT, version=4)
    disk.fails_at = disk.num_operations + fails_at
    try:
        prune(disk, JOB, 2, [one.path for one in good_ones(disk, JOB)])
    except PowerFailure:
        pass
    disk = disk.after_power_failure()
    assert contents(disk) == expected(NEW, 4)
    good = list(good_ones(disk, JOB))
    assert [one.version for one in good][:2] == [4, 3]
    for one in good:
        list(one.verify())
    prune(disk, JOB, 1, [one.path for one in good_ones(disk, JOB)])
    clean(disk, JOB, "me", NOW + ABANDONED_AFTER_S)
    assert len(disk.names(JOB)) == 1


@settings(max_examples=150)
@given(
    st.integers(FIRST, LAST - 1), st.sampled_from([errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT, errno.EACCES])
)
def test_a_disk_may_fail_at_any_operation_of_a_save(fails_at: int, error: int) -> None:
    disk = Disk(fails_at, error)
    save(disk, "/ckpt", OLD, PLACEMENT, version=1)
    with pytest.raises(CheckpointStorageError) as caught:
        save(disk, "/ckpt", NEW, PLACEMENT, version=2)
    assert isinstance(caught.value.__cause__, OSError)
    assert contents(disk) in (expected(OLD, 1), expected(NEW, 2))  # it may be published, and only that not be certain
    save(disk, "/ckpt", NEW, PLACEMENT, version=3)
    assert contents(disk) == expected(NEW, 3)
    assert [name for name in disk.names(JOB) if name.startswith("tmp-")] == []


def test_a_full_disk_is_said_and_what_was_begun_is_removed() -> None:
    disk = Disk()
    one = Save.begin(disk, "/ckpt", "default", 1, "me", NOW)
    disk.fails_at, disk.error = disk.num_operations, errno.ENOSPC
    with pytest.raises(CheckpointStorageError, match=r"the disk is full; free some space, keep fewer checkpoints"):
        disk_writer(disk, one)
    one.abandon()
    assert disk.names(JOB) == []


def disk_writer(disk: Disk, one: Save) -> None:
    from zmqps.checkpoint.writer import ShardWriter

    ShardWriter(disk, one.directory, PLACEMENT, 0, ("m", "v"))


def test_a_directory_that_may_not_be_written_is_said(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        tmp_path = Path("/proc/zmqps")
    else:
        tmp_path.chmod(0o500)
    with pytest.raises(CheckpointStorageError, match="or name another directory"):
        Save.begin(LocalStorage(), str(tmp_path), "default", 1, "me", NOW)


def test_the_latest_is_the_one_that_was_saved_last_whatever_its_version(tmp_path: Path) -> None:
    for version in (5, 9, 7):
        path = save(LocalStorage(), str(tmp_path), OLD, PLACEMENT, version=version)
    assert Path(path).name == "ckpt-000000000007-0003"
    assert open_checkpoint(str(tmp_path)).version == 7


def test_a_name_that_is_taken_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    save(LocalStorage(), str(tmp_path), OLD, PLACEMENT, version=1)
    (tmp_path / "default" / "ckpt-000000000001-0001").rename(tmp_path / "aside")
    one = Save.begin(LocalStorage(), str(tmp_path), "default", 1, "me", NOW)
    (tmp_path / "aside").rename(tmp_path / "default" / "ckpt-000000000001-0001")
    assert [entry.number for entry in entries(LocalStorage(), str(tmp_path / "default"))] == [1]
    path = one.commit(open_checkpoint(str(tmp_path)).manifest)
    assert Path(path).name == "ckpt-000000000001-0002"


def test_the_save_of_another_cluster_is_left_alone_until_it_is_old() -> None:
    disk = Disk()
    disk.now = NOW
    theirs = Save.begin(disk, "/ckpt", "default", 1, "them", NOW)
    Save.begin(disk, "/ckpt", "default", 1, "me", NOW + 60).abandon()
    assert disk.is_directory(theirs.directory)
    Save.begin(disk, "/ckpt", "default", 1, "me", NOW + ABANDONED_AFTER_S).abandon()
    assert not disk.is_directory(theirs.directory)


def test_what_does_not_look_whole_is_neither_counted_nor_removed() -> None:
    disk = Disk()
    paths = [save(disk, "/ckpt", OLD, PLACEMENT, version=version) for version in (1, 2, 3)]
    disk.cut(f"{paths[1]}/shard-00000-state.json", 3)
    good = [one.path for one in good_ones(disk, JOB)]
    assert good == [paths[2], paths[0]]
    assert prune(disk, JOB, 2, good) == []
    assert prune(disk, JOB, 0, good) == [paths[0]]
    assert [entry.version for entry in entries(disk, JOB)] == [2, 3]


def test_directories_that_go_too_deep_to_be_removed_are_an_error_that_says_so(tmp_path: Path) -> None:
    paths = [save(LocalStorage(), str(tmp_path), OLD, PLACEMENT, version=version) for version in (1, 2, 3)]
    deep = [Path(paths[0], *["d"] * depth) for depth in range(1, 1200)]
    for directory in deep:
        directory.mkdir()
    job_path = str(Path(paths[0]).parent)
    with pytest.raises(CheckpointStorageError, match="cannot remove there: its directories go too deep"):
        prune(LocalStorage(), job_path, 1, paths)
    assert not Path(paths[1]).exists(), "one that cannot be removed keeps no others"
    for directory in reversed(deep):  # what removes the directories of tests recurs, too
        directory.rmdir()


@given(st.text(min_size=1, max_size=100).filter(str.isprintable))
@example("ckpt-000000000001-0001")
@example("tmp-x")
@example("..")
def test_every_name_of_a_job_is_a_directory_of_its_own(name: str) -> None:
    path = job_directory("/ckpt", name)
    found = path.removeprefix("/ckpt/")
    assert "/" not in found
    assert found not in ("", ".", "..")
    assert not found.startswith(("ckpt-", "tmp-"))
    assert len(found.encode()) < 255
    assert job_of(found) == name or len(name) > 20
    assert job_directory("/ckpt", f"{name}x") != path


@pytest.mark.parametrize("at", range(3))
def test_a_checkpoint_that_is_damaged_is_passed_over(at: int) -> None:
    disk = Disk()
    paths = [save(disk, "/ckpt", model, PLACEMENT, version=version) for model, version in ((OLD, 1), (NEW, 2))]
    name = ["manifest.json", "shard-00001-state.json", "shard-00000-model-00001-of-00001.safetensors"][at]
    disk.cut(f"{paths[1]}/{name}", 10)
    checkpoint = open_checkpoint("/ckpt", storage=disk)
    assert checkpoint.version == 1
    assert [type(error).__name__ for error in checkpoint.skipped] == ["CheckpointCorruptError"]
    with pytest.raises(CheckpointError, match=f"{paths[0]} looks whole, of version 1") as caught:
        open_checkpoint(paths[1], storage=disk)
    assert caught.value.good == paths[0]
