"""scale: how long steps take, and what the coordinator has to do, in clusters of up to a thousand workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from bench import models
from bench.cases import crowd
from bench.options import keep, model_option
from bench.results import Row
from bench.scale import costs as measured
from bench.scale import published
from bench.scale.cluster import Cluster, Network, Outcome, Size
from bench.scale.costs import Costs
from bench.scale.idle import COMPUTE_S, Waiting, lognormal, sweep
from bench.setup import Setup
from bench.stats import Times
from bench.tables import console, new_table, seconds

WORKERS, MORE_WORKERS = (1, 8, 64, 250, 1000), (1, 2, 4, 8, 16, 32, 64, 128, 250, 500, 1000)
SERVERS, MORE_SERVERS = (1, 4, 16, 64), (1, 2, 4, 8, 16, 32, 64)
MODES = ("async", "sync")
#: Steps of each worker that are looked at.
STEPS, MORE_STEPS = 2, 6
#: Of those that wait for each other, and how many steps they take; Li et al. had 800 workers.
WAITING, MORE_WAITING = (100, 50), (800, 80)
#: Deviation of the logarithm of a step's computing, where staleness is not the subject.
SIGMA = 0.1
#: What members tell the coordinator again and again, and when they come.
CARRIED = ("Arrive", "Committed", "Heartbeat", "Hello", "Init")
#: Workers and servers, and six times as many.
SIX_TIMES = ((166, 11), (1000, 64))


def simulate(mode: str, servers: int, workers: int, model: str, costs: Costs, network: Network, compute_s: float,
             steps: int) -> tuple[Row, Outcome]:  # fmt: skip
    """Run a cluster of one size; return its row, and what happened."""
    nbytes = models.num_bytes(models.find(model))
    size = Size(servers=servers, workers=workers, mode=mode, nbytes=nbytes, steps=steps)
    outcome = Cluster(size, costs, network, lognormal(compute_s, SIGMA)).run()
    times = Times(tuple(outcome.step_s))
    row = Row(
        case=f"scale {mode}", model=model, servers=servers, workers=workers,
        median_s=times.median, p90_s=times.p90, min_s=times.minimum, steps=len(times.seconds),
        extra={
            "steps_per_s": len(times.seconds) / outcome.duration_s,
            "coordinator_share": outcome.coordinator_s / outcome.duration_s,
            "coordinator_s_a_step": outcome.coordinator_s / (len(times.seconds) / workers),
            "idle": outcome.idle_s / (outcome.idle_s + outcome.compute_s),
        },
    )  # fmt: skip
    return row, outcome


def carried(outcome: Outcome) -> list[Row]:
    """Return what a message of each kind costs the coordinator that took part in a simulation."""
    found = []
    for kind, number in sorted(outcome.num.items()):
        if kind in CARRIED:
            each_s = outcome.spent_s[kind] / number
            extra = {"messages": number, "cost_s": each_s, "per_s": 1 / each_s}
            found.append(Row(case=f"scale coordinator {kind}", extra=extra))
    return found


def print_steps(rows: Sequence[Row]) -> None:
    """Print step times and the coordinator's load."""
    table = new_table("mode", "workers", "servers", "step", "p90", "steps/s", "waiting", "coordinator", "of it a step")
    for row in rows:
        table.add_row(
            row.case.removeprefix("scale "), f"{row.workers}", f"{row.servers}", seconds(row.median_s),
            seconds(row.p90_s), f"{row.extra['steps_per_s']:.4g}", f"{row.extra['idle']:.1%}",
            f"{row.extra['coordinator_share']:.1%}", seconds(row.extra["coordinator_s_a_step"]),
        )  # fmt: skip
    console.print(table)


def print_carried(rows: Sequence[Row], workers: int, interval_s: float) -> None:
    """Print what the coordinator can carry."""
    table = new_table("the coordinator takes", "each costs", "a second at most")
    for row in rows:
        table.add_row(row.case.rpartition(" ")[2], seconds(row.extra["cost_s"]), f"{row.extra['per_s']:.0f}")
    console.print(table)
    beats = [row.extra["per_s"] for row in rows if row.case.endswith("Heartbeat")]
    for per_s in beats:
        words = f"of {workers} workers; it could carry the signs of life of {per_s * interval_s:.0f} members, one"
        console.print(f"{words} every {interval_s:g} s, and nothing else", style="dim", highlight=False)


