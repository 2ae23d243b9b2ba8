"""``zmqps trace``: where the time of a step goes, from what the processes of a running cluster record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zmqps.cli import settings
from zmqps.cli.look import coordinator, reach, shown_keys
from zmqps.cli.settings import setting
from zmqps.core.protocol import exits

if TYPE_CHECKING:
    from zmqps.trace.merge import Trace

SHOWN = "show"


class OrPath(click.Group):
    """A group that shows what its first argument names, if that is not a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take ``zmqps trace runs/trace.json`` for ``zmqps trace show runs/trace.json``."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = [SHOWN, *args]
        return super().parse_args(ctx, args)


job_option = setting(
    "--job", shared=False, example="default", help="Trace only this job's workers; by default, those of all jobs."
)
seconds_option = setting(
    "--seconds", shared=False, type=click.FloatRange(min=0, max=600, min_open=True), default=10.0,
    help="How long nodes record; they stop by themselves.",
)  # fmt: skip
steps_option = setting(
    "--steps", shared=False, type=click.IntRange(0), default=0,
    help="Or until each worker has pushed this many times, if that is sooner.",
)  # fmt: skip
size_option = setting(
    "--megabytes", shared=False, type=click.IntRange(1, 64), default=8, help="Size of each node's trace buffer."
)
output_option = setting(
    "--output", "-o", type=click.Path(path_type=Path), shared=False, example="runs/trace.json",
    help="Write it here, for ui.perfetto.dev, chrome://tracing and `zmqps trace show`.",
)  # fmt: skip
skip_option = setting(
    "--skip", type=click.IntRange(min=0), default=0, show_default=True, shared=False,
    help="Leave out this many first steps of each worker.",
)  # fmt: skip


@click.group(cls=OrPath, invoke_without_command=True)
@coordinator
@job_option
@seconds_option
@steps_option
@size_option
@output_option
@settings.job_secret
@shown_keys
@settings.directory
@click.pass_context
def trace(
    ctx: click.Context,
    coordinator: str | None,
    job: str | None,
    seconds: float,
    steps: int,
    megabytes: int,
    output: Path | None,
    job_secret: Path | None,
    keys: Path | None,
    directory: Path,
) -> int:
    """Show where the time of a step goes.

    Training continues meanwhile.

    \b
    zmqps trace                            record for 10 s, say what bounds a step
    zmqps trace start; zmqps trace stop    the same in two parts
    zmqps trace show runs/trace.json       what was recorded before
    zmqps trace export runs/trace.json     send it on by OpenTelemetry
    """
    if ctx.invoked_subcommand is not None:
        return exits.OK
    from zmqps.nodes.tracing import record

    address, shown = reach(coordinator, keys, directory)
    found = record(
        address, job=job or "", seconds=seconds, steps=steps, nbytes=megabytes << 20, progress=_progress,
        job_secret=job_secret, keys=shown,
    )  # fmt: skip
    return _show(found, 0, output)


@trace.command()
@coordinator
@job_option
@seconds_option
@steps_option
@size_option
@settings.job_secret
@shown_keys
@settings.directory
def start(
    coordinator: str | None,
    job: str | None,
    seconds: float,
    steps: int,
    megabytes: int,
    job_secret: Path | None,
    keys: Path | None,
    directory: Path,
) -> int:
    """Let nodes record, and return at once."""
    from zmqps.nodes.tracing import begin

    address, shown = reach(coordinator, keys, directory)
    told = begin(
        address, job=job or "", seconds=seconds, steps=steps, nbytes=megabytes << 20, job_secret=job_secret, keys=shown
    )
    click.echo(
        f"recording on {told} nodes for {seconds:g} s at most; what they have is kept for two minutes after that"
    )
    return exits.OK


@trace.command()
@coordinator
@output_option
@settings.job_secret
@shown_keys
@settings.directory
def stop(
    coordinator: str | None, output: Path | None, job_secret: Path | None, keys: Path | None, directory: Path
) -> int:
    """End the recording, and fetch it; also one that has ended by itself."""
    from zmqps.nodes.tracing import fetch

    address, shown = reach(coordinator, keys, directory)
    found = fetch(address, progress=_progress, job_secret=job_secret, keys=shown)
    return _show(found, 0, output)


@trace.command()
@click.argument("recorded", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@output_option
@skip_option
@setting("--push", type=click.IntRange(0), shared=False, help="Follow this push, by its number, from end to end.")
def show(recorded: Path, output: Path | None, skip: int, push: int | None) -> int:
    """Show the trace that `--output` has written into a file.

    docs/operations.md explains the phases.
    """
    return _show(_read(recorded), skip, output, push)


@trace.command()
@click.argument("recorded", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@setting("--otlp", required=True, shared=False, help="URL of the collector, such as http://localhost:4318.")
def export(recorded: Path, otlp: str) -> int:
    """Send the pushes of a trace to a collector of OpenTelemetry.

    Each push is a trace with its stages. It needs the extra `otel` (docs/operations.md).
    """
    from zmqps.trace.otel import send

    click.echo(f"{send(_read(recorded), otlp)} spans were sent to {otlp}")
    return exits.OK


def _progress(text: str) -> None:
    if sys.stderr.isatty():  # lines of a log say nothing by being many
        click.echo(text, err=True)


def _read(recorded: Path) -> Trace:
    from zmqps.folder import open_own
    from zmqps.trace import merge

    return merge.load(recorded, open_own)


def _show(found: Trace, skip: int, output: Path | None, push: int | None = None) -> int:
    from zmqps.cli.tables import new_console, phases_table, push_table
    from zmqps.errors import ConfigurationError
    from zmqps.folder import open_own
    from zmqps.trace import bounds, merge, phases, pushes

    console = new_console()
    followed = pushes.pushes(found)
    if push is not None:
        if push >= len(followed):
            raise ConfigurationError(
                f"there is no push {push}: {len(followed)} complete ones were recorded, numbered from 0"
            )
        console.print(push_table(followed[push], push))
    else:
        summary = phases.summarize(found, skip=skip)
        if summary is None:
            console.print(f"no push, pull or push_pull after the first {skip} of a worker was recorded")
        else:
            console.print(phases_table(summary))
        if followed:
            middle = sorted(followed, key=lambda one: one.operation.end_us - one.operation.begin_us)[len(followed) // 2]
            console.print(push_table(middle, followed.index(middle)))
        if (bounded := bounds.bound(found)) is not None:
            console.print(bounded.text, style="bold", highlight=False, soft_wrap=True)
    for boot, fitted in found.clocks.items():
        text = f"the clock of host {boot[:8]} was fitted; its times may be wrong by {fitted.error_us / 1e3:.3g} ms"
        console.print(text, style="yellow", highlight=False)
    for note in found.notes:
        console.print(note, style="yellow", highlight=False)
    if output is not None:
        path = output / "trace.json" if output.is_dir() else output
        merge.write(path, found, open_own, list(pushes.flows(followed)))
        console.print(f"written: {path}", highlight=False)
    return exits.OK
