"""What a message costs the node that takes it: measured in the machines that are shipped, in this very run."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from bench.cases import crowd
from bench.cases.core import FOREVER, Wires
from bench.limits import PlainSockets
from bench.processes import BusyTime
from bench.setup import GRADIENT_SCALE, Setup
from bench.stats import percentile
from zmqps.client.tensors import describe
from zmqps.core.job.keyspace import SLICE_NBYTES
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.events import Peer
from zmqps.core.protocol.messages import Message
from zmqps.core.worker.operations import Attached, Exchange, Operation, StartJob
from zmqps.core.worker.transfer import PullTransfer, PushTransfer, Source, Target, plan
from zmqps.gpu.handover import Handover
from zmqps.nodes.server import ServerConfig, make_shard
from zmqps.optim import sgd

#: Steps that are measured, after some to warm up.
STEPS, WARM_UP = 30, 5
#: What costs the same whatever it holds, and what is mostly bytes: the largest that one message carries.
SMALL_NBYTES, LARGE_NBYTES = 1 << 10, SLICE_NBYTES
#: How many bring gradients to a step: the costs of a commit are taken to grow evenly between and beyond them.
FEW, MANY = 2, 8
#: Of the crowd that shows what sockets and the loop add: enough that the server always has something to do.
CROWD = 8

#: (role, message or "begin") -> seconds of processor time.
Spent: TypeAlias = dict[tuple[str, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds that a message of one slice takes.

    Attributes
    ----------
    fixed
        Whatever it holds.
    a_byte
        For each byte of the slice.
    a_worker, a_byte_and_worker
        The same for each worker that has a part in it, beyond what one of none would take.
    """

    fixed: float
    a_byte: float = 0.0
    a_worker: float = 0.0
    a_byte_and_worker: float = 0.0

    def of(self, nbytes: float, messages: int = 1, workers: int = 0) -> float:
        """Return the seconds of so many messages that carry so many bytes in all."""
        each = self.fixed + workers * self.a_worker
        return messages * each + nbytes * (self.a_byte + workers * self.a_byte_and_worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a simulated cluster is made of.

    Attributes
    ----------
    push
        A push at a server that applies it and answers with values; asynchronous.
    part
        A push at a server that keeps it until the step is complete; synchronous.
    commit
        A step at a server: adds what workers have brought, and applies it.
    pull
        A pull at a server.
    begin, answer
        Of a worker: what it sends to a server, and what it is answered.
    shell_s
        What taking or sending a message costs beyond that: the loop, and handing it to ZeroMQ's thread.
    sockets_s_a_byte
        What ZeroMQ's thread and the kernel take at least for a byte that is sent, or taken.
    """

    push: Cost
    part: Cost
    commit: Cost
    pull: Cost
    begin: Cost
    answer: Cost
    shell_s: float
    sockets_s_a_byte: float


class TimedWires(Wires):
    """A cluster in one thread that counts the processor time of each message, coding included."""

    def __init__(self, workers: int) -> None:
        self.spent: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        super().__init__(workers, partial(make_shard, ServerConfig(coordinator="tcp://127.0.0.1:1")))

    def _begin(self, name: str, operation: Operation) -> None:
        started = time.thread_time()
        super()._begin(name, operation)
        self.spent["worker", "begin"].append(time.thread_time() - started)

    def _take(self, name: str, peer: Peer, frames: list[Any]) -> Message:
        started = time.thread_time()
        message = super()._take(name, peer, frames)
        self.spent[name.rstrip("0123456789"), type(message).__name__].append(time.thread_time() - started)
        return message


def spend(workers: int, nbytes: int, mode: str) -> Spent:
    """Let workers take steps with one vector of a size; return the median of each kind of message."""
    parameters, flat = describe({"w": np.ones(nbytes // 4, np.float32)}, Handover())
    job = JobSpec(parameters=parameters, optimizer=sgd(1e-3).to_wire(), mode=mode)
    wires = TimedWires(workers)
    attached: Attached
    [attached, *_] = wires.run(*[StartJob(FOREVER, job=job, values=flat) for _ in range(workers)])
    gradient, cargoes = np.full_like(flat[0], GRADIENT_SCALE), plan(attached.placement)
    outs = [[np.zeros_like(flat[0])] for _ in range(workers)]
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            wires.spent.clear()
        wires.run(
            *[
                Exchange(
                    FOREVER,
                    push=PushTransfer(cargoes=cargoes, source=Source(arrays=[gradient]), whole=mode != "async"),
                    pull=PullTransfer(cargoes=cargoes, target=Target(arrays=out)),
                )
                for out in outs
            ]
        )
    return {kind: percentile(seconds, 50) for kind, seconds in wires.spent.items()}


def by_size(small: float, large: float) -> Cost:
    """Return the cost of a message by what a small and a large one take."""
    a_byte = max(0.0, large - small) / (LARGE_NBYTES - SMALL_NBYTES)
    return Cost(fixed=max(0.0, small - SMALL_NBYTES * a_byte), a_byte=a_byte)


def by_size_and_workers(few: Cost, many: Cost) -> Cost:
    """Return the cost of a message by what it is with `FEW` workers and with `MANY`."""
    a_worker = max(0.0, many.fixed - few.fixed) / (MANY - FEW)
    a_byte = max(0.0, many.a_byte - few.a_byte) / (MANY - FEW)
    return Cost(
        fixed=max(0.0, few.fixed - FEW * a_worker),
        a_byte=max(0.0, few.a_byte - FEW * a_byte),
        a_worker=a_worker,
        a_byte_and_worker=a_byte,
    )


def measure() -> Costs:
    """Measure all of them, in some ten seconds."""
    alone = [spend(1, nbytes, "async") for nbytes in (SMALL_NBYTES, LARGE_NBYTES)]
    steps = [[spend(workers, nbytes, "sync") for nbytes in (SMALL_NBYTES, LARGE_NBYTES)] for workers in (FEW, MANY)]

    def cost(role: str, message: str, of: list[Spent]) -> Cost:
        return by_size(*(spent[role, message] for spent in of))

    push = cost("server", "Push", alone)
    return Costs(
        push=push,
        part=cost("server", "Push", steps[0]),
        commit=by_size_and_workers(*(cost("server", "Commit", of) for of in steps)),
        pull=cost("server", "Pull", steps[0]),
        begin=cost("worker", "begin", alone),
        answer=cost("worker", "Values", alone),
        shell_s=_shell(push.fixed),
        sockets_s_a_byte=_sockets(),
    )


def _shell(push_s: float) -> float:
    """Return what a message costs a server's first thread beyond what its machine does; a push is two messages."""
    [row] = crowd.measure(Setup(model="1KB"), [CROWD])
    used = row.extra["server_cpu_s"] - row.extra["server_sockets_cpu_s"]
    return max(0.0, used - push_s) / 2


def _sockets(nbytes: int = 64 << 20, steps: int = 10) -> float:
    """Return what a byte costs that is sent or taken, each of which two processes do with it both ways."""
    with PlainSockets("tcp", 1, 1, nbytes, nbytes) as sockets:
        sockets.steps(2)
        busy = BusyTime(sockets.pids)
        sockets.steps(steps)
        return busy.seconds() / (4 * nbytes * steps)
