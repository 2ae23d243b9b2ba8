"""(g) What a worker's cache of hot rows saves, and what it costs: bytes on Zipf ids, and how well recommenders learn.

A real coordinator and two servers, over TCP. First one worker pulls and pushes the rows of ids by Zipf's law, the same
ids to tables that differ in the cache alone, one step of each in turn. Then four workers, which are threads, train the
models of `examples/recommend.py`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import zmqps
from examples import recommend
from experiments.report import COLORS, Outcome, new_figure, number, save_figure

#: Of the table: ids there are, elements of a row; of a step: ids, as 512 examples of 8 fields have them.
NUM_IDS, DIM, BATCH = 1_000_000, 32, 4096
EXPONENTS = (0.8, 1.05, 1.3)
STEPS, WARM_UP = 200, 50
SGD, ADAGRAD = zmqps.optim.sgd(0.01), zmqps.optim.rowwise_adagrad(0.01)
#: Name -> the optimizer, and the options of the cache.
WAYS: Mapping[str, tuple[zmqps.optim.OptimizerSpec, dict[str, Any] | None]] = {
    "no cache": (SGD, None),
    "reads, 100,000 rows, 8 clocks": (SGD, {"rows": 100_000, "staleness": 8}),
    "deferred, 100,000 rows, 2 clocks": (SGD, {"rows": 100_000, "staleness": 2, "defer": True}),
    "deferred, 100,000 rows, 8 clocks": (SGD, {"rows": 100_000, "staleness": 8, "defer": True}),
    "deferred, 100,000 rows, 32 clocks": (SGD, {"rows": 100_000, "staleness": 32, "defer": True}),
    "deferred, 10,000 rows, 8 clocks": (SGD, {"rows": 10_000, "staleness": 8, "defer": True}),
    "deferred, 1,000 rows, 8 clocks": (SGD, {"rows": 1_000, "staleness": 8, "defer": True}),
    "Adagrad, pushed rows asked for": (ADAGRAD, {"rows": 100_000, "staleness": 8}),
    "Adagrad, own pushes unseen, deferred": (
        ADAGRAD, {"rows": 100_000, "staleness": 8, "defer": True, "read_own": False},
    ),
}  # fmt: skip
#: Of training: clocks that rows are read for; None: without a cache. And how often each is trained.
BOUNDS = (None, 2, 8, 32)
WORKERS, RUNS, CACHE_ROWS = 4, 2, 20_000


def zipf(exponent: float, size: int, rng: np.random.Generator) -> Any:
    """Return ids: that of rank k is drawn with a probability as k to the power of minus the exponent."""
    mass = np.cumsum(np.arange(1, NUM_IDS + 1) ** -exponent)
    ranks = np.searchsorted(mass, rng.random(size) * mass[-1])
    return (ranks * 2654435761) % (1 << 40)


def travel(exponent: float, steps: int = STEPS, warm_up: int = WARM_UP) -> dict[str, tuple[float, float]]:
    """Pull and push each way; return by its name the bytes and seconds of a step."""
    rng, found = np.random.default_rng(1), {name: np.zeros(2) for name in WAYS}
    batches = zipf(exponent, (steps + warm_up) * BATCH, rng).reshape(-1, BATCH)
    gradients = rng.normal(size=(BATCH, DIM)).astype("f4")
    initial = zmqps.initial.normal(0.01)
    with zmqps.LocalCluster(2, 1) as cluster, zmqps.connect(cluster.address, transport="tcp") as worker:
        names = {name: f"table{i}" for i, name in enumerate(WAYS)}
        tables = {names[name]: zmqps.table(DIM, optimizer=way[0], initial=initial) for name, way in WAYS.items()}
        worker.init({}, tables=tables, mode="async")
        ways = {
            name: worker.table(names[name], cache=None if way[1] is None else zmqps.row_cache(**way[1]))
            for name, way in WAYS.items()
        }
        for step, ids in enumerate(batches):
            for name, table in ways.items():
                moved, began = _moved(worker), time.perf_counter()
                table.pull(ids)
                table.push(ids, gradients)
                seconds = time.perf_counter() - began
                if step >= warm_up:
                    found[name] += (_moved(worker) - moved) / steps, seconds / steps
        worker.finish()
    return {name: (float(sums[0]), float(sums[1])) for name, sums in found.items()}


def train(name: str, bound: int | None, options: list[str]) -> tuple[float, float]:
    """Train a model with four workers; return what is measured in the end, and the bytes of a worker's step."""
    more = [] if bound is None else ["--cache", str(CACHE_ROWS), "--cache-staleness", str(bound)]
    args = recommend.parser().parse_args(["--model", name, "--mode", "async", "--share", str(WORKERS), *options, *more])
    model = recommend.MODELS[name](args)
    args.batch = args.batch or model.batch
    with zmqps.LocalCluster(2, WORKERS) as cluster, ThreadPoolExecutor(WORKERS) as pool:
        workers = [zmqps.connect(cluster.address, transport="tcp", timeout=60.0) for _ in range(WORKERS)]
        curves = list(pool.map(lambda worker: recommend.train(worker, model, args), workers))
        moved = sum(_moved(worker) for worker in workers) / sum(map(len, curves))
        measured = model.measure(workers[0].pull(), lambda name, ids: workers[0].table(name).rows(ids))
        for worker in workers:
            worker.finish()
    return measured, moved


