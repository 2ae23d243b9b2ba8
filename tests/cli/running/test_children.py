"""The processes of a supervisor share a log over their lives, and how workers have ended is one sentence."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.pace import allow
from tests.tables import for_each
from zmqps.cli.running.children import Children, how_ended
from zmqps.errors import NodeFailedError
from zmqps.folder import Folder
from zmqps.launch.processes import tail
from zmqps.launch.supervision import Restarts

PATIENCE = allow(20.0)


@for_each(
    ("restarted", "drained", "said"),
    [
        ({"worker-0": 0}, [], "the worker has ended well"),
        ({"worker-0": 0, "worker-1": 0}, [], "all 2 workers have ended well"),
        ({"w-0": 0, "w-1": 2}, [], "all 2 workers have ended well; w-1 was restarted 2 times"),
        ({"w-0": 1, "w-1": 0}, ["w-1"], "1 of 2 workers have ended well; w-0 was restarted 1 time; w-1 drained"),
        ({"w-0": 0}, ["w-0"], "0 of 1 worker have ended well; w-0 drained"),
    ],
)
def test_how_workers_have_ended_is_said(restarted: dict[str, int], drained: list[str], said: str) -> None:
    workers = {name: Restarts(3) for name in restarted}
    for name, number in restarted.items():
        for _ in range(number):
            workers[name].begin()
    assert how_ended(workers, drained) == said


@pytest.mark.processes
def test_a_failure_shows_what_this_life_said_and_the_log_has_all_lives(tmp_path: Path) -> None:
    async def work() -> list[NodeFailedError]:
        failures = []
        with Folder(tmp_path, "logs", make=True) as folder:
            children = Children(folder, None)
            for life in (1, 2):
                process = children.start("worker-0", [sys.executable, "-c", f"print('life {life}'); exit(3)"], {})
                code = await asyncio.wait_for(process.exited(), PATIENCE)
                await process.heard()
                failures.append(process.failure(code))
            assert children.code("worker-0") == 3
            assert children.code("worker-1") is None
            await children.close()
        return failures

    failures = asyncio.run(work())
    assert [(failure.how, failure.tail) for failure in failures] == [
        ("exit code 3", "  life 1"),
        ("exit code 3", "  life 2"),
    ]
    assert tail(tmp_path / "logs" / "worker-0.log") == "  life 1\n  life 2"
