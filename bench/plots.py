"""Rows as pictures, PNG and SVG; needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench import models
from bench.results import Row, environment
from bench.scale import plots as scale
from bench.tables import machine_text

OPERATIONS = ("push", "pull", "push_pull")


def write_plots(rows: Sequence[Row], directory: Path) -> list[Path]:
    """Draw times beside their limits, goodput over size, phases, and tables of rows; return the files written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    written = []
    machine = machine_text(environment()["machine"])
    for name, title, draw in (
        ("times", "How long a step takes, beside the limit", _draw_times),
        ("goodput", "Payload a second by size, beside plain sockets", _draw_goodput),
        ("phases", "What a step consists of", _draw_phases),
        ("sparse", "Rows of sparse tables, beside others", _draw_sparse),
        ("lookups", "What a row costs by the size of its table", _draw_lookups),
        ("scale-steps", "How long a step takes by the number of workers, simulated", scale.draw_steps),
        (
            "scale-coordinator",
            "How busy the coordinator is by the number of workers, simulated",
            scale.draw_coordinator,
        ),
        ("scale-waiting", "Waiting and time in all by the bound of staleness, simulated", scale.draw_idle),
    ):
        figure, axes = pyplot.subplots(figsize=(9, 5.4), layout="constrained")
        if draw(axes, rows):
            figure.suptitle(title, fontsize=13)
            figure.supxlabel(machine, fontsize=8, color="0.4", x=0.99, ha="right")
            for kind in ("png", "svg"):
                written.append(directory / f"{name}.{kind}")
                figure.savefig(written[-1], dpi=150)
        pyplot.close(figure)
    return written


def _draw_times(axes, rows: Sequence[Row]) -> bool:  # type: ignore[no-untyped-def]
    timed = [row for row in rows if row.median_s and row.limit_s and row.case != "lookups"]
    places = range(len(timed))
    axes.barh(places, [1e3 * row.median_s for row in timed], 0.6, label="zmqps, median")
    axes.plot([1e3 * row.limit_s for row in timed], places, "k|", markersize=14, label="limit in the same run")
    axes.set_yticks(places, [row.title for row in timed], fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds a step")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    return bool(timed)


def _draw_goodput(axes, rows: Sequence[Row]) -> bool:  # type: ignore[no-untyped-def]
    vectors = [row for row in rows if row.case in OPERATIONS and row.model not in models.NAMED]
    for case in sorted({row.case for row in vectors}):
        points = sorted((row.extra["model_nbytes"], row) for row in vectors if row.case == case)
        sizes = [size for size, _ in points]
        [line] = axes.plot(sizes, [row.goodput_gb_s for _, row in points], "o-", label=case)
        limits = [row.goodput_gb_s * row.ratio_to_limit for _, row in points]
        axes.plot(sizes, limits, "--", color=line.get_color(), label=f"{case}: plain sockets")
    axes.set_xscale("log")
    axes.set_xlabel("bytes of one vector")
    axes.set_ylabel("GB/s, both ways together")
    if vectors:
        axes.legend()
    return bool(vectors)


def _draw_phases(axes, rows: Sequence[Row]) -> bool:  # type: ignore[no-untyped-def]
    recorded = [row for row in rows if "phases" in row.extra]
    shares = [{f"{p['role']}: {p['name']}": p["share"] for p in row.extra["phases"]["phases"]} for row in recorded]
    names = list(dict.fromkeys(name for found in shares for name in found if "control" not in name))
    for number, (row, found) in enumerate(zip(recorded, shares, strict=True)):
        height = 0.8 / len(recorded)
        places = [place + number * height for place in range(len(names))]
        axes.barh(places, [100 * found.get(name, 0.0) for name in names], height, label=row.title)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("per cent of a step during which the phase was under way somewhere")
    if recorded:
        axes.legend(fontsize=8)
    return bool(recorded)


def _draw_sparse(axes, rows: Sequence[Row]) -> bool:  # type: ignore[no-untyped-def]
    sparse = [row for row in rows if row.case.startswith("sparse ")]
    names = list(dict.fromkeys(name for row in sparse for name in row.extra if f"ratio_to_{name[:-2]}" in row.extra))
    height = 0.8 / (len(names) + 1)
    for number, name in enumerate(["median_s", *names]):
        times = [1e3 * (row.median_s if name == "median_s" else row.extra.get(name, 0.0)) for row in sparse]
        places = [place + number * height for place in range(len(sparse))]
        axes.barh(places, times, height, label="zmqps" if name == "median_s" else name[:-2])
    axes.set_yticks(range(len(sparse)), [row.title for row in sparse], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds an operation")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
    return bool(sparse)


def _draw_lookups(axes, rows: Sequence[Row]) -> bool:  # type: ignore[no-untyped-def]
    found = sorted((row.extra["table_rows"], row) for row in rows if row.case == "lookups")
    for name, label in (("update", "update"), ("read", "read"), ("find", "find"), ("take", "numpy.take")):
        style = "--" if name == "take" else "o-"
        axes.plot([size for size, _ in found], [row.extra[f"{name}_ns"] for _, row in found], style, label=label)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows of the table")
    axes.set_ylabel("nanoseconds a row")
    axes.legend()
    return bool(found)
