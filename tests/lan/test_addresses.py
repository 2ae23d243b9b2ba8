"""Addresses that work from other hosts, and one sentence at once where they do not."""

from __future__ import annotations

import re
import time

import pytest

from tests.lan import cluster
from tests.lan.cluster import TRAINER, Cluster
from tests.lan.host import Host, Process
from tests.lan.lan import Lan

#: Seconds after which somebody who cannot be reached is named, and those that a busy machine adds.
NAMED = 5 + 3


def server(host: Host, nodes: Cluster, *options: str) -> Process:
    """Add a server that is told what it listens on, and advertises, by options alone."""
    words = ["server", "--coordinator", nodes.address, "--insecure", "--kernels=numpy", "--name", "server-0"]
    nodes.servers.append(host.zmqps(*words, *options))
    return nodes.servers[-1]


def check_training(nodes: Cluster, host: Host) -> None:
    """A worker elsewhere trains, and all end."""
    worker = nodes.worker(host, "--mb", 1)
    assert worker.finish() == 0, worker.output
    assert [node.finish(20) for node in nodes.nodes] == [0] * len(nodes.nodes), nodes.log


@pytest.mark.lan("ipv6")
def test_a_cluster_speaks_ipv6_from_end_to_end(lan: Lan) -> None:
    a, b, c = lan.hosts[:3]
    nodes = cluster.start(a, [b], "--once", ipv6=True)
    before = b.traffic()
    check_training(nodes, c)
    assert (b.traffic() - before).received > 3e6
    assert f"[{b.address6}]" in nodes.servers[0].output


@pytest.mark.lan
@pytest.mark.parametrize("options", [[], ["--address", "tcp://0.0.0.0:0"], ["--address", "tcp://[::]:0"]], ids=str)
def test_a_server_advertises_the_address_by_which_it_reaches_the_coordinator(lan: Lan, options: list[str]) -> None:
    a, b, c = lan.hosts[:3]
    nodes = cluster.start(a, [], "--once")
    server(b, nodes, *options).said(rf"tcp://{re.escape(b.address)}:\d")
    check_training(nodes, c)


@pytest.mark.lan
def test_a_debian_host_that_calls_itself_127_0_1_1_is_reached() -> None:
    with Lan(3, debian_names=True) as lan:
        a, b, c = lan.hosts
        nodes = cluster.start(a, [], "--once")
        server(b, nodes, "--address", f"tcp://{b.name}:0")
        server_said = nodes.servers[0].said(r"tcp://\S+|refuse|loopback")[0]
        if "127." in server_said:  # refused with a sentence is as good as reached
            assert nodes.servers[0].finish() != 0
            assert "--advertise" in nodes.servers[0].output
        else:
            check_training(nodes, c)


@pytest.mark.lan
def test_an_interface_is_chosen_by_its_name_and_carries_the_values() -> None:
    with Lan(3, nics=2) as lan:
        a, b, c = lan.hosts
        nodes = cluster.start(a, [], "--once")
        server(b, nodes, "--interface", "eth1").said(re.escape(b.ipv4["eth1"]))
        first, second = b.traffic("eth0"), b.traffic("eth1")
        check_training(nodes, c)
        assert (b.traffic("eth1") - second).received > 3e6
        assert (b.traffic("eth0") - first).received < 3e5


@pytest.mark.lan
def test_who_advertises_loopback_to_another_host_is_refused_with_what_to_do(lan: Lan) -> None:
    a, b = lan.hosts[:2]
    nodes = cluster.start(a, [])
    refused = server(b, nodes, "--address", "tcp://127.0.0.1:0")
    assert refused.finish(20) != 0
    assert "--advertise" in refused.output.splitlines()[-1], refused.output
    nodes.coordinator.said("127.0.0.1")
    assert "joined" not in nodes.coordinator.output


@pytest.mark.lan
def test_ports_come_from_the_range_that_a_firewall_lets_through(lan: Lan) -> None:
    a, b, c = lan.hosts[:3]
    nodes = cluster.start(a, [], "--once")
    lan.block(b, "1024:5570", source=c)
    lan.block(b, "5581:65535", source=c)
    server(b, nodes, "--ports", "5571-5580").said(r":55(7[1-9]|80)\b")
    check_training(nodes, c)


@pytest.mark.lan("block")
@pytest.mark.parametrize("reject", [False, True], ids=["silent", "rejecting"])
def test_a_server_behind_a_firewall_is_named_soon_and_is_taken_once_it_opens(lan: Lan, reject: bool) -> None:
    a, b, c = lan.hosts[:3]
    nodes = cluster.start(a, [], "--once")
    server(b, nodes, "--ports", "5571-5571").said(":5571")
    lan.block(b, "5571", source=c, reject=reject)
    worker = nodes.start_worker(c, "--mb", 1)
    nodes.coordinator.said("worker 0 .* joined", 30)
    began = time.monotonic()
    worker.said(rf"server 0 \(server-0.*{re.escape(b.address)}:5571", 20)
    assert time.monotonic() - began < NAMED, worker.output
    status = a.run(["python", "-m", "zmqps", "status", "--coordinator", nodes.address])
    assert re.search(r"cannot (be )?reach|unreachable", status), status
    lan.unblock(b)
    assert worker.finish() == 0, worker.output
    assert [node.finish(20) for node in nodes.nodes] == [0, 0], nodes.log


@pytest.mark.lan("block")
@pytest.mark.parametrize("reject", [False, True], ids=["silent", "rejecting"])
def test_a_server_that_a_firewall_shuts_off_in_mid_run_is_named_soon_and_training_goes_on(
    lan: Lan, reject: bool
) -> None:
    a, b, c = lan.hosts[:3]
    nodes = cluster.start(a, [], "--once")
    server(b, nodes, "--ports", "5571-5571").said(":5571")
    worker = nodes.start_worker(c, "--steps", 60, "--pause", 0.1)
    worker.said("step 2:", 60)
    lan.block(b, "5571", source=c, reject=reject)
    began = time.monotonic()
    named = rf"cannot reach server 0 \(server-0, tcp://{re.escape(b.address)}:5571\) for \d+ s"
    worker.said(rf"{named}: .*firewall" if not reject else rf"{named}: no process listens", 20)
    since = time.monotonic()
    assert since - began < NAMED, worker.output
    print(f"named after {since - began:.1f} s")
    status = a.run(["python", "-m", "zmqps", "status", "--coordinator", nodes.address])
    assert re.search(named, " ".join(status.split())), status  # the table is as wide as a terminal
    opened = time.monotonic()
    lan.unblock(b)
    assert worker.finish() == 0, worker.output
    steps = [at for at, line in worker.lines if line.startswith("step ")]
    assert len(steps) == 60, "none is lost"
    assert not [at for at in steps if since < at < opened], "the port was shut"
    assert [node.finish(20) for node in nodes.nodes] == [0, 0], nodes.log
    assert " lost" not in nodes.log


@pytest.mark.lan
def test_a_name_that_does_not_resolve_is_named_by_who_waits_for_it(lan: Lan) -> None:
    c = lan.hosts[2]
    words = ["--coordinator", "tcp://nobody-here:5570"]
    node = c.zmqps("server", "--insecure", "--address", f"tcp://{c.address}:0", *words)
    worker = c.popen(["python", TRAINER, *words, "--timeout", 15])
    for process in (node, worker):
        process.said("nobody-here.*(resolve|not known|unknown)", 20)
    assert worker.finish() != 0
    assert "nobody-here" in worker.output.splitlines()[-1]
