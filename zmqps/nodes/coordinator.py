"""The coordinator process: a `CoordinatorMachine` on a ZeroMQ socket."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, field, replace

from zmqps import checks
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.errors import ConfigurationError, counted, listed
from zmqps.net.driver import Driver, run_node
from zmqps.net.identity import check_bind, new_identity, read_job_secret
from zmqps.net.keyring import load_node_keys
from zmqps.net.zeromq import ZmqTransport
from zmqps.nodes.checkpoints import CheckpointConfig, CheckpointStore, cadence, resumptions
from zmqps.nodes.endkey import kept, offer_end_key
from zmqps.nodes.listening import Place, other_addresses
from zmqps.nodes.relay import CHUNK_NBYTES
from zmqps.trace.record import watch

DEFAULT_PORT = 5570


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """What a coordinator is told when it starts.

    Parameters
    ----------
    bind
        The endpoint to listen at; port 0 takes a free one.
    advertise, interface
        By which address others reach it, see `Place`; by default the one where it listens.
    options
        What the cluster consists of, and its timeouts.
    name
        Its name in logs and errors.
    insecure
        Allow binding beyond loopback.
    job_secret
        The file with what everybody who joins has to know; None: nothing.
    keys
        The directory with the keys of the cluster's nodes; None: nothing is encrypted, and anybody may connect.
    checkpoints
        Where jobs are saved, when, and what they begin from.
    own_servers
        Where there is neither a job secret nor keys, take servers of this user on this host alone.
    """

    bind: str = ""
    advertise: str = ""
    interface: str = ""
    options: CoordinatorOptions = field(default_factory=CoordinatorOptions)
    name: str | None = None
    insecure: bool = False
    job_secret: str | os.PathLike[str] | None = None
    keys: str | os.PathLike[str] | None = None
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    own_servers: bool = False

    def __post_init__(self) -> None:
        keys = load_node_keys(self.keys)
        self.place.check()
        if self.bind:
            check_bind(self.bind, insecure=self.insecure, keyed=keys is not None)
        read_job_secret(self.job_secret)
        o = self.options
        checks.whole("servers", o.servers, 1)
        checks.whole("workers", o.workers, 1, optional=True)
        checks.whole("replicas", o.replicas, 0, 2)
        if o.replicas >= o.servers:
            raise ConfigurationError(
                f"{counted(o.replicas, 'replica')} of each shard need {counted(o.replicas + 1, 'server')}, and the "
                f"cluster has {o.servers}: start it with more --servers, or fewer --replicas"
            )
        checks.whole("slice_nbytes", o.slice_nbytes, 1 << 12, 32 << 20)
        for label in ("lease", "idle_timeout", "fallback_timeout"):
            checks.number(label, getattr(o, label), at_least=0)
        for label in ("heartbeat_interval", "heartbeat_timeout"):
            checks.number(label, getattr(o, label), above=0)
        if not 0 < o.heartbeat_interval < o.heartbeat_timeout:
            raise ConfigurationError(
                f"the heartbeat timeout ({o.heartbeat_timeout} s) must exceed the interval ({o.heartbeat_interval} s)"
            )

    @property
    def place(self) -> Place:
        """Where it listens."""
        return Place(self.bind, self.advertise, self.interface)


async def coordinate(config: CoordinatorConfig, parent_fd: int | None = None) -> int:
    """Run a coordinator until its cluster ends; return the exit code.

    Raises
    ------
    AddressInUseError, ConfigurationError
        The endpoint cannot be bound.
    CheckpointError
        There is no usable checkpoint to begin from.
    """
    log = logging.getLogger("zmqps.coordinator")
    resumed = resumptions(config.checkpoints)
    for resumption in resumed.values():
        log.info("jobs begin from the checkpoint %s, of version %d", resumption.path, resumption.version)
    keys = load_node_keys(config.keys)
    where = config.place.binds(DEFAULT_PORT)
    check_bind(where, insecure=config.insecure, keyed=keys is not None)
    relays = config.checkpoints.via == "coordinator"
    transport = ZmqTransport(arrays=relays, keys=keys)
    if relays:
        transport.largest_nbytes = lambda: 2 * CHUNK_NBYTES  # a stretch of a file, with its header
    try:
        bound = transport.bind(where)
        endpoint = config.place.advertises(bound)
    except BaseException:
        transport.close(0)
        raise
    if others := other_addresses(bound, endpoint):
        log.info("listening at %s, which is also reached at %s", bound, listed(others, 8))
    secret = read_job_secret(config.job_secret)
    identity = new_identity(
        "coordinator", name=config.name, endpoint=endpoint, job_secret=secret, keyed=keys is not None
    )
    with offer_end_key(endpoint) as end_key:
        identity = replace(identity, end_key=end_key)
        if config.own_servers and not secret and keys is None and kept(endpoint, end_key):
            identity = replace(identity, server_key=end_key)
        saved = config.checkpoints
        place = saved.directory or (saved.restore if saved.via == "coordinator" else None)
        store = None if place is None else CheckpointStore(place, saved.keep, saved.via, saved.restore or "")
        seconds, steps = cadence(saved.every)
        options = replace(config.options, checkpoint_seconds=seconds, checkpoint_steps=steps)
        machine = CoordinatorMachine(identity, options, store, resumed)
        driver = Driver(*watch(machine, transport, identity), log)
        return await run_node(driver, endpoint, parent_fd)


def run(config: CoordinatorConfig, parent_fd: int | None = None) -> int:
    """Run a coordinator in this process's main thread; return the exit code."""
    return asyncio.run(coordinate(config, parent_fd))