def print_waiting(found: Sequence[Waiting], workers: int, sigma: float) -> None:
    """Print what staleness buys and costs, beside what was published."""
    words = (
        f"{workers} workers compute for {COMPUTE_S:g} s on average: lognormal with σ = {sigma:.3f}, drawn anew for each"
    )
    words += " step, so that in lockstep they wait for half of their time, as in Li et al. 2014"
    console.print(f"{words} (best there: τ = {published.BEST_TAU})", highlight=False)
    table = new_table("τ", "waiting", "theirs", "step", "steps to a near loss", "seconds to it", "rate")
    for w in found:
        theirs = f"{published.WAITING[w.tau]:.1%}" if w.tau in published.WAITING else ""
        cells = (f"{w.idle:.1%}", theirs, seconds(w.step_s), f"{w.passes:.0f}", f"{w.total_s:.1f}", f"{w.rate:g}")
        table.add_row(f"{w.tau}", *cells)
    console.print(table)


def speed_up(model: str, costs: Costs, network: Network, compute_s: float, steps: int) -> list[Row]:
    """Return how many times as many steps six times the machines take."""
    rows = []
    for mode in MODES:
        few, many = [
            simulate(mode, servers, workers, model, costs, network, compute_s, steps)[0]
            for workers, servers in SIX_TIMES
        ]
        factor = many.extra["steps_per_s"] / few.extra["steps_per_s"]
        rows.append(
            Row(case=f"scale six times {mode}", model=model, extra={"speed_up": factor, "theirs": published.SPEED_UP})
        )
        text = f"{mode}: {factor:.2f} times the steps with 6 times the machines (Li et al.: {published.SPEED_UP:g})"
        console.print(text, highlight=False)
    return rows


@click.command("scale")
@model_option("resnet50")
@click.option("--gbit", type=click.FloatRange(0.01), default=10.0, show_default=True, help="Of each host's wire.")
@click.option("--latency-us", type=click.FloatRange(0.0), default=50.0, show_default=True, help="Of a wire, one way.")
@click.option(
    "--compute-ms", type=click.FloatRange(0.0), default=100.0, show_default=True, help="A step's, on average."
)
@click.option(
    "--full", is_flag=True, help="All sizes, more steps, 800 workers that wait for each other: some 20 minutes."
)
@click.option("--crowd/--no-crowd", "crowded", default=True, help="Also real workers of one process: `bench crowd`.")
@click.option("--plots/--no-plots", default=True, help="Draw pictures; needs matplotlib.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/bench/scale"),
    show_default=True,
    help="Where results.json and the plots go.",
)
def command(
    model: str, gbit: float, latency_us: float, compute_ms: float, full: bool, crowded: bool, plots: bool, output: Path
) -> None:
    """Step time and the coordinator's load from 1 to 1,000 workers and 1 to 64 servers: simulated, with measured costs.

    What each kind of message costs is measured first, in the machines that are shipped, in processor time. Then
    clusters run on a simulated clock: the coordinator's machine is the real one and is told all that it would be told;
    workers, servers and wires are queues that take as long as was measured. Beside them what Li et al. published in
    2014: how staleness saves waiting, and what more machines bring. Last, 1 to 256 real workers of one process.
    """
    network = Network(bytes_per_s=gbit * 1e9 / 8, latency_s=latency_us * 1e-6)
    compute_s, steps = compute_ms / 1e3, MORE_STEPS if full else STEPS
    costs = measured.measure()
    rows = [Row(case="scale costs", extra=asdict(costs))]
    largest: Outcome | None = None
    for mode in MODES:
        for workers in MORE_WORKERS if full else WORKERS:
            for servers in MORE_SERVERS if full else SERVERS:
                row, largest = simulate(mode, servers, workers, model, costs, network, compute_s, steps)
                rows.append(row)
    print_steps(rows[1:])
    assert largest is not None
    coordinator = carried(largest)  # of a synchronous step of most
    print_carried(coordinator, WORKERS[-1], 1.0)
    rows += [*coordinator, *speed_up(model, costs, network, compute_s, steps)]
    workers, waiting_steps = MORE_WAITING if full else WAITING
    found, sigma = sweep(costs, workers, waiting_steps)
    print_waiting(found, workers, sigma)
    rows += [Row(case=f"scale waiting τ={w.tau}", workers=workers, extra={**asdict(w), "sigma": sigma}) for w in found]
    if crowded:
        rows += (of_crowd := crowd.measure(Setup(model="1KB")))
        crowd.print_crowd(of_crowd)
    keep(rows, output=output, plots=plots)
