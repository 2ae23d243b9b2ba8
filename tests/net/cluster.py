"""A cluster on a thread of the test whose servers have a lane, if wanted behind a proxy that delays and splits."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.inprocess import ANYWHERE, LOG, InProcessCluster
from tests.net.proxy import Proxy
from tests.pace import allow
from zmqps.core.server.dense.memory import HostMemory
from zmqps.core.server.extensions import ServerMachine
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.shard import Shard
from zmqps.gpu.staging import Streams
from zmqps.net.driver import Driver
from zmqps.net.identity import new_identity
from zmqps.net.lane.shm import LaneTransport
from zmqps.net.routes import new_local_endpoint
from zmqps.net.zeromq import ZmqTransport
from zmqps.nodes.server import ServerConfig, make_shard

PATIENCE = allow(30.0)


class Cluster(InProcessCluster):
    """Such a coordinator and servers; ends with the context."""

    def __init__(
        self, servers: int, slice_nbytes: int, kernels: str = "numpy", proxy: Proxy | None = None, **options: Any
    ) -> None:
        super().__init__(servers=servers, slice_size=slice_nbytes, heartbeat_timeout=300.0, **options)
        self.servers: list[LaneTransport] = []
        self._kernels, self._proxy = kernels, proxy

    async def _run(self) -> None:
        await super()._run()
        if self._proxy is not None:
            await self._proxy.close()

    async def _server(self, name: str, streams: Streams | None) -> Driver:
        lanes = LaneTransport(ZmqTransport())
        self.servers.append(lanes)
        endpoints = [lanes.bind(ANYWHERE), lanes.bind(new_local_endpoint())]
        if self._proxy is not None:
            endpoints = [await self._proxy.before(endpoint) for endpoint in endpoints]
        identity = new_identity("server", name=name, endpoint=" ".join(endpoints))
        config = ServerConfig(coordinator=self.address, kernels=self._kernels)
        build = partial(make_shard, config, memory=HostMemory(lanes.arenas.empty))
        return Driver(ServerMachine(identity, self.address, build), lanes, LOG)

    def num_lanes(self) -> int:
        return sum(len(server._lanes) for server in self.servers)

    def shards(self) -> list[Shard]:
        """Return the servers' shards of the job that was placed last."""
        machines = [driver.machine for driver in self.drivers[1:]]
        return [list(m.tenants.values())[-1].ready() for m in machines if isinstance(m, ServerKernel)]

    def num_internal_errors(self) -> int:
        return sum(driver.counters["internal_errors"] for driver in self.drivers)
