"""One name for one node: the number of a launcher is the rank that all commands show, and that they take."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import zmqps
from tests.inprocess import InProcessCluster
from zmqps.cli.main import run
from zmqps.core.protocol import exits
from zmqps.nodes.inquiry import ask_health, ask_view
from zmqps.nodes.tracing import record

Captured = pytest.CaptureFixture[str]

#: Workers join in this order, and stay until there is a file ``end``.
ORDER = (3, 1, 0, 2)
WORKER = f"""
import os, threading, numpy as np, zmqps
from pathlib import Path
order, index = {ORDER}, int(os.environ["ZMQPS_WORKER_INDEX"])
def wait_for(name):
    for _ in range(2400):
        if Path(name).exists():
            return
        threading.Event().wait(0.05)
    raise TimeoutError(name)
place = order.index(index)
if place:
    wait_for(f"came-{{order[place - 1]}}")
with zmqps.connect(os.environ["ZMQPS_COORDINATOR"], timeout=60) as worker:
    print("pid", os.getpid(), "has rank", worker.rank, flush=True)
    Path(f"came-{{index}}").touch()
    worker.init({{"w": np.zeros(64, np.float32)}}, optimizer=zmqps.optim.sgd(1.0), mode="sync")
    worker.log({{"loss": 1.0}})
    while not Path("end").exists():
        worker.push_pull({{"w": np.ones(64, np.float32)}})
        threading.Event().wait(0.05)
    worker.finish()
"""


def names(nodes: list[Mapping[str, Any]]) -> dict[str, str]:
    """Return what nodes call themselves, by what the status calls them."""
    return {f"{node['role']} {node['rank']}": node["name"] for node in nodes if node["role"] in ("server", "worker")}


#: What it has to be.
RIGHT = {f"{role} {n}": f"{role}-{n}" for role, number in (("server", 3), ("worker", 4)) for n in range(number)}


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_all_that_shows_or_takes_a_name_means_one_node_by_it(start, zmqps, tmp_path: Path) -> None:
    up = start("up", "--address", "tcp://127.0.0.1:0", "--kernels", "numpy", "--servers", "3", "--workers", "4",
               "--page", "0", "--", sys.executable, "-c", WORKER)  # fmt: skip
    up.wait_for("coordinator at tcp")  # one thing after the other: all at once takes long on a busy machine
    for index in range(3):
        up.wait_for(rf"server-{index} .*joined as server {index} at")
    address = up.wait_for(r"cluster at (tcp://127\.0\.0\.1:\d+)")[1]
    metrics = up.wait_for(r"metrics at (http://127\.0\.0\.1:\d+/metrics)")[1]
    for index in ORDER:
        up.wait_for(rf"worker-{index} .*has rank {index}")
    status = json.loads(zmqps("status", "--json").stdout)
    assert names(status["members"]) == RIGHT
    pids = {member["name"]: member["pid"] for member in status["members"]}
    logs = tmp_path / "runs" / "cluster" / "logs"
    for index in range(4):  # the log, and the process that it is of
        said = re.search(r"pid (\d+) has rank (\d+)", (logs / f"worker-{index}.log").read_text())
        assert said is not None
        assert (int(said[1]), int(said[2])) == (pids[f"worker-{index}"], index)
    for index in range(3):
        assert f"joined as server {index} at" in (logs / f"server-{index}.log").read_text()
    for name in ("worker-2", "worker 2", "default/worker-2", "server-1", "server 1"):
        said = zmqps("stack", name)
        assert f"pid {pids[name.rpartition('/')[2].replace(' ', '-')]}," in said.stdout, said.stderr
    assert names(ask_health(address)["nodes"]) == RIGHT
    view = ask_view(address)  # what the page and `zmqps top` show
    assert names(view["status"]["members"]) == RIGHT
    trace = record(address, seconds=1.0)
    said = [re.fullmatch(r"((?:worker|server) \d) \((.*), .*\)", process.name) for process in trace.processes]
    assert {match[1]: match[2] for match in said if match} == RIGHT
    with urllib.request.urlopen(metrics, timeout=10) as answer:
        labels = set(re.findall(r'zmqps_silent_seconds\{job="\w*",rank="(\d)",role="(\w+)"\}', answer.read().decode()))
    assert labels == {tuple(reversed(title.split())) for title in RIGHT}
    for index, name in enumerate(("0", "server-1")):
        said = zmqps("drain", name)
        assert said.returncode == exits.OK, said.stderr
        assert f"server-{index} is empty" in said.stdout
    status = json.loads(zmqps("status", "--json").stdout)
    assert names([gone for gone in status["gone"] if gone["how"] == "drained"]) == {
        title: name for title, name in RIGHT.items() if title in ("server 0", "server 1")
    }
    (tmp_path / "end").touch()
    assert up.exit_code() == exits.OK, up.output


@pytest.mark.processes
def test_servers_started_by_hand_have_the_numbers_that_they_are_given_and_then_the_next(start, zmqps) -> None:
    coordinator = start("coordinator", "--address", "tcp://127.0.0.1:0", "--servers", "3")
    address = coordinator.wait_for(r"at (tcp://127\.0\.0\.1:\d+)")[1]
    flags = ("server", "--coordinator", address, "--kernels", "numpy")
    for index in (2, 0, 1):
        start(*flags, "--index", str(index)).wait_for(f"joined as server {index} at")
    start(*flags, "--name", "more").wait_for("joined as server 3 at")
    found = json.loads(zmqps("status", "--json", "--coordinator", address).stdout)["members"]
    assert names(found) == {"server 0": "server-0", "server 1": "server-1", "server 2": "server-2", "server 3": "more"}


def test_a_script_that_takes_anothers_name_is_asked_about(capsys: Captured) -> None:
    with (
        InProcessCluster() as made,
        zmqps.connect(made.address, name="worker-1"),
        zmqps.connect(made.address, name="other"),
    ):
        at = ("--coordinator", made.address)
        assert run(["stack", "worker-1", *at]) == exits.FAILED
        said = capsys.readouterr().err
        assert re.search(r"worker 0 \(worker-1, .*'default/worker 0', worker 1 \(other, .*'default/worker 1'", said)
        assert "Z053" in said
        assert run(["stack", "default/worker 1", *at]) == exits.OK
        assert run(["stack", "worker 0", *at]) == exits.OK
        assert run(["stack", "other", *at]) == exits.OK
