"""`zmqps health` and `zmqps stack`: live nodes, one that is stopped, and what is said of it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import zmqps
from tests.durable.nodes import Nodes, servers_in
from tests.inprocess import InProcessCluster
from zmqps.cli.main import run
from zmqps.core.protocol import exits

Captured = pytest.CaptureFixture[str]


def test_all_who_answer_are_shown_with_how_long_it_took(capsys: Captured) -> None:
    with InProcessCluster(servers=2) as made, zmqps.connect(made.address):
        made.wait_until(lambda status: len(servers_in(status)) == 2)
        assert run(["health", "--coordinator", made.address]) == exits.OK
        said = capsys.readouterr().out
        assert all(title in said for title in ("worker 0", "server 0", "server 1", "coordinator"))
        assert "all 3 nodes answer, the slowest in" in said
        assert run(["health", "--coordinator", made.address, "--json"]) == exits.OK
        found = json.loads(capsys.readouterr().out)
        assert {node["state"] for node in found["nodes"]} == {"answered"}
        assert all(0 < node["latency_s"] < 2 for node in found["nodes"])


def test_a_worker_whose_script_is_busy_says_what_it_does(capsys: Captured) -> None:
    with InProcessCluster() as made, zmqps.connect(made.address):  # its main thread is in this test meanwhile
        assert run(["stack", "worker-0", "--coordinator", made.address]) == exits.OK
        said = capsys.readouterr().out
        assert "thread MainThread" in said
        assert "test_a_worker_whose_script_is_busy_says_what_it_does" in said
        assert "thread zmqps (daemon), which answers this" in said
        assert run(["stack", "coordinator", "--coordinator", made.address]) == exits.OK
        assert "which answers this" in capsys.readouterr().out


def test_a_node_that_is_not_there_is_refused_with_those_that_are(capsys: Captured) -> None:
    with InProcessCluster() as made:
        made.wait_until(lambda status: bool(servers_in(status)))
        assert run(["stack", "worker-7", "--coordinator", made.address]) == exits.FAILED
        assert "there is no node 'worker-7'; here are: server-0" in capsys.readouterr().err


def test_where_nobody_listens_the_timeout_counts(capsys: Captured) -> None:
    assert run(["health", "--coordinator", "tcp://127.0.0.1:1", "--timeout", "0.3"]) == exits.COORDINATOR_LOST
    assert "health" in capsys.readouterr().err


@pytest.mark.processes
def test_one_that_is_stopped_is_silent_and_says_what_it_did_when_it_goes_on(tmp_path: Path, capsys: Captured) -> None:
    with Nodes(tmp_path, 2) as nodes:
        at = ["--coordinator", nodes.address, "--directory", str(tmp_path)]
        nodes.wait_until(lambda status: all("stacks_signal" in m["counters"] for m in status["members"]))
        rank = next(m["rank"] for m in nodes.wait_until(lambda _: True)["members"] if m["name"] == "server-1")
        nodes.servers["server-1"].send_signal(signal.SIGSTOP)
        try:
            assert run(["health", *at]) == exits.FAILED
            said = capsys.readouterr().out
            assert f"server {rank} on" in said
            assert "does not answer; the others do" in said
            assert run(["stack", "server-1", *at]) == exits.FAILED
            said = capsys.readouterr().out
            assert "has not answered for 2 s" in said
            assert "sent it SIGUSR2" in said
        finally:
            nodes.servers["server-1"].send_signal(signal.SIGCONT)
        nodes.wait_for("server-1", "Current thread")
        nodes.wait_for("server-1", 'File ".*zmqps.*"')  # wherever it was stopped
        nodes.wait_until(lambda status: all(member["silent_s"] < 1 for member in status["members"]))
        assert run(["health", *at]) == exits.OK
