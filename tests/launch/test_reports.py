"""What a supervisor sees end, others know at once; here no heartbeat would ever tell them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.tables import for_each
from zmqps.core.protocol.security.keys import process_of
from zmqps.keys import Keys, create
from zmqps.launch.config import ClusterConfig
from zmqps.launch.far import FILES
from zmqps.launch.handout import FOR_NODES, key_files
from zmqps.launch.keeper import HOST, Keeper, Order
from zmqps.launch.processes import Process, node_command, node_environment, worker_command, worker_environment
from zmqps.launch.reports import Reports
from zmqps.net.identity import PROCESS, launched_process
from zmqps.nodes.inquiry import ask_status, inquire
from zmqps.settings.node import NodeSettings

PATIENCE = 60.0
#: Whoever is lost within the patience of a test is not lost by its heartbeats.
OPTIONS = {"heartbeat_timeout": 1000.0}
TOKEN = bytes(range(16))
SAY = "import os; from zmqps.net.identity import launched_process as p; print(p(os.environ).hex() or 'none')"
JOIN = f"""if True:
    import os, sys, time
    import zmqps
    worker = zmqps.connect(name=sys.argv[1], timeout={PATIENCE})
    print("joined", flush=True)
    time.sleep(1000)
"""


def lost(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return what tells whether members of these names are lost, by a status."""
    return lambda status: set(names) <= {gone["name"] for gone in status["gone"] if gone["how"] == "lost"}


# --- which process somebody lives in ------------------------------------------------------------


def test_a_process_is_named_by_whoever_is_in_its_group_alone() -> None:
    assert launched_process({PROCESS: f"{TOKEN.hex()}:{os.getpgrp()}"}) == process_of(TOKEN)
    assert launched_process({PROCESS: f"{TOKEN.hex()}:{os.getpgrp() + 1}"}) == b"", "it may outlive the process"
    assert launched_process({}) == b""


@for_each("text", ["", "x", TOKEN.hex()[1:], f"{TOKEN.hex()}:", f"{TOKEN.hex()}:-1", TOKEN.hex() + "\n"])
def test_what_is_no_token_names_no_process(text: str) -> None:
    assert launched_process({PROCESS: text}) == b""


@pytest.mark.processes
@pytest.mark.parametrize(("before", "named"), [("", True), ("exec ", True), ("setsid -w ", False)])
def test_what_a_worker_starts_lives_in_it_unless_it_leaves_the_group(tmp_path: Path, before: str, named: bool) -> None:
    command = worker_command(["sh", "-c", f'{before}"$0" -c "$1"; exit 3', sys.executable, SAY])
    env = worker_environment("tcp://127.0.0.1:1", 0) | node_environment()

    async def work(process: Process) -> None:
        await asyncio.wait_for(process.exited(), PATIENCE)

    with open(tmp_path / "said", "wb") as file:
        process = Process("w", command, stdout=file, log=tmp_path / "said", env=env)
        asyncio.run(work(process))
    assert (tmp_path / "said").read_text().strip() == (process_of(process.token).hex() if named else "none")
    assert process.ended_whole


# --- who is told --------------------------------------------------------------------------------


async def _with_cluster(
    tmp_path: Path, keys: Path | None, work: Callable[[Process, list[Process]], Awaitable[None]]
) -> None:
    """Run a coordinator and two servers as a supervisor does, and something with them."""
    config = ClusterConfig(**OPTIONS, address="tcp://127.0.0.1:0", keys=keys)
    nodes: list[Process] = []

    def spawn(told: NodeSettings) -> Process:
        command, settings = node_command(told.role), told.document()
        with open(tmp_path / f"{len(nodes)}.log", "wb") as file:
            log = Path(file.name)
            nodes.append(Process(told.role, command, stdout=file, log=log, env=node_environment(), settings=settings))
        return nodes[-1]

    try:
        coordinator = spawn(config.for_coordinator())
        address = await coordinator.announcement()
        for index in range(2):
            await spawn(config.for_server(index, address)).announcement()
        coordinator.name = address
        await work(coordinator, nodes[1:])
    finally:
        for node in reversed(nodes):
            node.kill()
            await node.exited()
            node.close()


