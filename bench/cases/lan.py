"""lan: a step over a wire between two hosts, beside plain sockets over the same wire."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import zmqps
from bench.children import TIMEOUT, Child, call_all
from bench.limits import SocketClient, SocketServer
from bench.namespaces import THERE, Hosts, NamespaceError, WireOptions, become_able, inside
from bench.options import codec_option, json_option, model_option, steps_option
from bench.processes import BusyTime
from bench.results import Row, timed, write_row
from bench.setup import WARM_UP, Setup
from bench.stats import Times
from bench.tables import console, new_table, seconds
from bench.transfer import TransferWorker, check_values
from zmqps.core.worker.connections.wire import WireSpeed

PORT = 5570


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """How the servers' host is set up.

    Attributes
    ----------
    slice_size
        As ``zmqps coordinator --slice-size`` takes it.
    io_threads
        Of each server.
    """

    slice_size: str = "4MiB"
    io_threads: int = 2


class LanWorker(TransferWorker):
    """The worker, which also tells what it has found out of the wire."""

    def travelled(self) -> tuple[int, int]:
        """Return the bytes sent and received so far."""
        told = self._worker.statistics()
        return told.bytes_sent, told.bytes_received

    def wires(self) -> list[WireSpeed]:
        """Return what is known of each server's."""
        return list(self._worker.statistics().wires.values())


@contextmanager
def _cluster(hosts: Hosts, setup: Setup, nodes: Nodes) -> Iterator[tuple[str, list[int]]]:
    """Start a coordinator and servers on their host; yield the address, and the numbers of the processes."""
    with ExitStack() as stack:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        trust = ["--insecure"]
        if setup.keyed:
            keys = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zmqps-keys-"))) / "keys"
            zmqps.keys.create(keys)
            trust = ["--keys", str(keys)]
            os.environ["ZMQPS_KEYS"] = str(keys)
            stack.callback(os.environ.pop, "ZMQPS_KEYS", None)
        address = f"tcp://{THERE}:{PORT}"
        zmqps_ = [sys.executable, "-m", "zmqps"]
        log = stack.enter_context(tempfile.TemporaryFile())
        options: dict[str, Any] = {"env": environment, "stdout": log, "stderr": subprocess.STDOUT}
        first = [*zmqps_, "coordinator", "--address", address, "--servers", str(setup.servers)]
        processes = [hosts.popen(hosts.there, [*first, "--slice-size", nodes.slice_size, *trust], **options)]
        for _ in range(setup.servers):
            words = ["--coordinator", address, "--address", f"tcp://{THERE}:0", "--io-threads", str(nodes.io_threads)]
            processes.append(hosts.popen(hosts.there, [*zmqps_, "server", *words, *trust], **options))
        yield address, [process.pid for process in processes]  # nsenter becomes the program


