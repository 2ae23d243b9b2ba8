"""The nodes of a cluster of this host: how many servers are started when there are to be more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from zmqps.launch import nodes
from zmqps.launch.config import ClusterConfig
from zmqps.settings.node import NodeSettings


class Host:
    """Processes that are said to run, and a coordinator that knows of them."""

    def __init__(self, servers: int) -> None:
        self.started: list[str] = []
        self.ended: set[str] = set()
        self.drained: list[tuple[str, int]] = []
        self.draining: list[str] = []
        self.nodes = nodes.Nodes(ClusterConfig(), self.spawn)
        for name in ("coordinator", *(f"server-{index}" for index in range(servers))):
            self.nodes.processes.append(self.spawn(NodeSettings(name=name)))

    def spawn(self, told: NodeSettings) -> Any:
        name = told.name

        async def announcement() -> str:
            return "tcp://127.0.0.1:1"

        self.started.append(name)
        popen = SimpleNamespace(poll=lambda: 0 if name in self.ended else None, pid=len(self.started))
        return SimpleNamespace(name=name, popen=popen, announcement=announcement, close=lambda: None)

    async def inquire(
        self, address: str, *, timeout: float, until: Callable[[Mapping[str, Any]], bool] = bool, keys: Any = None
    ) -> dict[str, Any]:
        there = {(process.name, process.popen.pid) for process in self.nodes.servers if process.name not in self.ended}
        status = {
            "members": [{"role": "server", "name": name, "pid": pid} for name, pid in there - {*self.drained}],
            "draining": [{"server": name, "text": ""} for name in self.draining],
            "gone": [{"name": name, "pid": pid, "how": "drained"} for name, pid in self.drained],
        }
        assert until(status)
        return status

    def pid(self, name: str) -> int:
        [found] = [process.popen.pid for process in self.nodes.servers if process.name == name]
        return found

    def grow(self, servers: int) -> list[str]:
        before = len(self.started)
        asyncio.run(self.nodes.grow(servers, 5.0))
        return self.started[before:]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    found = Host(3)
    monkeypatch.setattr(nodes, "inquire", found.inquire)
    return found


def test_as_many_servers_are_started_as_are_missing(host: Host) -> None:
    assert host.grow(3) == []
    assert host.grow(5) == ["server-3", "server-4"]
    assert host.grow(2) == []


def test_a_server_that_has_ended_is_missing(host: Host) -> None:
    host.ended.add("server-1")
    assert host.grow(3) == ["server-3"]


def test_a_server_that_has_been_drained_or_is_about_to_be_is_missing_though_it_runs(host: Host) -> None:
    host.drained.append(("server-2", host.pid("server-2")))
    host.draining.append("server-0")
    assert host.grow(3) == ["server-3", "server-4"]


def test_a_server_that_was_started_again_after_it_was_drained_is_there(host: Host) -> None:
    host.drained.append(("server-0", host.pid("server-0")))
    host.ended.add("server-0")
    asyncio.run(host.nodes.restart(1))
    host.ended.remove("server-0")
    assert host.grow(3) == []
