"""core: messages per second through the machines of the core, without sockets or kernels."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

import zmqps
from bench import models
from bench.options import json_option, model_option, report, steps_option
from bench.results import Row
from bench.setup import GRADIENT_SCALE, WARM_UP
from bench.stats import Times
from zmqps.client.tensors import describe
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.node.member import Identity
from zmqps.core.protocol.events import (
    COORDINATOR,
    Action,
    Connect,
    Peer,
    Received,
    Resolve,
    Returned,
    Run,
    Send,
    server_peer,
)
from zmqps.core.protocol.messages import Message
from zmqps.core.protocol.wire import decode, encode
from zmqps.core.server.builds import Room
from zmqps.core.server.dense.aggregate import mean_in_passes
from zmqps.core.server.dense.rules import UpdateKernel
from zmqps.core.server.extensions import ServerMachine
from zmqps.core.server.shard import Shard
from zmqps.core.worker.extensions import SessionMachine
from zmqps.core.worker.operations import Attached, Exchange, Operation, StartJob
from zmqps.core.worker.transfer import PullTransfer, PushTransfer, Source, Target, plan
from zmqps.gpu.handover import Handover

FOREVER = 1e9


class NoRules:
    """An optimizer that does nothing, in no time."""

    slot_fill: tuple[float, ...] = ()
    allocates = False

    def kernels(self, names: Sequence[str]) -> tuple[Sequence[UpdateKernel | None], Sequence[int], Sequence[int]]:
        """Return the one kernel there is, for all."""
        return [lambda w, g, out, slots, step: None], [0] * len(names), [0] * len(names)

    def all_finite(self, g: Any, /) -> bool:
        """Never look."""
        return True

    mean = staticmethod(mean_in_passes)


class Wires:
    """A coordinator, a server and workers in one thread; messages between them are encoded and decoded.

    Parameters
    ----------
    workers
        How many, named ``worker0`` and so on.
    make_shard
        Builds the server's shard, as `ServerKernel` takes it; by default one whose optimizer does nothing.
    """

    def __init__(self, workers: int = 1, make_shard: Callable[..., Shard] | None = None) -> None:
        self.messages = 0
        self._machines: dict[str, Any] = {
            "coordinator": CoordinatorMachine(
                _identity("coordinator", "coordinator", "inproc://c"), CoordinatorOptions(servers=1, workers=workers)
            ),
            "server": ServerMachine(_identity("server", "server", "inproc://s"), "inproc://c", make_shard or _shard),
        }
        for name in (f"worker{index}" for index in range(workers)):
            self._machines[name] = SessionMachine(_identity("worker", name, ""), "inproc://c", lambda array: True)
        self._frames: deque[tuple[str, Peer, list[Any]]] = deque()
        self._resolved: dict[Operation, Any] = {}
        for name, machine in self._machines.items():
            self._execute(name, machine.start(0.0))

    @property
    def worker(self) -> SessionMachine:
        """The first worker's machine."""
        machine = self._machines["worker0"]
        assert isinstance(machine, SessionMachine)
        return machine

    def run(self, *operations: Operation) -> list[Any]:
        """Let the first workers do one of these each; return the results once no message is under way any more."""
        for index, operation in enumerate(operations):
            self._begin(f"worker{index}", operation)
        while self._frames:
            self._take(*self._frames.popleft())
        values = [self._resolved.pop(operation) for operation in operations]
        for value in values:
            if isinstance(value, Exception):
                raise value
        return values

    def _begin(self, name: str, operation: Operation) -> None:
        """Let a worker begin something."""
        self._execute(name, self._machines[name].handle(operation, 0.0))

    def _take(self, name: str, peer: Peer, frames: list[Any]) -> Message:
        """Let a node take a message; return it."""
        message = decode(frames)
        self._execute(name, self._machines[name].handle(Received(peer, message), 0.0))
        return message

    def _execute(self, name: str, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(peer, message):
                    self.messages += 1
                    # the name of a connection that one opened, or of its opener
                    to = {COORDINATOR: "coordinator", server_peer(0): "server"}.get(peer) or peer[1:].decode()
                    known = (
                        {"coordinator": COORDINATOR, "server": server_peer(0)}.get(name) if peer[:1] == b"@" else None
                    )
                    self._frames.append((to, known or b"@" + name.encode(), encode(message)))
                case Resolve(operation, value):
                    self._resolved[operation] = value
                case Run(tag, work):
                    self._execute(name, self._machines[name].handle(Returned(tag, work()), 0.0))
                case Connect():
                    pass


def _identity(role: str, name: str, endpoint: str) -> Identity:
    secret = name.encode().ljust(16)
    return Identity(
        role=role, incarnation=secret, name=name, host="here", pid=1, endpoint=endpoint, job="default", secret=secret
    )


def _shard(job: JobSpec, placement: Placement, index: int, room: Room) -> Shard:
    return Shard(placement, index, NoRules())


def measure(model: str, steps: int) -> Row:
    """Time push_pulls of a model without copies over a wire."""
    values = models.arrays(models.find(model), 1.0)
    parameters, flat = describe(values, Handover())
    job = JobSpec(parameters=parameters, optimizer=zmqps.optim.sgd().to_wire(), mode="async")
    wires = Wires()
    attached: Attached
    [attached] = wires.run(StartJob(FOREVER, job=job, values=flat))
    gradients = [np.full_like(array, GRADIENT_SCALE) for array in flat]
    cargoes = plan(attached.placement)
    seconds = []
    for step in range(WARM_UP + steps):
        before = wires.messages
        push = PushTransfer(cargoes=cargoes, source=Source(arrays=gradients))
        both = Exchange(FOREVER, push=push, pull=PullTransfer(cargoes=cargoes, target=Target(arrays=flat)))
        started = time.perf_counter()
        wires.run(both)
        if step >= WARM_UP:
            seconds.append(time.perf_counter() - started)
    messages = wires.messages - before
    times = Times(tuple(seconds))
    return Row(
        case="core",
        model=model,
        median_s=times.median,
        p90_s=times.p90,
        min_s=times.minimum,
        steps=len(seconds),
        extra={
            "messages": messages,
            "messages_per_s": messages / times.median,
            "best_messages_per_s": messages / times.minimum,
        },
    )


@click.command("core")
@model_option("1KB")
@steps_option
@json_option
def command(model: str, steps: int, json_path: Path | None) -> None:
    """A push_pull through the core's machines in one thread: no sockets, no processes, no kernels.

    What is left is what Python does for a message: coding, bookkeeping, landing the values.
    """
    report(measure(model, steps), json_path)
