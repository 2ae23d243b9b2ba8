"""The server process: a `ServerMachine` on ZeroMQ sockets."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from zmqps import codecs
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import TableSpec
from zmqps.core.node.member import Identity
from zmqps.core.node.tracing import trace
from zmqps.core.protocol import exits
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import check_for_values
from zmqps.core.protocol.endpoints import check_endpoint
from zmqps.core.protocol.messages.large import decode_but_assign
from zmqps.core.protocol.wire import data_header_nbytes
from zmqps.core.server.builds import Room, admit, required_nbytes
from zmqps.core.server.dense.aggregate import mean_in_passes
from zmqps.core.server.dense.buffers import Beside, beside_nbytes
from zmqps.core.server.dense.memory import HostMemory, Memory
from zmqps.core.server.dense.rules import UpdateKernel
from zmqps.core.server.dense.stale import copies_nbytes, treated
from zmqps.core.server.extensions import ServerMachine
from zmqps.core.server.measured import measured
from zmqps.core.server.saves import FileRequest
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import capacity_nbytes, make_rows, rows_in
from zmqps.core.treatments import make_treatment
from zmqps.gpu.device import Device, open_device, parse
from zmqps.gpu.rows import warm_up as warm_up_device_rows
from zmqps.gpu.staging import DeviceMemory, Streams, device_memory
from zmqps.keys.keyring import load_node_keys
from zmqps.net import loops
from zmqps.net.driver import Driver, run_node
from zmqps.net.identity import check_bind, new_identity, read_job_secret
from zmqps.net.lane.shm import LaneTransport
from zmqps.net.routes import new_local_endpoint
from zmqps.net.system.memory import FreedMemory, available_nbytes, spare_the_collector, total_nbytes
from zmqps.net.zeromq import ZmqTransport
from zmqps.nodes.checkpoints import ShardFiles
from zmqps.nodes.endkey import server_key
from zmqps.nodes.listening import Place, resolved
from zmqps.nodes.processors import ApplyThreads, Rests
from zmqps.nodes.relay import RelayStorage
from zmqps.optim import Kernel, OptimizerSpec, Rule, all_finite, make_kernel, slots_of, warm_up
from zmqps.optim.device_rows import DeviceRowKernel
from zmqps.optim.kernels import MOST_ADDED, mean, mean_loop
from zmqps.optim.rows import RowKernel, kernel_of_table, rule_of_table
from zmqps.rows.kernels import warm_up as warm_up_rows
from zmqps.rows.store import RowStore
from zmqps.settings.server import ServerSettings
from zmqps.trace.doors import DOORS
from zmqps.trace.switch import Switch
from zmqps.web.metrics import Source, answering
from zmqps.web.server import WebPlace

#: Tables that have no capacity leave this much of the host's memory free.
SPARE_NBYTES = 1 << 30
#: And this much of a device's: rows that are gathered, and the chunks in which several tables grow at once.
SPARE_DEVICE_NBYTES = 512 << 20
#: Where no processor is idle, a shard that is not awaited is prepared with pauses: this many times as long as the work.
REST = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(ServerSettings):
    """What a server needs to know when it starts, checked as far as this host can tell."""

    def __post_init__(self) -> None:
        ServerSettings.__post_init__(self)
        check_endpoint(self.coordinator)
        keys = load_node_keys(self.keys)
        self.place.check()
        self.figures.check()
        if self.address:
            check_bind(self.address, insecure=self.insecure, keyed=keys is not None)
        parse(self.device)
        read_job_secret(self.job_secret)

    @property
    def place(self) -> Place:
        """Where it listens."""
        return Place(self.address, self.advertise, self.interface, self.ports)

    @property
    def figures(self) -> WebPlace:
        """Where Prometheus is answered."""
        return WebPlace(self.metrics, self.metrics_token, self.insecure)


class CompiledRules:
    """An optimizer's rules, compiled for this server (`zmqps.core.server.dense.rules.Rules`)."""

    def __init__(
        self, spec: OptimizerSpec, config: ServerConfig, device: Device | None = None, workers: int = 1
    ) -> None:
        self._spec = spec
        self._workers = workers  # threads that each update whole parameters in a step
        self._kernels: Any = config.kernels
        self._device = device
        self._elementwise = device.elementwise if device is not None and device.compiles else None
        self._threads = ApplyThreads(config.apply_threads if device is None else 1)
        self.slot_fill: tuple[float, ...] = ()
        self.allocates = False

    def kernels(self, names: Sequence[str]) -> tuple[Sequence[UpdateKernel | None], Sequence[int], Sequence[int]]:
        """Return the kernels in use, the index of each parameter's, and the number of its group."""
        rules, kernel_of = self._spec.rules(names, self._workers)
        slots, self.slot_fill = slots_of(rules)
        kernels = [None if rule.frozen else self._kernel(rule, slots) for rule in rules]
        self.allocates = any(kernel.allocates for kernel in kernels if kernel is not None)
        threaded = [kernel and self._threads.over(kernel) for kernel in kernels]
        return threaded, kernel_of, self._spec.groups_of(names)

    def _kernel(self, rule: Rule, slots: Sequence[str]) -> Kernel:
        if self._device is None:
            return make_kernel(rule, self._kernels, slots=slots)
        return make_kernel(rule, "device", self._device.xp, self._elementwise, slots)

    def warm_up(self, names: Sequence[str], dtype: np.dtype[Any], averaged: int = 1) -> None:
        """Compile what the first update would otherwise wait for; of a step, with the gradients it is the mean of."""
        if self._device is None and self._compiles_mean(averaged):
            mean_loop(dtype, averaged)
        for rule in self._spec.rules(names)[0]:
            if self._device is None:
                warm_up(rule, dtype, self._kernels)
            else:
                warm_up(rule, dtype, "device", self._device.xp, self._elementwise)

    def all_finite(self, g: Array) -> bool:
        """Whether an array, of this host, holds neither NaN nor infinity."""
        return all_finite(g, self._kernels)

    def mean(self, arrays: Sequence[Array], share: float, out: Array) -> bool:
        """Write the sum of arrays times a share to another; False where a sum is not finite."""
        if self._compiles_mean(len(arrays)) and mean(arrays, share, out):
            return True
        return mean_in_passes(arrays, share, out)  # which knows what is infinite already from what is too large

    def _compiles_mean(self, count: int) -> bool:
        return self._kernels == "numba" and 2 <= count <= MOST_ADDED


