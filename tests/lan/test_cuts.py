"""Hosts that nobody can reach for a while: with patience training goes on, without it everybody says what was lost."""

from __future__ import annotations

import json
import re
import time

import pytest

from tests.lan import cluster
from tests.lan.cluster import DIGITS, Cluster
from tests.lan.host import Host, Process
from tests.lan.lan import Lan
from zmqps.core.protocol import exits

#: Seconds from healing until training goes on: 1.5, and what a machine adds that runs all hosts at once.
SERVICE = 1.5 + 0.5
#: Seconds of silence after which a node is lost, and those from the cut until all who wait for it have ended: a worker
#: without a coordinator gives servers 4 s more, and a machine adds some that runs all hosts at once.
SHORT, TOLD = 4, 4 + 4 + 6


def wait(seconds: float) -> None:
    """Let time pass: how long a wire stays cut is what these tests are about."""
    time.sleep(seconds)


def steps(worker: Process) -> list[float]:
    """Return when each step of a worker ended."""
    return [at for at, line in worker.lines if line.startswith("step ")]


def cut(lan: Lan, victim: Host, seconds: float) -> tuple[float, float]:
    """Cut a host off for a while; return when that began and ended."""
    began = time.monotonic()
    lan.cut(victim)
    wait(seconds)
    lan.heal(victim)
    return began, time.monotonic()


def training(lan: Lan, heartbeat_timeout: float, seconds: float) -> tuple[Cluster, list[Process]]:
    """Start a coordinator on the first host, a server on the second and workers on the others."""
    a, b, c, d = lan.hosts
    nodes = cluster.start(a, [b], "--workers=2", f"--heartbeat-timeout={heartbeat_timeout}", "--once")
    words = ["--seconds", seconds, "--pause", 0.1, "--mb", 1]
    workers = [nodes.start_worker(host, *words) for host in (c, d)]
    for worker in workers:
        worker.said("step 2:", 60)
    return nodes, workers


def wait_for_pushes(nodes: Cluster, host: Host) -> None:
    """Wait until both workers have pushed, as the status says."""
    ends_at, pushes = time.monotonic() + 60, [0]
    while time.monotonic() < ends_at and (len(pushes) < 2 or min(pushes) < 3):
        status = json.loads(host.run(["python", "-m", "zmqps", "status", "--json", "--coordinator", nodes.address]))
        workers = [member for member in status["members"] if member["role"] == "worker"]
        pushes = [worker["counters"].get("pushes", 0) for worker in workers]
    assert len(pushes) == 2, nodes.log
    assert min(pushes) >= 3, nodes.log


def check_patience(lan: Lan, victim: Host, seconds: float, heartbeat_timeout: float) -> None:
    """A host that is back before it counts as lost goes on where it was, soon after, and nobody notices else."""
    nodes, workers = training(lan, heartbeat_timeout, seconds + SERVICE + 8)
    _, healed = cut(lan, victim, seconds)
    for worker in workers:
        assert worker.finish(60) == 0, worker.output
        assert min(at for at in steps(worker) if at > healed) - healed < SERVICE, worker.output
    assert [node.finish(20) for node in nodes.nodes] == [0, 0], nodes.log
    assert " lost" not in nodes.log


@pytest.mark.lan
@pytest.mark.parametrize("index", [1, 2], ids=["server", "worker"])
def test_a_host_that_is_away_for_5_seconds_goes_on(lan: Lan, index: int) -> None:
    check_patience(lan, lan.hosts[index], 5, heartbeat_timeout=10)


@pytest.mark.lan
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seconds", [20, 60])
@pytest.mark.parametrize("index", [1, 2], ids=["server", "worker"])
def test_a_host_that_is_away_for_long_goes_on_where_the_timeout_is_longer(lan: Lan, index: int, seconds: int) -> None:
    check_patience(lan, lan.hosts[index], seconds, heartbeat_timeout=seconds * 1.5)


@pytest.mark.lan
@pytest.mark.timeout(120)
def test_a_worker_that_is_away_for_too_long_is_told_so_and_the_others_go_on(lan: Lan) -> None:
    nodes, (away, other) = training(lan, heartbeat_timeout=SHORT, seconds=25)
    began = time.monotonic()
    lan.cut(lan.hosts[2])
    assert away.finish(TOLD) == 1  # and not when the network is back
    assert away.output.splitlines()[-1].startswith("PeerLostError"), away.output
    nodes.coordinator.said("lost worker", TOLD)
    ended = time.monotonic()
    assert ended - began < TOLD
    lan.heal(lan.hosts[2])
    assert other.finish(60) == 0, other.output
    meanwhile = [at for at in steps(other) if began < at < ended]
    assert len(meanwhile) > 20
    nodes.coordinator.finish(20)
    assert away.output.count("Traceback") == other.output.count("Traceback") == 0


