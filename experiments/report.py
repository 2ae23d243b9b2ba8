"""What an experiment leaves: a picture, a JSON file, a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

#: A file or a pipe has no width; rich would assume 80 columns.
console = Console(width=None if sys.stdout.isatty() else 132)
#: Of lines, in the order they are drawn; to be told apart by those who see no red and green, too.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


@dataclass
class Outcome:
    """What came out: a sentence, a table, and everything for the JSON file."""

    claim: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    data: dict[str, Any]

    def save(self, path: Path) -> None:
        """Write the JSON file."""
        table = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        path.write_text(json.dumps({"claim": self.claim, "table": table, **self.data}, indent=1) + "\n")

    def show(self, name: str) -> None:
        """Print the table: names on the left, numbers on the right."""
        table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False, title_justify="left", title=f"\n{name}")
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        console.print(self.claim, style="italic")


def number(value: float | None, digits: int = 3) -> str:
    """Return a number as text; a dash where there is none, or none that is finite."""
    return "–" if value is None or value != value or abs(value) == float("inf") else f"{value:.{digits}f}"


def new_figure(rows: int = 1, columns: int = 1, width: float = 5.0, height: float = 3.8) -> tuple[Any, Any]:
    """Return a figure and its axes, a grid of them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        rows, columns, figsize=(width * columns, height * rows), layout="constrained", squeeze=False
    )
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
    return figure, axes


def save_figure(figure: Any, path: Path) -> None:
    """Write a picture, in few colours so that it is small, and let it go."""
    from matplotlib import pyplot
    from PIL import Image

    with BytesIO() as file:
        figure.savefig(file, dpi=110)
        Image.open(file).convert("RGB").quantize(64).save(path, optimize=True)
    pyplot.close(figure)