def make_shard(
    config: ServerConfig,
    job: JobSpec,
    placement: Placement,
    index: int,
    room: Room = Room(),  # noqa: B008  (a tuple)
    memory: Memory | None = None,
    streams: Streams | None = None,
    name: str = "the server",
    more: Callable[[int], bool] = lambda nbytes: True,
) -> Shard:
    """Build a shard, its kernels compiled before the first gradient comes.

    Parameters
    ----------
    config
        The server's.
    job, placement, index
        Which shard.
    room
        What is known about the memory for it.
    memory
        Where it is to live; by default anywhere in this host's memory.
    streams
        Of the device it is to live on instead.
    name
        The server's name in errors.
    more
        Asks for memory for rows of tables that have no capacity, and for values that are read while they are updated.

    Raises
    ------
    JobMemoryError, DeviceMemoryError
        It does not fit; says what it needs and what is free.
    """
    spec = OptimizerSpec.from_wire(job.optimizer)
    coders = [codecs.parse(text) for text in (job.push_codec, job.pull_codec)]
    check_for_values(job.pull_codec)
    names = [parameter.name for parameter in job.parameters]
    num_slots, num_workers = len(spec.slots_of(names)[0]), max(1, room.num_workers)
    device, required, beside = None, 0, None
    if streams is not None:
        memory = device_memory(streams, placement, index, num_slots, job, num_workers, DOORS.coding())
        device = streams.device
    else:
        needs = required_nbytes(placement, index, num_slots, job, num_workers)
        needs |= copies_nbytes(placement, index, job, num_workers)
        needs["values while others are looked at"] = beside_nbytes(placement.nbytes(index), num_workers)
        needs["rows of tables"] = capacity_nbytes(placement, index)
        required = admit(name, placement, index, needs, free_nbytes(config, room))
        # other servers of this host may ask at the same moment, and what they get shows only once it is written to
        times = room.sharing if config.memory is None else 1
        beside = Beside(needs["values while others are looked at"], lambda nbytes: more(nbytes * times))
    rules = CompiledRules(spec, config, device, job.num_updating)
    for dtype in {table.dtype for table in placement.keyspace.dense if not table.buffers}:
        rules.warm_up(names, dtype, (job.aggregate or num_workers) if job.mode == "sync" else 1)
        for codec in coders:  # here, not where heartbeats are sent
            codec.warm_up(dtype)
    there = memory if isinstance(memory, DeviceMemory) else None
    rows = make_rows(
        job, placement, index, partial(row_kernel, config, job, there=there), coding=DOORS.coding(), more=more,
        # address space: how much is free may change, and memory is asked for as rows come
        available_nbytes=total_nbytes() if device is None else device.memory().free_nbytes,
        secret=secrets.randbits(64), store_of=RowStore if memory is None else memory.rows,
    )  # fmt: skip
    if rows.tables:
        warm_up_rows()  # here, not where heartbeats are sent
    spare_the_collector()
    shard = Shard(
        placement,
        index,
        rules,
        reject_nonfinite=job.nonfinite == "reject",
        synchronous=job.mode == "sync",
        aggregate=job.aggregate,
        retain=job.retain,
        memory=memory,
        required_nbytes=required,
        beside=beside,
        dense=treated(make_treatment(job.treatment)),
        others=[rows],
    )
    shard.time_with(perf_counter)
    return shard


