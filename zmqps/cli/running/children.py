"""The processes of this host that a supervisor starts: each with its own log, which its lives share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from zmqps.cli.running.output import LogFile, Terminal
from zmqps.errors import counted, listed
from zmqps.folder import Folder
from zmqps.launch.processes import Piped, mark_of, node_command, node_environment, start_of
from zmqps.launch.supervision import Restarts
from zmqps.settings.node import NodeSettings

MOST_NAMED = 8


class Children:
    """The processes of one supervisor.

    Parameters
    ----------
    folder
        Of the logs.
    terminal
        Shows what they say.
    """

    def __init__(self, folder: Folder, terminal: Terminal | None) -> None:
        #: By name: the life under way, or the last one.
        self.processes: dict[str, Piped] = {}
        self._folder = folder
        self._terminal = terminal
        self._logs: dict[str, LogFile] = {}
        self._mark = mark_of(os.getpid(), start_of(os.getpid()))

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str], settings: Mapping[str, Any] | None = None
    ) -> Piped:
        """Start a process, or its next life; one with settings is a node."""
        if name in self._logs:
            self.processes[name].close()
        else:
            self._logs[name] = LogFile(name, self._folder, f"{name}.log", self._terminal)
        log = self._logs[name]
        env = {**env, **self._mark}
        process = self.processes[name] = Piped(name, command, log.take, log=log.path, env=env, settings=settings)
        return process

    def start_node(self, told: NodeSettings) -> Piped:
        """Start a node, or its next life."""
        return self.start(
            told.name, node_command(told.role, f"--name={told.name}"), node_environment(), told.document()
        )

    def code(self, name: str) -> int | None:
        """Return how a process has ended, negative for a signal; None: it runs, or was never started."""
        process = self.processes.get(name)
        return None if process is None else process.popen.returncode

    def kill(self) -> None:
        """End all at once."""
        for process in self.processes.values():
            process.kill()

    async def close(self) -> None:
        """Release what this process holds of them, once all that they have said has arrived."""
        for process in self.processes.values():
            await process.heard()
            process.close()
        for log in self._logs.values():
            log.close()


def how_ended(workers: Mapping[str, Restarts], drained: Sequence[str]) -> str:
    """Say that all workers have ended well, or were drained, and which of them were started again."""
    well = len(workers) - len(drained)
    named = "the worker has" if len(workers) == 1 else f"all {well} workers have"
    named = f"{well} of {counted(len(workers), 'worker')} have" if drained else named
    more = [f"{name} was restarted {counted(life.num, 'time')}" for name, life in workers.items() if life.num]
    more += [f"{listed(drained, MOST_NAMED)} drained"] if drained else []
    return "; ".join([f"{named} ended well", *more[:MOST_NAMED]])
