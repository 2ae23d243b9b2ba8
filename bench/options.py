"""The options that cases share, and what happens to a case's row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import click

from bench import models
from bench.results import Row, write_row
from bench.tables import print_rows
from bench.transfer import OPTIMIZERS, TRANSPORTS, Setup, measure

Command: TypeAlias = Callable[..., None]
Decorator: TypeAlias = Callable[[Command], Command]


def _check_model(context: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        models.find(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


json_option = click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the result here.",
)


def model_option(default: str) -> Decorator:
    """Return the option that says what is moved."""
    return click.option(
        "--model",
        default=default,
        show_default=True,
        callback=_check_model,
        metavar="NAME|SIZE",
        help=f"{', '.join(models.NAMED)}, or one vector of a size from 1KB to 1GB.",
    )


transport_option = click.option(
    "--transport",
    type=click.Choice(TRANSPORTS),
    default="tcp",
    show_default=True,
    help="As zmqps.connect takes it. The limit of all but tcp are Unix sockets.",
)
optimizer_option = click.option(
    "--optimizer", type=click.Choice(sorted(OPTIMIZERS)), default="sgd", show_default=True, help="What servers apply."
)
steps_option = click.option(
    "--steps", type=click.IntRange(1), default=20, show_default=True, help="Steps to measure, after three to warm up."
)


def transfer_options(function: Command) -> Command:
    """Add the options that make a `Setup`, and ``--json``."""
    for option in (
        json_option,
        steps_option,
        optimizer_option,
        transport_option,
        click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Worker processes."),
        click.option("--servers", type=click.IntRange(1), default=1, show_default=True, help="Server processes."),
        model_option("resnet50"),
    ):
        function = option(function)
    return function


def transfer_command(operation: str, description: str) -> click.Command:
    """Return the command that measures one operation on a whole model."""

    @transfer_options
    def run(json_path: Path | None, **fields: Any) -> None:
        report(measure(operation, Setup(**fields)), json_path)

    run.__doc__ = f"""{description}

    Real processes on this host: a coordinator, the servers, and the workers, which begin each step
    together. Steps take turns with plain sockets that move the same bytes between as many
    processes, so what disturbs one disturbs the other.
    """
    return click.command(operation)(run)


def report(row: Row, json_path: Path | None) -> None:
    """Print a row, and write it where that was asked for."""
    print_rows([row])
    if json_path is not None:
        write_row(json_path, row)
