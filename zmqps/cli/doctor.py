"""``zmqps doctor``: what may go wrong before a run, and how a running cluster is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from zmqps.cli.settings import Size, option_of, setting
from zmqps.core.protocol import exits
from zmqps.core.protocol.endpoints import parse_ports
from zmqps.errors import ConfigurationError, PSError
from zmqps.files import TEXT_NBYTES, open_given, read_file
from zmqps.settings.cluster import LaunchSettings

if TYPE_CHECKING:
    from zmqps.doctor.examine import Wanted
    from zmqps.doctor.facts import Cluster, Code, Findings, Host, Model

#: Seconds for a coordinator to answer.
STATUS_S = 3.0
#: Each host is asked about each other one.
MAX_HOSTS = 256
DEFAULT_PORT = 5570


@click.command(context_settings={"allow_interspersed_args": False})
@option_of(LaunchSettings, "hosts")
@option_of(LaunchSettings, "host")
@setting("--coordinator", help="Also check the running cluster of this coordinator.")
@setting(
    "--port",
    type=click.IntRange(1, 65535),
    show_default=str(DEFAULT_PORT),
    shared=False,
    example=DEFAULT_PORT,
    help="The coordinator's port, which must be free; with --hosts or -H, checked only if given.",
)
@option_of(LaunchSettings, "ports")
@setting(
    "--model", shared=False, metavar="NAME|SIZE", example="resnet50",
    help="Estimate the fastest possible step: resnet50, gpt2-small, or the bytes of the model as float32.",
)  # fmt: skip
@option_of(LaunchSettings, "servers")
@option_of(LaunchSettings, "workers")
@option_of(LaunchSettings, "interface")
@option_of(LaunchSettings, "python")
@option_of(LaunchSettings, "remote_directory")
@option_of(LaunchSettings, "sync_code", help="The script's folder will be copied to the hosts: check rsync.")
@option_of(LaunchSettings, "ssh")
@option_of(LaunchSettings, "keys", help="The cluster's keys: their rights, and the copies of each host.")
@setting("--quick", is_flag=True, shared=False, help="Leave out bandwidth, which takes a second a pair.")
@setting("--json", "as_json", is_flag=True, shared=False, help="Print rows and findings as plain data.")
@click.option("--probe", is_flag=True, hidden=True)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def doctor(probe: bool, **told: Any) -> int:
    """Find problems before a run.

    \b
    zmqps doctor
    zmqps doctor -H host1:4,host2:4 -- python train.py

    Without hosts, it checks this one; with hosts, on each also that the workers' directory and the script of COMMAND
    are there.

    It checks versions, ports, bandwidth, memory, GPUs and keys. Each row of the table is good, a warning or wrong,
    with what to do. Ends with 1 if one is wrong.
    """
    if probe:
        return _probe()
    from zmqps.doctor.examine import is_wrong, judge

    cluster = _cluster(told["coordinator"], told["keys"]) if told["coordinator"] else None
    findings = _examine(_wanted(told, cluster), cluster)
    rows = judge(findings)
    if told["as_json"]:
        plain = {"wrong": is_wrong(rows), "rows": [asdict(row) for row in rows], "findings": asdict(findings)}
        click.echo(json.dumps(plain, indent=2))
    else:
        from zmqps.cli.tables import doctor_table, new_console

        new_console().print(doctor_table(rows))
    return exits.FAILED if is_wrong(rows) else exits.OK


def _probe() -> int:
    """Carry out what a doctor on another host wants to know."""
    from zmqps import __version__
    from zmqps.doctor.probe import serve

    serve(sys.stdin.buffer, sys.stdout.buffer, __version__)
    return exits.OK


def _model(text: str | None) -> Model | None:
    from zmqps.doctor.facts import Model
    from zmqps.doctor.speed import MODELS

    if text is None:
        return None
    name = text.strip().lower()
    if name in MODELS:
        return Model(name=name, nbytes=MODELS[name])
    if name[:1].isdecimal():
        return Model(name=name, nbytes=Size().convert(name, None, None))
    raise click.UsageError(f"{text!r:.60} is not a model; write {', '.join(MODELS)}, or its size, as 400MB")


def _here(servers: int | None, workers: int | None) -> list[Host]:
    """Return this host alone."""
    import socket

    from zmqps.doctor.facts import Host

    name = socket.gethostname()
    return [Host(name=name, address="127.0.0.1", coordinator=True, servers=servers or 1, workers=workers or 1)]


def _hosts(told: Mapping[str, Any]) -> list[Host]:
    """Return the hosts of a file or list, with what `zmqps launch` would run on each."""
    from zmqps.doctor.facts import Host
    from zmqps.launch.hosts import read_hostfile, read_hosts, spread
    from zmqps.launch.ssh import Shell

    if told["hosts"] is not None:
        named = read_hostfile(
            read_file(told["hosts"], TEXT_NBYTES, open_given).decode(errors="replace"), str(told["hosts"])
        )
    else:
        named = read_hosts(told["host"])
    if len(named) > MAX_HOSTS:
        raise ConfigurationError(f"{len(named)} hosts are too many to look at at once; name {MAX_HOSTS} at most")
    shell = Shell(told["ssh"], told["python"] or "")
    return [
        Host(
            name=place.host.name,
            login="" if place.host.is_local else place.host.destination,
            port=place.host.port or 0,
            command=shell.zmqps(place.host, "doctor", "--probe"),
            coordinator=place.coordinator,
            servers=len(place.servers),
            workers=len(place.workers),
            interface=place.host.interface or told["interface"] or "",
            address=place.host.address,
        )
        for place in spread(named, told["servers"], told["workers"])
    ]


def _code(told: Mapping[str, Any]) -> Code:
    """Return what a launch would look for on the hosts."""
    from zmqps.doctor.facts import Code
    from zmqps.doctor.host import look_for_code
    from zmqps.launch.code import place_of, script_of

    here = Path.cwd()
    directory = told["remote_directory"] or str(here)
    if not told["command"]:
        if told["sync_code"]:
            raise click.UsageError("--sync-code: say which script: zmqps doctor -H HOST --sync-code -- python train.py")
        return Code(directory=directory, here=look_for_code(directory))
    script = script_of(told["command"], here)
    found = look_for_code(str(here), str(script))
    return Code(directory=directory, script=place_of(script, here, directory), here=found, copied=told["sync_code"])


def _wanted(told: Mapping[str, Any], cluster: Cluster | None) -> Wanted:
    from zmqps.doctor.examine import Wanted
    from zmqps.doctor.probe import MAX_PORTS
    from zmqps.doctor.running import endpoints

    if told["hosts"] is not None and told["host"] is not None:
        raise click.UsageError("say which hosts either with --hosts or with -H")
    ports = [*parse_ports(told["ports"])] if told["ports"] else [0]
    if len(ports) > MAX_PORTS:
        raise ConfigurationError(
            f"--ports {told['ports']}: {len(ports)} ports are too many to look at at once; name {MAX_PORTS} at most, "
            f"say --ports {ports[0]}-{ports[MAX_PORTS - 1]}: servers take the first free ones"
        )
    alone = told["hosts"] is None and told["host"] is None
    if alone and told["command"]:
        raise click.UsageError("name the hosts that will run it: zmqps doctor -H HOST,HOST -- python train.py")
    port = 0 if cluster else told["port"] or (DEFAULT_PORT if alone else 0)
    split = [(name, urlsplit(endpoint)) for name, endpoint in endpoints(cluster)] if cluster else []
    return Wanted(
        hosts=_here(told["servers"], told["workers"]) if alone else _hosts(told),
        port=port,
        ports=ports,
        measured=not told["quick"],
        model=_model(told["model"]),
        keys=str(told["keys"] or ""),
        code=None if alone else _code(told),
        nodes=[(name, parts.hostname, parts.port) for name, parts in split if parts.hostname and parts.port],
    )


def _cluster(coordinator: str, keys: Path | None) -> Cluster:
    """Return what the coordinator says; what is wrong with it is a finding like others."""
    from zmqps.doctor.facts import Cluster
    from zmqps.keys import find_keys
    from zmqps.nodes.inquiry import ask_status

    found = None
    with suppress(PSError):  # the row about keys says what is wrong with them
        found = find_keys(keys, None, os.environ)
    try:
        return Cluster(address=coordinator, status=ask_status(coordinator, timeout=STATUS_S, keys=found))
    except ConfigurationError:
        raise
    except PSError as error:
        return Cluster(address=coordinator, status={}, problem=str(error))


def _examine(wanted: Wanted, cluster: Cluster | None) -> Findings:
    import asyncio

    from zmqps.doctor.examine import examine

    if sys.stderr.isatty() and len(wanted.hosts) > 1:
        click.echo(f"looking at {len(wanted.hosts)} hosts …", err=True)
    findings, reaches = asyncio.run(examine(wanted))
    return replace(findings, cluster=replace(cluster, reaches=reaches)) if cluster else findings
