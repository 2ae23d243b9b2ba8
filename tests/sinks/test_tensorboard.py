"""TensorBoard's event files, read back record by record."""

from __future__ import annotations

import math
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.sinks.sink import MOST_RUNS
from zmqps.sinks.tensorboard import TensorBoard, folder


def events(path: Path) -> list[Any]:
    """Return the events of a file, whose checksums must be right."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    data, found = path.read_bytes(), []
    while data:
        head, rest = data[:8], data[12:]
        (length,) = struct.unpack("<Q", head)
        body = rest[:length]
        assert struct.unpack("<I", data[8:12]) == (masked_crc32c(head),)
        assert struct.unpack("<I", rest[length : length + 4]) == (masked_crc32c(body),)
        found.append(Event.FromString(body))
        data = rest[length + 4 :]
    return found


def scalars(folder: Path) -> list[tuple[float, int, dict[str, float]]]:
    """Return (wall time, step, values) of all files of a run."""
    pytest.importorskip("tensorboardX")
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        first, *others = events(path)
        assert first.file_version == "brain.Event:2"
        found += [(e.wall_time, e.step, {v.tag: v.simple_value for v in e.summary.value}) for e in others]
    return found


@pytest.fixture
def board(tmp_path: Path) -> Any:
    pytest.importorskip("tensorboardX")
    return TensorBoard(str(tmp_path))


def test_each_worker_of_each_job_is_a_run_with_names_as_tags_and_times_as_they_were(board: Any, tmp_path: Path) -> None:
    board.values("default", "worker 2", 12, 1764098765.125, {"loss": 0.25, "top 5/accuracy": 0.5})
    board.values("default", "worker 2", 13, 1764098766.5, {"loss": 0.125})
    board.values("other", "worker 0", 3, 1764098767.0, {"loss": 2.0})
    board.close()
    assert scalars(tmp_path / "default" / "worker-2") == [
        (1764098765.125, 12, {"loss": 0.25, "top 5/accuracy": 0.5}),
        (1764098766.5, 13, {"loss": 0.125}),
    ]
    assert scalars(tmp_path / "other" / "worker-0") == [(1764098767.0, 3, {"loss": 2.0})]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["default", "other"]


def test_what_has_no_step_is_numbered_as_it_comes(board: Any, tmp_path: Path) -> None:
    for _ in range(3):
        board.values("j", "worker 0", None, 1.0, {"loss": 1.0})
    board.close()
    assert [step for _, step, _ in scalars(tmp_path / "j" / "worker-0")] == [0, 1, 2]


def test_nan_is_written_as_it_is(board: Any, tmp_path: Path) -> None:
    board.values("j", "worker 0", 0, 1.0, {"a": math.nan, "b": math.inf})
    board.close()
    [(_, _, values)] = scalars(tmp_path / "j" / "worker-0")
    assert math.isnan(values["a"])
    assert values["b"] == math.inf


def test_a_reader_sees_it_when_it_is_flushed(board: Any, tmp_path: Path) -> None:
    board.values("j", "worker 0", 0, 1.0, {"a": 1.0})
    board.flush()
    assert len(scalars(tmp_path / "j" / "worker-0")) == 1
    board.close()


def test_more_runs_than_may_be_open_are_all_written(board: Any, tmp_path: Path) -> None:
    for rank in [*range(MOST_RUNS + 3), 0]:
        board.values("j", f"worker {rank}", rank, 1.0, {"a": float(rank)})
    board.close()
    assert len(list((tmp_path / "j").iterdir())) == MOST_RUNS + 3
    assert len(scalars(tmp_path / "j" / "worker-0")) == 2, "in two files, none written over the other"


def test_another_life_writes_beside_the_files_of_the_one_before(board: Any, tmp_path: Path) -> None:
    board.values("j", "worker 0", 0, 1.0, {"a": 1.0})
    board.close()
    (path,) = (tmp_path / "j" / "worker-0").iterdir()
    path.rename(path.with_name(path.name + ".of-a-life-before"))
    again = TensorBoard(str(tmp_path))
    again.values("j", "worker 0", 1, 2.0, {"a": 2.0})
    again.close()
    assert sorted(step for _, step, _ in scalars(tmp_path / "j" / "worker-0")) == [0, 1]


@for_each(
    "name, start",
    [("resnet-50_b.1", "resnet-50_b.1"), ("../../etc", "_.._etc-"), ("..", "_-"), ("a b/c", "a_b_c-")],
)
def test_names_of_jobs_are_folders_below_and_nothing_else(name: str, start: str) -> None:
    assert folder(name).startswith(start)
    assert Path(folder(name)).name == folder(name) not in (".", "..")


def test_names_that_look_alike_are_other_folders() -> None:
    assert len({folder(name) for name in ("a/b", "a b", "a_b", "a\tb")}) == 4


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"--values tensorboard:.*cannot be written"):
        TensorBoard(str(tmp_path / "file" / "runs"))


def test_without_tensorboardx_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.startswith("tensorboardX")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigurationError, match=r"pip install .*\[tensorboard\]'"):
        TensorBoard(str(tmp_path))
