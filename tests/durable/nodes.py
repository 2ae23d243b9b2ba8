"""The nodes of a cluster as processes that tests kill and start again, each by its name."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.pace import allow
from zmqps.core.protocol import exits
from zmqps.launch import cluster as launch
from zmqps.launch.config import ClusterConfig
from zmqps.launch.processes import Process, all_exited, node_command, node_environment
from zmqps.nodes.inquiry import inquire, run_blocking
from zmqps.settings.node import NodeSettings
from zmqps.settings.server import Servers

#: Seconds that any wait may take on a busy machine.
PATIENCE = allow(60.0)


class Nodes:
    """A coordinator and servers, which end with the context.

    Parameters
    ----------
    directory
        Where logs go, one file a node.
    servers
        How many.
    journal
        Where the coordinator writes what it decides, and goes on from at its address; None: nowhere.
    values
        Where the coordinator writes what scripts log.
    page
        Where the coordinator's page is; empty: it has none.
    options
        Of `ClusterConfig`.
    """

    def __init__(
        self, directory: Path, servers: int, *, journal: Path | None = None, values: Sequence[str] = (), page: str = "",
        **options: Any,
    ) -> None:  # fmt: skip
        self.journal = journal
        self.replicas = int(options.get("replicas", 0))
        self._directory = directory
        config = ClusterConfig(
            address="tcp://127.0.0.1:0", servers=servers, journal=journal, values=tuple(values), page=page,
            server=Servers(kernels="numpy"), **options,
        )  # fmt: skip
        self._nodes = launch.Nodes(config, self._spawn)
        try:
            run_blocking(self._nodes.start(PATIENCE))
        except BaseException:
            self.close()
            raise

    def _spawn(self, told: NodeSettings) -> Process:
        log = self._directory / f"{told.name}.log"
        command = node_command(told.role, f"--name={told.name}")
        with log.open("ab") as output:
            return Process(told.name, command, stdout=output, log=log, env=node_environment(), settings=told.document())

    @property
    def address(self) -> str:
        """The coordinator's."""
        return self._nodes.address

    @property
    def processes(self) -> dict[str, Process]:
        """The last life of each node, by name: the coordinator, then the servers."""
        return {process.name: process for process in self._nodes.processes}

    @property
    def servers(self) -> dict[str, Process]:
        """Those of the servers."""
        return {process.name: process for process in self._nodes.servers}

    @property
    def running(self) -> dict[str, Process]:
        """Those of the servers that have not ended."""
        return {name: process for name, process in self.servers.items() if not process.ended}

    def kill(self, name: str) -> None:
        """End a node with SIGKILL; return when it has gone."""
        process = self.processes[name]
        process.kill()
        assert run_blocking(all_exited([process], PATIENCE)), f"{name} does not end"

    def restart(self, name: str) -> None:
        """Start a node again that has ended; the coordinator where it was."""
        before = self.address
        run_blocking(asyncio.wait_for(self._nodes.restart(list(self.processes).index(name)), PATIENCE))
        assert self.address == before

    def add_server(self) -> None:
        """Start one more server, by the name of one that has ended where there is one; return when it has joined."""
        ended = [name for name in self.servers if name not in self.running]
        if ended:
            self.restart(ended[0])
        else:
            run_blocking(self._nodes.grow(len(self.servers) + 1, PATIENCE))
        pids = {process.popen.pid for process in self.running.values()}
        self.wait_until(lambda status: pids <= {member["pid"] for member in servers_in(status)})

    def wait_for_end(self, name: str) -> None:
        """Return when a server has ended that was asked to go."""
        process = self.processes[name]
        assert run_blocking(all_exited([process], PATIENCE)), f"{name} does not end"
        assert process.popen.returncode == exits.OK, f"{name} ends with {process.popen.returncode}"

    def wait_until(self, good: Callable[[Mapping[str, Any]], bool], timeout: float = PATIENCE) -> dict[str, Any]:
        """Wait until the coordinator's view is as it should be; return it."""
        return dict(run_blocking(inquire(self.address, timeout=timeout, until=good)))

    def log(self, name: str) -> str:
        """Return what a node has said, in all its lives."""
        return (self._directory / f"{name}.log").read_text()

    def wait_for(self, name: str, pattern: str) -> None:
        """Return when the log of a node says something."""
        until = time.monotonic() + PATIENCE
        while re.search(pattern, self.log(name)) is None:
            assert time.monotonic() < until, f"{name} does not say {pattern!r}:\n{self.log(name)[-3000:]}"
            time.sleep(0.01)

    def close(self) -> None:
        """End all."""
        run_blocking(self._nodes.stop())
        self._nodes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def servers_in(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the servers that are there."""
    return [member for member in status["members"] if member["role"] == "server"]


def is_whole(status: Mapping[str, Any]) -> bool:
    """Whether every shard of every job that is there has all its copies."""
    jobs = status["jobs"].values()
    return all(not job.get("replicas", {}).get("degraded") for job in jobs)
