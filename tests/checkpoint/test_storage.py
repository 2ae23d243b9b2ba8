"""A directory of checkpoints into which others put what they like: nobody waits for it, and it hides no good one."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import zmqps
from tests import test_files
from tests.checkpoint.saved import Model, job, save
from zmqps.checkpoint import clean, export, open_checkpoint, prune
from zmqps.checkpoint.find import good_ones
from zmqps.checkpoint.publish import ABANDONED_AFTER_S
from zmqps.checkpoint.storage import LocalStorage
from zmqps.cli.main import run
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.errors import CheckpointError

SPEC = job(Parameter("w", (4, 3), "float32"))
MODEL = Model.random(SPEC)
PLACEMENT = Placement(KeySpace(SPEC.parameters), ((0, 5, 12),), 16)
pytestmark = pytest.mark.timeout(60)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


ODD = [*test_files.ODD, loop]


def saved(directory: Path, version: int) -> Path:
    return Path(save(LocalStorage(), str(directory), MODEL, PLACEMENT, version=version))


def replaced(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink()
    make(path)


@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
def test_an_odd_manifest_is_refused_by_its_name_and_the_one_before_is_taken(
    make: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = saved(tmp_path, 1), saved(tmp_path, 2)
    replaced(bad / "manifest.json", make)
    with pytest.raises(CheckpointError, match=r"manifest\.json|its manifest has"):
        zmqps.load(str(bad))
    assert open_checkpoint(str(tmp_path)).path == str(good)
    assert run(["checkpoint", "show", str(bad)]) != 0
    assert "manifest" in capsys.readouterr().err
    assert [one.path for one in good_ones(LocalStorage(), str(good.parent))] == [str(good)]
    third = saved(tmp_path, 3)
    prune(LocalStorage(), str(good.parent), 1, [str(good), str(third)])
    assert not good.exists()
    assert bad.exists()


@pytest.mark.parametrize(("make", "what"), [(os.mkfifo, "it is a FIFO, no plain file"), (loop, "symbolic links")])
def test_an_error_says_in_whole_words_what_is_wrong_with_a_file(
    make: Callable[[Path], None], what: str, tmp_path: Path
) -> None:
    bad = saved(tmp_path, 1)
    replaced(bad / "manifest.json", make)
    with pytest.raises(CheckpointError, match=what):
        zmqps.load(str(bad))


@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
@pytest.mark.parametrize("number", [0, -1])
def test_an_odd_file_of_a_shard_is_refused(make: Callable[[Path], None], number: int, tmp_path: Path) -> None:
    good, bad = saved(tmp_path, 1), saved(tmp_path, 2)
    name = open_checkpoint(str(bad)).manifest.files[number].name
    replaced(bad / name, make)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        zmqps.load(str(bad))
    assert open_checkpoint(str(tmp_path)).path == str(good)


@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
def test_odd_files_beside_checkpoints_keep_none_from_being_made(make: Callable[[Path], None], tmp_path: Path) -> None:
    first = saved(tmp_path, 1)
    for name in ("ckpt-000000000009-0009", "tmp-000000000009-0009-other", "lost", "manifest.json"):
        make(first.parent / name)
    (first.parent / "tmp-000000000008-0008-other").mkdir()
    make(first.parent / "tmp-000000000008-0008-other" / "odd")
    make(tmp_path / "job")
    assert saved(tmp_path, 2).exists()
    assert clean(LocalStorage(), str(first.parent), "me", ABANDONED_AFTER_S * 1e6)
    assert open_checkpoint(str(tmp_path)).version == 2


def test_what_cannot_be_removed_keeps_no_checkpoint_from_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = saved(tmp_path, 1)
    locked = first.parent / "tmp-000000000009-0009-other"
    (locked / "deep").mkdir(parents=True)
    os.utime(locked, (0, 0))
    remove = LocalStorage.remove

    def refuse(self: LocalStorage, path: str) -> None:
        if "deep" in path:  # another user's, in a directory that this one may not change
            raise PermissionError(13, "Permission denied", path)
        remove(self, path)

    monkeypatch.setattr(LocalStorage, "remove", refuse)
    assert clean(LocalStorage(), str(first.parent), "me", ABANDONED_AFTER_S * 1e6) == []
    assert saved(tmp_path, 2).exists()


def test_an_old_checkpoint_that_cannot_be_removed_keeps_no_others_from_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [str(saved(tmp_path, version)) for version in range(4)]
    remove = LocalStorage.remove

    def refuse(self: LocalStorage, path: str) -> None:
        if path.startswith(old[0]):
            raise PermissionError(13, "Permission denied", path)
        remove(self, path)

    monkeypatch.setattr(LocalStorage, "remove", refuse)
    with pytest.raises(CheckpointError, match="may not remove"):
        prune(LocalStorage(), str(Path(old[0]).parent), 1, old)
    assert [os.path.exists(path) for path in old] == [True, False, False, True]


def test_what_others_do_not_let_be_read_hides_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, 1)
    (tmp_path / "theirs").mkdir()
    names = LocalStorage.names

    def refuse(self: LocalStorage, path: str) -> list[str]:
        if path.endswith("theirs"):
            raise PermissionError(13, "Permission denied", path)
        return names(self, path)

    monkeypatch.setattr(LocalStorage, "names", refuse)
    assert open_checkpoint(str(tmp_path)).path == str(path)
    assert open_checkpoint(str(tmp_path), "default").path == str(path)
    with pytest.raises(CheckpointError, match="may not read"):
        open_checkpoint(str(tmp_path), "theirs")


def modes(directory: Path) -> set[tuple[bool, int]]:
    found = [directory, *directory.rglob("*")]
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode) & 0o777) for path in found}


def test_checkpoints_and_exports_are_for_their_user_alone_and_the_directory_keeps_its_mode(tmp_path: Path) -> None:
    saved(tmp_path / "new", 1)
    assert modes(tmp_path / "new") == {(True, 0o700), (False, 0o600)}
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    path = saved(there, 1)
    assert stat.S_IMODE(there.stat().st_mode) == 0o755
    assert modes(path.parent) == {(True, 0o700), (False, 0o600)}
    export(open_checkpoint(str(path)), str(tmp_path / "model.safetensors"))
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o600


def test_in_a_directory_that_is_shared_with_a_group_that_may_read_checkpoints(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o2750)
    path = saved(there, 1)
    assert modes(path.parent) == {(True, 0o750), (False, 0o640)}
