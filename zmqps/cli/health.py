"""``zmqps health`` and ``zmqps stack``: whether all nodes answer, and what the threads of one are doing."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import click

from zmqps.cli import settings
from zmqps.cli.look import as_json, cluster_name, coordinator, reach, shown_keys
from zmqps.cli.settings import setting
from zmqps.core.protocol import exits

timeout = setting(
    "--timeout", shared=False, type=click.FloatRange(min=0, min_open=True), default=5.0, help="Seconds to wait."
)


@click.command()
@coordinator
@shown_keys
@settings.directory
@timeout
@as_json
def health(coordinator: str | None, keys: Path | None, directory: Path, timeout: float, as_json: bool) -> int:
    """Check that every node answers.

    It fails if one is silent, and shows the round-trip time to each. A node answers from its loop, a worker from
    its background thread, even while its script is busy. Nodes without an answer within 2 s are silent.
    """
    from zmqps.nodes.inquiry import ask_health

    address, shown = reach(coordinator, keys, directory)
    found = ask_health(address, timeout=timeout, keys=shown)
    silent = [node for node in found["nodes"] if node["state"] == "silent"]
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        from zmqps.cli.tables import health_table, new_console
        from zmqps.top.model import health_sentence

        new_console().print(health_table(found))
        click.echo(health_sentence(found))
    return exits.FAILED if silent else exits.OK


@click.command()
@click.argument("node")
@coordinator
@settings.job_secret
@shown_keys
@settings.directory
@cluster_name
@timeout
def stack(
    node: str,
    coordinator: str | None,
    job_secret: Path | None,
    keys: Path | None,
    directory: Path,
    name: str | None,
    timeout: float,
) -> int:
    """Show what a node's threads are doing.

    It shows names, files and lines, no values. NODE is worker-2, server-0, coordinator, or what the node calls itself
    in `zmqps status`; JOB/worker-2 where several jobs have one. Where a name means two nodes the error says how each is
    named. One whose loop does not answer is sent SIGUSR2, if it is a process of this user on this host that takes it
    for that: then it writes its stacks to its log. It takes what ends a job.
    """
    from zmqps.nodes.inquiry import ask_stacks, ask_status

    address, shown = reach(coordinator, keys, directory)
    found = ask_stacks(address, node, timeout=timeout, job_secret=job_secret, keys=shown)
    if found["nodes"] and found["nodes"][0]["state"] != "answered":
        from zmqps.cli.running.state import read_state
        from zmqps.top.source import tell

        state = read_state(directory)
        logs = directory / "runs" / (name or (state.name if state is not None and state.name else "cluster")) / "logs"
        status = ask_status(address, timeout=timeout, keys=shown)
        lines = tell(found["nodes"][0], status, socket.gethostname(), logs)
        click.echo("\n".join(lines))
        return exits.FAILED
    _show(found)
    return exits.OK


def _show(found: dict[str, Any]) -> None:
    for line in found.get("stacks", ()):
        click.echo(line)
