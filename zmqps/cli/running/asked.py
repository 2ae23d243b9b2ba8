"""What a supervisor does at Ctrl-C, SIGTERM and SIGHUP: it ends in order, and at the second one at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from zmqps.cli.running.output import LogFile
from zmqps.core.protocol import exits
from zmqps.launch.config import GRACE_S, ClusterConfig
from zmqps.net.system.signals import answered


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
        if self.number is not None or (self._ending and not self._cluster.checkpoints.saves_at_end):
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