@pytest.mark.processes
@pytest.mark.parametrize("role", ["none", "node", "worker"])
def test_a_supervisor_tells_of_a_server_with_whatever_key_its_host_has(tmp_path: Path, role: str) -> None:
    keys = None if role == "none" else create(tmp_path / "keys")

    async def work(coordinator: Process, servers: list[Process]) -> None:
        address, reports = coordinator.name, Reports()
        own = keys
        if keys is not None and role == "worker":
            own = Keys.of_token(keys.token("worker", keys.pair("worker"), address))
        joined = lambda status: len(status["members"]) == 2  # noqa: E731
        await inquire(address, timeout=PATIENCE, until=joined, keys=keys)
        os.kill(servers[1].popen.pid, signal.SIGKILL)
        code = await asyncio.wait_for(servers[1].exited(), PATIENCE)
        told: list[str] = []
        reports.tell(servers[1], code, address, own, told.extend)
        await reports.settle(PATIENCE)
        assert [title.partition(" (")[0] for title in told] == ["server 1"]
        status = await inquire(address, timeout=PATIENCE, keys=keys)
        assert [gone["how"] for gone in status["gone"]] == ["lost"]
        assert [member["pid"] for member in status["members"]] == [servers[0].popen.pid]

    asyncio.run(_with_cluster(tmp_path, tmp_path / "keys" if keys else None, work))


@pytest.mark.processes
def test_a_coordinator_that_does_not_answer_holds_nobody_up() -> None:
    async def work() -> None:
        reports = Reports()
        process = Process("p", ["true"], stdout=subprocess.DEVNULL, log=Path(os.devnull))
        code = await asyncio.wait_for(process.exited(), PATIENCE)
        reports.tell(process, code, "tcp://127.0.0.1:9", None)
        await asyncio.wait_for(reports.close(), PATIENCE)

    asyncio.run(work())


@pytest.mark.processes
def test_a_server_of_a_local_cluster_that_is_killed_is_replaced_at_once() -> None:
    with (
        zmqps.LocalCluster(servers=2, replicas=1, limits=zmqps.Limits(heartbeat_timeout=1000.0)) as cluster,
        zmqps.connect(cluster.address, timeout=PATIENCE) as worker,
    ):
        worker.init({"w": np.zeros(64, np.float32)}, optimizer=zmqps.optim.sgd(learning_rate=1.0), mode="async")
        worker.push({"w": np.ones(64, np.float32)})
        os.kill(cluster.pids["server-1"], signal.SIGKILL)
        worker.push({"w": np.ones(64, np.float32)}, timeout=PATIENCE)
        np.testing.assert_array_equal(worker.pull(timeout=PATIENCE)["w"], -2.0)
        assert lost("server-1")(ask_status(cluster.address))


@pytest.mark.processes
def test_a_keeper_tells_of_its_server_and_of_its_worker(tmp_path: Path) -> None:
    keys = create(tmp_path / "keys")
    files = key_files(tmp_path / "keys", has_nodes=True)
    more = {"keys": f"{FILES}/{FOR_NODES}"}
    config = ClusterConfig(**OPTIONS, address=f"tcp://{HOST}:0")

    async def work() -> None:
        kept = {name: Keeper(name, "127.0.0.1", lambda line: None) for name in ("coordinator", "server-0", "worker-0")}
        runs = [asyncio.create_task(kept["coordinator"].run(
            Order(role="coordinator", settings=config.for_coordinator().document() | more, files=files)
        ))]  # fmt: skip
        address = (await asyncio.wait_for(kept["coordinator"].address(), PATIENCE))["address"]
        server = config.for_server(0, address, bind=f"tcp://{HOST}:0", name="server-0").document() | more
        runs.append(
            asyncio.create_task(
                kept["server-0"].run(
                    Order(role="server", settings=server, address=address, files=files, restarts=1, pause=0.01)
                )
            )
        )
        token = keys.token("worker", keys.pair("worker"), address)
        command = [sys.executable, "-c", JOIN, "worker-0"]
        env = {"ZMQPS_TOKEN": token, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        runs.append(asyncio.create_task(
            kept["worker-0"].run(Order(role="worker", command=command, address=address, env=env))
        ))  # fmt: skip

        def joined(status: Mapping[str, Any]) -> bool:
            return {"server-0", "worker-0"} <= {member["name"] for member in status["members"]}

        status = await inquire(address, timeout=PATIENCE, until=joined, keys=keys)
        for member in status["members"]:
            os.kill(member["pid"], signal.SIGKILL)
        await inquire(address, timeout=PATIENCE, until=lost("server-0", "worker-0"), keys=keys)
        for name in ("worker-0", "coordinator", "server-0"):
            await kept[name].stop()
        await asyncio.wait_for(asyncio.gather(*runs), PATIENCE)

    asyncio.run(work())
