"""What is fuzzed: a job small enough to fuzz fast, machines without sockets, and a live cluster in a thread."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgpack
import numpy as np

from tests.attack.stranger import PATIENCE, hello
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.events import COORDINATOR, Received, Returned, Run, Send, Stop
from zmqps.core.protocol.messages import Assign, Hello, Load, Message, Welcome
from zmqps.core.protocol.security.keys import LOADER, ticket_of
from zmqps.core.protocol.wire import encode
from zmqps.core.server.extensions import ServerMachine
from zmqps.core.server.machine import ServerKernel
from zmqps.net.driver import Driver
from zmqps.net.identity import new_identity
from zmqps.net.zeromq import ZmqTransport
from zmqps.nodes.server import ServerConfig, make_shard
from zmqps.optim import sgd

ANYWHERE = "tcp://127.0.0.1:0"
#: Incarnations that fuzzed messages use: few, so that members are met again.
INCARNATIONS = [bytes([i]) * 16 for i in range(4)]
PARAMETERS = (Parameter("w", (6, 5), "float32"), Parameter("b", (4,), "float64"), Parameter("c", (3,), "float32"))
JOB = JobSpec(parameters=PARAMETERS, optimizer=sgd(0.5).to_wire(), mode="async")
PLACEMENT = Placement.balance(KeySpace(PARAMETERS), 1, 64)
EPOCH = 1
KEY = b"the key of shard"
ASSIGN = Assign(EPOCH, "default", 1, 1, 0, JOB.to_wire(), PLACEMENT.to_wire(), KEY)


def ticketed(role: str, incarnation: bytes, key: bytes = KEY, *, loads: bool = False) -> Hello:
    """Return what a member of the first job says to the server that has the shard of this key."""
    ticket = ticket_of(key, LOADER if loads else role, incarnation)
    return replace(hello(role, incarnation), secret=ticket, epoch=EPOCH)


def ready_server(assign: Assign = ASSIGN, placement: Placement = PLACEMENT) -> ServerKernel:
    """Return a server that has joined, built its shard and been loaded with ones."""
    identity = new_identity("server", endpoint="tcp://127.0.0.1:2")
    machine = ServerMachine(
        identity,
        "tcp://127.0.0.1:1",
        partial(make_shard, ServerConfig(coordinator="tcp://127.0.0.1:1", kernels="numpy")),
    )
    machine.start(0.0)
    machine.handle(Received(COORDINATOR, Welcome(1, b"c" * 16, "c", 0, 1.0, 10.0, 1, 1)), 0.0)
    for action in machine.handle(Received(COORDINATOR, assign), 0.0):
        if isinstance(action, Run):
            machine.handle(Returned(action.tag, action.work()), 0.0)
    machine.handle(Received(b"@loader", ticketed("worker", b"l" * 16, loads=True)), 0.0)
    for slice_ in placement.slices[0]:
        values = np.ones(slice_.size, placement.keyspace.tables[slice_.table].dtype)
        machine.handle(Received(b"@loader", Load(1, EPOCH, ((slice_.index, 0, ()),), (values,))), 0.0)
    assert machine.tenants[EPOCH].loaded
    return machine


def values_of(machine: ServerKernel) -> bytes:
    """Return the values of a server's shards, all jobs one after the other."""
    shards = [tenant.built() for _, tenant in sorted(machine.tenants.items())]
    assert shards
    return b"".join(state.value.tobytes() for shard in shards for state in shard.slices)


def sends(actions: Sequence[Any]) -> list[Send]:
    """Return what a machine wants to send; each of it can be encoded."""
    found = [action for action in actions if isinstance(action, Send)]
    for action in found:
        encode(action.message)
    return found


# --- damage without hypothesis, for the long runs -----------------------------------------------


def damage(frames: list[bytes], rng: random.Random) -> list[bytes]:
    """Return the frames of a message with up to three things wrong."""
    frames = list(frames)
    for _ in range(rng.randint(1, 3)):
        i = rng.randrange(len(frames))
        frame = bytearray(frames[i])
        at = rng.randint(0, len(frame))
        match rng.randrange(8):
            case 0:
                frame = frame[:at]
            case 1 | 2 if at < len(frame):
                frame[at] = rng.randrange(256)
            case 3:
                frame[at:at] = rng.randbytes(rng.randint(1, 5))
            case 4:
                frame[at : at + rng.randint(1, 4)] = b""
            case 5:
                frame = bytearray(rng.randbytes(rng.randint(0, 40)))
            case 6:
                frames.append(rng.randbytes(rng.randint(0, 20)))
            case 7:
                frames.insert(i, bytes(frame))
        frames[i] = bytes(frame)
    return frames


