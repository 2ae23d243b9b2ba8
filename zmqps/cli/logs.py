"""``zmqps logs``: what the nodes and workers of a cluster have said, merged by time."""

from __future__ import annotations

import contextlib
import heapq
import io
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import click

from zmqps.cli import settings
from zmqps.cli.running.follow import FollowedLog, Wakeup, logs_in
from zmqps.cli.settings import setting
from zmqps.core.protocol import exits
from zmqps.errors import ConfigurationError, PSError
from zmqps.folder import Folder
from zmqps.logs.lines import LEVELS, Entry
from zmqps.logs.reading import Reader, Wanted, chosen, parse_since

#: An entry, and the line in which it is written.
Said = tuple[Entry, str]


@click.command()
@click.argument("nodes", nargs=-1)
@settings.directory
@setting("--name", shared=False, help="The cluster's, where none runs here.", show_default="cluster")
@setting("--node", multiple=True, shared=False,
         help="Only this one: worker-2, server-0@host-b, or a role, as worker; may be given again.")  # fmt: skip
@setting("--since", shared=False, help="Only since then: 5m, 1h30m ago, 01:24, or 2025-11-21T01:24.")
@setting("--level", shared=False, type=click.Choice(LEVELS), default="debug", help="Only this level and those above.")
@setting("--job", shared=False, help="Only what nodes and workers say about this job.")
@setting("--lines", "-n", type=click.IntRange(min=1), shared=False, help="Only so many of the last lines.")
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

    NODES are names and roles: server-0, worker-1, worker. By default, those of all nodes are shown.
    """
    from zmqps.cli.running.state import read_state

    try:
        begin = parse_since(since, datetime.now().astimezone()) if since is not None else None
    except ConfigurationError as error:
        raise click.BadParameter(str(error), param_hint="--since") from None
    state = read_state(directory)
    if name is None:
        name = state.name if state is not None and state.name else "cluster"
    try:
        folder = Folder(directory, "runs", name, "logs")
    except FileNotFoundError:
        raise PSError(f"no logs in {directory / 'runs' / name / 'logs'}; `zmqps up` writes them") from None
    with folder, contextlib.ExitStack() as stack:
        merged = MergedLogs(folder, (*nodes, *node), Wanted(since=begin, level=level, job=job))
        stack.callback(merged.close)
        wakeup = stack.enter_context(Wakeup(folder, _output())) if follow else None  # before anything is read
        show = _as_json if as_json else _printer()
        there = merged.look(to_the_end=not follow)
        for said in deque(there, maxlen=lines) if lines else there:
            show(*said)
        while wakeup is not None:
            sys.stdout.flush()
            wakeup.wait()
            for said in merged.look():
                show(*said)
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
        self._logs: dict[str, tuple[FollowedLog, Reader]] = {}
        names = logs_in(folder)
        if not names:
            raise PSError(f"no logs in {folder.path}; `zmqps up` writes them")
        if unknown := chosen(names, nodes)[1]:
            raise click.UsageError(f"no log of {', '.join(unknown)}; there are {', '.join(names)}")

    def look(self, *, to_the_end: bool = False) -> Iterator[Said]:
        """Yield what was written since the last look, merged by time; ``to_the_end``: also lines without an end.

        Raises
        ------
        UnsafeFileError
            There is something else in the place of a log. If it is there from the beginning, nothing comes before.
        """
        since = self._wanted.since
        for name in chosen(logs_in(self._folder), self._nodes)[0]:
            if name not in self._logs:
                log = FollowedLog(self._folder, name, since.timestamp() if since is not None else None)
                self._logs[name] = log, Reader(name)
        sources = [self._entries(log, reader, to_the_end) for log, reader in self._logs.values()]
        return (said for _, said in heapq.merge(*sources, key=lambda entry: entry[0]))

    def close(self) -> None:
        """Close the files."""
        for log, _ in self._logs.values():
            log.close()

    def _entries(self, log: FollowedLog, reader: Reader, to_the_end: bool) -> Iterator[tuple[datetime, Said]]:
        """Yield the wanted entries of a log, each with a time that is never before that of the one before."""
        latest: datetime | None = None
        for line in log.lines(to_the_end=to_the_end):
            entry = reader.take(line)
            latest = entry.at if latest is None else max(latest, entry.at)
            if self._wanted.has(entry):
                yield latest, (entry, line)


def _output() -> int | None:
    try:
        return sys.stdout.fileno()
    except (OSError, io.UnsupportedOperation):
        return None


def _as_json(entry: Entry, line: str) -> None:
    click.echo(json.dumps(entry.plain(), ensure_ascii=False))


def _printer() -> Callable[[Entry, str], object]:
    """Return what prints an entry for people: as it is written, or as it would be had it not been JSON."""
    show: Callable[[str], object] = click.echo
    if sys.stdout.isatty():
        from zmqps.cli.running.output import Painter

        show = Painter(sys.stdout).print

    def text(entry: Entry, line: str) -> None:
        is_json = line.startswith("{") and entry.message != line
        for part in entry.line(as_json=False).split("\n") if is_json else (line,):
            show(part)

    return text
