"""The options that cases share, and what happens to a case's row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import click

from bench import models
from bench.device import open_or_stand_in, print_step_phases, step_phases
from bench.phases import phases_of, print_phases
from bench.plots import write_plots
from bench.results import Row, environment, write_row, write_rows
from bench.rows import ROW_OPTIMIZERS
from bench.setup import OPTIMIZERS, TRANSPORTS, Setup
from bench.tables import console, machine_text, print_rows
from bench.transfer import measure, record
from zmqps import codecs
from zmqps.errors import ConfigurationError, ProtocolError
from zmqps.gpu.device import parse
from zmqps.trace import merge

Command: TypeAlias = Callable[..., None]
Decorator: TypeAlias = Callable[[Command], Command]


def _check_model(context: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        models.find(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


def _check_codec(context: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        return codecs.parse(value).spec
    except ProtocolError as error:
        raise click.BadParameter(str(error)) from None


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
        help=f"{', '.join(models.NAMED)}, or one vector of a size from 1KB to 8GB.",
    )


def codec_option(default: str) -> Decorator:
    """Return the option that says how arrays travel."""
    return click.option(
        "--codec",
        default=default,
        show_default=True,
        callback=_check_codec,
        metavar="NAME[:OPTION=NUMBER,…]",
        help=f"{', '.join(codecs.CODECS)}; with options, as in int8:block=512,stochastic. Values travel in it too, "
        "unless it leaves something out (topk, onebit, twobit): then raw.",
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
output_option = click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write results.json and plots here (matplotlib).",
)
row_optimizer_option = click.option(
    "--optimizer",
    type=click.Choice(sorted(ROW_OPTIMIZERS)),
    default="rowwise_adagrad",
    show_default=True,
    help="Of the table.",
)
steps_option = click.option(
    "--steps", type=click.IntRange(1), default=20, show_default=True, help="Steps to measure, after three to warm up."
)


def _check_device(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return value if value is None else parse(value)
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from None


def device_option(text: str) -> Decorator:
    """Return the option that says where arrays are."""
    return click.option("--device", callback=_check_device, metavar="cpu|cuda|cuda:N|auto", help=text)


in_place_option = click.option(
    "--in-place",
    is_flag=True,
    help="Push worker.gradient_buffers() and pull with copy=False, as a program can that computes in place.",
)
new_option = click.option(
    "--new", is_flag=True, help="Take new arrays of each call, without out=, as most programs do."
)
phases_option = click.option("--phases", is_flag=True, help="Record some more steps, and show what they consist of.")


def transfer_options(function: Command) -> Command:
    """Add the options that make a `Setup`, and ``--json``."""
    for option in (
        json_option,
        steps_option,
        codec_option("raw"),
        device_option(
            "Where servers keep their shards and workers their arrays; adds what bus and memory allow. "
            "cpu: the same with numpy in the role of a GPU."
        ),
        optimizer_option,
        transport_option,
        click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Worker processes."),
        click.option("--servers", type=click.IntRange(1), default=1, show_default=True, help="Server processes."),
        click.option("--keys", "keyed", is_flag=True, help="Encrypt: the cluster has keys. The limit is plain."),
        click.option("--io-threads", type=click.IntRange(1, 64), help="Of each server and worker, for sockets."),
        model_option("resnet50"),
    ):
        function = option(function)
    return function


def transfer_command(operation: str, description: str) -> click.Command:
    """Return the command that measures one operation on a whole model."""

    @transfer_options
    @in_place_option
    @new_option
    @phases_option
    @click.option(
        "--trace",
        "trace_path",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write these recorded steps here, for chrome://tracing or ui.perfetto.dev.",
    )
    def run(json_path: Path | None, phases: bool, trace_path: Path | None, **fields: Any) -> None:
        setup = Setup(**fields)
        row = measure(operation, setup)
        if phases or trace_path is not None or setup.device is not None:
            trace = record(operation, setup)
            row = replace(row, extra={**row.extra, "phases": phases_of(trace, operation)})
            if setup.device is not None:
                device = open_or_stand_in(setup.device)
                found = {"device": device.name, "device_phases": step_phases(device, setup, row.extra["phases"])}
                row = replace(row, extra={**row.extra, **found})
            if trace_path is not None:
                merge.write(trace_path, trace)
        report(row, json_path)
        if phases:
            print_phases(row)
        if setup.device is not None:
            print_step_phases(row)
        if trace_path is not None:
            console.print(f"written: {trace_path}", highlight=False)

    run.__doc__ = f"""{description}

    Real processes on this host: a coordinator, the servers, and the workers, which begin each step
    together. Steps take turns with plain sockets that move the same bytes between as many
    processes, so what disturbs one disturbs the other. In the end the values on the servers are
    compared with what numpy makes of as many pushes; a wrong one fails the case.
    """
    return click.command(operation)(run)


def keep(rows: Sequence[Row], json_path: Path | None = None, output: Path | None = None, *, plots: bool = True) -> None:
    """Write rows where that was asked for: into a file, or with plots of them into a directory."""
    if json_path is not None:
        write_rows(json_path, rows)
    if output is not None:
        write_rows(output / "results.json", rows)
        for written in (output / "results.json", *(write_plots(rows, output) if plots else ())):
            console.print(f"written: {written}", highlight=False)


def report(row: Row, json_path: Path | None) -> None:
    """Print a row, and write it where that was asked for."""
    print_rows([row])
    console.print(machine_text(environment()["machine"]), style="dim", highlight=False)
    if json_path is not None:
        write_row(json_path, row)
