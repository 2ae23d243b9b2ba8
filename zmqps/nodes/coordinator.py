"""The coordinator process: a `CoordinatorMachine` on a ZeroMQ socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zmqps.checkpoint import Checkpoint, Owner
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.watching.measured import measured
from zmqps.core.coordinator.watching.notes import Logged
from zmqps.core.node.member import Identity
from zmqps.core.protocol.endpoints import join, split
from zmqps.core.protocol.events import Received
from zmqps.core.protocol.messages import Exited
from zmqps.core.protocol.messages.large import decode_small
from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.errors import ConfigurationError, counted, listed
from zmqps.keys.keyring import Keys, load_node_keys
from zmqps.net import loops
from zmqps.net.driver import Driver, run_node
from zmqps.net.identity import check_bind, new_identity, read_job_secret
from zmqps.net.system.memory import available_nbytes, spare_the_collector
from zmqps.net.zeromq import ZmqTransport
from zmqps.nodes.checkpoints import CheckpointStore
from zmqps.nodes.endkey import kept, new_end_key, offer_end_key
from zmqps.nodes.journal import IDENTITY, Journal, resumed
from zmqps.nodes.listening import Place, other_addresses
from zmqps.nodes.page import page
from zmqps.nodes.relay import CHUNK_NBYTES
from zmqps.nodes.restoring import restored, restored_from, resumptions
from zmqps.settings.coordinator import CoordinatorSettings
from zmqps.settings.kinds import cadence
from zmqps.sinks.choose import check_texts, open_sinks
from zmqps.sinks.feed import Feeds
from zmqps.trace.switch import Switch
from zmqps.web.metrics import Source
from zmqps.web.server import WebPlace

DEFAULT_PORT = 5570


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig(CoordinatorSettings):
    """What a coordinator needs to know when it starts, checked as far as this host can tell."""

    def __post_init__(self) -> None:
        CoordinatorSettings.__post_init__(self)
        check_texts(self.values)
        keys = load_node_keys(self.keys)
        self.place.check()
        self.page_place.check()
        if self.address:
            check_bind(self.address, insecure=self.insecure, keyed=keys is not None)
        read_job_secret(self.job_secret)
        if self.replicas >= self.servers:
            raise ConfigurationError(
                f"{counted(self.replicas, 'replica')} of each shard need {counted(self.replicas + 1, 'server')}, and "
                f"the cluster has {self.servers}: start it with more --servers, or fewer --replicas"
            )
        if self.heartbeat_interval >= self.heartbeat_timeout:
            raise ConfigurationError(
                f"the heartbeat timeout ({self.heartbeat_timeout} s) must exceed the interval "
                f"({self.heartbeat_interval} s)"
            )

    @property
    def place(self) -> Place:
        """Where it listens."""
        return Place(self.address, self.advertise, self.interface)

    @property
    def page_place(self) -> WebPlace:
        """Where browsers find the page, and Prometheus metrics."""
        return WebPlace(self.page, self.page_token, self.insecure, "page")

    @property
    def options(self) -> CoordinatorOptions:
        """The options of the machine."""
        saved = self.saving
        seconds, steps = cadence("checkpoint_every", saved.every)
        return CoordinatorOptions.taken_from(
            self, patience=self.patience if self.journal is not None else 0.0,  # without a journal none comes back
            checkpoint_seconds=seconds, checkpoint_steps=steps, checkpoint_full_every=saved.full_every,
            checkpoint_at_end=saved.saves_at_end,
        )  # fmt: skip


async def coordinate(config: CoordinatorConfig, parent_fd: int | None = None) -> int:
    """Run a coordinator until its cluster ends; return the exit code.

    Raises
    ------
    AddressInUseError, ConfigurationError
        The endpoint cannot be bound.
    CheckpointError
        There is no usable checkpoint to begin from.
    JournalError
        It cannot resume from its journal.
    """
    log = logging.getLogger("zmqps.coordinator")
    one = restored(config.saving)
    if one is not None:
        by = f", of {one.manifest.owner}" if one.manifest.owner else ""
        log.info("jobs begin from the checkpoint %s, of version %d%s", one.path, one.version, by)
    keys = load_node_keys(config.keys)
    where = config.place.binds(DEFAULT_PORT)
    check_bind(where, insecure=config.insecure, keyed=keys is not None)
    loop = asyncio.get_running_loop()
    source = Source(loop)
    with ExitStack() as stack:
        feeds = stack.enter_context(Feeds(open_sinks(config.values)))
        journal, known = stack.enter_context(_opened(config.journal))
        transport = _transport(config, keys)
        secret = read_job_secret(config.job_secret)
        try:
            bound = transport.bind(_as_before(where, known))
            endpoint = config.place.advertises(bound)
            identity = _identity(config, endpoint, secret, keyed=keys is not None)
            if journal is not None:
                identity = resumed(journal, known, identity, config.options)
            store = _store(config, identity, one)
            if store is not None and config.saving.checkpoint is not None:
                stack.enter_context(store.claim)
        except BaseException:
            transport.close(0)
            if journal is not None and not known:
                journal.retire()  # no cluster has begun
            raise
        if others := other_addresses(bound, endpoint):
            log.info("listening at %s, which is also reached at %s", bound, listed(others, 8))
        with offer_end_key(endpoint, identity.end_key) as end_key:
            if config.own_servers and not secret and keys is None and kept(endpoint, end_key):
                identity = replace(identity, server_key=end_key)
            state = None if journal is None else {key: data for key, data in known.items() if key != IDENTITY}
            begins_from = resumptions(config.saving, one)
            machine = CoordinatorMachine(identity, config.options, store, begins_from, state)
            driver = _driver(machine, transport, identity, journal, feeds)
            source.measure = lambda: measured(machine, driver.facts(), loop.time())
            machine.traces.recorder = Switch(driver, identity)
            with ExitStack() as stack:
                try:
                    stack.enter_context(_page(config, machine, source, endpoint, keyed=keys is not None))
                except BaseException:
                    transport.close(0)
                    raise
                siblings = Siblings(driver)
                stack.enter_context(siblings.watched())
                code = await run_node(driver, endpoint, parent_fd, hear=siblings.hear)
        if journal is not None:
            journal.retire()  # the cluster has ended: the next one starts from scratch
        return code


def _transport(config: CoordinatorConfig, keys: Keys | None) -> ZmqTransport:
    """Return what carries messages: large ones, too, where servers send their checkpoints here."""
    relays = config.saving.via == "coordinator"
    transport = ZmqTransport(arrays=relays, keys=keys)
    if relays:
        transport.largest_nbytes = lambda: 2 * CHUNK_NBYTES  # a stretch of a file, with its header
    return transport


def _driver(
    machine: CoordinatorMachine, transport: ZmqTransport, identity: Identity, journal: Journal | None, feeds: Feeds
) -> Driver:
    """Return what runs the machine, and hands on what scripts log."""
    driver = Driver(machine, transport, logging.getLogger("zmqps.coordinator"), journal=journal)
    driver.decode = decode_small
    driver.notify = lambda event: _feed(feeds, event)
    driver.more = lambda: {"free_nbytes": available_nbytes()}
    return driver


def _identity(config: CoordinatorConfig, endpoint: str, secret: bytes, *, keyed: bool) -> Identity:
    """Return the identity of a new coordinator; one with a journal keeps the journal's."""
    identity = new_identity("coordinator", name=config.name or None, endpoint=endpoint, job_secret=secret, keyed=keyed)
    return replace(identity, end_key=new_end_key())