def row_kernel(config: ServerConfig, job: JobSpec, spec: TableSpec, there: DeviceMemory | None = None) -> RowKernel:
    """Return a table's rule, compiled, for rows in this host's memory or ``there``."""
    counts: Any = spec.step_counts
    kernels: Any = config.kernels
    if there is not None:
        device = there.device
        rule = rule_of_table(spec.optimizer, spec.name, job.num_updating)
        elementwise = device.elementwise if device.compiles else None
        on_device = DeviceRowKernel(rule, spec.dim, counts, device.xp, elementwise)
        warm_up_device_rows(there, on_device, spec.dim, lazy=spec.lazy_decay)
        return on_device
    kernel = kernel_of_table(spec.optimizer, spec.name, spec.dim, kernels, counts, job.num_updating)
    return kernel


def may_grow(config: ServerConfig, reserved_nbytes: int, nbytes: int, device: Device | None = None) -> bool:
    """Whether a shard may take this much more than was admitted, in addition to what is reserved on this server.

    On a device this is about values and slots; what stays on this host grows with them, so it is checked as well.
    """
    if device is not None and nbytes + SPARE_DEVICE_NBYTES > device.memory().free_nbytes:
        return False
    if config.memory is None:
        return nbytes + SPARE_NBYTES <= available_nbytes()
    return nbytes + reserved_nbytes <= config.memory


def free_nbytes(config: ServerConfig, room: Room) -> int:
    """Return how many bytes a server may take for one more shard."""
    return room.available_nbytes if config.memory is None else config.memory - room.reserved_nbytes


async def serve(config: ServerConfig, parent_fd: int | None = None) -> int:
    """Run a server until its cluster ends; return the exit code.

    Raises
    ------
    AddressInUseError, ConfigurationError
        The endpoint cannot be bound.
    DeviceError
        There is no such device.
    """
    log, source = logging.getLogger("zmqps.server"), Source(asyncio.get_running_loop())
    with answering(config.figures, source, "server", log):
        return await _serve(config, source, log, parent_fd)


async def _listen(
    config: ServerConfig, transport: LaneTransport, parent_fd: int | None, log: logging.Logger, *, keyed: bool
) -> tuple[str, str] | None:
    """Return where others reach this server, alone and with its endpoint for this host; None where its parent ended."""
    place = config.place
    where = await resolved(lambda: place.binds(0, config.coordinator), parent_fd, log)
    if where is None:
        return None
    check_bind(where, insecure=config.insecure, keyed=keyed)
    bound = place.bind(transport.bind, where)
    endpoint = await resolved(lambda: place.advertises(bound, config.coordinator), parent_fd, log)
    if endpoint is None or not endpoint.startswith("tcp://"):
        return None if endpoint is None else (endpoint, endpoint)
    local = new_local_endpoint()
    return endpoint, f"{endpoint} {transport.bind(local)}" if local else endpoint


