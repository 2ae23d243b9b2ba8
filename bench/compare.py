"""What changed between two result files, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot
from pathlib import Path

import click
from rich.table import Table

from bench.results import Row, read_rows
from bench.tables import console, machine_text, new_table, seconds


@dataclass(frozen=True, slots=True)
class Change:
    """One case in two files.

    Attributes
    ----------
    old, new
        Its rows.
    change
        Relative change: of the ratio to the limit where both have one, because the limit felt the
        same weather; else of the median.
    noise
        What a change must exceed to mean anything.
    """

    old: Row
    new: Row
    change: float
    noise: float

    @property
    def verdict(self) -> str:
        """``faster``, ``slower`` or ``same``."""
        if abs(self.change) <= self.noise:
            return "same"
        return "faster" if self.change < 0 else "slower"


def changes(old: Sequence[Row], new: Sequence[Row]) -> list[Change]:
    """Return the change of every case that both have a time for."""
    before = {row.key: row for row in old}
    pairs = [(before[row.key], row) for row in new if row.key in before]
    return [_change(a, b) for a, b in pairs if a.median_s and b.median_s]


def _change(old: Row, new: Row) -> Change:
    if old.ratio_to_limit and new.ratio_to_limit:
        change = new.ratio_to_limit / old.ratio_to_limit - 1
        noise = hypot(_ratio_noise(old), _ratio_noise(new))
    else:
        assert old.median_s
        assert new.median_s
        change = new.median_s / old.median_s - 1
        noise = hypot(_time_noise(old), _time_noise(new))
    return Change(old, new, change, noise)


def _ratio_noise(row: Row) -> float:
    if not (row.ratio_low and row.ratio_high and row.ratio_to_limit):
        return 0.0
    return (row.ratio_high - row.ratio_low) / 2 / row.ratio_to_limit


def _time_noise(row: Row) -> float:
    if not (row.p90_s and row.min_s and row.median_s):
        return 0.0
    return (row.p90_s - row.min_s) / 2 / row.median_s


def table_of(found: Sequence[Change]) -> Table:
    """Return the changes as a table."""
    table = new_table("case", "old", "new", "old ratio", "new ratio", "change", "noise", "")
    colours = {"faster": "green", "slower": "red", "same": "dim"}
    for change in found:
        ratios = [f"{row.ratio_to_limit:.2f}" if row.ratio_to_limit else "" for row in (change.old, change.new)]
        table.add_row(
            change.new.title,
            seconds(change.old.median_s),
            seconds(change.new.median_s),
            *ratios,
            f"{change.change:+.0%}",
            f"±{change.noise:.0%}",
            f"[{colours[change.verdict]}]{change.verdict}[/]",
        )
    return table


@click.command("compare")
@click.argument("old", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("new", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def command(old: Path, new: Path) -> None:
    """Show how each case changed from one result file to another.

    The change is that of the ratio to the limit measured in the same run, where there is one.
    Noise combines the spreads of both runs; a change within it says nothing.
    """
    (old_rows, before), (new_rows, after) = read_rows(old), read_rows(new)
    found = changes(old_rows, new_rows)
    if not found:
        raise click.ClickException(f"{old} and {new} have no timed case in common")
    for path, environment in ((old, before), (new, after)):
        machine = environment["machine"] or {}
        named = machine_text(machine) if machine else "an unknown machine"
        console.print(f"{path}: commit {str(environment['commit'])[:12]}, {named}", highlight=False)
    if {key: before["machine"][key] for key in ("cpu", "cores")} != {
        key: after["machine"][key] for key in ("cpu", "cores")
    }:
        console.print("different machines: only ratios can be compared", style="yellow")
    console.print(table_of(found))
