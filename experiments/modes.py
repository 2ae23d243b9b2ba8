"""(b) Loss against updates and against seconds: synchronous, bounded, asynchronous; equal workers and a slow one."""

from __future__ import annotations

from pathlib import Path

from experiments.harness import Run, equal, one_slower
from experiments.report import COLORS, Outcome, new_figure, number, save_figure
from zmqps.optim import sgd

WORKERS = 4
RATE = 0.1
SECONDS = 14.0
TARGET = 0.15
#: label -> (mode, staleness, learning rate, updates between two points); a synchronous update is the mean
#: of all workers' gradients, and takes their number times the learning rate (linear scaling).
MODES = {
    "synchronous": ("sync", None, RATE * WORKERS, 2),
    "bounded, n = 3": ("bounded", 3, RATE, 2 * WORKERS),
    "asynchronous": ("async", None, RATE, 2 * WORKERS),
}
SPEEDS = {"equal workers": equal, "one worker four times slower": one_slower(4.0)}


def run(directory: Path) -> Outcome:
    """Train each mode at each speed."""
    figure, axes = new_figure(2, 2, 5.4, 3.6)
    rows, curves = [], {}
    for row, (speeds, speed) in enumerate(SPEEDS.items()):
        for color, (label, (mode, staleness, rate, every)) in zip(COLORS, MODES.items(), strict=False):
            curve = Run(
                label=label,
                optimizer=sgd(rate),
                workers=WORKERS,
                mode=mode,
                staleness=staleness,
                speed=speed,
                seconds=SECONDS,
                every=every,
            ).run()
            curves[f"{label}, {speeds}"] = curve.to_json()
            axes[row, 0].plot(curve.updates, curve.smooth(9), color=color, label=label)
            axes[row, 1].plot(curve.seconds, curve.smooth(9), color=color, label=label)
            updates, seconds = curve.first_below(TARGET) or (None, None)
            gradients = None if updates is None else updates * (WORKERS if mode == "sync" else 1)
            rows.append(
                [
                    f"{label}, {speeds}", number(curve.pushes / SECONDS, 0), number(curve.mean_staleness, 1),
                    number(updates, 0), number(gradients, 0), number(seconds, 2), number(curve.final),
                ]
            )  # fmt: skip
        axes[row, 0].set(title=f"{speeds}: per update", xlabel="updates of the parameters", xlim=(0, 800))
        axes[row, 1].set(title=f"{speeds}: per second", xlabel="simulated seconds")
    for ax in axes.flat:
        ax.axhline(TARGET, color="gray", linestyle=":", linewidth=1)
        ax.set(yscale="log", ylabel="training loss", ylim=(0.04, 3))
        ax.legend()
    save_figure(figure, directory / "modes.png")
    return Outcome(
        "An update is worth most where nothing is stale; with equal workers the modes take about the same time, and "
        "with a slow worker only the asynchronous mode keeps its speed.",
        ("mode", "gradients/s", "staleness", f"updates to {TARGET}", "gradients", "seconds", "final loss"),
        rows,
        {"workers": WORKERS, "rate": RATE, "target": TARGET, "curves": curves},
    )
