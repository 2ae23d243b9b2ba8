"""(a) Two workers on a parabola: gradients that were true when they were read push past the minimum."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import COMPUTE_S, Run
from experiments.problems import Parabola, Params
from experiments.report import COLORS, Outcome, new_figure, number, save_figure
from zmqps.optim import sgd

RATE = 0.9
UPDATES = 16
WORKERS = (1, 2, 4, 8)
#: Of the labels of the first updates, in points, so that none lies on another.
OFFSETS = ((12, -2), (12, -3), (10, 6), (-82, -3), (8, -4))


def train(learning_rate: float, workers: int, updates: int) -> list[dict[str, Any]]:
    """Return each push: who, what it had read, the value before and after it."""
    pushes: list[dict[str, Any]] = []
    waited: set[int] = set()

    def speed(number: int, rng: np.random.Generator) -> float:
        # one after the other: worker i is i/W of a step behind worker 0, for ever
        first = number not in waited
        waited.add(number)
        return COMPUTE_S * (1 + number / workers) if first else COMPUTE_S

    def on_push(seconds: float, worker: int, read: Params, now: Params) -> None:
        before = pushes[-1]["after"] if pushes else 2.0
        pushes.append({"worker": worker, "read": float(read["w"][0]), "before": before, "after": float(now["w"][0])})

    Run(
        label="",
        optimizer=sgd(learning_rate),
        problem=Parabola(),
        workers=workers,
        mode="async",
        speed=speed,
        updates=updates,
        on_push=on_push,
    ).run()
    return pushes[:updates]


def largest_stable_rate(workers: int) -> float:
    """Return the learning rate beyond which the value grows instead of shrinking, by bisection."""
    low, high = 0.0, 2.5
    for _ in range(9):
        rate = (low + high) / 2
        values = [abs(push["after"]) for push in train(rate, workers, 60 * workers)]
        quarter = len(values) // 4
        grows = max(values[-quarter:]) > max(values[quarter : 2 * quarter])
        low, high = (low, rate) if grows else (rate, high)
    return (low + high) / 2


def theory(staleness: float) -> float:
    """Return where the largest root of λ^(τ+1) = λ^τ − η reaches the unit circle."""
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1)))


def run(directory: Path) -> Outcome:
    """Draw the paths; find the largest stable learning rates."""
    stale = train(RATE, 2, UPDATES)
    fresh = train(RATE, 1, UPDATES)
    rates = {workers: largest_stable_rate(workers) for workers in WORKERS}
    figure, axes = new_figure(1, 3, 4.6, 4.0)
    _draw_path(axes[0, 0], stale)
    axes[0, 0].set_title(f"two workers, each one update behind, rate {RATE}", fontsize=10)
    ax = axes[0, 1]
    for label, pushes, color in (("one worker, fresh", fresh, COLORS[2]), ("two workers, stale", stale, COLORS[5])):
        ax.plot([2.0, *(push["after"] for push in pushes)], "o-", color=color, label=label, markersize=4)
    ax.axhline(0.0, color="black", linewidth=0.8)
    ax.set(xlabel="updates", ylabel="w", title="the value after each update")
    ax.legend()
    ax = axes[0, 2]
    staleness = np.linspace(0, max(WORKERS) - 1, 100)
    ax.plot(staleness, [theory(t) for t in staleness], "-", color="gray", label="2 sin(π / (2(2τ+1)))")
    ax.plot([w - 1 for w in WORKERS], list(rates.values()), "o", color=COLORS[0], label="measured")
    ax.set(xlabel="staleness τ = workers − 1", ylabel="largest stable learning rate", title="what staleness costs")
    ax.legend()
    save_figure(figure, directory / "past_the_minimum.png")
    rows = [[str(w), str(w - 1), number(rates[w]), number(theory(w - 1))] for w in WORKERS]
    overshoot = -min(push["after"] for push in stale)
    return Outcome(
        f"With rate {RATE} one worker never passes the minimum; two workers pass it by {overshoot:.2f} from 2.00, "
        "and the largest stable rate falls about as 1/τ.",
        ("workers", "staleness", "largest stable rate", "theory"),
        rows,
        {"rate": RATE, "fresh": fresh, "stale": stale, "largest_stable_rate": {str(w): r for w, r in rates.items()}},
    )


def _draw_path(ax: Any, pushes: list[dict[str, Any]]) -> None:
    """Draw the parabola, the first values on it, and for each push the slope it took from where it had read."""
    w = np.linspace(-2.3, 2.3, 200)
    ax.plot(w, w**2 / 2, color="black", linewidth=1)
    ax.plot([2.0], [2.0], "ko")
    ax.annotate("start", (2.0, 2.0), (6, -3), textcoords="offset points", fontsize=9)
    for i, push in enumerate(pushes[: len(OFFSETS)]):
        color = COLORS[push["worker"]]
        before, after, read = push["before"], push["after"], push["read"]
        style = {"arrowstyle": "->", "color": color, "linewidth": 1.6, "connectionstyle": "arc3,rad=0.25"}
        ax.annotate("", (after, after**2 / 2), (before, before**2 / 2), arrowprops=style)
        ax.plot([after], [after**2 / 2], "o", color=color)
        ax.annotate(
            f"{i + 1}: read {read:+.2f}", (after, after**2 / 2), OFFSETS[i],
            textcoords="offset points", fontsize=8, color=color,
            bbox={"boxstyle": "round,pad=0.1", "color": "white", "alpha": 0.8},
        )  # fmt: skip
    ax.plot([], [], "-", color=COLORS[0], label="worker 0")
    ax.plot([], [], "-", color=COLORS[1], label="worker 1")
    ax.set(xlabel="w", ylabel="loss w²/2", ylim=(-0.15, 2.9))
    ax.legend(loc="upper center")
