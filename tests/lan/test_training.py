"""Clusters started by hand over several hosts train, and end everywhere."""

from __future__ import annotations

import re

import pytest

from tests.lan import cluster
from tests.lan.cluster import DIGITS, TRAINER
from tests.lan.lan import Lan


@pytest.mark.lan
@pytest.mark.timeout(150)
def test_four_hosts_learn_digits_and_all_nodes_end(lan: Lan) -> None:
    a, b = lan.hosts[:2]
    nodes = cluster.start(a, [a, b], "--workers=4", "--once")
    workers = [host.popen(["python", DIGITS, "--coordinator", nodes.address, "--passes", 20]) for host in lan.hosts]
    for worker in workers:
        assert worker.finish(100) == 0, worker.output
        accuracy = re.search(r"test accuracy (\d\.\d+)", worker.output)
        assert accuracy is not None
        assert float(accuracy[1]) >= 0.95
    assert [node.finish(20) for node in nodes.nodes] == [0, 0, 0], nodes.log
    assert [host.left() for host in lan.hosts] == [[]] * 4


@pytest.mark.lan
def test_host_names_do_wherever_an_address_does(lan: Lan) -> None:
    a, b, c = lan.hosts[:3]
    nodes = cluster.start(a, [], "--once")
    nodes.servers.append(
        b.zmqps("server", "--insecure", "--coordinator", f"tcp://{a.name}:5570", "--address", f"tcp://{b.name}:0")
    )
    worker = c.popen(["python", TRAINER, "--coordinator", f"tcp://{a.name}:5570"])
    assert worker.finish() == 0, worker.output
    assert [node.finish(20) for node in nodes.nodes] == [0, 0], nodes.log
