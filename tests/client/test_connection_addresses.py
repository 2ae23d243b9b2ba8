"""A worker connects by name, by IPv6, and where that leads nowhere it is told why within seconds."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import zmqps
from tests import inprocess
from tests.inprocess import InProcessCluster
from tests.net.system.test_addresses import needs_ipv6
from tests.pace import allow
from zmqps.client.futures import begins
from zmqps.core.node import handshake
from zmqps.errors import DeadlineError
from zmqps.net.system.addresses import join, split


def train(address: str) -> list[float]:
    with zmqps.connect(address, transport="tcp") as worker:
        worker.init({"w": np.zeros(2, np.float32)}, optimizer=zmqps.optim.sgd(1.0), mode="async")
        worker.push({"w": np.ones(2, np.float32)})
        return list(worker.pull()["w"])


def test_a_worker_and_servers_find_the_coordinator_by_name() -> None:
    with InProcessCluster() as cluster:
        assert train(join("localhost", split(cluster.address)[1])) == [-1.0, -1.0]


@needs_ipv6
def test_a_cluster_over_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inprocess, "ANYWHERE", "tcp://[::1]:0")
    with InProcessCluster() as cluster:
        assert cluster.address.startswith("tcp://[::1]:")
        assert train(cluster.address) == [-1.0, -1.0]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "LOOK_S", 0.1)


def unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **more: Any) -> Any:
        if host == "head":
            raise socket.gaierror(-2, "Name or service not known")
        return ask(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_a_coordinator_whose_name_does_not_resolve_is_named(
    soon: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unresolved(monkeypatch)
    with caplog.at_level(logging.WARNING), pytest.raises(DeadlineError) as caught:
        zmqps.connect("tcp://head:5570", timeout=1.0)
    assert "the name 'head' does not resolve on" in str(caught.value)
    assert "no answer from the coordinator at tcp://head:5570 for" in caplog.text


def test_a_coordinator_that_is_not_there_is_told_from_one_that_does_not_resolve(soon: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(DeadlineError, match=r"no process listens at that port \(connection refused\)"):
        zmqps.connect(join("127.0.0.1", port), timeout=1.0)


def test_a_server_that_cannot_be_reached_stands_in_the_status(soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nowhere = join("127.0.0.1", server.getsockname()[1])
    make = inprocess.make_node

    def advertising(role: str, name: str, *rest: Any) -> tuple[Any, Any]:
        transport, identity = make(role, name, *rest)
        return transport, replace(identity, endpoint=nowhere) if role == "server" else identity

    monkeypatch.setattr(inprocess, "make_node", advertising)
    with InProcessCluster(heartbeat_interval=0.1) as cluster, zmqps.connect(cluster.address) as worker:
        init = begins(zmqps.Worker.init)(
            worker, {"w": np.zeros(2, np.float32)}, optimizer=zmqps.optim.sgd(1.0), mode="async", timeout=allow(60.0)
        )
        text = f"cannot reach server 0 (server-0, {nowhere}) for"
        cluster.wait_until(lambda status: any(text in line for line in status["waiting"]))
        init.cancel()