async def _serve(config: ServerConfig, source: Source, log: logging.Logger, parent_fd: int | None) -> int:
    device = open_device(config.device)
    streams = None if device is None else Streams(device)
    if streams is not None:
        streams.enter()
        log.info("computing on %s", streams.device.name)
    keys = load_node_keys(config.keys)
    if config.kernels == "numba":
        all_finite(np.zeros(1, np.float32), "numba")  # numba takes a second to load: do it before any worker waits
    sockets = ZmqTransport(config.io_threads, keys=keys, role="server")
    transport = LaneTransport(sockets)
    try:
        listening = await _listen(config, transport, parent_fd, log, keyed=keys is not None)
    except BaseException:
        transport.close(0)
        raise
    if listening is None:
        transport.close(0)
        return exits.OK
    endpoint, advertised = listening
    identity = _identity(config, advertised, keyed=keys is not None)

    freed = FreedMemory()
    largest_header = data_header_nbytes(0, 0)  # of all shards there ever were: a late message may be about one

    def build(job: JobSpec, placement: Placement, index: int, room: Room) -> Shard:
        nonlocal largest_header
        pace = Rests(REST).paced if room.gently else iter
        host = HostMemory(transport.arenas.empty, DOORS.coding(), freed.add, pace)
        shard = make_shard(config, job, placement, index, room, host, streams, identity.name, more)
        segments = sum(len(state.slice.segments) for state in shard.slices)
        largest_header = max(largest_header, data_header_nbytes(len(shard.slices), segments))
        DOORS.shard(shard, rows_in(shard).tables)
        return shard

    relay = RelayStorage()
    machine = ServerMachine(identity, config.coordinator, build, available_nbytes, ShardFiles(relay))

    def more(nbytes: int) -> bool:
        reserved = sum(tenant.reserved_nbytes for tenant in machine.tenants.values())
        return may_grow(config, reserved, nbytes, device)

    def largest_nbytes() -> int:
        shards = [tenant.shard for tenant in machine.tenants.values() if tenant.shard is not None]
        return max((shard.placement.nbytes(shard.index) for shard in shards), default=0)

    sockets.largest_nbytes = largest_nbytes  # an atomic push is of a whole shard
    driver = Driver(machine, transport, log, resolve=relay.resolve)
    # unneeded requests cost time to refuse
    driver.decode = partial(decode_but_assign, data_nbytes=lambda: largest_header)
    trace(machine.member, Switch(driver, identity, known=machine.clients.incarnation))
    relay.submit = partial(_submit, asyncio.get_running_loop(), driver)
    most = {} if streams is not None else {"memory_nbytes": config.memory or total_nbytes()}
    driver.more = lambda: {"free_nbytes": available_nbytes(), **most}
    source.measure = lambda: measured(machine, driver.facts())
    try:
        return await run_node(driver, endpoint, parent_fd, config.handover_timeout)
    finally:
        relay.end()


def _identity(config: ServerConfig, endpoint: str, *, keyed: bool) -> Identity:
    """Return a new server's identity."""
    secret = read_job_secret(config.job_secret)
    identity = new_identity("server", name=config.name or None, endpoint=endpoint, job_secret=secret, keyed=keyed)
    own_key = b"" if secret or keyed else server_key(config.coordinator)
    return replace(identity, spare=config.spare, index=config.index, server_key=own_key)


def _submit(loop: asyncio.AbstractEventLoop, driver: Driver, request: FileRequest) -> None:
    """Hand what a thread asks for to the machine."""
    loop.call_soon_threadsafe(driver.submit, request)


def run(config: ServerConfig, parent_fd: int | None = None) -> int:
    """Run a server in this process's main thread; return the exit code."""
    return loops.run(serve(config, parent_fd))
