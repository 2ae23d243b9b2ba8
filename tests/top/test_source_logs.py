"""The end of a node's log, where there is one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from zmqps.logs.lines import Entry
from zmqps.top.source import MOST_LINES, TAIL_NBYTES, tail


def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "cluster" / "logs"
    folder.mkdir(parents=True, mode=0o700)
    for parent in (tmp_path / "runs", tmp_path / "runs" / "cluster"):
        parent.chmod(0o700)
    return folder


def test_its_last_lines_can_be_shown(tmp_path: Path) -> None:
    (logs(tmp_path) / "worker-2.log").write_text("one\ntwo \x1b[2J\nnot ended")
    assert tail(tmp_path, "cluster", "worker-2", "here") == ["one", "two \\x1b[2J"]


def test_entries_are_shown_as_text(tmp_path: Path) -> None:
    at = datetime(2025, 11, 21, 1, 4, 5).astimezone()
    entry = Entry(at=at, level="error", node="worker-2", message="a\nb", fields={"job": "digits"})
    (logs(tmp_path) / "worker-2.log").write_text(entry.line() + "\n")
    assert tail(tmp_path, "cluster", "worker-2", "here") == [
        "worker-2    | 2025-11-21 01:04:05.000 error: a [job=digits]",
        "worker-2    | 2025-11-21 01:04:05.000 error: b",
    ]


def test_of_a_long_one_the_end_is_read(tmp_path: Path) -> None:
    (logs(tmp_path) / "worker-2.log").write_text("".join(f"line {n}\n" for n in range(TAIL_NBYTES)))
    lines = tail(tmp_path, "cluster", "worker-2", "here")
    assert len(lines) == MOST_LINES
    assert lines[-1] == f"line {TAIL_NBYTES - 1}"


def test_one_that_launch_has_written_has_its_host_in_its_name(tmp_path: Path) -> None:
    (logs(tmp_path) / "server-0@host-b.log").write_text("there\n")
    assert tail(tmp_path, "cluster", "server-0", "host-b") == ["there"]


def test_where_there_is_none_its_host_is_said(tmp_path: Path) -> None:
    says = ["the log of worker-2 is not here: look on host-b, or run this where the cluster was started"]
    assert tail(tmp_path, "cluster", "worker-2", "host-b") == says
    logs(tmp_path)
    assert tail(tmp_path, "cluster", "worker-2", "host-b") == says


def test_one_without_lines_is_called_empty(tmp_path: Path) -> None:
    (logs(tmp_path) / "worker-2.log").touch()
    assert tail(tmp_path, "cluster", "worker-2", "host-b") == ["the log of worker-2 is empty"]
