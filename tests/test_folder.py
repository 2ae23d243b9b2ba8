"""Files that commands write: what somebody else has put in their way is refused, and nothing of it is changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tables import for_each
from zmqps.errors import ConfigurationError, UnsafeFileError
from zmqps.folder import Folder

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def test_what_is_made_is_for_this_user_alone(tmp_path: Path) -> None:
    with Folder(tmp_path, "a", "b", make=True) as folder, folder.begin("c") as file:
        file.write(b"new")
    assert (tmp_path / "a/b/c").read_bytes() == b"new"
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/c")]
    assert modes == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("part", ["a", "a/b"])
def test_a_directory_that_is_a_link_is_refused(tmp_path: Path, part: str) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (tmp_path / "a").mkdir() if part != "a" else None
    (tmp_path / part).symlink_to(theirs)
    with pytest.raises(UnsafeFileError, match="it is a link, or not a directory; remove it"):
        Folder(tmp_path, "a", "b", make=True)
    assert list(theirs.iterdir()) == []


def plant_link(path: Path, theirs: Path) -> None:
    path.symlink_to(theirs)


def plant_name(path: Path, theirs: Path) -> None:
    path.hardlink_to(theirs)


def plant_pipe(path: Path, theirs: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("plant", [plant_link, plant_name, plant_pipe])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT])
def test_a_planted_file_is_not_opened(tmp_path: Path, plant: Callable[[Path, Path], None], flags: int) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("precious")
    with Folder(tmp_path, "own", make=True) as folder:
        plant(folder.path / "file", theirs)
        with pytest.raises(UnsafeFileError, match="is not safe to use"):
            folder.open("file", flags)
    assert theirs.read_text() == "precious"


@pytest.mark.parametrize("plant", [plant_link, plant_name, plant_pipe])
def test_a_file_that_is_begun_replaces_what_was_planted_and_not_what_it_leads_to(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("precious")
    plant(tmp_path / "file", theirs)
    with Folder(tmp_path) as folder, folder.begin("file") as file:
        file.write(b"log")
    assert theirs.read_text() == "precious"
    assert (tmp_path / "file").read_bytes() == b"log"


def test_a_directory_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with Folder(tmp_path) as folder, pytest.raises(UnsafeFileError, match="it cannot be used"):
        folder.begin("file")


@as_root
def test_what_belongs_to_another_user_is_refused(tmp_path: Path) -> None:
    with Folder(tmp_path, "own", make=True) as folder, folder.begin("file"):
        os.chown(folder.path / "file", NOBODY, NOBODY)
        with pytest.raises(UnsafeFileError, match=f"it belongs to user {NOBODY}, not to user 0"):
            folder.open("file", os.O_RDWR)
    os.chown(tmp_path / "own", NOBODY, NOBODY)
    with pytest.raises(UnsafeFileError, match=f"it belongs to user {NOBODY}, not to user 0"):
        Folder(tmp_path, "own")


@pytest.mark.parametrize("parts", [(), ("own",)])
def test_a_directory_in_which_all_may_exchange_files_is_refused(tmp_path: Path, parts: tuple[str, ...]) -> None:
    path = tmp_path.joinpath(*parts)
    path.mkdir(exist_ok=True)
    path.chmod(0o777)
    with pytest.raises(UnsafeFileError, match="all users may exchange what is in it; chmod o-w"):
        Folder(tmp_path, *parts)
    path.chmod(0o1777)  # as /tmp is: all may put files there, and exchange their own only
    Folder(tmp_path, *parts).close()


@as_root
def test_a_directory_in_which_a_group_may_exchange_files_is_refused_unless_it_only_leads_to_them(
    tmp_path: Path,
) -> None:
    for path in (tmp_path / "own", tmp_path / "own" / "logs"):
        path.mkdir()
        os.chown(path, -1, NOBODY)
        path.chmod(0o775)
        for base, parts, own in ((path, (), True), (path.parent, (path.name,), False)):
            with pytest.raises(
                UnsafeFileError, match=f"all users of group {NOBODY} may exchange what is in it; chmod g-w"
            ):
                Folder(base, *parts, own=own)
        Folder(path).close()
        path.chmod(0o1775)
        Folder(path, own=True).close()
    os.chown(path, -1, 0)
    path.chmod(0o775)
    Folder(path, own=True).close()  # the group has nobody but this user


@pytest.mark.parametrize("plant", [plant_link, plant_name, plant_pipe])
def test_a_file_is_emptied_only_if_it_is_this_user_s_own(tmp_path: Path, plant: Callable[[Path, Path], None]) -> None:
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    theirs.write_text("precious")
    own.write_text("old")
    plant(tmp_path / "file", theirs)
    with Folder(tmp_path) as folder:
        with pytest.raises(UnsafeFileError, match="is not safe to use"):
            folder.open("file", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.close(folder.open("own", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    assert (theirs.read_text(), own.read_text()) == ("precious", "")


@for_each("part", ["", ".", "..", "a/b", "/etc"])
def test_what_leads_elsewhere_is_no_name(tmp_path: Path, part: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a directory"):
        Folder(tmp_path, part, make=True)
    assert list(tmp_path.iterdir()) == []
