"""How far zmqps goes, as pictures."""

from __future__ import annotations

from collections.abc import Sequence

from bench.results import Row
from bench.scale.published import WAITING

CASES = ("scale async", "scale sync")


def draw_steps(axes, rows: Sequence[Row]) -> bool:  # type: ignore[no-untyped-def]
    """Draw the time of a step over the number of workers."""
    found = _lines(axes, rows, lambda row: 1e3 * (row.median_s or 0.0))
    axes.set_ylabel("milliseconds a step")
    axes.set_yscale("log")
    return found


def draw_coordinator(axes, rows: Sequence[Row]) -> bool:  # type: ignore[no-untyped-def]
    """Draw how much of its one processor the coordinator uses, over the number of workers."""
    found = _lines(axes, rows, lambda row: 100 * row.extra["coordinator_share"])
    if not found:
        return False  # the line alone has no least and most
    axes.axhline(100, color="black", linewidth=0.8)
    axes.set_ylabel("per cent of a processor that the coordinator uses")
    axes.set_yscale("log")
    return found


def _lines(axes, rows: Sequence[Row], value) -> bool:  # type: ignore[no-untyped-def]
    simulated = [row for row in rows if row.case in CASES]
    for case, style in zip(CASES, ("o--", "o-"), strict=True):
        servers = sorted({row.servers for row in simulated if row.case == case})
        for index, number in enumerate(servers):
            points = sorted((row.workers, value(row)) for row in simulated if (row.case, row.servers) == (case, number))
            label = f"{case.removeprefix('scale ')}, {number} server{'s' * (number > 1)}"
            axes.plot(*zip(*points, strict=True), style, color=f"C{index}", label=label, markersize=4)
    axes.set_xscale("log")
    axes.set_xlabel("workers")
    if simulated:
        axes.legend(fontsize=8)
    return bool(simulated)


def draw_idle(axes, rows: Sequence[Row]) -> bool:  # type: ignore[no-untyped-def]
    """Draw waiting and total time over the bound of staleness, beside what Li et al. have seen."""
    found = [row for row in rows if "tau" in row.extra]
    places, taus = range(len(found)), [row.extra["tau"] for row in found]
    axes.bar(places, [100 * row.extra["idle"] for row in found], 0.6, label="waiting for others")
    theirs = [(place, 100 * WAITING[tau]) for place, tau in enumerate(taus) if tau in WAITING]
    axes.plot(*zip(*theirs, strict=True), "k_", markersize=30, label="Li et al. 2014") if theirs else None
    axes.set_xticks(places, [str(tau) for tau in taus])
    axes.set_xlabel("bound of staleness τ; 0: synchronous")
    axes.set_ylabel("per cent of a worker's time")
    if not found:
        return False
    total = axes.twinx()
    total.plot(places, [row.extra["total_s"] for row in found], "C1o-", label="until the loss is near its least")
    total.set_ylabel("simulated seconds")
    total.set_ylim(bottom=0)
    named = [both for one in (axes, total) for both in zip(*one.get_legend_handles_labels(), strict=True)]
    axes.legend(*zip(*named, strict=True), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return True