def _feed(feeds: Feeds, event: Any) -> None:
    """Hand what a script has logged to the sinks, with times that are valid on other hosts."""
    if isinstance(event, Logged) and feeds.feeds:
        ahead = time.time() - asyncio.get_running_loop().time()
        feeds.put(event.job, event.node, [(step, at + ahead, values) for at, step, values in event.entries])


def _page(
    config: CoordinatorConfig, machine: CoordinatorMachine, source: Source, endpoint: str, *, keyed: bool
) -> AbstractContextManager[None]:
    return page(config.page_place, machine.view, source, endpoint=endpoint, journal=config.journal, keyed=keyed)


def _store(config: CoordinatorConfig, identity: Identity, one: Checkpoint | None) -> CheckpointStore | None:
    saved = config.saving
    place = saved.checkpoint or (saved.restore if saved.via == "coordinator" else None)
    if place is None:
        return None
    read = restored_from(saved.restore, one) if saved.restore and one is not None and saved.via == "coordinator" else ()
    runs = {} if one is None or one.manifest.owner is None else {one.manifest.job_name: one.manifest.owner.run}
    cluster = identity.incarnation.hex()
    owner = Owner(cluster=cluster, run=cluster, host=identity.host, pid=identity.pid, since=time.time())
    return CheckpointStore(place, saved.keep, saved.via, read, owner=owner, runs=runs)


@contextmanager
def _opened(directory: Path | None) -> Iterator[tuple[Journal | None, Mapping[str, Any]]]:
    """Open the journal of a directory, if one is named, and yield it with what was kept in it."""
    if directory is None:
        yield None, {}
        return
    with Journal(directory) as journal:
        yield journal, journal.read()


def _as_before(where: str, known: Mapping[str, Any]) -> str:
    """Return where to listen: where any port will do, at the one that members know."""
    if not where.startswith("tcp://") or split(where)[1] or IDENTITY not in known:
        return where
    before = str(known[IDENTITY].get("endpoint", ""))
    return join(split(where)[0], split(before)[1]) if before.startswith("tcp://") else where


def run(config: CoordinatorConfig, parent_fd: int | None = None) -> int:
    """Run a coordinator in this process's main thread; return the exit code."""
    spare_the_collector()
    return loops.run(coordinate(config, parent_fd))


#: In place of a missing peer of a node: nothing is answered.
NOBODY = b""


class Siblings:
    """Servers that this coordinator's parent has started, too: the kernel reports their end.

    A parent without a loop to watch them in, as `LocalCluster` in a script, hands the coordinator what it can
    watch them by: a descriptor of each process (`os.pidfd_open`), with the token that this process was given.

    Parameters
    ----------
    driver
        Its machine's.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._tokens: dict[int, bytes] = {}  # by descriptor of a process

    def hear(self, parent_fd: int) -> bool:
        """Take what the parent says; return whether it is there."""
        with socket.socket(fileno=os.dup(parent_fd)) as parent:
            try:
                token, fds, _, _ = socket.recv_fds(parent, KEY_NBYTES, 1)
            except ConnectionResetError:  # it was killed before it had read the announcement
                return False
        loop = asyncio.get_running_loop()
        for fd in fds:
            self._tokens[fd] = token
            loop.add_reader(fd, self._ended, fd)
        return bool(token)

    def _ended(self, fd: int) -> None:
        token = self._forget(fd)
        self._driver.submit(Received(NOBODY, Exited(0, token, "its process has ended")))

    def _forget(self, fd: int) -> bytes:
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        return self._tokens.pop(fd)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch them for so long."""
        try:
            yield
        finally:
            for fd in list(self._tokens):
                self._forget(fd)
