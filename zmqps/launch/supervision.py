"""Supervises processes: how many lives each may have, when the next one begins, and by which token they are known.

All lives of one worker have a token in their environment, and a number. By these the coordinator lets a life take the
place of its predecessor at once, even before that one's loss is known.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from zmqps.core.protocol import exits
from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.errors import NodeFailedError, counted

T = TypeVar("T")

#: In the environment of a worker that is started again.
TOKEN, RESTART = "ZMQPS_WORKER_TOKEN", "ZMQPS_WORKER_RESTART"
#: How often a node that fails is started again, where the user does not say, and how long that may take.
RESTARTS = 3
RESTART_S = 30.0
#: How long to wait before a process is started again: so long at first, and twice as long each time up to the most.
PAUSE_S, MOST_PAUSE_S = 0.5, 30.0
#: How long workers may take to end after SIGTERM, where the user does not say.
DRAIN_TIMEOUT_S = 5.0
#: Exit codes after which another life would end in the same way: what it was told cannot be used, as click and argparse
#: say it, or there is no such command, as shells do.
HOPELESS = (exits.USAGE, 126, 127)


def failed(code: int) -> bool:
    """Whether a worker that ended with this code has failed: it was neither done nor asked to go."""
    return code not in (exits.OK, exits.DRAINED)


class Child(Protocol):
    """A process that is awaited and ended: of this host, or of another one (`zmqps.launch.remote`)."""

    name: str

    @property
    def ended(self) -> bool:
        """Whether it has ended."""

    async def exited(self) -> int:
        """Wait until it has; return its exit code, negative for a signal."""

    def failure(self, code: int) -> NodeFailedError:
        """Return the error that says how it has ended, with its last words."""

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""

    def kill(self) -> None:
        """End it at once."""


async def while_all_run(work: Coroutine[Any, Any, T], processes: Iterable[Child]) -> T:
    """Wait for something while processes run.

    Raises
    ------
    NodeFailedError
        The first process that ended before.
    """
    task = asyncio.ensure_future(work)
    ends = {asyncio.ensure_future(process.exited()): process for process in processes}
    try:
        await asyncio.wait([task, *ends], return_when=asyncio.FIRST_COMPLETED)
        for ended, process in ends.items():
            if ended.done() and not task.done():
                raise process.failure(ended.result())
        return await task
    finally:
        for future in [task, *ends]:
            future.cancel()
        await asyncio.gather(task, *ends, return_exceptions=True)


class Restarts:
    """The lives of one worker, counted from the first one, which is no restart.

    Parameters
    ----------
    most
        How often it may be started again in all.
    pause
        After how many seconds the first time.
    """

    def __init__(self, most: int, pause: float = PAUSE_S) -> None:
        self.num = 0
        self.pause = pause  # before the life that comes next
        self._most = most
        self._token = secrets.token_hex(KEY_NBYTES)

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables of the life under way; empty if the process is never restarted."""
        return {TOKEN: self._token, RESTART: str(self.num)} if self._most else {}

    def may_follow(self, code: int) -> bool:
        """Whether another life may follow one that ended with this code."""
        return failed(code) and code not in HOPELESS and self.num < self._most

    def what_follows(self, code: int) -> str:
        """Say what follows after a life that ended with this code; nothing where there was never to be another one."""
        if not self._most or not failed(code):
            return ""
        if self.may_follow(code):
            return f"it starts again in {self.pause:g} s: restart {self.num + 1} of {self._most}"
        if code in HOPELESS:
            return f"it does not start again: exit code {code} says that this would be no use"
        return f"it does not start again: it was restarted {counted(self._most, 'time')}, as often as it may"

    def again(self, why: str) -> str:
        """Say that the next life begins, and why that is of use."""
        return f"is started again ({self.num + 1} of {self._most}): {why}"

    def begin(self) -> None:
        """The next life begins."""
        assert self.num < self._most
        self.num += 1
        self.pause = max(self.pause, min(2 * self.pause, MOST_PAUSE_S))
