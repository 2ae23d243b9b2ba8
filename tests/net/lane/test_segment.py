"""The file of a lane: who may attach, what is refused, and that nothing is left behind."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tables import for_each
from zmqps.net.lane import segment
from zmqps.net.lane.segment import DIRECTORY, HEADER, MAGIC, RINGS_AT, Segment, SegmentError, sweep

ROOT = Path(__file__).resolve().parents[3]
RING = 4096


@pytest.fixture
def created() -> Iterator[Segment]:
    """A segment somebody else may attach to."""
    made = Segment.create(RING)
    yield made
    made.close()


def path_of(made: Segment) -> Path:
    return DIRECTORY / made.name


def test_both_sides_see_the_same_rings_crosswise(created: Segment) -> None:
    attached = Segment.attach(created.name)
    for here, there in ((created, attached), (attached, created)):
        position = here.writer.put(b"payload")
        assert position is not None
        assert bytes(there.reader.take(0, [(position, 7)])[0]) == b"payload"
    assert attached.proof == created.proof
    assert attached.id == created.id
    assert not attached.ready
    created.confirm()
    assert attached.ready
    attached.close()


def test_a_segment_is_private_and_its_file_goes_when_it_is_attached_to(created: Segment) -> None:
    assert path_of(created).stat().st_mode & 0o777 == 0o600
    Segment.attach(created.name).close()
    assert not path_of(created).exists()
    with pytest.raises(SegmentError, match="No such file"):
        Segment.attach(created.name)


def test_closing_removes_the_file_and_tells_the_other_side() -> None:
    created = Segment.create(RING)
    path = path_of(created)
    attached = Segment.attach(created.name)
    assert not attached.orphaned
    created.close()
    assert attached.orphaned
    attached.close()
    attached.close()  # again does nothing
    assert not path.exists()


@for_each(
    "name",
    ["", "passwd", "../etc/passwd", "zmqps-1-", "zmqps-1-" + "0" * 31, "zmqps-1-" + "g" * 32, "/zmqps-1-" + "0" * 32,
     "zmqps-1-" + "0" * 32 + "\n", "zmqps-1-" + "0" * 32 + "\0", "zmqps-x-" + "0" * 32],
)  # fmt: skip
def test_names_that_are_not_ours_are_not_opened(name: str) -> None:
    with pytest.raises(SegmentError, match="not a segment's name"):
        Segment.attach(name)


def make_open(path: Path) -> None:
    path.chmod(0o644)


def make_link(path: Path) -> None:
    path.rename(path.with_name("zmqps-target"))
    path.symlink_to("zmqps-target")


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def make_short(path: Path) -> None:
    os.truncate(path, RINGS_AT)


def make_empty(path: Path) -> None:
    os.truncate(path, 0)


def write_header(magic: bytes = MAGIC, version: int = 2, ring: int = RING) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with path.open("r+b") as file:
            file.write(HEADER.pack(magic, version, b"", ring))

    return write


@pytest.mark.parametrize(
    "spoil",
    [make_open, make_link, make_directory, make_fifo, make_short, make_empty,
     write_header(magic=b"somebody"), write_header(version=1), write_header(ring=0), write_header(ring=RING + 1),
     write_header(ring=RING + 64), write_header(ring=1 << 62), write_header(ring=(1 << 64) - 64)],
)  # fmt: skip
def test_files_that_are_no_segment_are_refused(created: Segment, spoil: Callable[[Path], None]) -> None:
    path = path_of(created)
    spoil(path)
    try:
        with pytest.raises(SegmentError):
            Segment.attach(created.name)
    finally:
        if path.is_dir():
            path.rmdir()
        (DIRECTORY / "zmqps-target").unlink(missing_ok=True)


def test_a_file_of_another_user_is_refused(created: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SegmentError, match="not a private file of this user"):
        Segment.attach(created.name)


def test_no_room_is_said_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = set(DIRECTORY.glob(f"zmqps-{os.getpid()}-*"))
    with pytest.raises(SegmentError, match=r"no room for 8192 bytes in /dev/shm: No space left on device"):
        Segment.create(RING)
    assert set(DIRECTORY.glob(f"zmqps-{os.getpid()}-*")) == before


def test_no_shared_memory_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(segment, "DIRECTORY", tmp_path / "missing")
    with pytest.raises(SegmentError, match="cannot make a file"):
        Segment.create(RING)


def test_a_file_swept_away_before_it_was_locked_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, swept = fcntl.flock, []

    def sweep_first(fd: int, kind: int) -> None:
        if not swept:
            swept.append(path := os.readlink(f"/proc/self/fd/{fd}"))
            os.unlink(path)
        lock(fd, kind)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    created = Segment.create(RING)
    assert path_of(created).exists()
    assert str(path_of(created)) != swept[0]
    created.close()


def left_by_a_killed_process() -> Path:
    """Return a segment's file that its process could not remove."""
    program = "import os; from zmqps.net.lane.segment import Segment\n"
    program += f"print(Segment.create({RING}).name, flush=True); os.kill(os.getpid(), {signal.SIGKILL})"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == -signal.SIGKILL
    return DIRECTORY / result.stdout.strip()


def test_what_a_killed_process_left_is_swept_and_what_is_in_use_is_not(created: Segment) -> None:
    left = left_by_a_killed_process()
    sweep()  # or another process's, meanwhile
    assert not left.exists()
    assert path_of(created).exists()


def test_files_of_others_are_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "DIRECTORY", tmp_path)
    (tmp_path / "zmqps-notes").write_text("mine")
    (tmp_path / ("zmqps-1-" + "0" * 32)).write_text("left behind")
    assert sweep() == 1
    assert [path.name for path in tmp_path.iterdir()] == ["zmqps-notes"]


def test_the_header_lies_where_the_document_says(created: Segment) -> None:
    header = path_of(created).read_bytes()[:RINGS_AT]
    assert header[:8] == MAGIC
    assert struct.unpack_from("<I", header, 8) == (2,)
    assert struct.unpack_from("<Q", header, 64) == (RING,)
