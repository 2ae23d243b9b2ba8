"""``zmqps launch``: a cluster and its workers on many hosts, by ssh."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zmqps.cli import settings
from zmqps.core.protocol import exits
from zmqps.files import TEXT_NBYTES, open_given, read_file
from zmqps.settings.cluster import LaunchSettings
from zmqps.settings.node import NodeSettings

if TYPE_CHECKING:
    from zmqps.cli.running.launch_config import LaunchConfig
    from zmqps.launch.code import Code

#: Options of any command that name secrets.
SECRETS = ("keys", "job_secret", "page_token", "metrics_token", "journal")
#: Variables of zmqps itself that mean the same on every host; all others go with --env.
PASSED = ("ZMQPS_TRANSPORT", "ZMQPS_JOB", "ZMQPS_COMBINE", "ZMQPS_TRACEBACK")


@click.command(context_settings={"allow_interspersed_args": False})
@settings.options_of(LaunchSettings)
@click.option(
    "--env", "-x", multiple=True, allow_from_autoenv=False, metavar="NAME[=VALUE]",
    help="A variable for the workers; without VALUE, its value here. May be repeated.",
)  # fmt: skip
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def launch(told: LaunchSettings, env: tuple[str, ...], command: tuple[str, ...]) -> int:
    """Start a whole cluster on many hosts, by ssh.

    It starts a coordinator, servers and workers. The workers run COMMAND.

    \b
    zmqps launch --hosts hosts.txt --servers 2 --workers 4 -- python train.py
    zmqps launch -H host1:4,host2:4 --servers 2 -- python train.py

    It ends with the workers, with the first process that fails, or with Ctrl-C, and then nothing is left on any
    host. All logs are shown, and kept in runs/NAME/logs here. Each worker finds the coordinator in ZMQPS_COORDINATOR
    and its number in ZMQPS_WORKER_INDEX.
    """
    if not command:
        raise click.UsageError("say what the workers run: zmqps launch -H host1:4 -- python train.py")
    config = _config(told, env, command)
    if told.dry_run:
        _show(config)
        return exits.OK
    if not _agreed(config):
        return exits.USAGE
    from zmqps.cli.running.fleet import Fleet
    from zmqps.cli.running.output import Terminal
    from zmqps.net import loops

    terminal = Terminal(sys.stdout, config.width)
    try:
        return loops.run(Fleet(config, terminal).run())
    finally:
        terminal.close()


def _config(told: LaunchSettings, env: Sequence[str], command: Sequence[str]) -> LaunchConfig:
    from zmqps.cli.running.launch_config import LaunchConfig
    from zmqps.launch.config import ClusterConfig
    from zmqps.launch.hosts import read_hostfile, read_hosts, spread
    from zmqps.launch.ssh import Shell

    if (told.hosts is None) == (not told.host):
        raise click.UsageError("say which hosts: --hosts FILE or -H HOST:SLOTS,HOST:SLOTS")
    if told.hosts is not None:
        text = read_file(told.hosts, TEXT_NBYTES, open_given).decode(errors="replace")
        hosts = read_hostfile(text, str(told.hosts))
    else:
        hosts = read_hosts(told.host)
    if told.cluster.interface:
        hosts = [replace(host, interface=host.interface or told.cluster.interface) for host in hosts]
    places = spread(hosts, told.servers, told.cluster.workers)
    cluster = ClusterConfig.taken_from(
        told.cluster, interface="", servers=sum(len(place.servers) for place in places),
        workers=sum(len(place.workers) for place in places),
    )  # fmt: skip
    here = Path.cwd()
    there = told.remote_directory or str(here)
    code = _code(told, command, here, there) if told.sync_code else None
    return LaunchConfig.taken_from(
        told, cluster=cluster, places=places, shell=Shell(told.ssh, told.python, told.silence), command=command,
        env=_variables(env), remote_directory=there, code=code,
    )  # fmt: skip


def _code(told: LaunchSettings, command: Sequence[str], here: Path, there: str) -> Code:
    """Return what --sync-code copies."""
    from zmqps.errors import ConfigurationError
    from zmqps.launch.code import code_of, script_of

    try:
        script = script_of(command, here)
    except ConfigurationError as error:
        raise ConfigurationError(f"--sync-code: {error}") from None
    return code_of(script, here, there, _secrets(told))


def _secrets(told: LaunchSettings) -> list[Path]:
    """Return the secrets that options name, here, in the environment, or for other commands in the configuration."""
    context = click.get_current_context(silent=True)
    configured = (context.find_root().default_map or {}) if context is not None else {}
    mine = {"keys": told.cluster.keys, "job_secret": told.cluster.job_secret}
    tables = [mine, *(table for table in configured.values() if isinstance(table, Mapping))]
    values = [table.get(name) for table in tables for name in SECRETS]  # what another command has is not checked here
    found = [Path(value) for value in values if value and isinstance(value, str | Path)]
    ends = tuple(f"_{name.upper()}" for name in SECRETS)
    said = {name: value for name, value in os.environ.items() if value and name.startswith("ZMQPS_")}
    found += [Path(value) for name, value in said.items() if name.endswith(ends)]
    try:
        words = shlex.split(told.ssh)[1:]
    except ValueError:  # `Shell` says so
        words = []
    files = [word.removeprefix("-o").removeprefix("-i").removeprefix("IdentityFile=") for word in words]
    return [*found, *(Path(file).expanduser() for file in files if file and not file.startswith("-"))]


def _agreed(config: LaunchConfig) -> bool:
    """Whether --sync-code may copy: on a terminal, a large copy needs a confirmation."""
    from zmqps.launch.code import check_rsync

    code = config.code
    if code is None or not config.num_copies:
        return True
    check_rsync()
    if not code.is_much or not sys.stdin.isatty():
        return True
    click.echo(f"--sync-code copies {code.describe(config.num_copies)}; most of it is {code.largest()}", err=True)
    if code.secrets:
        click.echo(code.without(), err=True)
    return click.confirm("Copy all of it?", err=True)


def _variables(told: Sequence[str]) -> dict[str, str]:
    """Return the variables that go with the workers."""
    env = {name: os.environ[name] for name in PASSED if name in os.environ}
    for entry in told:
        name, equals, value = entry.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise click.UsageError(f"--env {entry!r}: write NAME or NAME=VALUE")
        if not equals and name not in os.environ:
            raise click.UsageError(f"--env {name}: there is no such variable here")
        env[name] = value if equals else os.environ[name]
    return env


def _show(config: LaunchConfig) -> None:
    """Print what would run where, and by which command."""
    from zmqps.cli.running.launch_config import names

    if config.code is not None and config.num_copies:
        click.echo(f"copies {config.code.describe(config.num_copies)}")
        if config.code.secrets:
            click.echo(config.code.without())
    for place in config.places:
        if not place.is_used:
            click.echo(f"{place.host.name}: nothing")
            continue
        click.echo(f"{place.host.name}: {', '.join(name.partition('@')[0] for name in names(place))}")
        if config.code is not None and not place.host.is_local:
            click.echo(f"  {shlex.join(config.shell.copy(place.host, config.code.folder, config.code.there))}")
        click.echo(f"  {shlex.join(config.shell.agent(place.host))}")
        where = f"tcp://{place.host.address or place.host.interface or place.host.name}"
        if place.coordinator:
            told: NodeSettings = replace(config.cluster.for_coordinator(), address=f"{where}:{config.port}")
            click.echo(f"    zmqps coordinator {shlex.join(settings.flags_of(told))}")
        for index in place.servers:
            told = config.cluster.for_server(index, "tcp://COORDINATOR:PORT", bind=f"{where}:0")
            click.echo(f"    zmqps server {shlex.join(settings.flags_of(told))}")
        for index in place.workers:
            click.echo(
                f"    cd {shlex.quote(config.remote_directory)} && ZMQPS_WORKER_INDEX={index} "
                f"{shlex.join(config.command)}"
            )


@click.command(hidden=True)
@click.argument("silence", type=click.FloatRange(min=0, min_open=True), default=20.0)
def agent(silence: float) -> int:
    """Start and end processes on this host for a `zmqps launch` on another one, until nothing is heard of it."""
    from zmqps import __version__
    from zmqps.launch.agent import run

    run(__version__, silence)
    return exits.OK
