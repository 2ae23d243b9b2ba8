"""The coordinator process: a `CoordinatorMachine` on a ZeroMQ socket."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.errors import ConfigurationError
from zmqps.net.driver import Driver, run_node
from zmqps.net.identity import check_bind, new_identity
from zmqps.net.zeromq import ZmqTransport
from zmqps.trace.record import watch

DEFAULT_PORT = 5570


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """What a coordinator is told when it starts.

    Parameters
    ----------
    bind
        Where everybody reaches it; port 0 takes a free one.
    options
        What the cluster consists of, and its timeouts.
    name
        How logs and errors call it.
    insecure
        Allow to bind beyond loopback.
    """

    bind: str = f"tcp://127.0.0.1:{DEFAULT_PORT}"
    options: CoordinatorOptions = field(default_factory=CoordinatorOptions)
    name: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        check_bind(self.bind, insecure=self.insecure)
        o = self.options
        if o.servers < 1:
            raise ConfigurationError(f"a cluster has at least one server, not {o.servers}")
        if o.workers is not None and o.workers < 1:
            raise ConfigurationError(f"a job expects at least one worker, not {o.workers}")
        if o.lease < 0 or o.idle_timeout < 0:
            raise ConfigurationError(f"lease ({o.lease}) and idle_timeout ({o.idle_timeout}) are seconds from 0")
        if not 0 < o.heartbeat_interval < o.heartbeat_timeout:
            raise ConfigurationError(
                f"the heartbeat timeout ({o.heartbeat_timeout} s) must exceed the interval ({o.heartbeat_interval} s)"
            )
        if not 1 << 12 <= o.slice_nbytes <= 32 << 20:
            raise ConfigurationError(f"a slice is 4 KiB to 32 MiB, not {o.slice_nbytes} bytes")


async def coordinate(config: CoordinatorConfig, parent_fd: int | None = None) -> int:
    """Run a coordinator until its cluster ends; return the exit code.

    Raises
    ------
    AddressInUseError, ConfigurationError
        The endpoint cannot be bound.
    """
    identity = new_identity("coordinator", name=config.name)
    transport = ZmqTransport(identity.incarnation)
    try:
        endpoint = transport.bind(config.bind)
    except BaseException:
        transport.close(0)
        raise
    identity = new_identity("coordinator", name=config.name, endpoint=endpoint, incarnation=identity.incarnation)
    machine = CoordinatorMachine(identity, config.options)
    driver = Driver(*watch(machine, transport, identity), logging.getLogger("zmqps.coordinator"))
    return await run_node(driver, endpoint, parent_fd)


def run(config: CoordinatorConfig, parent_fd: int | None = None) -> int:
    """Run a coordinator in this process's main thread; return the exit code."""
    return asyncio.run(coordinate(config, parent_fd))
