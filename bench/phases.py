"""What a step consists of: recorded in every process, as a table and in a row."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from bench.results import Row
from bench.setup import WARM_UP
from bench.tables import console
from zmqps.cli.tables import phases_table
from zmqps.trace.merge import Trace
from zmqps.trace.phases import Phase, Summary, summarize


def phases_of(trace: Trace, operation: str) -> dict[str, Any]:
    """Return the phases of the recorded steps as plain data."""
    summary = summarize(trace, operation, WARM_UP)
    if summary is None:
        raise RuntimeError(f"no {operation} was recorded after the first {WARM_UP}")
    return asdict(summary)


def print_phases(row: Row) -> None:
    """Print the phases of a row that has some."""
    plain = row.extra["phases"]
    phases = tuple(Phase(**phase) for phase in plain["phases"])
    console.print(f"{row.title}, recorded:", style="bold", highlight=False)
    console.print(phases_table(Summary(plain["operation"], plain["steps"], plain["median_s"], phases)))
