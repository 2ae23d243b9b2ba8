"""A cluster on real sockets inside the test's own process, if wanted behind a proxy that delays and splits."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.net.proxy import Proxy
from tests.pace import allow
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.protocol.events import Stop
from zmqps.core.server.dense.memory import HostMemory
from zmqps.core.server.extensions import ServerMachine
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.shard import Shard
from zmqps.net.driver import Driver
from zmqps.net.identity import new_identity
from zmqps.net.lane.shm import LaneTransport
from zmqps.net.routes import new_local_endpoint
from zmqps.net.zeromq import ZmqTransport
from zmqps.nodes.server import ServerConfig, make_shard

PATIENCE = allow(30.0)


class Cluster:
    """A coordinator and servers on real sockets, run by a thread of this process."""

    def __init__(self) -> None:
        self.address = ""
        self.servers: list[LaneTransport] = []
        self.drivers: list[Driver] = []

    async def run(
        self,
        num_servers: int,
        slice_nbytes: int,
        kernels: str,
        proxy: Proxy | None,
        workers: int | None,
        started: threading.Event,
        stopped: asyncio.Event,
    ) -> None:
        log = logging.getLogger("zmqps.test")
        options = CoordinatorOptions(
            servers=num_servers, workers=workers, slice_size=slice_nbytes, heartbeat_timeout=300.0
        )
        transport = ZmqTransport()
        self.address = transport.bind("tcp://127.0.0.1:0")
        machine = CoordinatorMachine(new_identity("coordinator", endpoint=self.address), options)
        self.drivers.append(Driver(machine, transport, log))
        config = ServerConfig(coordinator=self.address, kernels=kernels)
        for rank in range(num_servers):
            lanes = LaneTransport(ZmqTransport())
            endpoints = [lanes.bind("tcp://127.0.0.1:0"), lanes.bind(new_local_endpoint())]
            if proxy is not None:
                endpoints = [await proxy.before(endpoint) for endpoint in endpoints]
            identity = new_identity("server", name=f"server-{rank}", endpoint=" ".join(endpoints))
            memory = HostMemory(lanes.arenas.empty)
            server = ServerMachine(identity, self.address, partial(make_shard, config, memory=memory))
            self.drivers.append(Driver(server, lanes, log))
            self.servers.append(lanes)
        tasks = [asyncio.create_task(driver.run()) for driver in self.drivers]
        asyncio.get_running_loop().call_soon(started.set)  # once the drivers have opened their connections
        await stopped.wait()
        for driver in self.drivers:
            driver.submit(Stop("the test is over"))
        await asyncio.gather(*tasks)
        if proxy is not None:
            await proxy.close()

    def num_lanes(self) -> int:
        return sum(len(server._lanes) for server in self.servers)

    def shards(self) -> list[Shard]:
        """Return the servers' shards of the job that was placed last."""
        machines = [driver.machine for driver in self.drivers[1:]]
        return [list(m.tenants.values())[-1].ready() for m in machines if isinstance(m, ServerKernel)]

    def num_internal_errors(self) -> int:
        return sum(driver.counters["internal_errors"] for driver in self.drivers)


@contextmanager
def running(
    num_servers: int,
    slice_nbytes: int,
    kernels: str = "numpy",
    proxy: Proxy | None = None,
    workers: int | None = None,
) -> Iterator[Cluster]:
    """Run a cluster; it is stopped and closed afterwards."""
    cluster, started = Cluster(), threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        loops.append((asyncio.get_running_loop(), asyncio.Event()))
        await cluster.run(num_servers, slice_nbytes, kernels, proxy, workers, started, loops[0][1])

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert started.wait(PATIENCE)
        yield cluster
    finally:
        loop, stopped = loops[0]
        loop.call_soon_threadsafe(stopped.set)
        thread.join(PATIENCE)
        assert not thread.is_alive()
