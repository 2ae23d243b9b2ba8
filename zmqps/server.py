"""The server process: a `ServerMachine` on ZeroMQ sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from zmqps.apply import MAX_APPLY_THREADS, ApplyThreads
from zmqps.core.arrays import Array
from zmqps.core.job import JobSpec
from zmqps.core.keyspace import Placement
from zmqps.core.memory import HostMemory, Memory
from zmqps.core.server import ServerMachine
from zmqps.core.shard import Kernel, Shard
from zmqps.core.treatments import make_treatment
from zmqps.errors import ConfigurationError
from zmqps.net.driver import Driver, run_node
from zmqps.net.routes import new_local_endpoint
from zmqps.net.shm import LaneTransport
from zmqps.net.zeromq import ZmqTransport
from zmqps.node import check_bind, check_endpoint, new_identity
from zmqps.optim import OptimizerSpec, all_finite, make_kernel, warm_up
from zmqps.trace.record import watch, watch_rules

KERNELS = ("numba", "numpy")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What a server is told when it starts.

    Parameters
    ----------
    coordinator
        The coordinator's endpoint.
    bind
        Where workers reach this server; port 0 takes a free one.
    name
        How logs and errors call it; by default made of host and pid.
    kernels
        ``numba`` (compiled) or ``numpy`` (the reference).
    insecure
        Allow to bind beyond loopback.
    apply_threads
        How many threads update one slice, `zmqps.apply`.
    """

    coordinator: str
    bind: str = "tcp://127.0.0.1:0"
    name: str | None = None
    kernels: str = "numba"
    insecure: bool = False
    apply_threads: int = 1

    def __post_init__(self) -> None:
        check_endpoint(self.coordinator)
        check_bind(self.bind, insecure=self.insecure)
        if self.kernels not in KERNELS:
            raise ConfigurationError(f"kernels is one of {KERNELS}, not {self.kernels!r}")
        if type(self.apply_threads) is not int or not 1 <= self.apply_threads <= MAX_APPLY_THREADS:
            raise ConfigurationError(f"apply_threads is from 1 to {MAX_APPLY_THREADS}, not {self.apply_threads!r}")


class CompiledRules:
    """An optimizer's rules, compiled for this server (`zmqps.core.shard.Rules`)."""

    def __init__(self, spec: OptimizerSpec, backend: str, apply_threads: int = 1) -> None:
        self._spec = spec
        self._threads = ApplyThreads(apply_threads)
        self._backend = backend
        self.slot_fill: tuple[float, ...] = ()

    def kernels(self, names: Sequence[str]) -> tuple[Sequence[Kernel | None], Sequence[int]]:
        """Return the kernels in use and which is each parameter's."""
        rules, kernel_of = self._spec.rules(names)
        self.slot_fill = rules[0].slot_fill
        kernels = (None if rule.frozen else make_kernel(rule, self._backend) for rule in rules)  # type: ignore[arg-type]
        return [None if kernel is None else self._threads.over(kernel) for kernel in kernels], kernel_of

    def all_finite(self, g: Array) -> bool:
        """Whether an array holds neither NaN nor infinity."""
        return all_finite(g, self._backend)  # type: ignore[arg-type]


def make_shard(
    config: ServerConfig, job: JobSpec, placement: Placement, index: int, memory: Memory | None = None
) -> Shard:
    """Build a shard in a memory, its kernels compiled before the first gradient comes."""
    spec = OptimizerSpec.from_wire(job.optimizer)
    rules, _ = spec.rules([parameter.name for parameter in job.parameters])
    for dtype in {table.dtype for table in placement.keyspace.tables}:
        for rule in rules:
            warm_up(rule, dtype, config.kernels)  # type: ignore[arg-type]
    return Shard(
        placement,
        index,
        watch_rules(CompiledRules(spec, config.kernels, config.apply_threads)),
        reject_nonfinite=job.nonfinite == "reject",
        synchronous=job.mode == "sync",
        aggregate=job.aggregate,
        retain=job.retain,
        treatment=make_treatment(job.treatment),
        memory=memory,
    )


async def serve(config: ServerConfig, parent_fd: int | None = None) -> int:
    """Run a server until its cluster ends; return the exit code.

    Raises
    ------
    AddressInUseError, ConfigurationError
        The endpoint cannot be bound.
    """
    identity = new_identity("server", name=config.name)
    transport = LaneTransport(ZmqTransport(identity.incarnation))
    try:
        endpoint = advertised = transport.bind(config.bind)
        if endpoint.startswith("tcp://") and (local := new_local_endpoint()):
            advertised += f" {transport.bind(local)}"
    except BaseException:
        transport.close(0)
        raise
    identity = new_identity("server", name=config.name, endpoint=advertised, incarnation=identity.incarnation)
    build = partial(make_shard, config, memory=HostMemory(transport.arenas.empty))
    machine = ServerMachine(identity, config.coordinator, build)
    driver = Driver(*watch(machine, transport, identity), logging.getLogger("zmqps.server"))
    return await run_node(driver, endpoint, parent_fd)


def run(config: ServerConfig, parent_fd: int | None = None) -> int:
    """Run a server in this process's main thread; return the exit code."""
    return asyncio.run(serve(config, parent_fd))
