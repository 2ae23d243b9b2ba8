"""A cluster on a thread of the test: the real nodes over real sockets, without what it takes to start processes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.pace import allow, stretch
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.protocol.events import Stop
from zmqps.core.server.extensions import ServerMachine
from zmqps.gpu.device import Device
from zmqps.gpu.staging import Streams
from zmqps.keys.keyring import Keys, load_node_keys
from zmqps.net import loops
from zmqps.net.driver import Driver
from zmqps.net.identity import new_identity
from zmqps.net.zeromq import ZmqTransport
from zmqps.nodes.inquiry import inquire, run_blocking
from zmqps.nodes.server import ServerConfig, make_shard

PATIENCE = allow(20.0)
ANYWHERE = "tcp://127.0.0.1:0"
LOG = logging.getLogger("zmqps.tests")


class InProcessCluster:
    """A coordinator and servers; ends with the context.

    Parameters
    ----------
    keys
        The directory of the nodes' keys; None: there are none.
    device
        Where all servers keep their shards; None: in this host's memory.
    options
        Of `CoordinatorOptions`.
    """

    def __init__(self, keys: Path | None = None, device: Device | None = None, **options: Any) -> None:
        self.address = ""
        self.drivers: list[Driver] = []  # the coordinator's is the first
        self._keys = load_node_keys(keys)
        self._device = device
        self._options = CoordinatorOptions(**{"heartbeat_timeout": stretch(10.0), **options})  # all is in one process
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: loops.run(self._run()))

    async def _run(self) -> None:
        transport, identity = make_node("coordinator", "coordinator", self._keys)
        self.address = identity.endpoint
        self.drivers.append(Driver(CoordinatorMachine(identity, self._options), transport, LOG))
        streams = None if self._device is None else Streams(self._device)
        if streams is not None:
            streams.enter()  # as a server does, for all that its loop computes
        for number in range(self._options.servers):
            self.drivers.append(await self._server(f"server-{number}", streams))
        self._loop = asyncio.get_running_loop()
        ended = asyncio.gather(*(driver.run() for driver in self.drivers))
        self._loop.call_soon(self._started.set)  # behind the first steps of the drivers, which open their connections
        await ended

    async def _server(self, name: str, streams: Streams | None) -> Driver:
        transport, identity = make_node("server", name, self._keys)
        build = partial(make_shard, ServerConfig(coordinator=self.address, kernels="numpy"), streams=streams)
        return Driver(ServerMachine(identity, self.address, build), transport, LOG)

    def transport(self, role: str) -> ZmqTransport:
        """Return that of the coordinator, or of the first server."""
        found = self.drivers[role == "server"].transport
        assert isinstance(found, ZmqTransport)
        return found

    def open(self, endpoint: str) -> str:
        """Let the coordinator listen at an endpoint more; return it."""
        bound = Future[str]()
        self._loop.call_soon_threadsafe(lambda: bound.set_result(self.transport("coordinator").bind(endpoint)))
        return bound.result(PATIENCE)

    def status(self) -> dict[str, Any]:
        """Return the coordinator's view."""
        return dict(run_blocking(inquire(self.address, timeout=PATIENCE, keys=self._keys)))

    def wait_until(self, good: Callable[[Mapping[str, Any]], bool]) -> None:
        """Wait until the coordinator's view is as it should be."""
        run_blocking(inquire(self.address, timeout=PATIENCE, until=good, keys=self._keys))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(PATIENCE)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: the cluster has ended with its workers
            for driver in self.drivers:  # the coordinator does not tell servers that it does not know yet
                self._loop.call_soon_threadsafe(driver.submit, Stop("the test is over"))
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def make_node(role: str, name: str, keys: Keys | None = None) -> tuple[ZmqTransport, Any]:
    """Return a bound transport, and the identity of who it belongs to."""
    transport = ZmqTransport(keys=keys, role=role)
    endpoint = transport.bind(ANYWHERE)
    return transport, new_identity(role, name=name, endpoint=endpoint, keyed=keys is not None)
