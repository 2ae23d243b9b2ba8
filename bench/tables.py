"""Rows as tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from bench.results import Row
from zmqps.errors import counted

#: What the columns are, in three lines.
LEGEND = """\
median, p90, min: how long a step takes; GB/s: payload, both ways together
limit: the same bytes over plain sockets, or copied in memory, in turns; ×limit: median / limit, with its quartiles
bound: what links of the speed measured here would allow at least; ×bound: median / bound"""
#: What most look for first; of each the first row that has this.
KEY_FIGURES: Sequence[Mapping[str, str]] = (
    {"case": "push_pull", "model": "resnet50", "transport": "tcp"},
    {"case": "push_pull", "model": "resnet50", "transport": "shm"},
    {"case": "sync_step"},
    {"case": "latency", "transport": "tcp"},
    {"case": "latency", "transport": "shm"},
    {"case": "apply", "kernels": "numba"},
)
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
    """Return an empty table: names on the left, numbers on the right; each column has a name of its own."""
    if len({first, *others}) <= len(others):
        raise ValueError(f"two columns have one name: {[first, *others]}")
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_key_figures(rows: Sequence[Row], machine: Mapping[str, Any]) -> None:
    """Print what most look for first: how long a step takes, and how near that is to what the machine can."""
    chosen = [row for wanted in KEY_FIGURES if (row := _first(rows, wanted)) is not None]
    if not chosen:
        return
    console.print(f"Key figures on {machine_text(machine)}", style="bold", highlight=False)
    table = new_table("case, servers×workers", "median", "GB/s", "beside the limit")
    for row in chosen:
        beside = f"{row.ratio_to_limit:.2f} times as long" if row.ratio_to_limit else ""
        table.add_row(row.title, seconds(row.median_s), _two_digits(row.goodput_gb_s), beside)
    console.print(table, "")


def _first(rows: Sequence[Row], wanted: Mapping[str, str]) -> Row | None:
    return next((row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())), None)


def machine_text(machine: Mapping[str, Any]) -> str:
    """Return what a machine is: its processor, cores and memory, and how fast a core copies."""
    copies = f", a core copies 102 MB in {machine['copy_ms']} ms" if "copy_ms" in machine else ""
    cores = counted(machine["cores"], "core")
    return f"{machine['cpu'] or 'an unknown processor'}, {cores}, {machine['memory_gb']} GB{copies}"


def print_rows(rows: Sequence[Row]) -> None:
    """Print measured, limit and bound, what these are, and whatever else a case has to say."""
    table = new_table(
        "case, servers×workers", "median", "p90", "min", "GB/s", "limit", "×limit", "quartiles", "bound", "×bound"
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
    if any(row.limit_s or row.bound_s for row in rows):
        console.print(LEGEND, "", style="dim", highlight=False, sep="\n")
    for row in rows:
        if plain := {name: value for name, value in row.extra.items() if not isinstance(value, dict)}:
            named = ", ".join(f"{name} {_short(value)}" for name, value in plain.items())
            console.print(f"{row.title}: {named}", style="dim", highlight=False)


def _two_digits(value: float | None) -> str:
    return f"{value:.2f}" if value and value >= 0.005 else ""


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