def _moved(worker: zmqps.Worker) -> int:
    figures = worker.statistics()
    return figures.bytes_sent + figures.bytes_received


def run(directory: Path) -> Outcome:
    """Do all of it; the ratings of `movies` are downloaded to runs/data at first."""
    moved = {str(exponent): travel(exponent) for exponent in EXPONENTS}
    trained = {
        name: {str(bound): [train(name, bound, ["--folder", "runs/data"]) for _ in range(RUNS)] for bound in BOUNDS}
        for name in recommend.MODELS
    }
    rows = []
    for exponent, found in moved.items():
        least, seconds = found["no cache"]
        for name, (nbytes, took) in found.items():
            share, ratio = number(nbytes / least, 2), number(took / seconds, 2)
            rows.append([f"Zipf {exponent}: {name}", number(nbytes / 1e3, 0), share, ratio, ""])
    for name, points in trained.items():
        for bound, runs in points.items():
            nbytes, share = _mean_bytes(runs), _mean_bytes(runs) / _mean_bytes(points["None"])
            shown = f"{recommend.MODELS[name].metric} {', '.join(number(value, 4) for value, _ in runs)}"
            rows.append([f"{name}: {_label(bound)}", number(nbytes / 1e3, 0), number(share, 2), "", shown])
    draw(directory, moved, trained)
    return Outcome(
        "Rows that are read again for 8 clocks, and gradients that are deferred as long, take a fifth to a half of the "
        "bytes away, the more the more skewed ids are, and recommenders learn as well.",
        ("way", "kB a step", "of no cache", "time, of no cache", "learned"),
        rows,
        {"num_ids": NUM_IDS, "dim": DIM, "batch": BATCH, "steps": STEPS, "moved": moved, "trained": trained},
    )


def draw(directory: Path, moved: Mapping[str, Any], trained: Mapping[str, Any]) -> None:
    """Draw bytes against clocks, and what was learned against bytes."""
    figure, axes = new_figure(1, 2, 5.5, 4.0)
    clocks = [bound for bound in BOUNDS if bound is not None]
    for color, (exponent, found) in zip(COLORS, moved.items(), strict=False):
        shares = [found[f"deferred, 100,000 rows, {bound} clocks"][0] / found["no cache"][0] for bound in clocks]
        axes[0, 0].plot(clocks, shares, "o-", color=color, label=exponent)
    axes[0, 0].set(xlabel="clocks", ylabel="bytes, of those without a cache", xscale="log", ylim=(0, 1))
    axes[0, 0].set_xticks(clocks, labels=map(str, clocks))
    axes[0, 0].minorticks_off()
    axes[0, 0].legend(title="Zipf's exponent")
    for color, (name, points) in zip(COLORS, trained.items(), strict=False):
        shares = [_mean_bytes(runs) / _mean_bytes(points["None"]) for runs in points.values() for _ in runs]
        measured = [value for runs in points.values() for value, _ in runs]
        axes[0, 1].plot(shares, measured, "o", color=color, label=f"{name}: {recommend.MODELS[name].metric}")
    axes[0, 1].set(xlabel="bytes, of those without a cache", ylim=(0.75, 0.95))
    axes[0, 1].legend(loc="center left")
    save_figure(figure, directory / "row_cache.png")


def _mean_bytes(runs: Sequence[tuple[float, float]]) -> float:
    return float(np.mean([nbytes for _, nbytes in runs]))


def _label(bound: str) -> str:
    return "no cache" if bound == "None" else f"{bound} clocks"
