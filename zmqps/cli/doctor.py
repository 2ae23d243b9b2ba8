"""``zmqps doctor``: what may go wrong before a run, and how a running cluster is."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from zmqps.cli.settings import Size, setting
from zmqps.core.protocol import exits
from zmqps.errors import ConfigurationError, PSError

if TYPE_CHECKING:
    from zmqps.doctor.facts import Cluster, Findings, Host, Model

#: Seconds for a coordinator to answer.
STATUS_S = 3.0


@click.command()
@setting("--coordinator", help="Look at the running cluster of this coordinator, too.")
@setting(
    "--port", type=click.IntRange(1, 65535), default=5570, shared=False, help="The coordinator's port, to be free."
)
@setting("--ports", metavar="A-B", help="Ports of servers, say 5571-5580, where a firewall lets these through.")
@setting(
    "--model", shared=False, metavar="NAME|SIZE",
    help="Say how quick a step can be at best: resnet50, gpt2-small, or the bytes of the model as float32.",
)  # fmt: skip
@setting("--servers", type=click.IntRange(1, 65535), default=1, shared=False, help="How many servers are to run.")
@setting("--workers", type=click.IntRange(1, 65535), shared=False, help="How many workers are to run.")
@setting("--keys", metavar="DIR", help="The cluster's keys, whose files and rights are looked at.")
@setting("--quick", is_flag=True, shared=False, help="Leave out bandwidth, which takes half a second a pair.")
@setting("--json", "as_json", is_flag=True, shared=False, help="Print rows and findings as plain data.")
@click.option("--probe", is_flag=True, hidden=True)
def doctor(
    coordinator: str | None,
    port: int,
    ports: str | None,
    model: str | None,
    servers: int,
    workers: int | None,
    keys: str | None,
    quick: bool,
    as_json: bool,
    probe: bool,
) -> int:
    """Look for what may go wrong before a run: versions, ports, bandwidth, memory, GPUs, keys.

    Each row of the table is good, a warning or wrong, with what to do. Ends with 1 if one is wrong.
    """
    if probe:
        return _probe()
    from zmqps.doctor.judge import is_wrong, judge

    asked = _ports(ports) if ports else [0]
    hosts = _here(servers, workers)
    cluster = _cluster(coordinator) if coordinator else None
    findings = _examine(hosts, [*([] if coordinator else [port]), *asked], _model(model), keys or "", quick, cluster)
    rows = judge(findings)
    if as_json:
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
    from zmqps.doctor.bound import MODELS
    from zmqps.doctor.facts import Model

    if text is None:
        return None
    name = text.strip().lower()
    if name in MODELS:
        return Model(name=name, nbytes=MODELS[name])
    if name[:1].isdecimal():
        return Model(name=name, nbytes=Size().convert(name, None, None))
    raise click.UsageError(f"{text!r:.60} is no model; write {', '.join(MODELS)}, or its size, say 400MB")


def _ports(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
        raise ConfigurationError(f"--ports {text!r:.80} is no range of ports; write 5571-5580")
    found = range(int(first), int(last or first) + 1)
    if not found or found[0] < 1 or found[-1] > 65535:
        raise ConfigurationError(f"--ports {text!r:.80}: ports go from 1 to 65535, the first one first")
    return list(found)


def _here(servers: int, workers: int | None) -> list[Host]:
    import socket

    from zmqps.doctor.facts import Host

    name = socket.gethostname()
    return [Host(name=name, address="127.0.0.1", servers=servers, workers=workers or 1)]


def _cluster(coordinator: str) -> Cluster:
    """Return what the coordinator says; what is wrong with it is a finding like others."""
    from zmqps.doctor.facts import Cluster
    from zmqps.nodes.inquiry import ask_status

    try:
        return Cluster(address=coordinator, status=ask_status(coordinator, timeout=STATUS_S))
    except ConfigurationError:
        raise
    except PSError as error:
        return Cluster(address=coordinator, status={}, problem=str(error))


def _examine(
    hosts: list[Host], ports: list[int], model: Model | None, keys: str, quick: bool, cluster: Cluster | None
) -> Findings:
    import asyncio

    from zmqps.doctor.examine import Wanted, examine
    from zmqps.doctor.running import endpoints

    split = [(name, urlsplit(endpoint)) for name, endpoint in endpoints(cluster)] if cluster else []
    nodes = [(name, parts.hostname, parts.port) for name, parts in split if parts.hostname and parts.port]
    wanted = Wanted(hosts=hosts, ports=ports, measured=not quick, model=model, keys=keys, nodes=nodes)
    findings, reaches = asyncio.run(examine(wanted))
    return replace(findings, cluster=replace(cluster, reaches=reaches)) if cluster else findings
