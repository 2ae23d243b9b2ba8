"""Files of logs: read once from their oldest part, through rotations, and as they grow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pace import allow
from zmqps.cli.running.follow import FollowedLog, generations, is_log, logs_in, wait_for_more
from zmqps.cli.running.output import OLDER_LOGS, LogFile
from zmqps.errors import UnsafeFileError
from zmqps.folder import Folder
from zmqps.launch.processes import tail
from zmqps.logs.lines import read_message


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with Folder(tmp_path) as folder:
        yield folder


def messages(log: FollowedLog, *, to_the_end: bool = False) -> list[str]:
    return [read_message(line) for line in log.lines(to_the_end=to_the_end)]


def test_a_log_is_bounded_and_what_is_kept_is_the_latest(folder: Folder) -> None:
    log = LogFile("worker-0", folder, "worker-0.log", None, most_nbytes=2000)
    for number in range(500):
        log.take([f"step {number}"])
    log.close()
    files = generations(folder, "worker-0")
    assert files == [*(f"worker-0.log.{number}" for number in range(OLDER_LOGS, 0, -1)), "worker-0.log"]
    assert sum((folder.path / file).stat().st_size for file in files) <= 2000 * (OLDER_LOGS + 1)
    followed = FollowedLog(folder, "worker-0")
    said = messages(followed)
    followed.close()
    assert said == [f"step {number}" for number in range(500 - len(said), 500)]
    assert len(said) > 60


def test_following_goes_through_rotations_and_loses_and_repeats_nothing(folder: Folder) -> None:
    log = LogFile("worker-0", folder, "worker-0.log", None, most_nbytes=2000)
    followed, seen = FollowedLog(folder, "worker-0"), list[str]()
    for number in range(0, 300, 3):
        log.take([f"step {number + i}" for i in range(3)])
        if number % 33 == 0:  # less often than it rotates
            seen += messages(followed)
    seen += messages(followed)
    assert seen == [f"step {number}" for number in range(300)]
    assert messages(followed) == []
    followed.close()
    log.close()


def test_a_line_without_an_end_is_read_once_it_has_one_or_at_the_end(folder: Folder) -> None:
    file = folder.begin("a.log")
    log = FollowedLog(folder, "a")
    file.write(b"one\ntw")
    assert messages(log) == ["one"]
    file.write(b"o\nthree")
    assert messages(log) == ["two"]
    assert messages(log, to_the_end=True) == ["three"]
    file.close()
    log.close()


def test_a_log_that_begins_later_is_begun_anew_or_is_emptied_is_read(folder: Folder) -> None:
    log = FollowedLog(folder, "a")
    assert messages(log) == []
    with folder.begin("a.log") as file:
        file.write(b"first life\nits last words")
        assert messages(log) == ["first life"]
    with folder.begin("a.log") as file:  # `zmqps up` again
        file.write(b"second life\n")
        assert messages(log) == ["its last words", "second life"]
        file.truncate(0)
        file.seek(0)
        file.write(b"anew\n")
        assert messages(log) == ["anew"]
    folder.remove("a.log")
    assert messages(log) == []
    log.close()


def test_parts_that_are_too_old_to_matter_are_not_read(folder: Folder) -> None:
    for file, at in (("a.log.2", 100.0), ("a.log.1", 200.0), ("a.log", 50.0)):
        (folder.path / file).write_text(f"{file}\n")
        os.utime(folder.path / file, (at, at))
    log = FollowedLog(folder, "a", since=150.0)
    assert messages(log) == ["a.log.1", "a.log"]
    log.close()


def test_nothing_that_was_planted_is_read_after_a_rotation(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("mine\n")
    log = FollowedLog(folder, "a")
    assert messages(log) == ["mine"]
    (tmp_path / "precious").write_text("precious\n")
    (tmp_path / "a.log").unlink()
    (tmp_path / "a.log").symlink_to(tmp_path / "precious")
    with pytest.raises(UnsafeFileError, match="a link"):
        messages(log)
    log.close()


def test_what_is_a_log_is_told_by_its_name(folder: Folder) -> None:
    for name in ("server-0.log", "server-0.log.1", "server-10.log", "a.txt", "server-0.log.gz", "server-0.log.0"):
        (folder.path / name).touch()
    assert logs_in(folder) == ["server-0", "server-10"]
    assert generations(folder, "server-0") == ["server-0.log.1", "server-0.log"]
    assert [is_log(name) for name in ("a.log", "a.log.3", "a.log.gz", "log", "a.txt")] == [
        True, True, False, False, False
    ]  # fmt: skip


def test_a_reader_that_is_gone_ends_the_wait() -> None:
    reading, writing = os.pipe()
    wait_for_more(writing, 0.0)
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        wait_for_more(writing, allow(30.0))
    os.close(writing)


def test_the_last_words_are_there_although_the_log_goes_on_in_a_new_file(folder: Folder) -> None:
    log = LogFile("server-0", folder, "server-0.log", None, most_nbytes=500)
    log.take([f"word {number}" for number in range(20)])
    log.close()
    assert "word 15\n  word 16" in tail(folder.path / "server-0.log", 5)
    assert tail(folder.path / "server-0.log", 5).endswith("word 19")


def test_a_log_that_cannot_be_put_aside_grows_on(folder: Folder) -> None:
    log = LogFile("n", folder, "n.log", None, most_nbytes=200)
    for number in range(1, OLDER_LOGS + 1):
        (folder.path / f"n.log.{number}").mkdir()  # no file takes its place
    for number in range(20):
        log.take([f"step {number}"])
    log.close()
    assert (folder.path / "n.log").read_text().count("step") == 20


def test_a_directory_that_takes_the_place_of_the_logs_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with Folder(tmp_path / "logs") as folder:
        log = LogFile("n", folder, "n.log", None, most_nbytes=200)
        (tmp_path / "logs").rename(tmp_path / "moved")
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "n.log").write_text("precious")
        log.take([f"step {number}" for number in range(20)])
        log.close()
    assert [file.name for file in (tmp_path / "logs").iterdir()] == ["n.log"]
    assert (tmp_path / "logs" / "n.log").read_text() == "precious"
    assert (tmp_path / "moved" / "n.log.3").exists()
