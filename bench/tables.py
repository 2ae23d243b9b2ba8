"""Rows as tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from bench.results import Row

#: A file or a pipe has no width; rich would assume 80 columns.
console = Console(width=None if sys.stdout.isatty() else 132)


def seconds(value: float | None) -> str:
    """Return a duration in a unit that suits it."""
    if value is None:
        return ""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def new_table(first: str, *others: str) -> Table:
    """Return an empty table: names on the left, numbers on the right."""
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_rows(rows: Sequence[Row]) -> None:
    """Print measured, limit, ratio and bound, and whatever else a case has to say."""
    table = new_table(
        "case, servers×workers", "median", "p90", "min", "GB/s", "limit", "ratio", "quartiles", "bound", "ratio"
    )
    for row in rows:
        quartiles = f"{row.ratio_low:.2f}–{row.ratio_high:.2f}" if row.ratio_low and row.ratio_high else ""
        to_bound = row.median_s / row.bound_s if row.median_s and row.bound_s else None
        table.add_row(
            row.title,
            seconds(row.median_s),
            seconds(row.p90_s),
            seconds(row.min_s),
            _two_digits(row.goodput_gb_s),
            seconds(row.limit_s),
            _two_digits(row.ratio_to_limit),
            quartiles,
            seconds(row.bound_s),
            _two_digits(to_bound),
        )
    console.print(table)
    for row in rows:
        if row.extra:
            plain = {name: value for name, value in row.extra.items() if not isinstance(value, dict)}
            named = ", ".join(f"{name} {_short(value)}" for name, value in plain.items())
            console.print(f"{row.title}: {named}", style="dim", highlight=False)


def _two_digits(value: float | None) -> str:
    return f"{value:.2f}" if value else ""


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
