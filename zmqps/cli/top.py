"""``zmqps top``: the cluster in a terminal, live."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zmqps.cli import settings
from zmqps.cli.look import cluster_name, coordinator, reach, shown_keys
from zmqps.cli.settings import setting
from zmqps.core.protocol import exits
from zmqps.errors import ConfigurationError
from zmqps.extras import advice

if TYPE_CHECKING:
    from zmqps.keys.keyring import Keys
    from zmqps.top.app import Questions
    from zmqps.top.model import NodeRow

#: What is asked for once may take so long: a health check takes 2 s where a node is silent.
ONCE_S = 5.0
#: Seconds that sparklines and figures look back.
SPAN_S, POINTS = 300.0, 120


@click.command()
@coordinator
@settings.job_secret
@shown_keys
@settings.directory
@cluster_name
@setting(
    "--every", shared=False, type=click.FloatRange(min=0.2), default=1.0, help="Seconds from one view to the next."
)
def top(
    coordinator: str | None,
    job_secret: Path | None,
    keys: Path | None,
    directory: Path,
    name: str | None,
    every: float,
) -> int:
    """Watch the cluster live in the terminal.

    It shows jobs, nodes, stragglers and waits. Keys: enter for all that is known of a node, l its log, s
    its threads' stacks, h a health check of all, j and v for the next job and value, ? for help, q to quit. It
    refreshes once a second, and resumes when a lost coordinator is back. Needs the extra `watch`.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "`zmqps top` needs a terminal; `zmqps status` prints once, `zmqps status --json` plainly"
        )
    address, shown = reach(coordinator, keys, directory)
    try:
        from zmqps.top.app import Top
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise ConfigurationError(
            f"`zmqps top` needs Textual, which is not installed: {advice('watch')}; `zmqps status -w` does not"
        ) from None
    Top(questions(address, shown, job_secret, directory, name), address, every).run()
    return exits.OK


def questions(address: str, keys: Keys | None, job_secret: Path | None, directory: Path, name: str | None) -> Questions:
    """Return what can be asked of the cluster at an address."""
    from zmqps.cli.running.state import read_state
    from zmqps.nodes.inquiry import ask_health, ask_stacks, ask_status, ask_view
    from zmqps.top import source
    from zmqps.top.app import Questions
    from zmqps.top.source import TIMEOUT_S, tell

    def cluster() -> str:
        state = read_state(directory)
        return name or (state.name if state is not None and state.name else "cluster")

    def stacks(node: NodeRow) -> Sequence[str]:
        found = ask_stacks(address, node.node, timeout=ONCE_S, job_secret=job_secret, keys=keys)
        if found["nodes"] and found["nodes"][0]["state"] != "answered":
            status = ask_status(address, timeout=ONCE_S, keys=keys)
            return tell(found["nodes"][0], status, socket.gethostname(), directory / "runs" / cluster() / "logs")
        return list(found["stacks"])

    return Questions(
        view=partial(ask_view, address, span=SPAN_S, points=POINTS, timeout=TIMEOUT_S, keys=keys),
        health=partial(ask_health, address, timeout=ONCE_S, keys=keys),
        stacks=stacks,
        log=lambda node: source.tail(directory, cluster(), node.log, node.host),
    )
