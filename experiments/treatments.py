"""(d) What can be done about stale gradients: sixteen asynchronous workers, one of them four times slower.

And on the parabola two workers, one thirty times slower: its gradients come when nobody needs them any more.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from experiments.harness import Curve, Run, one_slower
from experiments.problems import Parabola
from experiments.report import COLORS, Outcome, new_figure, number, save_figure
from zmqps import stale
from zmqps.optim import sgd

WORKERS = 16
UPDATES = 3000
#: Several, for where training is nearly unstable chance decides much.
SEEDS = (1, 2, 3)
RATES = (0.1, 0.4)
TREATMENTS = {
    "none": None,
    "divide": stale.divide(),
    "drop beyond 20": stale.drop(20),
    "compensate, λ = 8": stale.compensate(8.0),
}
ONE = "one worker, nothing stale"
#: On the parabola.
SLOWER, SHORT = 30.0, 150


def run(directory: Path) -> Outcome:
    """Train with each treatment at a small and a large learning rate."""
    figure, axes = new_figure(1, len(RATES) + 1, 4.8, 4.0)
    rows, curves = [], {}
    for ax, rate in zip(axes[0], RATES, strict=False):
        runs = [Run(label=ONE, optimizer=sgd(rate), workers=1, mode="async", updates=UPDATES, every=20)]
        runs += [
            Run(
                label=name,
                optimizer=sgd(rate),
                workers=WORKERS,
                mode="async",
                treatment=t,
                speed=one_slower(4.0),
                updates=UPDATES,
                every=20,
            )
            for name, t in TREATMENTS.items()
        ]
        for color, this in zip(("black", *COLORS), runs, strict=False):
            found = [replace(this, seed=seed).run() for seed in SEEDS]
            curves[f"{this.label}, rate {rate}"] = [curve.to_json() for curve in found]
            for curve in found:
                style = "--" if this.workers == 1 else "-"
                label = this.label if curve is found[0] else None
                ax.plot(curve.updates, curve.smooth(9), style, color=color, label=label, linewidth=1)
            finals = [number(curve.final) if curve.final < 2.0 else "diverged" for curve in found]
            staleness, dropped = number(found[0].mean_staleness, 1), str(found[0].dropped)
            rows.append([f"{this.label}, rate {rate}", staleness, dropped, *finals])
        ax.set(xlabel="updates", ylabel="training loss", yscale="log", title=f"digits, rate {rate}", ylim=(0.003, 5))
    axes[0, 0].legend(loc="lower left")
    for color, name in zip((COLORS[0], COLORS[1], COLORS[2]), ("none", "divide", "drop beyond 20"), strict=True):
        curve = parabola(name)
        curves[f"{name}, parabola"] = curve.to_json()
        axes[0, 2].plot(curve.updates, [max(loss, 1e-13) for loss in curve.loss], color=color, label=name)
        largest = max(curve.loss[len(curve.loss) // 2 :])
        rows.append(
            [f"{name}, parabola", number(curve.mean_staleness, 1), str(curve.dropped), f"{largest:.0e}", "", ""]
        )
    axes[0, 2].set(xlabel="updates", ylabel="loss", yscale="log", title="parabola, one worker 30 times slower")
    axes[0, 2].set_ylim(3e-14, 1e6)
    axes[0, 2].legend(loc="upper right")
    save_figure(figure, directory / "treatments.png")
    return Outcome(
        "At a rate where staleness only hurts, compensation comes near to the loss of one worker; at one where it "
        "makes training diverge, dividing by staleness saves it. Dropping helps against what is old and wrong (the "
        "parabola: largest loss of the second half), not where all gradients are about as stale.",
        ("treatment", "staleness", "dropped", "final loss", "seed 2", "seed 3"),
        rows,
        {"workers": WORKERS, "updates": UPDATES, "curves": curves},
    )


def parabola(name: str) -> Curve:
    """Train on the parabola with one of two workers very slow."""
    speed = one_slower(SLOWER)
    return Run(
        label=name,
        optimizer=sgd(0.9),
        problem=Parabola(),
        workers=2,
        mode="async",
        treatment=TREATMENTS[name],
        speed=speed,
        updates=SHORT,
        every=1,
    ).run()