def measure(operation: str, setup: Setup, wire: WireOptions, nodes: Nodes) -> Row:
    """Run steps and plain sockets in turns over one wire; return what both took.

    Plain sockets move as many bytes as the codec leaves.

    Raises
    ------
    NamespaceError
        This machine cannot make the hosts.
    """
    ours: list[float] = []
    limits: list[float] = []
    with ExitStack() as stack:
        hosts = stack.enter_context(Hosts(wire))
        address, pids = stack.enter_context(_cluster(hosts, setup, nodes))
        workers = [
            stack.enter_context(Child(inside, hosts.here, LanWorker, address, setup, operation))
            for _ in range(setup.workers)
        ]
        for worker in workers:
            worker.result()
        before = workers[0].call("travelled")
        call_all(workers, "steps", "first", 1)
        pushed, pulled = (after - at for after, at in zip(workers[0].call("travelled"), before, strict=True))
        sides = setup.servers, setup.workers
        served, clients = _plain(stack, hosts, sides, pushed // setup.servers, pulled // setup.servers)
        busy = BusyTime([*pids, *(w.pid for w in workers)]), BusyTime([c.pid for c in (*served, *clients)])
        for turn in range(WARM_UP + setup.steps):
            if turn == WARM_UP:
                for side in busy:
                    side.restart()
            taken = [seconds for times in call_all(workers, "steps", f"step {turn}", 1) for seconds in times]
            plain = [seconds for times in call_all(clients, "steps", 1) for seconds in times]
            if turn >= WARM_UP:
                ours += taken
                limits += plain
        cpu, limit_cpu = (side.seconds() / (setup.steps * setup.workers) for side in busy)
        checked = check_values(setup, workers[0])
        wires = workers[0].call("wires")
        program = hosts.delayed_by_program
    nbytes = max(pushed, pulled)
    return Row(
        case=f"lan {operation}{' keys' if setup.keyed else ''} {wire}",
        **setup.labels,
        **timed(Times(tuple(ours)), Times(tuple(limits)), pushed + pulled),
        bound_s=setup.workers * nbytes / wire.bytes_per_s,  # one wire a host, whatever runs on it
        extra={
            "cpu_s": cpu,
            "limit_cpu_s": limit_cpu,
            "num_cores": os.cpu_count(),
            "mbit": wire.mbit,
            "delay_ms": wire.delay_ms,
            "loss": wire.loss,
            "delayed_by_program": program,
            "slice_size": nodes.slice_size,
            "io_threads": nodes.io_threads,
            "wires": [found.counters() for found in wires],
            "checked": checked,
        },
    )


def _plain(
    stack: ExitStack, hosts: Hosts, sides: tuple[int, int], nbytes_in: int, nbytes_out: int
) -> tuple[Sequence[Child], list[Child]]:
    """Start plain sockets on both hosts."""
    servers, workers = sides
    sizes = nbytes_in, nbytes_out
    served = [
        stack.enter_context(Child(inside, hosts.there, SocketServer, "tcp", *sizes, THERE)) for _ in range(servers)
    ]
    for child in served:
        child.result()
    addresses = call_all(served, "address")
    clients = [
        stack.enter_context(Child(inside, hosts.here, SocketClient, addresses, nbytes_out, nbytes_in))
        for _ in range(workers)
    ]
    for child in clients:
        child.result(TIMEOUT)
    return served, clients


def print_share(row: Row) -> None:
    """Print what of the line was payload each way, and the bounds of line and processor."""
    extra: Mapping[str, Any] = row.extra
    assert row.median_s is not None
    assert row.limit_s is not None
    assert row.bound_s is not None
    assert row.workers is not None
    cores = extra["num_cores"] * 1.0
    table = new_table(row.title, "step", "of the line", "processor time", "if no core waits")
    for name, took, cpu in (("zmqps", row.median_s, extra["cpu_s"]), ("plain TCP", row.limit_s, extra["limit_cpu_s"])):
        least = cpu * row.workers / cores
        table.add_row(name, seconds(took), f"{row.bound_s / took:.1%}", seconds(cpu), seconds(least))
    table.add_row("the line, without headers", seconds(row.bound_s), "100%")
    console.print(table)
    console.print(
        f"goodput beside plain TCP {row.limit_s / row.median_s:.3f} "
        f"(quartiles {1 / (row.ratio_high or 1):.3f} to {1 / (row.ratio_low or 1):.3f}), {row.steps} steps",
        highlight=False,
    )
    for found in extra["wires"]:
        console.print(
            f"the worker measured {found['wire_out_mb_s']} MB/s out, {found['wire_in_mb_s']} MB/s in, "
            f"{found['wire_round_trip_ms']} ms a round trip; window {found['window_nbytes'] / 2**20:.1f} MiB",
            highlight=False,
        )
    if extra["delayed_by_program"]:
        console.print("this kernel lacks netem: a program delays frames, and takes processor time", highlight=False)


@click.command("lan")
@click.option("--mbit", type=click.FloatRange(min=1), default=1000.0, show_default=True, help="Of the wire, each way.")
@click.option("--delay", "delay_ms", type=click.FloatRange(0, 1000), default=0.0, show_default=True,
              help="Milliseconds that the wire adds to a round trip.")  # fmt: skip
@click.option("--loss", type=click.FloatRange(0, 0.5), default=0.0, show_default=True,
              help="Share of the frames that vanish each way: 0.001 is one of a thousand.")  # fmt: skip
@click.option("--operation", type=click.Choice(("push", "pull", "push_pull")), default="push_pull", show_default=True)
@click.option("--keys", "keyed", is_flag=True, help="Encrypt: the cluster has keys. Plain sockets stay plain.")
@click.option("--servers", type=click.IntRange(1), default=1, show_default=True, help="On the other host.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="On this host.")
@click.option("--io-threads", type=click.IntRange(1, 64), help="Of each server and worker, for sockets.")
@click.option("--slice-size", default="4MiB", show_default=True, help="As zmqps coordinator takes it.")
@codec_option("raw")
@model_option("resnet50")
@steps_option
@json_option
def command(
    mbit: float, delay_ms: float, loss: float, operation: str, slice_size: str, json_path: Path | None, **fields: Any
) -> None:
    """A step over a wire between two hosts, beside plain sockets over the same wire, in turns.

    The hosts are network namespaces of this machine, and share its processors; the wire has the rate,
    the delay and the loss that it is given. It needs root, or a kernel that lets users have
    namespaces. Plain sockets move as many bytes as the codec leaves.
    """
    wire = WireOptions(mbit=mbit, delay_ms=delay_ms, loss=loss)
    io_threads = fields["io_threads"]
    nodes = Nodes(slice_size=slice_size) if io_threads is None else Nodes(slice_size=slice_size, io_threads=io_threads)
    try:
        become_able(sys.argv[1:])
        row = measure(operation, Setup(**fields), wire, nodes)
    except NamespaceError as error:
        raise click.ClickException(f"cannot make two hosts and a wire here: {error}") from None
    print_share(row)
    if json_path is not None:
        write_row(json_path, row)
