"""A node that does not answer is asked by a signal, if it is here and takes it for that; else it is said what to do."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from zmqps.top.source import tell

NUMBER = int(signal.SIGUSR2)
NODE = {"role": "worker", "rank": 2, "job": "default", "name": "w2", "host": "here", "pid": 4711, "state": "silent",
        "seen_s": 7.25}  # fmt: skip
STATUS = {"members": [{**NODE, "counters": {"stacks_signal": NUMBER, "log": "worker-5"}}]}
CAUGHT = 1 << (NUMBER - 1)


def told(
    tmp_path: Path, node: Any = NODE, status: Any = STATUS, caught: int = CAUGHT
) -> tuple[str, list[tuple[int, int]]]:
    sent: list[tuple[int, int]] = []
    lines = tell(node, status, "here", tmp_path, lambda pid, n: sent.append((pid, n)), lambda pid: caught)
    return "\n".join(lines), sent


def test_one_that_takes_the_signal_is_sent_it_and_its_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "worker-5.log").touch()
    text, sent = told(tmp_path)
    assert sent == [(4711, NUMBER)]
    assert "worker 2 (w2, here, pid 4711) has not answered for 2 s" in text
    assert "last sign of life was 7.2 s ago" in text
    assert f"sent it SIGUSR2: what its threads are doing is in {tmp_path / 'worker-5.log'} now" in text


@pytest.mark.parametrize(
    ("node", "status", "caught", "says"),
    [
        ({**NODE, "host": "there"}, STATUS, CAUGHT, "on there, try py-spy dump --pid 4711"),
        (NODE, STATUS, CAUGHT << 1, "takes no signal"),  # which would end it
        (NODE, {"members": []}, CAUGHT, "takes no signal"),
        (NODE, {"members": [{**NODE, "pid": 4712, "counters": {"stacks_signal": NUMBER}}]}, CAUGHT, "takes no signal"),
        (NODE, {"members": [{**NODE, "counters": {"stacks_signal": 900}}]}, -1, "takes no signal"),
        ({**NODE, "state": "gone"}, STATUS, CAUGHT, "has left meanwhile"),
    ],
)
def test_nobody_else_is_sent_anything(node: Any, status: Any, caught: int, says: str, tmp_path: Path) -> None:
    text, sent = told(tmp_path, node, status, caught)
    assert sent == []
    assert says in text


def test_a_process_of_another_user_is_not_reached_and_that_is_said(tmp_path: Path) -> None:
    def refused(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    lines = tell(NODE, STATUS, "here", tmp_path, refused, lambda pid: CAUGHT)
    assert "could not be sent SIGUSR2" in lines[-1]
