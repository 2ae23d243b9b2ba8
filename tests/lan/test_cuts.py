"""Hosts that nobody can reach for a while: with patience training goes on, without it everybody says what was lost."""

from __future__ import annotations

import time

import pytest

from tests.lan import cluster
from tests.lan.cluster import Cluster
from tests.lan.host import Host, Process
from tests.lan.lan import Lan

#: Seconds from healing until training goes on: 1.5, and what a machine adds that runs all hosts at once.
SERVICE = 1.5 + 0.5


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
    nodes, (away, other) = training(lan, heartbeat_timeout=4, seconds=25)
    began, healed = cut(lan, lan.hosts[2], 20)
    assert away.finish(30) == 1
    assert away.output.splitlines()[-1].startswith(("EvictedError", "PeerLostError")), away.output
    assert other.finish(60) == 0, other.output
    meanwhile = [at for at in steps(other) if began < at < healed]
    assert len(meanwhile) > 20
    nodes.coordinator.finish(20)
    assert "lost" in nodes.log
    assert away.output.count("Traceback") == other.output.count("Traceback") == 0


@pytest.mark.lan
@pytest.mark.timeout(120)
def test_a_server_that_is_away_for_too_long_is_named_to_all_who_wait_for_it(lan: Lan) -> None:
    nodes, workers = training(lan, heartbeat_timeout=4, seconds=40)
    cut(lan, lan.hosts[1], 20)
    for worker in workers:
        assert worker.finish(30) == 1, worker.output
        assert "server 0" in worker.output.splitlines()[-1]
    assert nodes.servers[0].finish(30) == 4, nodes.log
