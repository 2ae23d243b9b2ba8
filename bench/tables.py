"""Rows as tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from bench.results import Row

console = Console()


def seconds(value: float | None) -> str:
    """Return a duration in a unit that suits it."""
    if value is None:
        return ""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def print_rows(rows: Sequence[Row]) -> None:
    """Print measured, limit, bound and their ratio, and whatever else a case has to say."""
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("case, servers×workers", no_wrap=True)
    for name in ("median", "p90", "GB/s", "limit", "ratio", "spread", "bound"):
        table.add_column(name, justify="right")
    for row in rows:
        spread = f"{row.ratio_low:.2f}–{row.ratio_high:.2f}" if row.ratio_low and row.ratio_high else ""
        table.add_row(
            row.title,
            seconds(row.median_s),
            seconds(row.p90_s),
            f"{row.goodput_gb_s:.2f}" if row.goodput_gb_s else "",
            seconds(row.limit_s),
            f"{row.ratio_to_limit:.2f}" if row.ratio_to_limit else "",
            spread,
            seconds(row.bound_s),
        )
    console.print(table)
    for row in rows:
        if row.extra:
            named = ", ".join(f"{name} {_short(value)}" for name, value in row.extra.items())
            console.print(f"  {row.title}: {named}", style="dim", highlight=False)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
