"""``zmqps logs``: what the nodes and workers of a cluster have said, merged by time."""

from __future__ import annotations

import contextlib
import heapq
import io
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from zmqps.cli import settings
from zmqps.cli.running.follow import FollowedLog, logs_in, wait_for_more
from zmqps.cli.settings import setting
from zmqps.core.protocol import exits
from zmqps.errors import ConfigurationError, PSError
from zmqps.folder import Folder
from zmqps.logs.lines import Entry, Levels, Wanted, chosen, parse_since, read_entry
from zmqps.settings.node import LEVELS

#: The name by which a log is read from standard input.
STDIN = "-"


@click.command()
@click.argument("nodes", nargs=-1)
@settings.directory
@setting("--name", shared=False, example="cluster", help="The cluster's, where none runs here.", show_default="cluster")
@setting("--node", multiple=True, shared=False, example='["worker-2", "server"]',
         help="Only this one: worker-2, server-0@host-b, or a role, as worker; may be given again.")  # fmt: skip
@setting("--since", shared=False, example="5m", help="Only since then: 5m, 1h30m ago, 01:24, or 2025-11-21T01:24.")
@setting("--level", shared=False, type=click.Choice(LEVELS), default="debug", help="Only this level and those above.")
@setting("--job", shared=False, example="default", help="Only what nodes and workers say about this job.")
@setting("--lines", "-n", type=click.IntRange(min=1), shared=False, example=20, help="Only this many lines at the end.")
@setting("--json", "as_json", is_flag=True, shared=False, help="One JSON object a line, with all fields.")
@setting("--follow", "-f", is_flag=True, shared=False, help="Keep printing new lines, until Ctrl-C.")
def logs(
    nodes: tuple[str, ...],
    directory: Path,
    name: str | None,
    node: tuple[str, ...],
    since: str | None,
    level: str,
    job: str | None,
    lines: int | None,
    as_json: bool,
    follow: bool,
) -> int:
    """Show the logs of nodes, merged by time.

    NODES are names and roles: server-0, worker-1, worker. By default, those of all nodes are shown. A single "-" reads
    a log from standard input, such as that of a container.
    """
    from zmqps.cli.running.state import read_state

    try:
        begin = parse_since(since, datetime.now().astimezone()) if since is not None else None
    except ConfigurationError as error:
        raise click.BadParameter(str(error), param_hint="--since") from None
    wanted, show = Wanted(since=begin, level=level, job=job), _printer(as_json=as_json)
    if nodes == (STDIN,):
        for _, said in _entries(STDIN, map(str.rstrip, sys.stdin), wanted):
            show(said)
        return exits.OK
    state = read_state(directory)
    if name is None:
        name = state.name if state is not None and state.name else "cluster"
    try:
        folder = Folder(directory, "runs", name, "logs")
    except FileNotFoundError:
        raise PSError(f"no logs in {directory / 'runs' / name / 'logs'}; `zmqps up` writes them") from None
    with folder, contextlib.ExitStack() as stack:
        merged = MergedLogs(folder, (*nodes, *node), wanted)
        stack.callback(merged.close)
        there = merged.look(to_the_end=not follow)
        for said in deque(there, maxlen=lines) if lines else there:
            show(said)
        while follow:
            sys.stdout.flush()
            wait_for_more(_output())
            for said in merged.look():
                show(said)
    return exits.OK


class MergedLogs:
    """The logs of a folder, of which each line is read once.

    Parameters
    ----------
    folder
        Where they are.
    nodes
        Read these nodes' logs; none: all, also those added meanwhile.
    wanted
        Which of their entries.

    Raises
    ------
    PSError
        There are none.
    """

    def __init__(self, folder: Folder, nodes: Sequence[str], wanted: Wanted) -> None:
        self._folder = folder
        self._nodes = nodes
        self._wanted = wanted
        self._logs: dict[str, FollowedLog] = {}
        names = logs_in(folder)
        if not names:
            raise PSError(f"no logs in {folder.path}; `zmqps up` writes them")
        if unknown := chosen(names, nodes)[1]:
            raise click.UsageError(f"no log of {', '.join(unknown)}; there are {', '.join(names)}")

    def look(self, *, to_the_end: bool = False) -> Iterator[Entry]:
        """Yield what was written since the last look, merged by time; ``to_the_end``: also lines without an end.

        Raises
        ------
        UnsafeFileError
            There is something else in the place of a log. If it is there from the beginning, nothing comes before.
        """
        since = self._wanted.since
        for name in chosen(logs_in(self._folder), self._nodes)[0]:
            if name not in self._logs:
                self._logs[name] = FollowedLog(self._folder, name, since.timestamp() if since is not None else None)
        sources = [_entries(name, log.lines(to_the_end=to_the_end), self._wanted) for name, log in self._logs.items()]
        return (entry for _, entry in heapq.merge(*sources, key=lambda found: found[0]))

    def close(self) -> None:
        """Close the files."""
        for log in self._logs.values():
            log.close()


def _entries(name: str, lines: Iterable[str], wanted: Wanted) -> Iterator[tuple[datetime, Entry]]:
    """Yield the wanted entries of a log, each with a time that is never before that of the one before.

    A line that is not an entry, such as one that is torn, or that a library printed in a container, has the time of the
    entry before.
    """
    last, levels = Entry(at=datetime.fromtimestamp(0, UTC), level="info", node=name, message=""), Levels()
    latest = last.at
    for line in lines:
        last = read_entry(line) or replace(last, level=levels.of(line), message=line, fields={})
        latest = max(latest, last.at)
        if wanted.has(last):
            yield latest, last


def _output() -> int | None:
    try:
        return sys.stdout.fileno()
    except (OSError, io.UnsupportedOperation):
        return None


def _printer(*, as_json: bool) -> Callable[[Entry], object]:
    """Return what prints an entry."""
    if as_json:
        return lambda entry: click.echo(entry.line())
    if not sys.stdout.isatty():
        return lambda entry: click.echo(entry.text())
    from zmqps.cli.running.output import Painter

    return Painter(sys.stdout).print
