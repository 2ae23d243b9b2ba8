"""``zmqps logs``: which lines it shows, in which order and form."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from zmqps.core.protocol import exits
from zmqps.errors import Fact
from zmqps.logs.lines import write_line


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def logs(tmp_path: Path, now: datetime) -> Path:
    """Make the logs of a cluster, and return where they are."""
    path = tmp_path / "runs/cluster/logs"
    path.mkdir(parents=True)
    lines: list[tuple[str, int, str, str, Mapping[str, Fact]]] = [
        ("coordinator", 600, "info", "coordinator at tcp://127.0.0.1:1", {}),
        ("server-0", 300, "info", "shard 0", {"job": "digits"}),
        ("worker-2", 200, "info", "loss 0.3", {}),
        ("coordinator", 100, "warning", "lost worker 1", {"job": "digits", "peer": "worker-1", "error": "Z006"}),
        ("worker-1", 150, "info", "Traceback (most recent call last):\n  x\nOSError: disk", {}),
        ("worker-2", 50, "warning", "waiting", {"job": "other"}),
        ("coordinator", 20, "error", "job 'other': it is over", {"job": "other"}),
    ]
    for node, ago, level, message, fields in lines:
        with open(path / f"{node}.log", "a") as file:
            at = (now - timedelta(seconds=ago)).astimezone()
            file.write(write_line(node, level, message, at, as_json=node == "server-0", fields=fields) + "\n")
    return path


def shown(zmqps: Any, *arguments: str) -> list[str]:
    done = zmqps("logs", *arguments)
    assert done.returncode == exits.OK, done.stderr
    return [line.split(" | ")[1].split(" ", 2)[2] for line in done.stdout.splitlines()]


def test_logs_are_merged_by_time_whatever_they_are_written_in(zmqps, logs) -> None:
    assert shown(zmqps) == [
        "coordinator at tcp://127.0.0.1:1",
        "shard 0 [job=digits]",
        "loss 0.3",
        "Traceback (most recent call last):",
        "  x",
        "OSError: disk",
        "warning: lost worker 1 [job=digits peer=worker-1 error=Z006]",
        "warning: waiting [job=other]",
        "error: job 'other': it is over [job=other]",
    ]
    assert shown(zmqps, "-n", "2") == ["warning: waiting [job=other]", "error: job 'other': it is over [job=other]"]


def test_options_choose_what_is_shown(zmqps, logs, now) -> None:
    assert shown(zmqps, "--level", "error") == [
        "Traceback (most recent call last):", "  x", "OSError: disk", "error: job 'other': it is over [job=other]"
    ]  # fmt: skip
    since = (now - timedelta(seconds=120)).isoformat()
    assert shown(zmqps, "--since", since, "--level", "warning", "--node", "worker-2") == [
        "warning: waiting [job=other]"
    ]
    assert shown(zmqps, "--since", since, "--node", "worker", "coordinator", "--job", "other") == [
        "warning: waiting [job=other]", "error: job 'other': it is over [job=other]"
    ]  # fmt: skip
    assert shown(zmqps, "--since", "6m", "server", "--node", "coordinator")[0] == "shard 0 [job=digits]"


def test_json_has_all_fields_whatever_it_is_written_in(zmqps, logs, now) -> None:
    entries = [json.loads(line) for line in zmqps("logs", "--json", "--job", "digits").stdout.splitlines()]
    assert [(e["node"], e["level"], e["message"], e["job"], e.get("error")) for e in entries] == [
        ("server-0", "info", "shard 0", "digits", None),
        ("coordinator", "warning", "lost worker 1", "digits", "Z006"),
    ]
    assert datetime.fromisoformat(entries[0]["time"]) == (now - timedelta(seconds=300)).replace(
        microsecond=now.microsecond // 1000 * 1000
    )


def test_what_cannot_be_meant_is_refused(zmqps, logs) -> None:
    for arguments, text in (
        (("--node", "server-7"), "no log of server-7; there are coordinator, server-0, worker-1, worker-2"),
        (("--since", "yesterday"), "'yesterday' is no time"),
        (("--level", "loud"), "'loud' is not one of"),
    ):
        done = zmqps("logs", *arguments)
        assert done.returncode == exits.USAGE
        assert text in done.stderr


def test_following_shows_what_is_added_also_by_those_who_come_later(start, logs, now) -> None:
    since = (now - timedelta(seconds=60)).isoformat()
    running = start("logs", "--follow", "--level", "warning", "--since", since)
    running.wait_for("it is over")
    assert "lost worker 1" not in running.output
    with open(logs / "worker-2.log", "a") as file:
        file.write(write_line("worker-2", "info", "loss 0.2", datetime.now(), as_json=False) + "\n")
        file.write(write_line("worker-2", "warning", "slow", datetime.now(), as_json=False) + "\n")
    running.wait_for("warning: slow")
    (logs / "server-1.log").write_text(
        write_line("server-1", "error", "disk full", datetime.now(), as_json=False) + "\n"
    )
    running.wait_for("error: disk full")
    (logs / "server-1.log").rename(logs / "server-1.log.1")
    (logs / "server-1.log").write_text(write_line("server-1", "error", "anew", datetime.now(), as_json=False) + "\n")
    running.wait_for("error: anew")
    assert "loss 0.2" not in running.output
    assert running.output.count("disk full") == 1
    running.popen.send_signal(signal.SIGINT)
    assert running.exit_code() == exits.INTERRUPTED
