"""Which checkpoint a path stands for; and what is damaged, foreign or newer is refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.saved import Model, job, save
from tests.simulator.disk import Disk
from tests.tables import for_each
from zmqps.checkpoint.find import open_checkpoint
from zmqps.checkpoint.manifest import Manifest, _sealed
from zmqps.checkpoint.publish import prune
from zmqps.checkpoint.storage import LocalStorage
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointForeignError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    PSError,
)

SPEC = job(Parameter("w", (4, 3), "float32"), Parameter("b", (3,), "float64"), Parameter("none", (0,), "float32"))
MODEL = Model.random(SPEC)
PLACEMENT = Placement(KeySpace(SPEC.parameters), ((0, 5, 12), (0, 1, 3)), 16)


def saved() -> tuple[Disk, str]:
    disk = Disk()
    return disk, save(disk, "/ckpt", MODEL, PLACEMENT)


SIZES = [(name, saved()[0].size(f"{saved()[1]}/{name}")) for name in saved()[0].names(saved()[1])]
PLACES = [(name, offset) for name, nbytes in SIZES for offset in range(nbytes)]


def check(disk: Disk, path: str) -> None:
    list(open_checkpoint(path, storage=disk).verify())


def test_a_checkpoint_is_found_by_its_own_name_its_jobs_and_its_directory(tmp_path: Path) -> None:
    path = save(LocalStorage(), str(tmp_path), MODEL, PLACEMENT)
    for place in (path, f"{path}/", str(Path(path).parent), str(tmp_path)):
        assert open_checkpoint(place).path == path
    Path(path).rename(tmp_path / "mine")
    assert open_checkpoint(str(tmp_path / "mine")).version == 7


def test_of_several_jobs_one_must_be_named(tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        save(LocalStorage(), str(tmp_path), MODEL, PLACEMENT, job_name=name)
    assert open_checkpoint(str(tmp_path), "b/c").manifest.job_name == "b/c"
    with pytest.raises(CheckpointNotFoundError, match=r"checkpoints of the jobs 'a', 'b/c'; say which"):
        open_checkpoint(str(tmp_path))
    with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint of the job 'd', only of 'a', 'b/c'"):
        open_checkpoint(str(tmp_path), "d")


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="there is no such directory"):
        open_checkpoint(str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointNotFoundError, match="there is no checkpoint in it"):
        open_checkpoint(str(tmp_path))
    (tmp_path / "ckpt-000000000001-0001").mkdir()
    with pytest.raises(CheckpointForeignError, match="it was never finished"):
        open_checkpoint(str(tmp_path / "ckpt-000000000001-0001"))
    with pytest.raises(
        CheckpointNotFoundError, match="none of its 1 checkpoints can be used; the latest: it was never"
    ):
        open_checkpoint(str(tmp_path))


def test_a_manifest_of_somebody_else_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "an extension of a browser"}')
    with pytest.raises(CheckpointForeignError, match="the manifest is not of zmqps"):
        open_checkpoint(str(tmp_path))


def test_a_newer_format_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = Path(save(LocalStorage(), str(tmp_path), MODEL, PLACEMENT))
    (path / "manifest.json").write_text(json.dumps({"format": 9, "zmqps": "7.1", "tables": []}))
    with pytest.raises(
        CheckpointFormatError, match=r"of format 9, written by zmqps 7\.1, and this zmqps .* up to format 2"
    ):
        open_checkpoint(str(path))


@settings(max_examples=60)
@given(st.sampled_from(PLACES))
def test_any_byte_that_is_not_what_was_written_is_noticed(place: tuple[str, int]) -> None:
    disk, path = saved()
    disk.flip(f"{path}/{place[0]}", place[1])
    with pytest.raises(CheckpointError):
        check(disk, path)


@given(st.sampled_from(PLACES))
def test_any_file_that_is_cut_short_is_noticed(place: tuple[str, int]) -> None:
    disk, path = saved()
    disk.cut(f"{path}/{place[0]}", place[1])
    with pytest.raises(CheckpointCorruptError):
        check(disk, path)


@for_each("name", [name for name, _ in SIZES])
def test_any_file_that_is_missing_is_noticed_and_one_more_is_not(name: str) -> None:
    disk, path = saved()
    disk.create(f"{path}/more").write_at(b"notes", 0)
    check(disk, path)
    disk.remove(f"{path}/{name}")
    with pytest.raises(CheckpointForeignError if name == "manifest.json" else CheckpointCorruptError):
        check(disk, path)


def test_a_damaged_part_is_noticed_when_it_is_read_and_the_rest_can_be_read() -> None:
    disk, path = saved()
    name = "shard-00001-model-00001-of-00002.safetensors"
    disk.flip(f"{path}/{name}", disk.size(f"{path}/{name}") - 1)
    checkpoint = open_checkpoint(path, storage=disk)
    with pytest.raises(CheckpointCorruptError, match=rf"{name}: bytes [\d,]+ to [\d,]+ are not what was written"):
        checkpoint.arrays(optimizer=True)
    assert checkpoint.array("b").tobytes() == MODEL.array("b").tobytes()


def rewritten(data: bytes, **fields: object) -> bytes:
    """Return a manifest with other fields, and the checksum that belongs to them."""
    return _sealed({name: value for name, value in {**json.loads(data), **fields}.items() if name != "xxh3_128"})


def enormous(shape: list[int]) -> dict[str, object]:
    """Return fields of a manifest of one parameter that no disk could hold."""
    spec = job(Parameter("w", tuple(shape), "float32"))
    return {"job": spec.to_wire(), "placement": Placement.balance(KeySpace(spec.parameters), 2).to_wire()}


@pytest.mark.parametrize(
    "fields",
    [
        {"created_at": 10**400}, {"created_at": -(10**400)}, {"created_at": -1.0}, {"created_at": 1e300},
        {"version": 10**400}, {"version": -1}, enormous([1 << 36]), enormous([1 << 13, 1 << 23]),
    ],
    ids=[
        "after all time", "before all time", "before 1970", "after 9999",
        "a version beyond all", "a negative version", "256 GiB", "256 GiB in rows",
    ],
)  # fmt: skip
def test_a_checkpoint_whose_numbers_cannot_be_true_hides_no_good_one(
    tmp_path: Path, fields: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    good = save(LocalStorage(), str(tmp_path), MODEL, PLACEMENT)
    bad = save(LocalStorage(), str(tmp_path), MODEL, PLACEMENT, version=8)
    manifest = Path(bad) / "manifest.json"
    manifest.write_bytes(rewritten(manifest.read_bytes(), **fields))
    with pytest.raises(CheckpointCorruptError, match=r"the manifest cannot be used: its? "):
        open_checkpoint(bad)
    found = open_checkpoint(str(tmp_path))
    assert found.path == good
    assert found.arrays(optimizer=True)["w"].tobytes() == MODEL.array("w").tobytes()
    assert f"{bad}: the manifest cannot be used" in caplog.text


KEYS = st.sampled_from(["format", "zmqps", "job", "shards", "xxh3_128"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner),
    max_leaves=10,
)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_stands_in_a_manifest_is_a_documented_error(data: bytes) -> None:
    with pytest.raises(PSError):
        Manifest.from_bytes("here", data)


def test_where_those_that_were_listed_are_removed_the_latest_is_found_all_the_same() -> None:
    disk = Disk()
    paths = [save(disk, "/ckpt", MODEL, PLACEMENT, version=version) for version in (1, 2)]
    size, late = disk.size, []

    def size_late(path: str) -> int:
        if path.startswith(paths[1]) and not late:
            late.extend(save(disk, "/ckpt", MODEL, PLACEMENT, version=version) for version in (3, 4))
            prune(disk, "/ckpt/default", 2, [*paths, *late])
        return size(path)

    disk.size = size_late  # type: ignore[method-assign]
    assert open_checkpoint("/ckpt", storage=disk).path == late[1]