@pytest.mark.lan
@pytest.mark.timeout(120)
def test_a_server_that_is_away_for_too_long_is_named_to_all_who_wait_for_it(lan: Lan) -> None:
    nodes, workers = training(lan, heartbeat_timeout=SHORT, seconds=40)
    began = time.monotonic()
    lan.cut(lan.hosts[1])
    for worker in workers:
        assert worker.finish(TOLD) == 1, worker.output  # and not when the network is back
        assert "server 0" in worker.output.splitlines()[-1]
    assert nodes.servers[0].finish(TOLD) == 4, nodes.log
    assert time.monotonic() - began < TOLD


@pytest.mark.lan
def test_a_worker_that_was_away_for_too_long_rejoins_when_it_is_back_and_trains_to_its_end(lan: Lan) -> None:
    a, b, c, d = lan.hosts
    lan.delay(b, ms=20)  # or the other one would have finished long before
    nodes = cluster.start(a, [b], "--workers=2", "--heartbeat-timeout=3", "--once")
    words = ["python", DIGITS, "--coordinator", nodes.address, "--passes", 8, "--batch", 32]
    workers = away, other = [host.popen(words) for host in (c, d)]
    wait_for_pushes(nodes, a)
    lan.cut(c)
    away.said("lost the coordinator", 30)
    nodes.coordinator.said(rf"lost worker \d .*{c.name}", 30)
    lan.heal(c)
    assert [worker.finish() for worker in workers] == [0, 0], away.output + other.output
    assert all("test accuracy" in worker.output for worker in workers)
    assert [node.finish(20) for node in nodes.nodes] == [0, 0], nodes.log
    joined = re.findall(r"worker \d \(.*, (host-.), .* joined", nodes.log)
    assert sorted(joined) == [c.name, c.name, d.name], nodes.log


@pytest.mark.lan
@pytest.mark.parametrize("how", ["killed", "vanishes"])
def test_a_coordinator_that_is_gone_ends_servers_and_workers_with_its_name(lan: Lan, how: str) -> None:
    nodes, workers = training(lan, heartbeat_timeout=3, seconds=60)
    if how == "killed":
        nodes.coordinator.kill()
    else:
        lan.power_off(lan.hosts[0])
    for worker in workers:
        assert worker.finish(30) == 1, worker.output
        said = worker.output.splitlines()[-1]
        assert said.startswith(f"PeerLostError: lost the coordinator at {nodes.address}: last sign of life"), said
    assert nodes.servers[0].finish(20) == exits.COORDINATOR_LOST, nodes.log
    assert f"exit: lost the coordinator at {nodes.address}" in nodes.servers[0].output


@pytest.mark.lan
@pytest.mark.slow
def test_a_coordinator_that_is_started_again_is_told_from_the_one_before(lan: Lan) -> None:
    nodes, workers = training(lan, heartbeat_timeout=10, seconds=60)
    nodes.coordinator.kill()
    nodes.coordinator.finish()
    again = lan.hosts[0].zmqps("coordinator", "--address", nodes.address, "--insecure", "--name", "again")
    again.said("coordinator at")
    for worker in workers:
        assert worker.finish(20) == 1, worker.output
        assert worker.output.splitlines()[-1].startswith("CoordinatorRestartedError: the coordinator at"), worker.output
    assert nodes.servers[0].finish(20) == exits.COORDINATOR_LOST, nodes.log
    assert "is a new one" in nodes.servers[0].output


@pytest.mark.lan
@pytest.mark.slow
def test_a_worker_that_is_killed_and_not_replaced_is_named_when_the_job_ends(lan: Lan) -> None:
    nodes, (killed, other) = training(lan, heartbeat_timeout=3, seconds=10)
    killed.kill()
    nodes.coordinator.said(rf"lost worker \d .*{lan.hosts[2].name}", 20)
    assert other.finish(30) == 0, other.output
    assert nodes.coordinator.finish(20) == exits.WORKERS_FAILED, nodes.log
    assert re.search(rf"worker \d .*{lan.hosts[2].name}.* was lost, and none came instead", nodes.log), nodes.log
    assert nodes.servers[0].finish(20) == 0, nodes.log
