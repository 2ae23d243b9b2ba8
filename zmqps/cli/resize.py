"""``zmqps drain`` and ``zmqps scale``: remove and add servers while jobs train."""

from __future__ import annotations

from pathlib import Path

import click

from zmqps.cli import settings
from zmqps.cli.look import coordinator, reach, shown_keys
from zmqps.cli.settings import setting
from zmqps.core.protocol import exits


@click.command()
@click.argument("name")
@coordinator
@setting("--stay", is_flag=True, shared=False, help="Cancel a pending drain.")
@settings.job_secret
@shown_keys
@settings.directory
@setting("--timeout", shared=False, type=click.FloatRange(min=0, min_open=True), default=600.0, help="Seconds to wait.")
def drain(
    name: str,
    coordinator: str | None,
    stay: bool,
    job_secret: Path | None,
    keys: Path | None,
    directory: Path,
    timeout: float,
) -> int:
    """Let a server hand over its shards, and end.

    Training continues. NAME is that of `zmqps status`, server-1 or "server 1", or the number alone. The command returns
    when the server has ended. After --timeout the command returns, and draining continues.
    """
    from zmqps.nodes.inquiry import drain_server

    address, shown = reach(coordinator, keys, directory)
    text = drain_server(
        address, name, stay=stay, timeout=timeout, progress=click.echo, job_secret=job_secret, keys=shown
    )
    click.echo(text)
    return exits.OK


@click.command()
@setting(
    "--servers",
    shared=False,
    type=click.IntRange(1, 4096),
    required=True,
    example=4,
    help="How many servers jobs are placed on.",
)
@coordinator
@settings.job_secret
@shown_keys
@settings.directory
@setting("--timeout", shared=False, type=click.FloatRange(min=0, min_open=True), default=600.0, help="Seconds to wait.")
def scale(
    servers: int,
    coordinator: str | None,
    job_secret: Path | None,
    keys: Path | None,
    directory: Path,
    timeout: float,
) -> int:
    """Spread all jobs over more or fewer servers.

    Training continues; afterwards each server has a shard of every job. To grow, start the new servers first (zmqps
    server --coordinator ...). To shrink, run only this command: the surplus servers, spares first, hand over their
    shards and end. After --timeout the command returns, and scaling continues.
    """
    from zmqps.nodes.inquiry import scale_servers

    address, shown = reach(coordinator, keys, directory)
    text = scale_servers(address, servers, timeout=timeout, progress=click.echo, job_secret=job_secret, keys=shown)
    click.echo(text)
    return exits.OK
