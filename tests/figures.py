"""Writes the tables of docs/metrics.md from the catalogue of figures: ``make metrics``."""

from __future__ import annotations

from collections.abc import Iterator

from tests.imports import ROOT
from zmqps.core.protocol.figures import BOUNDS, OF_COORDINATOR, OF_NODES, Figure

DOCUMENT = ROOT / "docs" / "metrics.md"
BEGIN, END = "<!-- written by `make metrics` -->", "<!-- end of what `make metrics` writes -->"
#: What the scopes of the catalogue are called.
WHO = {"worker": "worker", "server": "server", "job": "server by job", "coordinator": "coordinator"}


def drawn(text: str) -> str:
    """Return the document with the tables of the catalogue as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([f"{before}{BEGIN}", "", *tables(), "", f"{END}{after}"])


def tables() -> Iterator[str]:
    """Yield a table of what nodes count, one of what the coordinator knows, and the bounds of histograms."""
    yield from ("## What nodes count", "")
    yield from ("| metric | kind | counted by | labels besides | what |", "|---|---|---|---|---|")
    for figure in OF_NODES:
        yield f"| `{figure.metric}` | {figure.kind} | {_who(figure)} | {_labels(figure)} | {figure.help} |"
    yield from ("", "## What the coordinator knows", "")
    yield from ("| metric | kind | labels | what |", "|---|---|---|---|")
    for figure in OF_COORDINATOR:
        yield f"| `{figure.metric}` | {figure.kind} | {_labels(figure)} | {figure.help} |"
    yield from ("", "## Bounds of histograms", "", "| metric | bounds |", "|---|---|")
    for figure in OF_NODES:
        if figure.kind == "histogram":
            yield f"| `{figure.metric}` | {', '.join(f'{bound:g}' for bound in BOUNDS[figure.name])} |"


def _who(figure: Figure) -> str:
    return "all" if set(figure.of) == {"worker", "server", "coordinator"} else ", ".join(WHO[of] for of in figure.of)


def _labels(figure: Figure) -> str:
    return ", ".join(f"`{label}`" for label in figure.labels)


if __name__ == "__main__":
    DOCUMENT.write_text(drawn(DOCUMENT.read_text()))
