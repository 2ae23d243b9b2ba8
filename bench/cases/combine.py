"""combine: what a step of hosts with several workers moves and takes on a LAN, with one push a host and without."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

import zmqps
from bench import models
from bench.children import Child, call_all
from bench.options import json_option, model_option
from bench.results import Row, write_row
from bench.setup import LEARNING_RATE
from bench.tables import print_rows
from bench.wires import Wires, WiresError, enter_network

PORT = 5570
WARM_UP = 2
BITS = {"gbit": 1e9, "mbit": 1e6}


class HostWorker:
    """A worker on one of the hosts."""

    def __init__(self, network: int, address: str, name: str, combine: str, model: str, mode: str) -> None:
        enter_network(network)
        self._worker = zmqps.connect(address, name=name, combine=combine, timeout=60)
        shapes = models.find(model)
        start = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self._worker.init(start, optimizer=zmqps.optim.sgd(LEARNING_RATE), mode=mode, timeout=120)
        self._grads = {name: np.full(shape, self._worker.rank + 1, np.float32) for name, shape in shapes.items()}
        self._out = start

    def steps(self, number: int) -> list[float]:
        """Take steps; return the seconds of each."""
        seconds = []
        for _ in range(number):
            begun_at = time.perf_counter()
            self._worker.push_pull(self._grads, out=self._out, timeout=300)
            seconds.append(time.perf_counter() - begun_at)
        return seconds

    def look(self) -> tuple[float, float]:
        """Return the first and the last value."""
        arrays = list(self._out.values())
        return float(arrays[0].flat[0]), float(arrays[-1].flat[-1])

    def finish(self) -> None:
        """Leave."""
        self._worker.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is run.

    Attributes
    ----------
    model, servers, hosts, each, steps
        What is moved, by how many servers (each a host of its own), hosts of workers and workers on each, how often.
    rate
        Of every host's wire.
    asynchronous
        The mode.
    """

    model: str
    servers: int
    hosts: int
    each: int
    steps: int
    rate: str
    asynchronous: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the model."""
        return sum(4 * int(np.prod(shape)) for shape in models.find(self.model).values())


def run(plan: Plan, combine: str) -> dict[str, Any]:
    """Train on a LAN of its own; return what went over the workers' wires, the steps' times, and the values."""
    servers, hosts = [f"server{n}" for n in range(plan.servers)], [f"host{n}" for n in range(plan.hosts)]
    with ExitStack() as stack:
        wires = stack.enter_context(Wires([*servers, *hosts], plan.rate))
        address = f"tcp://{Wires.address(0)}:{PORT}"
        workers = plan.hosts * plan.each
        _node(stack, wires, "server0", "coordinator", f"--address={address}", f"--servers={plan.servers}",
              f"--workers={workers}")  # fmt: skip
        for number, name in enumerate(servers):
            own = f"--address=tcp://{Wires.address(number)}:0"
            _node(stack, wires, name, "server", f"--coordinator={address}", own)
        mode = "async" if plan.asynchronous else "sync"
        children = [
            stack.enter_context(Child(HostWorker, wires.pid(host), address, f"{host}-{n}", combine, plan.model, mode))
            for host in hosts
            for n in range(plan.each)
        ]
        for child in children:
            child.result()
        call_all(children, "steps", WARM_UP)
        before = sum(wires.nbytes(host) for host in hosts)
        seconds = call_all(children, "steps", plan.steps)
        moved = sum(wires.nbytes(host) for host in hosts) - before
        values = call_all(children, "look")
        call_all(children, "finish")
    slowest = [max(of_step) for of_step in zip(*seconds, strict=True)]
    return {"nbytes": moved / plan.steps, "seconds": slowest, "values": values}


def _node(stack: ExitStack, wires: Wires, host: str, *command: str) -> None:
    process = subprocess.Popen(
        [*wires.inside(host), sys.executable, "-m", "zmqps", *command, "--insecure", "--log-level=warning"]
    )
    stack.callback(process.wait, 30)
    stack.callback(process.kill)  # nothing is to be handed over


def bits_per_s(rate: str) -> float:
    """Return a rate as ``tc`` takes it, in bits a second."""
    for unit, factor in BITS.items():
        if rate.endswith(unit) and rate.removesuffix(unit).isdecimal():
            return float(rate.removesuffix(unit)) * factor
    raise click.BadParameter(f"a rate is, say, 1gbit or 100mbit, not {rate!r}")


def measure(plan: Plan, repeats: int) -> Row:
    """Run both in turns; return the row of the combined run, its limit being the run without."""
    alone, combined = [], []
    for _ in range(repeats):
        alone.append(run(plan, "none"))
        combined.append(run(plan, "host"))
    without, seconds = _joined(alone, "seconds"), _joined(combined, "seconds")
    nbytes = [median(one["nbytes"] for one in runs) for runs in (alone, combined)]
    same = plan.asynchronous or {v for one in alone for v in one["values"]} == {
        v for one in combined for v in one["values"]
    }
    if not same:
        raise click.ClickException(f"the values differ: {alone[0]['values']} and {combined[0]['values']}")
    bound = (1 if plan.asynchronous else 2) * plan.nbytes / (bits_per_s(plan.rate) / 8)
    return Row(
        case="combine async" if plan.asynchronous else "combine", model=plan.model, servers=plan.servers,
        workers=plan.hosts * plan.each, transport=plan.rate, optimizer="sgd", codec="raw",
        median_s=median(seconds), min_s=min(seconds), steps=len(seconds), limit_s=median(without),
        ratio_to_limit=median(seconds) / median(without),
        bound_s=bound,
        extra={
            "hosts": plan.hosts, "workers_each": plan.each, "mb_a_step_without": nbytes[0] / 1e6,
            "mb_a_step_combined": nbytes[1] / 1e6, "ratio_of_bytes": nbytes[1] / nbytes[0],
            "least_ratio": 1 / plan.each, "bound_without_s": plan.each * bound,
        },
    )  # fmt: skip


def _joined(runs: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [value for one in runs for value in one[name]]


@click.command("combine")
@model_option("resnet50")
@click.option("--servers", type=click.IntRange(1), default=2, show_default=True, help="Each on a host of its own.")
@click.option("--hosts", type=click.IntRange(1), default=2, show_default=True, help="Hosts of workers.")
@click.option("--workers-each", type=click.IntRange(1), default=4, show_default=True, help="Workers on each of them.")
@click.option("--rate", default="1gbit", show_default=True, help="Of each host's wire, either way, as tc takes it.")
@click.option("--steps", type=click.IntRange(1), default=4, show_default=True, help="To measure, in each run.")
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Runs of each kind, in turns.")
@click.option("--async", "asynchronous", is_flag=True, help="Asynchronous; by default synchronous.")
@json_option
def command(
    model: str,
    servers: int,
    hosts: int,
    workers_each: int,
    rate: str,
    steps: int,
    repeats: int,
    asynchronous: bool,
    json_path: Path | None,
) -> None:
    """Bytes on the wire and step times of hosts with several workers, with connect(combine="host") and without.

    Hosts are network namespaces of this machine, whose wires `tc` limits: that needs root. Median and limit are the
    slowest worker's step, combined and without; bound is what the wire allows for one model a host, there and back. The
    bytes are those that the interfaces of the workers' hosts have counted.
    """
    bits_per_s(rate)
    plan = Plan(
        model=model, servers=servers, hosts=hosts, each=workers_each, steps=steps, rate=rate, asynchronous=asynchronous
    )
    try:
        row = measure(plan, repeats)
    except WiresError as error:
        raise click.ClickException(str(error)) from None
    print_rows([row])
    if json_path is not None:
        write_row(json_path, row)
