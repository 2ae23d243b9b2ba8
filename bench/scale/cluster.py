"""A cluster on a simulated clock: the coordinator is the shipped machine, all other nodes are what their work costs.

The coordinator gets every message that it would get, in order and encoded, and its clock moves on by the processor time
that it takes for them. Workers, servers and wires are queues: what comes first is done first, for as long as `Costs`,
bandwidth and latency say. Every node is on a host of its own.
"""

from __future__ import annotations

import gc
import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, TypeAlias

import numpy as np

from bench.scale.costs import Costs
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.job.keyspace import SLICE_NBYTES
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.node.member import Identity
from zmqps.core.protocol.events import Action, Peer, Received, Send
from zmqps.core.protocol.messages import (
    Arrive,
    Assign,
    Commit,
    Committed,
    Error,
    Heartbeat,
    Init,
    Job,
    Message,
    Proceed,
    Ready,
)
from zmqps.core.protocol.wire import decode, encode
from zmqps.optim import sgd

Times: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

#: What a worker reports with each sign of life.
COUNTERS: dict[str, Any] = {
    "pushes": 100, "pulls": 100, "bytes_sent": 1 << 30, "bytes_received": 1 << 30, "nonfinite": 0, "retries": 0,
    "staleness_mean": 1.25, "staleness_max": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The wires: one of each host, both ways at once, through a switch that is never busy."""

    bytes_per_s: float = 1.25e9
    latency_s: float = 50e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The workers of each job.

    Attributes
    ----------
    mode, staleness
        As `Worker.init` takes them.
    nbytes
        Of the model.
    steps
        Of each worker that are looked at, after the first.
    """

    servers: int
    workers: int
    mode: str
    staleness: int | None = None
    nbytes: int
    steps: int = 4


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What happened.

    Attributes
    ----------
    step_s
        Seconds of each step of each worker, from the beginning of its computing to its next values.
    idle_s, compute_s
        Seconds that they waited for others in these steps, and that they computed.
    duration_s
        How long the steps took that are looked at.
    coordinator_s
        Processor time of the coordinator meanwhile.
    spent_s, num
        The same by the kind of message that it took, and how many of these there were, from the beginning.
    events
        (time, ``push`` or ``pull``, worker): when gradients are applied and values read, in order.
    """

    step_s: list[float] = field(default_factory=list)
    idle_s: float = 0.0
    compute_s: float = 0.0
    duration_s: float = 0.0
    coordinator_s: float = 0.0
    spent_s: Counter[str] = field(default_factory=Counter)
    num: Counter[str] = field(default_factory=Counter)
    events: list[tuple[float, str, int]] = field(default_factory=list)


class Cluster:
    """One job from its beginning to its end.

    Parameters
    ----------
    size, costs, network
        What is simulated.
    compute
        Returns how long a worker computes for a step.
    seed
        Of that, and of when signs of life are due.
    interval_s
        Between a member's signs of life.
    """

    def __init__(
        self,
        size: Size,
        costs: Costs,
        network: Network,
        compute: Callable[[Random], float],
        seed: int = 0,
        interval_s: float = CoordinatorOptions().heartbeat_interval,
    ) -> None:
        self.size, self._costs, self._network, self._compute = size, costs, network, compute
        self._rng, self._interval_s = Random(seed), interval_s
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count(1)
        self.outcome = Outcome()
        # a byte on a wire takes as long as the wire, or ZeroMQ's thread, lets it
        self._byte_s = max(1 / network.bytes_per_s, costs.sockets_s_a_byte)
        self._shard_nbytes = size.nbytes / size.servers
        self._messages = max(1, math.ceil(self._shard_nbytes / SLICE_NBYTES))
        # coordinator
        options = CoordinatorOptions(
            servers=size.servers,
            workers=size.workers,
            heartbeat_interval=interval_s,
            heartbeat_timeout=10 * interval_s,
        )
        self._machine = CoordinatorMachine(_identity("coordinator", "c", 0), options)
        self._free_at, self._timer_at = 0.0, math.inf
        self._job = JobSpec(
            parameters=tuple(Parameter(f"w{i}", (8,), "float32") for i in range(size.servers)),
            optimizer=sgd(0.1).to_wire(),
            mode=size.mode,
            staleness=size.staleness,
        )
        # servers: when their processors and the two ways of their wires are free, and when they have the last step
        self._cpu, self._in, self._out, self._stepped = (np.zeros(size.servers) for _ in range(4))
        # workers
        self._began: dict[int, float] = {}
        self._steps = [0] * size.workers
        self._arrived: dict[int, float] = {}
        self._warm = 0
        self._ended = 0
        self._measured_from = self._busy_before = self._busy_s = 0.0

    def _at(self, at: float, do: Callable[[float], None]) -> None:
        heapq.heappush(self._heap, (at, next(self._numbers), do))

    def run(self) -> Outcome:
        """Let all take their steps."""
        size = self.size
        self._machine.start(0.0)
        for index in range(size.servers):
            self._join("server", f"s{index}", index)
        for index in range(size.workers):
            self._join("worker", f"w{index}", index)
            self._at(0.1, lambda at, name=f"w{index}": self._tell(name, Init(1, self._job.to_wire()), at))  # type: ignore[misc]
        with _undisturbed():
            while self._heap and self._ended < size.workers:
                at, _, do = heapq.heappop(self._heap)
                do(at)
        assert self._ended == size.workers, "a worker waits forever"
        return self.outcome

    # --- the coordinator ---------------------------------------------------------------------------

    def _join(self, role: str, name: str, index: int) -> None:
        self._tell(name, _identity(role, name, index).hello(), 0.0)
        self._at(0.2 + self._interval_s * self._rng.random(), lambda at: self._beat(name, at))

    def _beat(self, name: str, at: float) -> None:
        self._tell(name, Heartbeat(COUNTERS), at)
        self._at(at + self._interval_s, lambda at: self._beat(name, at))

    def _tell(self, name: str, message: Message, at: float) -> None:
        """Send the coordinator a message."""
        peer, frames, kind = b"@" + name.encode(), encode(message), type(message).__name__
        self._at(at + self._network.latency_s, lambda at: self._take(peer, frames, kind, at))

    def _take(self, peer: Peer, frames: list[Any], kind: str, at: float) -> None:
        now = max(at, self._free_at)
        self._spend(kind, 1, now, lambda: self._machine.handle(Received(peer, decode(frames)), now))

    def _ring(self, at: float) -> None:
        if self._timer_at > at:
            return  # it has been set anew
        self._timer_at = math.inf
        now = max(at, self._free_at)
        self._spend("timer", 0, now, lambda: self._machine.on_deadline(now))

    def _spend(self, kind: str, taken: int, now: float, ask: Callable[[], list[Action]]) -> None:
        """Let the machine do something, and its clock move on by what that takes."""
        started = time.thread_time()
        sends = [action for action in ask() if isinstance(action, Send)]
        for send in sends:
            encode(send.message)
        due = self._machine.next_deadline()
        took = time.thread_time() - started + self._costs.shell_s * (taken + len(sends))
        self._free_at = now + took
        self._busy_s += took
        self.outcome.spent_s[kind] += took
        self.outcome.num[kind] += 1
        if due is not None and due < self._timer_at:
            self._timer_at = max(due, self._free_at)
            self._at(self._timer_at, self._ring)
        for send in sends:
            self._heard(send.peer[1:].decode(), send.message, self._free_at + self._network.latency_s)

    def _heard(self, name: str, message: Message, at: float) -> None:
        """A node is told something, and does what concerns the training."""
        index = int(name[1:])
        match message:
            case Assign(epoch=epoch):
                self._tell(name, Ready(epoch, 0), at)
            case Job(load=1):
                for copy in self._machine.runs["default"].startup.copies:
                    self._tell(copy.server.hello.name, Ready(copy.epoch, 1), at)
            case Job():
                self._begin(index, at)
            case Commit(epoch=epoch, step=step):
                self._at(at, lambda at: self._commit(name, index, epoch, step, at))
            case Proceed():
                self._at(at, lambda at: self._proceed(index, at))
            case Error():
                raise RuntimeError(f"{name} was refused: {message.text}")

    # --- workers and servers -----------------------------------------------------------------------

    def _begin(self, worker: int, at: float) -> None:
        """A worker computes, and then pushes."""
        self._began[worker] = at
        took = self._compute(self._rng)
        if self._steps[worker]:
            self.outcome.compute_s += took
        self._at(at + took, lambda at: self._push(worker, at))

    def _push(self, worker: int, at: float) -> None:
        costs, asynchronous = self._costs, self.size.mode == "async"
        taken = self._sent_to_servers(self._shard_nbytes, costs.begin.of(self._shard_nbytes, self._messages), at)
        cost = (costs.push if self.size.mode != "sync" else costs.part).of(self._shard_nbytes, self._messages)
        done = self._computed(taken, cost)
        self._at(float(done.max()), lambda at: self.outcome.events.append((at, "push", worker)))
        back = self._answered(done, self._shard_nbytes if asynchronous else 0.0, cost)
        if asynchronous:
            self._at(back, lambda at: self._end_step(worker, at))
        else:
            self._at(back, lambda at: self._arrive(worker, at))

    def _arrive(self, worker: int, at: float) -> None:
        self._arrived[worker] = at
        step = self._steps[worker]
        self._tell(f"w{worker}", Arrive(2 + step, step, (1,)), at)

    def _commit(self, name: str, server: int, epoch: int, step: int, at: float) -> None:
        cost = self._costs.commit.of(self._shard_nbytes, self._messages, self.size.workers)
        self._cpu[server] = self._stepped[server] = max(self._cpu[server], at) + cost
        self._at(float(self._cpu[server]), lambda at: self._tell(name, Committed(epoch, step), at))

    def _proceed(self, worker: int, at: float) -> None:
        if self._steps[worker]:
            self.outcome.idle_s += at - self._arrived[worker]
        costs = self._costs
        asked = self._sent_to_servers(0.0, costs.begin.fixed, at)
        done = self._computed(np.maximum(asked, self._stepped), costs.pull.of(0.0, self._messages))
        self.outcome.events.append((at, "pull", worker))
        self._at(self._answered(done, self._shard_nbytes), lambda at: self._end_step(worker, at))

    def _end_step(self, worker: int, at: float) -> None:
        self._steps[worker] += 1
        if self.size.mode == "async":
            self.outcome.events.append((at, "pull", worker))
        if self._steps[worker] == 1:
            self._warm += 1
            if self._warm == self.size.workers:
                self._measured_from, self._busy_before = at, self._busy_s
        else:
            self.outcome.step_s.append(at - self._began[worker])
        if self._steps[worker] == 1 + self.size.steps:
            self._ended += 1
            self.outcome.duration_s = at - self._measured_from
            self.outcome.coordinator_s = self._busy_s - self._busy_before
        self._begin(worker, at)

    # --- queues ------------------------------------------------------------------------------------

    def _sent_to_servers(self, nbytes: float, cost: float, at: float) -> Times:
        """A worker sends so many bytes to each server; return when each has them."""
        number, wire_s = self.size.servers, nbytes * self._byte_s
        ready = at + np.arange(1, number + 1) * (cost + self._messages * self._costs.shell_s)
        left = _in_turn(ready, wire_s)  # through the worker's wire, one after the other
        first = left - wire_s + self._network.latency_s
        self._in = np.maximum(np.maximum(first, self._in) + wire_s, left + self._network.latency_s)
        return self._in.copy()

    def _computed(self, ready: Times, cost: float) -> Times:
        """Each server does something, while it still takes the rest of it; return when it is done."""
        cost += 2 * self._messages * self._costs.shell_s  # what it takes, and what it answers
        self._cpu = np.maximum(self._cpu + cost, ready + cost / self._messages)
        return self._cpu.copy()

    def _answered(self, done: Times, nbytes: float, cost: float = 0.0) -> float:
        """Each server sends so many bytes to a worker; return when that has taken all.

        The first slices leave while it takes and computes later ones, which costs ``cost`` in all.
        """
        wire_s, last = nbytes * self._byte_s, 1 / self._messages
        begins = done - (1 - last) * max(cost, wire_s)
        self._out = np.maximum(np.maximum(self._out, begins) + wire_s, done + last * wire_s)
        first = np.sort(self._out - wire_s) + self._network.latency_s
        cost = self._costs.answer.of(nbytes, self._messages) + self._messages * self._costs.shell_s
        return float(_in_turn(_in_turn(first, wire_s), cost)[-1])


def _in_turn(ready: Times, each_s: float) -> Times:
    """Return when each of some pieces is through, one after the other, where each takes as long."""
    before = np.arange(len(ready)) * each_s
    return np.maximum.accumulate(ready - before) + before + each_s


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Collect no garbage meanwhile: most of what there is belongs to the simulation."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _identity(role: str, name: str, index: int) -> Identity:
    secret = name.encode().ljust(16, b".")
    return Identity(
        role=role, incarnation=secret, name=name, host=f"host-{name}", pid=1, secret=secret,
        endpoint=f"tcp://10.{index >> 8}.{index & 255}.1:5570" if role == "server" else "",
        job="default" if role == "worker" else "",
    )  # fmt: skip
