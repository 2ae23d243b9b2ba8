"""What came of a demo: the summary, the table and the plots. See demo.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich.table import Table

matplotlib.use("Agg")
import matplotlib.pyplot as plt

#: Staleness from here on shares the last bar of the plot.
LAST_BAR = 12


@dataclass(frozen=True, kw_only=True)
class Result:
    """What is known of one worker in the end.

    A worker that was lost has no loss curve and no histogram, and its counts are those of its last heartbeat.
    """

    rank: int
    name: str
    pid: int
    how: str  # finished, exit code 1, killed by SIGKILL
    seen_at: float | None  # Unix time of the last sign of life
    pushes: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    staleness_mean: float = 0.0
    staleness_max: int = 0
    staleness_histogram: Mapping[str, int] = field(default_factory=dict)
    curve: Sequence[tuple[float, float]] = ()  # Unix time and loss of each step

    @property
    def gigabytes(self) -> float:
        return (self.bytes_sent + self.bytes_received) / 1e9

    @property
    def seconds(self) -> float:
        """From the first step to the last."""
        return self.curve[-1][0] - self.curve[0][0] if self.curve else 0.0

    @property
    def last_sign_of_life(self) -> str:
        return time.strftime("%H:%M:%S", time.localtime(self.seen_at)) if self.seen_at else "none"


def summarize(results: Sequence[Result], *, seconds: float, pushes_per_step: int = 1, **facts: Any) -> dict[str, Any]:
    """Return what summary.json holds: `seconds` is the whole demo, `training_seconds` the first step to the last."""
    times = [at for result in results for at, _ in result.curve]
    training_seconds = max(times) - min(times) if times else 0.0
    pushes = sum(result.pushes for result in results)
    return {
        **facts,
        "seconds": round(seconds, 3),
        "training_seconds": round(training_seconds, 3),
        "pushes": pushes,
        "steps_per_second": rate(pushes / pushes_per_step, training_seconds),
        "gigabytes_moved": round(sum(result.gigabytes for result in results), 6),
        "staleness_mean": round(sum(r.pushes * r.staleness_mean for r in results) / max(1, pushes), 3),
        "staleness_max": max(result.staleness_max for result in results),
        "per_worker": [
            {
                "rank": result.rank,
                "how": result.how,
                "pushes": result.pushes,
                "steps_per_second": rate(result.pushes / pushes_per_step, result.seconds),
                "gigabytes_moved": round(result.gigabytes, 6),
                "staleness_mean": round(result.staleness_mean, 3),
                "staleness_max": result.staleness_max,
            }
            for result in results
        ],
        "lost": [
            {"rank": r.rank, "name": r.name, "pid": r.pid, "how": r.how, "last_sign_of_life": r.last_sign_of_life}
            for r in results
            if r.how != "finished"
        ],
    }


def rate(count: float, seconds: float) -> float | None:
    return round(count / seconds, 1) if seconds else None


def table(summary: Mapping[str, Any], caption: str) -> Table:
    """Return the summary as a table to print."""
    shown = Table(caption=caption, caption_style="")
    shown.add_column("worker")
    for name in ("pushes", "steps/s", "GB moved", "staleness mean", "max"):
        shown.add_column(name, justify="right")
    shown.add_column()
    lost = {entry["rank"]: f"\nlast sign of life {entry['last_sign_of_life']}" for entry in summary["lost"]}
    for row in summary["per_worker"]:
        shown.add_row(str(row["rank"]), *cells(row), row["how"] + lost.get(row["rank"], ""))
    shown.add_section()
    shown.add_row("all", *cells(summary), f"{summary['seconds']:.1f} s")
    return shown


def cells(row: Mapping[str, Any]) -> list[str]:
    speed = "" if row["steps_per_second"] is None else f"{row['steps_per_second']:.0f}"
    staleness = f"{row['staleness_mean']:.2f}", f"{row['staleness_max']}"
    return [f"{row['pushes']}", speed, f"{row['gigabytes_moved']:.3f}", *staleness]


def plot_loss(results: Sequence[Result], path: Path, loss: str = "cross-entropy") -> None:
    curves = {result.rank: np.array(result.curve) for result in results if result.curve}
    begin = min((curve[0, 0] for curve in curves.values()), default=0.0)
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for rank, curve in curves.items():
        width = max(1, len(curve) // 50)  # one batch is noise, the mean of some tells
        smooth = np.convolve(curve[:, 1], np.ones(width) / width, "valid")
        axes.plot(curve[width - 1 :, 0] - begin, smooth, label=f"worker {rank}", linewidth=1)
    axes.set(xlabel="seconds", ylabel=f"{loss} of a batch, running mean", yscale="log", title="Loss")
    save(figure, axes, path)


def plot_staleness(results: Sequence[Result], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for i, result in enumerate(results):
        bars = np.zeros(LAST_BAR + 1)
        for staleness, count in result.staleness_histogram.items():
            bars[min(int(staleness), LAST_BAR)] += count
        where = np.arange(LAST_BAR + 1) + 0.8 * ((i + 0.5) / len(results) - 0.5)
        axes.bar(where, bars, 0.8 / len(results), label=f"worker {result.rank}")
    axes.set_xticks(range(LAST_BAR + 1), [*map(str, range(LAST_BAR)), f"{LAST_BAR}+"])
    axes.set(xlabel="updates between a worker's pull and its push", ylabel="pushes", title="Staleness")
    save(figure, axes, path)


def save(figure: Any, axes: Any, path: Path) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
