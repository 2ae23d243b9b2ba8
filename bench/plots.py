"""Rows as pictures, PNG and SVG; needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.results import Row


def write_plots(rows: Sequence[Row], directory: Path) -> list[Path]:
    """Draw times beside their limits, and goodput over size; return the files written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in (("times", _draw_times), ("goodput", _draw_goodput)):
        figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
        if draw(axes, rows):
            for kind in ("png", "svg"):
                written.append(directory / f"{name}.{kind}")
                figure.savefig(written[-1], dpi=150)
        pyplot.close(figure)
    return written


def _draw_times(axes, rows: Sequence[Row]) -> bool:  # type: ignore[no-untyped-def]
    timed = [row for row in rows if row.median_s and row.limit_s]
    places = range(len(timed))
    axes.barh(places, [1e3 * row.median_s for row in timed], 0.6, label="zmqps, median")
    axes.plot([1e3 * row.limit_s for row in timed], places, "k|", markersize=14, label="limit in the same run")
    axes.set_yticks(places, [row.title for row in timed], fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds a step")
    axes.legend()
    return bool(timed)


def _draw_goodput(axes, rows: Sequence[Row]) -> bool:  # type: ignore[no-untyped-def]
    moved = [row for row in rows if row.goodput_gb_s and row.median_s and row.extra.get("model_nbytes")]
    alone = [row for row in moved if (row.servers, row.workers, row.optimizer) == (1, 1, "sgd")]
    for case in sorted({row.case for row in alone}):
        points = sorted((row.extra["model_nbytes"], row.goodput_gb_s) for row in alone if row.case == case)
        axes.plot(*zip(*points, strict=True), "o-", label=case)
    axes.set_xscale("log")
    axes.set_xlabel("bytes of the model")
    axes.set_ylabel("GB/s, both ways together")
    axes.legend()
    return bool(alone)
