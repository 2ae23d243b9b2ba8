"""``zmqps trace``: where the time of a step goes, from what the processes recorded."""

from __future__ import annotations

from pathlib import Path

import click

from zmqps.cli.settings import setting
from zmqps.core.protocol import exits


@click.command()
@click.argument("recorded", type=click.Path(file_okay=False, path_type=Path), default=Path("runs/trace"))
@setting(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    shared=False,
    help="Write all processes on one clock here, for chrome://tracing or Perfetto.",
)
@setting("--skip", type=click.IntRange(min=0), default=3, shared=False, help="First steps of each worker, not counted.")
def trace(recorded: Path, output: Path | None, skip: int) -> int:
    """Show where the time of a step went, from what processes recorded into a directory (runs/trace).

    They do that when ZMQPS_TRACE names one: ZMQPS_TRACE=runs/trace zmqps up --workers 2 -- python train.py.
    docs/operations.md explains the phases.
    """
    from zmqps.cli.tables import new_console, phases_table
    from zmqps.nodes.files import open_own
    from zmqps.trace import merge, phases

    found = merge.read(recorded, open_own)
    console = new_console()
    summary = phases.summarize(found, skip=skip)
    if summary is None:
        console.print(f"no push, pull or push_pull after the first {skip} of a worker was recorded")
    else:
        console.print(phases_table(summary))
    for boot, fitted in found.clocks.items():
        text = f"the clock of host {boot[:8]} was fitted; its times may be wrong by {fitted.error_us / 1e3:.3g} ms"
        console.print(text, style="yellow", highlight=False)
    if output is not None:
        merge.write(output, found, open_own)
        console.print(f"written: {output}", highlight=False)
    return exits.OK
