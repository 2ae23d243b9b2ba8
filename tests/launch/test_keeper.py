"""A keeper starts its process again as often as it may, passes on what it says, and ends it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.pace import allow
from zmqps.keys import create
from zmqps.launch import keeper
from zmqps.launch.config import ClusterConfig
from zmqps.launch.far import FILES
from zmqps.launch.handout import FOR_NODES, key_files
from zmqps.launch.keeper import HOST, Ended, Keeper, Order

pytestmark = pytest.mark.processes

PATIENCE = allow(20.0)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the keepers folders here, of which none may be left, and this process back its own."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(keeper.tempfile, "tempdir", str(place))
    monkeypatch.chdir(tmp_path)
    yield
    assert list(place.glob("zmqps-keeper-*")) == []


def run(order: Order, said: list[str] | None = None) -> Ended:
    found = Keeper("worker-0", "127.0.0.1", [].append if said is None else said.append).run(order)
    return asyncio.run(asyncio.wait_for(found, PATIENCE))


def shell(script: str, **facts: Any) -> Order:
    return Order(role="worker", command=["sh", "-c", script], address="tcp://here:1", index=3, pause=0.01, **facts)


def test_a_worker_hears_of_its_cluster_and_its_words_are_passed_on() -> None:
    said: list[str] = []
    script = "echo $ZMQPS_COORDINATOR $ZMQPS_WORKER_INDEX $MORE; pwd"
    assert run(shell(script, env={"MORE": "more"}, directory="/"), said) == Ended(0, "  tcp://here:1 3 more\n  /")
    assert said == ["tcp://here:1 3 more", "/"]


def test_a_worker_that_fails_is_started_again_as_often_as_it_may(tmp_path: Path) -> None:
    said: list[str] = []
    script = f"echo run >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) = 3 || {{ echo bad luck; exit 7; }}"
    assert run(shell(script, restarts=1), said) == Ended(7, "  bad luck")
    assert said == [
        "bad luck",
        "worker-0 failed with exit code 7; its last lines:\n  bad luck\n  it starts again in 0.01 s: restart 1 of 1",
        "bad luck",
    ]
    assert run(shell(script, restarts=1)).code == 0


def test_a_directory_that_is_not_there_is_said() -> None:
    ended = run(shell("true", directory="/nowhere"))
    assert ended.code
    assert "there is no directory '/nowhere' on 127.0.0.1" in ended.tail


def test_stop_ends_the_process_and_what_it_has_started() -> None:
    async def work() -> tuple[Ended, list[int]]:
        said: asyncio.Queue[str] = asyncio.Queue()
        kept = Keeper("worker-0", "127.0.0.1", said.put_nowait)
        running = asyncio.create_task(kept.run(shell("sleep 1000 & echo $$ $!; wait", restarts=5)))
        pids = [int(word) for word in (await asyncio.wait_for(said.get(), PATIENCE)).split()]
        await kept.stop()
        return await asyncio.wait_for(running, PATIENCE), pids

    ended, pids = asyncio.run(work())
    assert ended.code == -15
    assert psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], PATIENCE)[1] == []


def test_a_coordinator_says_where_it_is_and_who_is_there_with_the_keys_that_were_handed_over(tmp_path: Path) -> None:
    create(tmp_path / "keys")
    settings = ClusterConfig(address=f"tcp://{HOST}:0").for_coordinator().document()
    files = key_files(tmp_path / "keys", has_nodes=True)
    order = Order(role="coordinator", settings=settings | {"keys": f"{FILES}/{FOR_NODES}"}, files=files)

    said: list[str] = []

    async def work() -> tuple[dict[str, Any], dict[str, Any], Ended]:
        kept = Keeper("coordinator", "127.0.0.1", said.append)
        running = asyncio.create_task(kept.run(order))
        answer = await asyncio.wait_for(kept.address(), PATIENCE)
        status = await kept.status(PATIENCE)
        with pytest.raises(TimeoutError, match="timed out after"):
            await kept.status(0.01, servers=1)
        await kept.stop()
        return answer, status, await asyncio.wait_for(running, PATIENCE)

    answer, status, ended = asyncio.run(work())
    assert answer["address"].startswith("tcp://127.0.0.1:")
    assert status["members"] == []
    assert ended.code == 143
    assert re.fullmatch(r"coordinator \| \S+ \S+ exit: SIGTERM", said[-1]), "text, and not the JSON of its log"


def test_a_node_that_cannot_start_says_why() -> None:
    async def work() -> tuple[dict[str, Any], Ended]:
        kept = Keeper("coordinator", "192.0.2.1", lambda line: None)
        settings = ClusterConfig(address=f"tcp://{HOST}:0").for_coordinator().document()
        running = asyncio.create_task(kept.run(Order(role="coordinator", settings=settings)))
        return await asyncio.wait_for(kept.address(), PATIENCE), await asyncio.wait_for(running, PATIENCE)

    answer, ended = asyncio.run(work())
    assert answer["code"] == 2
    assert "zmqps keys create" in answer["text"]
    assert ended.code
