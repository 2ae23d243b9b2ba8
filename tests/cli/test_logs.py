"""``zmqps logs``: which lines it shows, in which order and form."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import environment
from zmqps.core.protocol import exits
from zmqps.errors import Fact
from zmqps.logs.lines import Entry


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC)


def line(node: str, level: str, message: str, at: datetime | None = None, **fields: Fact) -> str:
    at = (at or datetime.now(UTC)).astimezone()
    return Entry(at=at, level=level, node=node, message=message, fields=fields).line() + "\n"


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
        ("worker-1", 150, "error", "Traceback (most recent call last):\n  x\nOSError: disk", {}),
        ("worker-2", 50, "warning", "waiting", {"job": "other"}),
        ("coordinator", 20, "error", "job 'other': it is over", {"job": "other"}),
    ]
    for node, ago, level, message, fields in lines:
        with open(path / f"{node}.log", "a") as file:
            file.write(line(node, level, message, now - timedelta(seconds=ago), **fields))
    return path


def shown(within: Any, *arguments: str) -> list[str]:
    done = within("logs", *arguments)
    assert done.returncode == exits.OK, done.stderr
    return [line.split(" | ")[1].split(" ", 2)[2] for line in done.stdout.splitlines()]


def test_logs_are_merged_by_time(within, logs) -> None:
    assert shown(within) == [
        "coordinator at tcp://127.0.0.1:1",
        "shard 0 [job=digits]",
        "loss 0.3",
        "error: Traceback (most recent call last):",
        "error:   x",
        "error: OSError: disk",
        "warning: lost worker 1 [job=digits peer=worker-1 error=Z006]",
        "warning: waiting [job=other]",
        "error: job 'other': it is over",
    ]
    assert shown(within, "-n", "2") == ["warning: waiting [job=other]", "error: job 'other': it is over"]


def test_options_choose_what_is_shown(within, logs, now) -> None:
    assert shown(within, "--level", "error") == [
        "error: Traceback (most recent call last):", "error:   x", "error: OSError: disk",
        "error: job 'other': it is over",
    ]  # fmt: skip
    since = (now - timedelta(seconds=120)).isoformat()
    assert shown(within, "--since", since, "--level", "warning", "--node", "worker-2") == [
        "warning: waiting [job=other]"
    ]
    assert shown(within, "--since", since, "--node", "worker", "coordinator", "--job", "other") == [
        "warning: waiting [job=other]", "error: job 'other': it is over"
    ]  # fmt: skip
    assert shown(within, "--since", "6m", "server", "--node", "coordinator")[0] == "shard 0 [job=digits]"


def test_json_has_all_fields(within, logs, now) -> None:
    entries = [json.loads(line) for line in within("logs", "--json", "--job", "digits").stdout.splitlines()]
    assert [(e["node"], e["level"], e["message"], e["job"], e.get("error")) for e in entries] == [
        ("server-0", "info", "shard 0", "digits", None),
        ("coordinator", "warning", "lost worker 1", "digits", "Z006"),
    ]
    assert datetime.fromisoformat(entries[0]["time"]) == (now - timedelta(seconds=300)).replace(
        microsecond=now.microsecond // 1000 * 1000
    )


def test_what_cannot_be_meant_is_refused(within, logs) -> None:
    for arguments, text in (
        (("--node", "server-7"), "no log of server-7; there are coordinator, server-0, worker-1, worker-2"),
        (("--since", "yesterday"), "'yesterday' is not a time"),
        (("--level", "loud"), "'loud' is not one of"),
    ):
        done = within("logs", *arguments)
        assert done.returncode == exits.USAGE
        assert text in done.stderr


def test_following_shows_what_is_added_also_by_those_who_come_later(start, logs, now) -> None:
    since = (now - timedelta(seconds=60)).isoformat()
    running = start("logs", "--follow", "--level", "warning", "--since", since)
    running.wait_for("it is over")
    assert "lost worker 1" not in running.output
    with open(logs / "worker-2.log", "a") as file:
        file.write(line("worker-2", "info", "loss 0.2"))
        file.write(line("worker-2", "warning", "slow"))
    running.wait_for("warning: slow")
    (logs / "server-1.log").write_text(line("server-1", "error", "disk full"))
    running.wait_for("error: disk full")
    (logs / "server-1.log").rename(logs / "server-1.log.1")
    (logs / "server-1.log").write_text(line("server-1", "error", "anew"))
    running.wait_for("error: anew")
    assert "loss 0.2" not in running.output
    assert running.output.count("disk full") == 1
    running.popen.send_signal(signal.SIGINT)
    assert running.exit_code() == exits.INTERRUPTED


def test_a_log_from_elsewhere_is_read_from_standard_input(tmp_path) -> None:
    text = "before\n" + line("server-0", "warning", "slow", job="digits") + "Fatal Python error: Aborted\n"
    done = subprocess.run(
        [sys.executable, "-m", "zmqps", "logs", "-", "--level", "warning"],
        input=text, capture_output=True, text=True, cwd=tmp_path, env=environment(),
    )  # fmt: skip
    assert done.returncode == exits.OK, done.stderr
    assert [line.partition("| ")[2][24:] for line in done.stdout.splitlines()] == [
        "warning: slow [job=digits]", "critical: Fatal Python error: Aborted"
    ]  # fmt: skip
