"""Run examples/recommend.py in several processes at once, in two modes and with two models, compared with one process.

Starts a coordinator and servers on this machine for each, then the workers, and ends when they do. Into --output go
summary.json, and for each model and mode loss.png, staleness.png, the logs of the nodes, and what each worker reported.

Exit codes: 0 what was trained is as good as it should be; 1 it is not, or the cluster broke; 130 Ctrl-C; 143 SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import demo
import demo_report
import recommend
from rich.table import Table

import zmqps

#: So much worse than one process alone a model may be: workers do not see each other's last updates.
SLACK = 0.02


def script(args: argparse.Namespace, model: str, *more: str) -> list[str]:
    """Return what a worker runs."""
    command = [recommend.__file__, "--model", model, "--examples", str(args.examples), "--folder", args.folder, *more]
    for name in ("data", "passes"):
        if getattr(args, name) is not None:
            command += [f"--{name}", str(getattr(args, name))]
    return command


def train(model: Any, name: str, mode: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train a model with a cluster; return what came of it."""
    began, output = time.monotonic(), args.output / f"{name}-{mode}"
    output.mkdir(parents=True, exist_ok=True)
    args.batch = model.batch
    limits = zmqps.Limits(heartbeat_interval=demo.TICK)
    workers: list[demo.Worker] = []
    with (
        zmqps.LocalCluster(args.servers, args.workers, limits=limits, directory=output) as nodes,
        zmqps.connect(nodes.address, observer=True) as observer,
    ):
        more = ("--coordinator", nodes.address, "--mode", mode, "--share", str(args.workers))
        try:
            for number in range(args.workers):
                workers.append(demo.Worker(number, script(args, name, *more), output))
            pushes = 1 + len(model.fields)  # of a step
            demo.watch(workers, observer, lambda rank: pushes * len(recommend.batches(model, args, 0, args.workers)))
        finally:
            for worker in workers:
                worker.end()
        params = observer.pull()
        tables = {field: observer.table(field) for field in model.fields}
        measured = model.measure(params, lambda field, ids: tables[field].rows(ids))
        rows, nbytes = (sum(getattr(t.statistics(), what) for t in tables.values()) for what in ("rows", "bytes"))
    results = sorted((worker.result() for worker in workers), key=lambda result: result.rank)
    facts = {"model": name, "mode": mode, "servers": args.servers, "workers": args.workers, "metric": model.metric}
    facts |= {"measured": round(measured, 4), "rows": rows, "row_bytes": nbytes}
    summary = demo_report.summarize(results, seconds=time.monotonic() - began, pushes_per_step=pushes, **facts)
    demo_report.plot_loss(results, output / "loss.png", {"movies": "squared error"}.get(name, "cross-entropy"))
    demo_report.plot_staleness(results, output / "staleness.png")
    caption = f"{name}, {mode}: {model.metric} [bold]{measured:.4f}[/bold], {rows:,} rows in {nbytes / 1e6:.1f} MB"
    demo.console.print(demo_report.table(summary, caption))
    return summary


def alone(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train the same in one process."""
    report = args.output / f"{name}-alone.json"
    args.output.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, *script(args, name, "--alone", "--report", str(report))], check=True)
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def wanted(model: Any, reference: float, args: argparse.Namespace) -> float:
    """Return how good a cluster's model must be, if one process alone has reached ``reference``."""
    if model.metric == "RMSE":
        return recommend.WANTED_RMSE if args.data is None else reference + SLACK
    return reference - SLACK


def run(args: argparse.Namespace) -> int:
    summaries: list[dict[str, Any]] = []
    shown = Table(caption="what one process reaches, and a cluster", caption_style="")
    for column in ("model", "metric", "one process", *args.modes):
        shown.add_column(column)
    good = True
    for name in args.models:
        if name == "movies" and args.data is None:
            demo.console.print(recommend.TERMS)
        model = recommend.MODELS[name](args)
        reference = alone(name, args)
        found = [train(model, name, mode, args) for mode in args.modes]
        summaries.append({"model": name, "alone": reference, "clusters": found})
        cells = [f"{one['measured']:.4f}, {one['seconds']:.0f} s" for one in found]
        shown.add_row(name, model.metric, f"{reference['measured']:.4f}, {reference['seconds']:.0f} s", *cells)
        for one in found:
            limit, measured = wanted(model, reference["measured"], args), one["measured"]
            if one["lost"] or model.better(measured, limit) != measured:
                demo.log.error("%s, %s: %s is %.4f, wanted %.4f", name, one["mode"], model.metric, measured, limit)
                good = False
    (args.output / "summary.json").write_text(json.dumps(summaries, indent=2) + "\n")
    demo.console.print(shown)
    demo.console.print(f"summary.json and plots are in {args.output}", highlight=False)
    return 0 if good else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train recommenders with sparse tables on this machine.")
    parser.add_argument("--servers", type=int, default=2, help="default: 2")
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default: 4)")
    parser.add_argument("--models", nargs="+", choices=recommend.MODELS, default=list(recommend.MODELS))
    parser.add_argument("--modes", nargs="+", choices=recommend.MODES, default=["async", "sync"])
    parser.add_argument("--passes", type=int, help="passes over the training data (default: movies 15, clicks 2)")
    parser.add_argument("--examples", type=int, default=200_000, help="clicks: examples to train with")
    parser.add_argument("--data", metavar="FILE", help="movies: other ratings, in the form of ml-100k.inter")
    parser.add_argument(
        "--folder", default=".zmqps/data", help="where ratings are downloaded to (default: .zmqps/data)"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/demo-sparse"), help="default: runs/demo-sparse")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(demo.run_logged(run, parse()))
