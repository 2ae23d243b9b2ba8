"""sparse: rows of a sparse table pulled and pushed, beside sockets, one process, and other systems."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

import zmqps
from bench.children import Child, call_all
from bench.ids import KINDS, RowWork
from bench.limits import PlainSockets
from bench.options import json_option, keep, output_option, row_optimizer_option, steps_option, transport_option
from bench.peers.process import PeerProcess
from bench.phases import phases_of, print_phases
from bench.processes import BusyTime
from bench.results import Row, timed
from bench.rows import OPERATIONS, OneProcess, OwnTable, RowWorker
from bench.setup import WARM_UP
from bench.stats import Times, percentile, ratio_spread
from bench.tables import console, new_table, print_rows, seconds
from bench.transfer import RECORDED_STEPS, recorded
from zmqps.trace import merge

#: Name -> (script, variant): other systems that do a step, a pull of a batch and then a push of it. A push_pull does as
#: much, in one round trip.
PEERS = {
    "tensorflow": ("tensorflow_rows", ""),
    "torch-rpc-uv": ("torch_rows", "uv"),
    "torch-rpc": ("torch_rows", ""),
    "torch-alone": ("torch_rows", "alone"),
}
#: Operations in a turn take so long, about: those that are too short are not asked for one by one.
TURN_ROWS = 1 << 15
#: Beside which a row stands: name -> what `print_beside` calls it.
BESIDE = {"moved": "moved", "numpy": "numpy", "own": "own table", **{name: name for name in PEERS}}


@dataclass(frozen=True, slots=True)
class Sparse:
    """A table and how it is reached."""

    work: RowWork
    transport: str = "tcp"
    steps: int = 20

    @property
    def labels(self) -> dict[str, Any]:
        """The fields of a row that say what was done."""
        work = self.work
        return {
            "model": work.title,
            "servers": work.servers,
            "workers": work.workers,
            "transport": self.transport,
            "optimizer": work.optimizer,
        }

    @property
    def different(self) -> int:
        """How many different ids a batch has, in the mean."""
        return round(sum(np.unique(numbers).size for numbers in self.work.batches()) / len(self.work.batches()))

    def nbytes(self, operation: str) -> tuple[int, int]:
        """Return the bytes that an operation sends, and gets: ids, and rows of float32, each once."""
        ids, rows = 8 * self.different, 4 * self.different * self.work.dim
        pushes, pulls = operation != "pull", operation != "push"
        return ids * (pushes + pulls) + rows * pushes, rows * pulls


def _start(stack: ExitStack, sparse: Sparse) -> tuple[zmqps.LocalCluster, list[Child], float]:
    """Start a cluster with a full table; return its workers, and the seconds that it took to fill it."""
    work = sparse.work
    cluster = stack.enter_context(zmqps.LocalCluster(work.servers, work.workers))
    workers = [
        stack.enter_context(Child(RowWorker, cluster.address, work, sparse.transport, number))
        for number in range(work.workers)
    ]
    for worker in workers:
        worker.result()
    return cluster, workers, max(call_all(workers, "load"))


def measure(
    sparse: Sparse, operations: Sequence[str] = OPERATIONS, python: Path | None = None, peers: Sequence[str] = ()
) -> list[Row]:
    """Let zmqps, sockets, one process and peers do operations in turns; return a row for each.

    Raises
    ------
    RuntimeError
        The values on the servers are wrong.
    """
    work = sparse.work
    batch = max(1, TURN_ROWS // work.batch)
    times: dict[str, dict[str, list[float]]] = {operation: {} for operation in operations}
    busy_s = dict.fromkeys(operations, 0.0)
    with ExitStack() as stack:
        cluster, workers, load_s = _start(stack, sparse)
        busy = BusyTime([*cluster.pids.values(), *(worker.pid for worker in workers)])
        sockets = {
            operation: stack.enter_context(
                PlainSockets(sparse.transport, work.servers, work.workers, *sparse.nbytes(operation))
            )
            for operation in operations
        }
        alone = {
            "moved": stack.enter_context(Child(OneProcess, work, False)),
            "numpy": stack.enter_context(Child(OneProcess, work, True)),
            "own": stack.enter_context(Child(OwnTable, work)),
        }
        for child in alone.values():
            child.result()
        others = {name: stack.enter_context(_peer(name, work, python)) for name in peers if python is not None}
        for turn in range(WARM_UP + sparse.steps):
            for operation in operations:
                busy.restart()
                found = {"ours": _all(call_all(workers, "steps", operation, f"{operation} {turn}", batch))}
                spent = busy.seconds()
                found["sockets"] = sockets[operation].steps(batch)
                found |= {name: child.call("steps", operation, batch) for name, child in alone.items()}
                if operation in ("step", "push_pull"):
                    found |= {name: peer.steps(batch) for name, peer in others.items()}
                if turn >= WARM_UP:
                    busy_s[operation] += spent / (batch * work.workers)
                    for name, some in found.items():
                        times[operation].setdefault(name, []).extend(some)
        # with one worker the order of pushes is known
        if work.workers == 1 and (off := workers[0].call("deviation")) > 1:
            raise RuntimeError(f"the rows are off by {off:.3g} times what rounding explains")
        num_rows, nbytes = workers[0].call("statistics")
    extra = {
        "different": sparse.different,
        "checked": work.workers == 1,
        "table_rows": num_rows,
        "table_nbytes": nbytes,
        "to_raw": nbytes / (4 * num_rows * work.dim),
        "loaded_rows_per_s": work.rows / load_s,
    }
    return [
        _row(sparse, operation, times[operation], {"cpu_s": busy_s[operation] / sparse.steps, **extra})
        for operation in operations
    ]


def _all(times: list[list[float]]) -> list[float]:
    return [seconds for of_worker in times for seconds in of_worker]


def _peer(name: str, work: RowWork, python: Path | None) -> PeerProcess:
    assert python is not None
    script, variant = PEERS[name]
    names = ("rows", "dim", "batch", "ids", "optimizer", "servers", "workers")
    return PeerProcess(
        python, f"bench.peers.{script}", [*(f"--{n}={getattr(work, n)}" for n in names), f"--variant={variant}"]
    )


def _row(sparse: Sparse, operation: str, times: dict[str, list[float]], extra: dict[str, Any]) -> Row:
    """Return a row of what all have taken."""
    ours, work = Times(tuple(times["ours"])), sparse.work
    beside: dict[str, Any] = {}
    for name in BESIDE:
        if name in times:
            others = Times(tuple(times[name]))
            low, high = ratio_spread(*_equally_often(times["ours"], times[name]))
            beside |= {f"{name}_s": others.median, f"ratio_to_{name}": ours.median / others.median}
            beside |= {f"ratio_to_{name}_low": low, f"ratio_to_{name}_high": high}
    return Row(
        case=f"sparse {operation}",
        **sparse.labels,
        **timed(ours, Times(tuple(times["sockets"])), sum(sparse.nbytes(operation))),
        extra={
            "rows_per_s": work.batch * work.workers / ours.median,
            "best_rows_per_s": work.batch * work.workers / ours.minimum,
            "p99_s": percentile(ours.seconds, 99),
            **beside,
            **extra,
        },
    )


def _equally_often(ours: Sequence[float], theirs: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Return as many of both: one process has had fewer turns than several workers."""
    return ours[:: max(1, len(ours) // len(theirs))], theirs


def record(sparse: Sparse, operation: str) -> merge.Trace:
    """Run some operations once more while every node records; return that."""
    with ExitStack() as stack:
        cluster, workers, _ = _start(stack, sparse)
        number = min(sparse.steps, RECORDED_STEPS)
        return recorded(cluster.address, number, lambda n: call_all(workers, "steps", operation, "recorded", n))


def print_beside(rows: Sequence[Row]) -> None:
    """Print how fast rows were, and what the same took elsewhere."""
    _print_table(rows, [name for name in BESIDE if name not in PEERS], ("million rows/s", "best", "processor"))
    stepped = [row for row in rows if any(f"{name}_s" in row.extra for name in PEERS)]
    if stepped:
        _print_table(stepped, list(PEERS))
    extra = rows[0].extra
    console.print(
        f"{extra['different']:,} different ids a batch; {extra['table_rows']:,} rows in "
        f"{extra['table_nbytes'] / 1e6:,.0f} MB, {extra['to_raw']:.2f} times their values; "
        f"loaded at {extra['loaded_rows_per_s'] / 1e6:.2f} million rows/s",
        style="dim",
        highlight=False,
    )


def _print_table(rows: Sequence[Row], names: Sequence[str], speeds: Sequence[str] = ()) -> None:
    """Print the time of others, and zmqps' over theirs; before these how fast zmqps was, where that is wanted."""
    names = [name for name in names if any(f"{name}_s" in row.extra for row in rows)]
    table = new_table("operation", *speeds, *[text for name in names for text in (BESIDE[name], f"×{BESIDE[name]}")])
    for row in rows:
        found = []
        if speeds:
            found = [f"{row.extra[name] / 1e6:.2f}" for name in ("rows_per_s", "best_rows_per_s")]
            found.append(seconds(row.extra["cpu_s"]))
        for name in names:
            found += [seconds(row.extra.get(f"{name}_s")), _ratio(row.extra.get(f"ratio_to_{name}"))]
        table.add_row(row.case.removeprefix("sparse "), *found)
    console.print(table)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


@click.command("sparse")
@click.option("--rows", type=click.IntRange(1), default=10_000_000, show_default=True, help="Of the table.")
@click.option("--dim", type=click.IntRange(1, 4096), default=64, show_default=True, help="Elements of a row.")
@click.option("--batch", type=click.IntRange(1), default=65_536, show_default=True, help="Ids of an operation.")
@click.option("--ids", type=click.Choice(KINDS), default="zipf", show_default=True, help="Which of the rows.")
@row_optimizer_option
@click.option("--servers", type=click.IntRange(1), default=1, show_default=True, help="Server processes.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Worker processes.")
@transport_option
@steps_option
@click.option(
    "--operation", "operations", type=click.Choice(OPERATIONS), multiple=True, help="Only this; may be repeated."
)
@click.option(
    "--peers",
    "python",
    type=click.Path(exists=True, path_type=Path),
    metavar="PYTHON",
    help="Let TensorFlow and PyTorch do a step beside step and push_pull: the interpreter of their environment.",
)
@click.option("--peer", "names", type=click.Choice(tuple(PEERS)), multiple=True, help="Only this; may be repeated.")
@click.option(
    "--phases",
    is_flag=True,
    help="Record some more push_pulls, and show what they consist of once gradients are summed.",
)
@output_option
@json_option
def command(
    operations: tuple[str, ...],
    transport: str,
    steps: int,
    python: Path | None,
    names: tuple[str, ...],
    phases: bool,
    output: Path | None,
    json_path: Path | None,
    **fields: Any,
) -> None:
    """Pull and push rows of a sparse table, of which a batch names some: rows/s, GB/s, time of an operation.

    pull; push; step, which is a pull of a batch and then a push of it; and push_pull, which pushes a batch and pulls
    the next one. Rows/s counts ids, also the same ones; GB/s the different ids and rows, which travel. The table is
    filled first.

    Beside it, in turns: plain sockets that move the same bytes (the limit); one process in which numpy gathers the
    rows and writes as many as were pushed (moved), or sums gradients and applies the optimizer as well (numpy), each
    knowing where rows are; a table of zmqps' in one process, without messages (own table). With one worker some rows
    are compared with what numpy makes of all pushes; a wrong one fails the case.
    """
    sparse = Sparse(RowWork(**fields), transport, steps)
    rows = measure(sparse, operations or OPERATIONS, python, names or tuple(PEERS))
    if phases:
        rows[-1] = _with_phases(rows[-1], sparse)
    print_rows([replace(row, extra={}) for row in rows])
    print_beside(rows)
    if phases:
        print_phases(rows[-1])
    keep(rows, json_path, output)


def _with_phases(row: Row, sparse: Sparse) -> Row:
    return replace(row, extra={**row.extra, "phases": phases_of(record(sparse, "push_pull"), "push_pull")})
