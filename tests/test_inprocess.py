"""The cluster on a thread: what it opens for itself is open before a test begins."""

from __future__ import annotations

import threading

import pytest

from tests.inprocess import InProcessCluster
from zmqps.net.zeromq import ZmqTransport


def test_a_cluster_that_has_started_opens_no_more_sockets_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # else the check for leaks takes one that a fixture's server opens late for the first test's
    opened: list[str] = []
    connect = ZmqTransport.connect

    def slow_connect(self: ZmqTransport, peer: bytes, endpoint: str) -> None:
        threading.Event().wait(0.2)
        connect(self, peer, endpoint)
        opened.append(endpoint)

    monkeypatch.setattr(ZmqTransport, "connect", slow_connect)
    with InProcessCluster(servers=2) as cluster:
        assert opened == [cluster.address] * 2
