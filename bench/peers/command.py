"""zmqps and other systems doing the same work in turns: A B A B."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import click

import zmqps
from bench import models
from bench.children import ChildError, call_all
from bench.limits import PlainSockets
from bench.peers.process import PeerError, PeerProcess
from bench.results import environment
from bench.setup import WARM_UP, Setup
from bench.stats import Times, ratio_spread
from bench.tables import console, new_table, seconds
from bench.transfer import start_workers

#: Name -> (script, variant).
PEERS = {
    "tensorflow": ("tensorflow_ps", ""),
    "torch-rpc-uv": ("torch_rpc", "uv"),
    "torch-rpc": ("torch_rpc", ""),
    "ray": ("ray_ps", ""),
    "gloo": ("gloo", ""),
    "sockets": ("", ""),
}
#: Title -> (model, optimizer, servers, workers, zmqps' transport).
WORKS = {
    "sgd-1x1-tcp": ("resnet50", "sgd", 1, 1, "tcp"),
    "sgd-1x1": ("resnet50", "sgd", 1, 1, "auto"),
    "adam-1x1": ("resnet50", "adam", 1, 1, "auto"),
    "sgd-2x2": ("resnet50", "sgd", 2, 2, "auto"),
    "latency-tcp": ("1KB", "sgd", 1, 1, "tcp"),
}
#: Steps in a turn where a step is short.
BATCH = 50


@dataclass(frozen=True, slots=True)
class Result:
    """One work, done by zmqps and by a peer in turns; seconds of a worker's step."""

    work: str
    peer: str
    zmqps_s: float
    peer_s: float
    zmqps_min_s: float
    peer_min_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    steps: int


def compare(work: str, peer: str, python: Path, steps: int) -> Result:
    """Let zmqps and a peer do a work in turns.

    Raises
    ------
    PeerError
        The peer did not do it.
    """
    model, optimizer, servers, workers, transport = WORKS[work]
    script, variant = PEERS[peer]
    batch = BATCH if models.num_bytes(models.find(model)) < 1 << 16 else 1
    ours: list[float] = []
    theirs: list[float] = []
    with ExitStack() as stack:
        cluster = stack.enter_context(zmqps.LocalCluster(servers=servers, workers=workers))
        children = start_workers(stack, cluster.address, Setup(model, servers, workers, transport, optimizer))
        if script:
            options = {"model": model, "optimizer": optimizer, "servers": servers, "workers": workers}
            flags = [f"--{name}={value}" for name, value in options.items()]
            other = stack.enter_context(PeerProcess(python, script, [*flags, f"--variant={variant}"]))
        else:
            nbytes = models.num_bytes(models.find(model))
            other = stack.enter_context(PlainSockets(transport, servers, workers, nbytes, nbytes))
        for turn in range(WARM_UP + steps):
            measured = [s for times in call_all(children, "steps", f"turn {turn}", batch) for s in times]
            answered = other.steps(batch)
            if turn >= WARM_UP:
                ours += measured
                theirs += answered
    a, b = Times(tuple(ours)), Times(tuple(theirs))
    low, high = ratio_spread(ours, theirs)
    return Result(work, peer, a.median, b.median, a.minimum, b.minimum, a.median / b.median, low, high, len(ours))


def print_results(results: list[Result]) -> None:
    """Print what both took; below 1 zmqps is faster."""
    table = new_table("work", "peer", "zmqps", "peer", "min", "min", "ratio", "quartiles", "of minima")
    for r in results:
        times = [seconds(value) for value in (r.zmqps_s, r.peer_s, r.zmqps_min_s, r.peer_min_s)]
        spread = f"{r.ratio_low:.2f}–{r.ratio_high:.2f}"
        table.add_row(r.work, r.peer, *times, f"{r.ratio:.2f}", spread, f"{r.zmqps_min_s / r.peer_min_s:.2f}")
    console.print(table)


def write_results(path: Path, results: list[Result]) -> None:
    """Write them with machine, versions and commit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {**environment(), "rows": [asdict(result) for result in results]}
    path.write_text(json.dumps(content, indent=1) + "\n")


@click.command("peers")
@click.option(
    "--python",
    type=click.Path(exists=True, path_type=Path),
    default=Path(".venv-peers/bin/python"),
    show_default=True,
    help="The interpreter of the peers' environment; `make bench-peers` makes it.",
)
@click.option("--peer", "peers", type=click.Choice(list(PEERS)), multiple=True, help="Only this one; may be repeated.")
@click.option("--work", "works", type=click.Choice(list(WORKS)), multiple=True, help="Only this one; may be repeated.")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True, help="Turns, after three to warm up.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), default=Path("runs/bench/peers.json"))
def command(python: Path, peers: tuple[str, ...], works: tuple[str, ...], steps: int, path: Path) -> None:
    """Let zmqps and other systems do the same work in turns; print zmqps' time over theirs.

    How each peer is set up: bench/peers/README.md. One that cannot do a work here is reported, the
    others go on; then the exit code is 1.
    """
    results: list[Result] = []
    failed = []
    for work in works or WORKS:
        for peer in peers or PEERS:
            console.print(f"{work}: {peer}", style="dim", highlight=False)
            try:
                results.append(compare(work, peer, python.absolute(), steps))
            except (PeerError, ChildError, zmqps.PSError) as error:
                failed.append(f"{work} {peer}")
                console.print(str(error), style="red", highlight=False, markup=False)
            else:
                write_results(path, results)  # now: an interrupted run is worth something
    print_results(results)
    if failed:
        raise click.ClickException(f"these could not be compared: {', '.join(failed)}")
