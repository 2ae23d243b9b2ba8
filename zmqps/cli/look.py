"""``zmqps status``, ``jobs`` and ``placement``: what a running cluster is doing."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zmqps.cli import settings
from zmqps.cli.settings import setting
from zmqps.core.protocol import exits
from zmqps.core.protocol.endpoints import host_of, is_loopback
from zmqps.errors import ConfigurationError, DeadlineError

if TYPE_CHECKING:
    from zmqps.cli.running.state import State
    from zmqps.keys import Keys

DEFAULT_ADDRESS = "tcp://127.0.0.1:5570"

coordinator = setting(
    "--coordinator",
    help="The coordinator's endpoint; by default that of the cluster started here, else the usual one.",
    show_default=f"as in .zmqps/, or {DEFAULT_ADDRESS}",
)
shown_keys = setting(
    "--keys", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="The directory of the cluster's keys; by default that of the cluster started here, if it has keys.",
)  # fmt: skip
cluster_name = setting(
    "--name", shared=False, example="cluster", help="The cluster's, for its logs on this host.",
    show_default="the one started here",
)  # fmt: skip
timeout = setting(
    "--timeout", shared=False, type=click.FloatRange(min=0, min_open=True), default=3.0, help="Seconds to wait."
)
as_json = setting("--json", "as_json", is_flag=True, shared=False, help="Print JSON.")


@click.command()
@coordinator
@shown_keys
@settings.directory
@timeout
@as_json
@setting("--watch", "-w", is_flag=True, shared=False, help="Refresh every second, until Ctrl-C.")
def status(
    coordinator: str | None, keys: Path | None, directory: Path, timeout: float, as_json: bool, watch: bool
) -> int:
    """Show nodes, jobs, traffic and waits."""
    if as_json:
        click.echo(json.dumps(_ask(coordinator, keys, directory, timeout), indent=2))
        return exits.OK
    from zmqps.cli.tables import new_console, status_view

    console = new_console()
    if not watch:
        console.print(status_view(_ask(coordinator, keys, directory, timeout)))
        return exits.OK
    from rich.live import Live

    view = status_view(_ask(coordinator, keys, directory, timeout))
    with Live(view, console=console, screen=console.is_terminal, auto_refresh=False) as live:
        pace = threading.Event()
        while True:
            pace.wait(1.0)
            live.update(status_view(_ask(coordinator, keys, directory, timeout)), refresh=True)


@click.command()
@coordinator
@shown_keys
@settings.directory
@timeout
@as_json
@setting(
    "--job", shared=False, example="default", help="Which job, if several are running.", show_default="the only one"
)
def placement(
    coordinator: str | None, keys: Path | None, directory: Path, timeout: float, as_json: bool, job: str | None
) -> int:
    """Show which server has which parameters."""
    jobs = _ask(coordinator, keys, directory, timeout)["jobs"]
    if job is None and len(jobs) > 1:
        raise click.UsageError(f"say which job with --job: {', '.join(jobs)}")
    if job is not None and job not in jobs:
        raise click.UsageError(f"there is no job {job!r}; running: {', '.join(jobs) or 'none'}")
    rows = [row for name, found in jobs.items() if job in (None, name) for row in found["job"].get("placement") or []]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        click.echo("no job is placed yet: that takes a worker's init and all servers")
    else:
        from zmqps.cli.tables import new_console, placement_table

        new_console().print(placement_table(rows))
    return exits.OK


@click.group(invoke_without_command=True)
@coordinator
@shown_keys
@settings.directory
@timeout
@as_json
@click.pass_context
def jobs(
    ctx: click.Context, coordinator: str | None, keys: Path | None, directory: Path, timeout: float, as_json: bool
) -> int:
    """Show the jobs of a cluster, or end one.

    Ended jobs are shown, too. `zmqps jobs end NAME` ends one.
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = coordinator, keys, directory, timeout
        return exits.OK
    found = _ask(coordinator, keys, directory, timeout)
    if as_json:
        click.echo(json.dumps({"jobs": found["jobs"], "ended": found["ended"]}, indent=2))
    elif not found["jobs"] and not found["ended"]:
        click.echo("no job has begun yet: a worker's init begins one")
    else:
        from zmqps.cli.tables import jobs_table, new_console

        new_console().print(jobs_table(found["jobs"], found["ended"]))
    return exits.OK


@jobs.command()
@click.argument("name")
@coordinator
@settings.job_secret
@shown_keys
@click.pass_obj
def end(
    of_group: tuple[str | None, Path | None, Path, float],
    name: str,
    coordinator: str | None,
    job_secret: Path | None,
    keys: Path | None,
) -> int:
    """End the job NAME: its workers get an error, its memory is freed.

    Only its checkpoints remain. With --checkpoint the cluster saves the job once more before it ends.
    """
    from zmqps.nodes.inquiry import end_job

    named, given, directory, timeout = of_group
    address, shown = reach(coordinator or named, keys or given, directory)
    click.echo(end_job(address, name, timeout=timeout, job_secret=job_secret, keys=shown))
    return exits.OK


def reach(coordinator: str | None, keys: Path | None, directory: Path) -> tuple[str, Keys | None]:
    """Return the coordinator's endpoint, and the keys to show it.

    Without an endpoint, it is that of the cluster started here, else the usual one. The cluster started here is asked
    with the keys that it was started with, unless others are given.
    """
    from zmqps.cli.running.state import read_state
    from zmqps.keys import find_keys

    state = read_state(directory)
    if coordinator is None and state is not None and state.running and state.elsewhere:
        _check_reached(state)
    ours = state.address if state is not None and state.running else ""
    address = coordinator or ours or DEFAULT_ADDRESS
    shown = find_keys(keys, None, os.environ)
    if shown is None and state is not None and state.keys and address == ours:
        shown = find_keys(state.keys, None, {})
    return address, shown


def _check_reached(state: State) -> None:
    """Refuse where the cluster of a shared directory runs on another host, and no other host reaches it."""
    if is_loopback(host_of(state.address)):
        raise ConfigurationError(
            f"the cluster of this directory runs on {state.elsewhere}, at {state.address}, which only that host "
            "reaches: run this there, or name another cluster with --coordinator"
        )


def _ask(coordinator: str | None, keys: Path | None, directory: Path, timeout: float) -> dict[str, Any]:
    from zmqps.nodes.inquiry import ask_status

    address, shown = reach(coordinator, keys, directory)
    try:
        return ask_status(address, timeout=timeout, keys=shown)
    except DeadlineError as error:
        guessed = coordinator is None and address == DEFAULT_ADDRESS
        hint = "; no cluster was started here, name one with --coordinator" if guessed else ""
        waited = f"{error.waiting_for}{hint}"
        raise DeadlineError(operation=error.operation, seconds=error.seconds, waiting_for=waited) from None
