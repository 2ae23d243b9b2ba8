"""Files that others may have made: what is none is refused at once, and no more is read than is expected."""

from __future__ import annotations

import os
import re
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tables import for_each
from zmqps import files
from zmqps.errors import UnsafeFileError
from zmqps.net.identity import read_secret
from zmqps.trace import merge


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one, tempfile.TemporaryDirectory() as short:
        one.bind(f"{short}/s")
        os.rename(f"{short}/s", path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def to_fifo(path: Path) -> None:
    os.mkfifo(f"{path}.hidden")
    path.symlink_to(f"{path.name}.hidden")


def terminal(path: Path) -> None:
    path.symlink_to("/dev/tty")


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


ODD = [fifo, listening, endless, to_fifo, terminal, sparse]


@pytest.fixture(params=ODD, ids=lambda make: make.__name__)
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Something that is no file of a few bytes."""
    path = tmp_path / "odd"
    request.param(path)
    return path


def test_a_pipe_that_a_shell_gives_this_process_is_read_up_to_a_bound_and_a_link_to_it_is_not(tmp_path: Path) -> None:
    for most, expected in ((32, b"x" * 32), (31, None)):
        read, write = os.pipe()
        os.write(write, b"x" * 32)
        os.close(write)
        if expected is None:
            with pytest.raises(UnsafeFileError, match="more than 31 B"):
                files.read_file(f"/dev/fd/{read}", most, files.open_given)
        else:
            assert files.read_file(f"/dev/fd/{read}", most, files.open_given) == expected
        (tmp_path / f"{most}").symlink_to(f"/dev/fd/{read}")
        with pytest.raises(UnsafeFileError, match="FIFO"):
            files.read_file(tmp_path / f"{most}", most, files.open_given)
        os.close(read)


def test_a_plain_file_is_read_and_so_is_what_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert files.read_file(tmp_path / "file", 3) == b"abc"
    assert files.read_file(str(tmp_path / "link"), 3) == b"abc"
    assert len(files.read_kernel("/proc/self/status")) > 100


@pytest.mark.timeout(30)
@for_each(
    "read",
    [
        lambda path: files.read_file(path, 1 << 20),
        lambda path: read_secret(path, "secret", "the secret"),
        lambda path: merge.load(path),
    ],
)
def test_what_is_no_file_of_a_few_bytes_is_refused_by_its_name(odd: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(UnsafeFileError, match=re.escape(str(odd))):
        read(odd)


def test_a_file_that_says_that_it_has_no_bytes_is_read_to_the_bound_and_no_further(tmp_path: Path) -> None:
    with pytest.raises(UnsafeFileError, match="more than 10 B"):
        files.read_file("/proc/self/status", 10)


def test_what_is_opened_to_be_added_to_is_a_plain_file(tmp_path: Path) -> None:
    for make in (fifo, endless):
        path = tmp_path / make.__name__
        make(path)
        with pytest.raises(UnsafeFileError):
            files.open_to_append(path)
        with pytest.raises(UnsafeFileError):
            files.open_to_replace(path)
    with os.fdopen(files.open_to_append(tmp_path / "log"), "w") as file:
        file.write("a")
    with os.fdopen(files.open_to_append(tmp_path / "log"), "w") as file:
        file.write("b")
    assert (tmp_path / "log").read_text() == "ab"
    with os.fdopen(files.open_to_replace(tmp_path / "log"), "w") as file:
        file.write("c")
    assert (tmp_path / "log").read_text() == "c"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_for_this_user_alone_and_what_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    made = files.make_directory(tmp_path / "there" / "a" / "b")
    assert made == [str(tmp_path / "there" / "a"), str(tmp_path / "there" / "a" / "b")]
    os.close(files.create(tmp_path / "there" / "file"))
    assert [mode(tmp_path / "there" / name) for name in ("", "a", "a/b", "file")] == [0o755, 0o700, 0o700, 0o600]
    assert files.make_directory(tmp_path / "there") == []
    with pytest.raises(FileExistsError):
        files.create(tmp_path / "there" / "file")


def test_in_a_directory_with_the_setgid_bit_it_is_for_the_group_too_as_far_as_that_may_use_the_directory(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2750)
    files.make_directory(shared / "a" / "b")
    os.close(files.create(shared / "a" / "b" / "file"))
    assert [mode(shared / name) & 0o777 for name in ("a", "a/b", "a/b/file")] == [0o750, 0o750, 0o640]
    before = os.umask(0o077)
    try:
        os.close(files.create(shared / "a" / "b" / "mine"))
    finally:
        os.umask(before)
    assert mode(shared / "a" / "b" / "mine") == 0o600
