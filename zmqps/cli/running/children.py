"""The processes that a supervisor starts on this host, and how it ends them when it is asked to.

Each has its own log, which its lives share. At Ctrl-C, SIGTERM and SIGHUP a supervisor ends in order, and at the second
one at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from zmqps.cli.running.output import LogFile, Terminal
from zmqps.core.protocol import exits
from zmqps.errors import counted, listed
from zmqps.folder import Folder
from zmqps.launch.config import GRACE_S, ClusterConfig
from zmqps.launch.processes import Piped, mark_of, node_command, node_environment, start_of
from zmqps.launch.supervision import Restarts
from zmqps.net.system.signals import answered
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


class Asked:
    """What a supervisor was asked, and whether its cluster ends.

    Parameters
    ----------
    log
        The supervisor's.
    cluster
        The cluster: its end may take as long as its jobs take to be saved.
    says
        What the first signal does, for the log.
    kill
        Ends all processes at once.
    """

    def __init__(self, log: LogFile, cluster: ClusterConfig, says: str, kill: Callable[[], object]) -> None:
        self.number: signal.Signals | None = None  # the signal; None: it was not asked to end
        self.over = asyncio.Event()  # nothing is started again
        self._log = log
        self._cluster = cluster
        self._says = says
        self._kill = kill
        self._ending = False

    @property
    def ending(self) -> bool:
        """Whether the end has begun, or was asked for."""
        return self._ending or self.number is not None

    @contextlib.contextmanager
    def answered(self) -> Iterator[None]:
        """Answer the signals as long as this task runs; the first one cancels it."""
        task = asyncio.current_task()
        assert task is not None
        ask = partial(self._ask, task)
        with answered((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), ask):
            yield

    def _ask(self, task: asyncio.Task[Any], number: signal.Signals) -> None:
        if self.number is not None or (self._ending and not self._cluster.saving.saves_at_end):
            self._kill()
            return
        self.number = number
        if self._ending:
            self._log.say("info", f"{number.name}: what was trained is being saved; once more to end at once, without")
            return
        self._log.say("info", f"{number.name}: {self._says}")
        self.over.set()
        task.cancel()

    async def code_of(self, work: Coroutine[Any, Any, int]) -> int:
        """Return the exit code that work has returned, or that of a signal that came before; then the end begins.

        Raises
        ------
        Exception
            As work; it is in the log.
        """
        try:
            return await work
        except asyncio.CancelledError:
            if self.number is None:
                raise
            return exits.INTERRUPTED if self.number == signal.SIGINT else exits.TERMINATED
        except Exception as error:
            self._log.note(error)
            raise
        finally:
            self._ending = True
            self.over.set()

    @property
    def passed_on(self) -> signal.Signals:
        """The signal by which workers are asked to end."""
        return signal.SIGINT if self.number == signal.SIGINT else signal.SIGTERM

    def grace(self, drain_timeout: float) -> float:
        """Return how long workers may take to end."""
        return drain_timeout if self.number == signal.SIGTERM else GRACE_S
