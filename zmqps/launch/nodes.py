"""A coordinator and its servers as child processes: what `LocalCluster` and ``zmqps up`` share."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from typing import Any

from zmqps.errors import DeadlineError, counted
from zmqps.keys import load_node_keys
from zmqps.launch.config import GRACE_S, ClusterConfig
from zmqps.launch.processes import Process, all_exited, end
from zmqps.launch.supervision import while_all_run
from zmqps.nodes.inquiry import inquire
from zmqps.settings.node import NodeSettings

#: Ends a server without a coordinator at once: at SIGTERM it would hand over what it has first.
AT_ONCE = signal.SIGINT


class Nodes:
    """The coordinator and servers of a cluster, from their start to their end.

    Parameters
    ----------
    config
        What to start.
    spawn
        Starts a node with its settings.
    """

    def __init__(self, config: ClusterConfig, spawn: Callable[[NodeSettings], Process]) -> None:
        self.address = ""
        self.processes: list[Process] = []
        #: The keys of clients of its coordinator.
        self.keys = load_node_keys(config.keys)
        self.job_secret = config.job_secret
        self._config = config
        self._spawn = spawn
        self._missing = "the coordinator to start"

    @property
    def coordinator(self) -> Process:
        """The coordinator's process."""
        return self.processes[0]

    @property
    def servers(self) -> list[Process]:
        """The servers' processes."""
        return self.processes[1:]

    async def start(self, timeout: float) -> None:
        """Start all; return when all servers have joined.

        Raises
        ------
        AddressInUseError, ConfigurationError, NodeFailedError
            What kept a node from starting.
        DeadlineError
            Says what is missing, with its last log lines.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._start()
        except TimeoutError:
            logs = "".join(f"\n{process.name}:\n{process.tail}" for process in self.processes)
            text = f"{self._missing}; the last log lines:{logs}"
            raise DeadlineError(operation="the start of the cluster", seconds=timeout, waiting_for=text) from None

    async def _start(self) -> None:
        self._add(self._coordinator())
        self.address = await self.coordinator.announcement()
        num_servers = self._config.servers
        for index in range(num_servers):
            self._add(self._server(index))
        for server in self.servers:
            self._missing = f"{server.name} to start"
            await server.announcement()

        def joined(status: Mapping[str, Any]) -> bool:
            here: int = sum(member["role"] == "server" for member in status["members"])
            self._missing = f"{num_servers - here} of {counted(num_servers, 'server')} to join"
            return here == num_servers

        all_joined = inquire(self.address, timeout=float("inf"), until=joined, keys=self.keys)
        await while_all_run(all_joined, self.processes)

    async def grow(self, servers: int, timeout: float) -> None:
        """Start servers until this many run without draining; return when they have joined.

        That takes no longer than ``timeout`` seconds.
        """
        status = await inquire(self.address, timeout=timeout, keys=self.keys)
        # those that have just handed over what they had still run, for a moment; another may have such a name by now
        draining = {drain["server"] for drain in status["draining"]}
        going = {(member["name"], member["pid"]) for member in status["members"] if member["name"] in draining}
        going |= {(member["name"], member["pid"]) for member in status["gone"] if member["how"] == "drained"}
        running = [server for server in self.servers if server.popen.poll() is None]
        staying = [server for server in running if (server.name, server.popen.pid) not in going]
        num_before = len(self.servers)
        for index in range(num_before, num_before + servers - len(staying)):
            self._add(self._server(index))
        new = self.servers[num_before:]
        for server in new:
            await server.announcement()
        names = {server.name for server in new}

        def joined(status: Mapping[str, Any]) -> bool:
            return names <= {member["name"] for member in status["members"]}

        await inquire(self.address, timeout=timeout, until=joined, keys=self.keys)

    async def restart(self, index: int) -> None:
        """Start a node again that has ended, by its place in `processes`: the coordinator, 0, at the address it had.

        Raises
        ------
        AddressInUseError, ConfigurationError, NodeFailedError
            What kept it from starting.
        """
        before = self.processes[index]
        self.processes[index] = self._spawn(self._server(index - 1) if index else self._coordinator())
        before.close()
        address = await self.processes[index].announcement()
        if not index:
            self.address = address

    def _coordinator(self) -> NodeSettings:
        return self._config.for_coordinator(own_servers=self._config.is_local)

    def _server(self, index: int) -> NodeSettings:
        return self._config.for_server(index, self.address)

    def _add(self, told: NodeSettings) -> None:
        self.processes.append(self._spawn(told))

    async def stop(self) -> None:
        """End all: the coordinator saves jobs, tells the servers (and any worker); then what is left is ended."""
        await end(self.processes[:1], signal.SIGTERM, self._config.goodbye_s)
        await end(self.servers, AT_ONCE, GRACE_S)

    async def ended_by_themselves(self) -> bool:
        """Give the servers of a coordinator that has ended the time to follow it."""
        return await all_exited(self.processes, GRACE_S)

    def close(self) -> None:
        """Release what this process holds of them."""
        for process in self.processes:
            process.close()