def noise(rng: random.Random) -> list[bytes]:
    """Return frames that have never been a message."""
    if rng.random() < 0.5:
        return [rng.randbytes(rng.randint(0, 60)) for _ in range(rng.randint(1, 3))]
    values = [None, True, -1, 0, 1 << 63, 1.5, "text", b"bytes", [], [[0, 0, []]], {}, {"a": [1]}]
    return [msgpack.packb([rng.randrange(40), *(rng.choice(values) for _ in range(rng.randint(0, 9)))])]


def stream(seeds: Sequence[Message], count: int, seed: int) -> Iterator[list[bytes]]:
    """Yield messages: some of ``seeds`` as they are, most of them damaged, some noise."""
    rng = random.Random(seed)
    whole = [[bytes(frame) for frame in encode(message)] for message in seeds]
    for _ in range(count):
        chance = rng.random()
        if chance < 0.15:
            yield noise(rng)
        elif chance < 0.3:
            yield rng.choice(whole)
        else:
            yield damage(rng.choice(whole), rng)


# --- a live cluster -----------------------------------------------------------------------------


@dataclass
class Cluster:
    """A coordinator and a server on real sockets, run by a thread of this process."""

    coordinator: CoordinatorMachine
    server: ServerKernel
    drivers: list[Driver]
    transports: list[ZmqTransport]
    endpoints: list[str]
    loop: asyncio.AbstractEventLoop
    problems: list[str] = field(default_factory=list)

    @property
    def internal_errors(self) -> int:
        return sum(driver.counters["internal_errors"] for driver in self.drivers)

    @property
    def num_dropped(self) -> int:
        return sum(transport.counters["undeliverable"] for transport in self.transports)

    def validate(self) -> None:
        """Assert the invariants of both machines, in their own thread."""

        async def check() -> None:
            self.coordinator.validate()
            self.server.validate()

        asyncio.run_coroutine_threadsafe(check(), self.loop).result(PATIENCE)

    def snapshot(self) -> bytes:
        """Return the server's values, read in its own thread."""

        async def read() -> bytes:
            self.coordinator.validate()
            self.server.validate()
            return values_of(self.server)

        return asyncio.run_coroutine_threadsafe(read(), self.loop).result(PATIENCE)


@contextmanager
def live_cluster() -> Iterator[Cluster]:
    """Run a cluster of one server; it is stopped and closed afterwards."""
    ready: list[Cluster] = []
    started = threading.Event()

    async def run() -> None:
        log = logging.getLogger("zmqps.fuzz")
        log.setLevel(logging.CRITICAL + 1)  # a hundred thousand refusals are no news
        loop = asyncio.get_running_loop()
        transports = [ZmqTransport(), ZmqTransport()]
        endpoints = [transport.bind(ANYWHERE) for transport in transports]
        coordinator = CoordinatorMachine(
            new_identity("coordinator", endpoint=endpoints[0]),
            CoordinatorOptions(servers=1, slice_size=64, heartbeat_timeout=300.0),
        )
        server = ServerMachine(
            new_identity("server", endpoint=endpoints[1]),
            endpoints[0],
            partial(make_shard, ServerConfig(coordinator="tcp://127.0.0.1:1", kernels="numpy")),
        )
        drivers = [Driver(coordinator, transports[0], log), Driver(server, transports[1], log)]
        loop.set_exception_handler(lambda loop, context: cluster.problems.append(str(context)))
        cluster = Cluster(coordinator, server, drivers, transports, endpoints, loop)
        ready.append(cluster)
        loop.call_soon(started.set)
        await asyncio.gather(*(driver.run() for driver in drivers))

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert started.wait(PATIENCE)
        yield ready[0]
    finally:

        def stop() -> None:
            for driver in ready[0].drivers:  # both, for the server may not have joined yet
                driver.submit(Stop("the test is over"))

        ready[0].loop.call_soon_threadsafe(stop)
        thread.join(PATIENCE)
        assert not thread.is_alive()
