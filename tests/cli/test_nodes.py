"""``zmqps coordinator`` and ``zmqps server`` as processes: exit codes, busy ports, any order."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.request

import pytest

from tests.pace import allow, stretch
from tests.ports import reserved_port
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import Record
from zmqps.nodes.journal import FILE, Journal

pytestmark = pytest.mark.processes

ANYWHERE = "tcp://127.0.0.1:0"
NODES = {
    "coordinator": ("coordinator", "--address", ANYWHERE),
    "server": ("server", "--coordinator", "tcp://127.0.0.1:1"),
}


@pytest.fixture
def busy_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("role", NODES)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, exits.INTERRUPTED), (signal.SIGTERM, exits.TERMINATED)], ids=["INT", "TERM"]
)
def test_a_signal_ends_a_node_with_its_exit_code(start, role, number, code) -> None:
    node = start(*NODES[role])
    node.wait_for(r"at tcp://127\.0\.0\.1:\d+")
    node.popen.send_signal(number)
    assert node.exit_code() == code
    assert f"exit: {number.name}" in node.output
    assert "Traceback" not in node.output


@pytest.mark.parametrize("role", NODES)
def test_a_busy_port_is_named_with_its_owner(zmqps, role, busy_port) -> None:
    result = zmqps(*NODES[role], "--address", f"tcp://127.0.0.1:{busy_port}")
    assert result.returncode == exits.ADDRESS_IN_USE
    assert f"port {busy_port} is in use by" in result.stderr
    assert f"(pid {os.getpid()})" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_coordinator_with_a_damaged_journal_begins_no_other_cluster(zmqps, tmp_path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.write([Record("identity", 1)])
    os.truncate(tmp_path / "j" / FILE, 5000)
    result = zmqps("coordinator", "--address", ANYWHERE, "--journal", tmp_path / "j")
    assert result.returncode == exits.USAGE
    assert "it is damaged" in result.stderr
    assert "put a good copy in its place" in result.stderr
    assert (tmp_path / "j" / FILE).stat().st_size == 5000


def test_binding_beyond_this_host_is_refused(zmqps) -> None:
    result = zmqps("server", "--address", "tcp://0.0.0.0:0")
    assert result.returncode == exits.USAGE
    assert "--insecure" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_cluster_without_workers_ends_after_its_lease(start) -> None:
    node = start("coordinator", "--address", ANYWHERE, "--idle-timeout", "0.2")
    assert node.exit_code() == exits.IDLE
    assert "no worker" in node.output


def test_a_server_started_first_says_whom_it_waits_for_and_joins_when_it_can(start) -> None:
    with reserved_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        server = start("server", "--coordinator", address, "--name", "early")
        server.wait_for(f"waiting for the coordinator at {address}")
        coordinator = start(
            "coordinator", "--address", address, "--heartbeat-interval", "0.1", "--heartbeat-timeout", str(stretch(0.5))
        )
        server.wait_for("joined as server 0")
    coordinator.wait_for(r"server 0 \(early")
    coordinator.popen.kill()
    assert server.exit_code() == exits.COORDINATOR_LOST


def test_the_log_is_json_where_it_is_no_terminal(start) -> None:
    node = start("coordinator", "--address", ANYWHERE, "--name", "chief")
    node.wait_for("\n")
    entry = json.loads(node.output.splitlines()[0])
    assert set(entry) == {"time", "level", "node", "message"}
    assert entry["node"] == "chief"
    node.popen.terminate()
    node.exit_code()


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=allow(10)) as answer:
        return answer.read().decode()


def test_nodes_answer_prometheus_where_they_say(start) -> None:
    pytest.importorskip("prometheus_client")
    coordinator = start("coordinator", "--address", ANYWHERE, "--page", "0", "--heartbeat-interval", "0.2")
    at = coordinator.wait_for(r"metrics at (http://127\.0\.0\.1:\d+/metrics)")[1]
    address = coordinator.wait_for(r"at (tcp://127\.0\.0\.1:\d+)")[1]
    server = start("server", "--coordinator", address, "--metrics", "127.0.0.1:0")
    own = server.wait_for(r"metrics at (http://127\.0\.0\.1:\d+/metrics)")[1]
    assert 'zmqps_cpu_seconds_total{job="",role="coordinator"}' in scrape(at)
    until = time.monotonic() + allow(30)
    while 'zmqps_cpu_seconds_total{job="",rank="0",role="server"}' not in scrape(at):  # it comes with a heartbeat
        assert time.monotonic() < until
        time.sleep(0.05)
    assert 'zmqps_clients{job="",rank="0",role="server"} 0.0' in scrape(own)


@pytest.mark.parametrize(("role", "option"), [("coordinator", "--page"), ("server", "--metrics")])
def test_beyond_this_host_figures_take_a_token(zmqps, role: str, option: str) -> None:
    result = zmqps(*NODES[role], option, "0.0.0.0:0")
    assert result.returncode == exits.USAGE
    assert f"{option}-token" in result.stderr


def test_a_coordinator_that_comes_back_from_its_journal_has_its_checkpoints_again_and_others_are_refused(
    start, zmqps, tmp_path
) -> None:
    saving = (*NODES["coordinator"], "--checkpoint", "runs")
    clusters = set()
    for _ in range(2):
        node = start(*saving, "--journal", "journal")
        node.wait_for("coordinator at ")
        note = json.loads((tmp_path / "runs" / ".lock").read_text())
        clusters.add(note["cluster"])
        assert note["pid"] == node.pid
        refused = zmqps(*saving, "--journal", "other")
        assert refused.returncode == exits.FAILED
        assert f"runs: the cluster {note['cluster'][:8]} (host {note['host']}, pid {node.pid}, " in refused.stderr
        assert refused.stderr.count("\n") == 1
        left = {path.name for path in (tmp_path / "other").iterdir()}
        assert left == {"coordinator.lock", "coordinator.mark"}  # no cluster has begun, and the mark says so
        node.popen.kill()
        node.popen.wait()
    assert len(clusters) == 1
