"""(c) Backup workers: a step that does not wait for its last gradients, with workers that stall now and then."""

from __future__ import annotations

from pathlib import Path

from experiments.harness import Run, hiccups
from experiments.report import COLORS, Outcome, new_figure, number, save_figure
from zmqps.optim import sgd

WORKERS = 10
AGGREGATE = (10, 9, 8, 6, 3)
RATE = 0.4
UPDATES = 160
TARGET = 0.2


def run(directory: Path) -> Outcome:
    """Train with the first K of ten gradients, for several K."""
    figure, axes = new_figure(1, 3, 4.6, 3.8)
    rows, curves, times = [], {}, []
    for color, aggregate in zip(COLORS, AGGREGATE, strict=False):
        label = f"{aggregate} + {WORKERS - aggregate}"
        curve = Run(
            label=label,
            optimizer=sgd(RATE),
            workers=WORKERS,
            mode="sync",
            aggregate=aggregate,
            speed=hiccups(0.05, 6.0),
            updates=UPDATES,
            every=1,
        ).run()
        curves[label] = curve.to_json()
        updates, seconds = curve.first_below(TARGET) or (None, None)
        times.append((aggregate, curve.step_s, updates, seconds))
        axes[0, 0].plot(curve.updates, curve.smooth(), color=color, label=label)
        axes[0, 1].plot(curve.seconds, curve.smooth(), color=color, label=label)
        share = curve.dropped / max(1, curve.pushes)
        rows.append(
            [
                label, number(1e3 * curve.step_s, 1), f"{100 * share:.0f} %", number(updates, 0),
                number(seconds, 2), number(curve.final),
            ]
        )  # fmt: skip
    for ax, label in zip(axes[0, :2], ("updates", "simulated seconds"), strict=True):
        ax.axhline(TARGET, color="gray", linestyle=":", linewidth=1)
        ax.set(xlabel=label, ylabel="training loss", yscale="log")
        ax.legend(title="needed + backup")
    places = range(len(times))
    axes[0, 2].bar(places, [seconds or 0.0 for *_, seconds in times], color=COLORS[: len(times)])
    axes[0, 2].set_xticks(places, [f"{k} + {WORKERS - k}" for k, *_ in times])
    axes[0, 2].set(ylabel=f"simulated seconds to a loss of {TARGET}", xlabel="needed + backup workers")
    save_figure(figure, directory / "backup_workers.png")
    return Outcome(
        "A few backup workers make steps much shorter and hardly worse; many make them worse than they are short.",
        ("needed + backup", "ms/step", "dropped", f"updates to {TARGET}", "seconds", "final loss"),
        rows,
        {"workers": WORKERS, "rate": RATE, "target": TARGET, "curves": curves},
    )
