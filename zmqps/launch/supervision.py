"""Supervises processes: starts each, waits for its end, and starts it again as often as its `Restarts` allow.

One loop, `supervise`, serves processes of this host, of another one (`zmqps.launch.remote`) and of Ray
(`zmqps.launch.keeper`). What differs between supervisors are values: the `Restarts`, and what they do about an `End`.

All lives of a worker have a token in their environment, and a number. By these the coordinator lets a life take the
place of its predecessor at once, even before the predecessor's loss is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from zmqps.core.protocol import exits
from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.errors import NodeFailedError, counted
from zmqps.settings.cluster import ClusterSettings, LauncherSettings

#: In the environment of a worker that is started again.
TOKEN, RESTART = "ZMQPS_WORKER_TOKEN", "ZMQPS_WORKER_RESTART"
#: How often a node that fails is started again, where the user does not say, and how long that may take.
RESTARTS = ClusterSettings().restart_servers
RESTART_S = 30.0
#: How long to wait before a process is started again: so long at first, and twice as long each time up to the most.
PAUSE_S, MOST_PAUSE_S = 0.5, 30.0
#: How long workers may take to end after SIGTERM, where the user does not say.
DRAIN_TIMEOUT_S = LauncherSettings().drain_timeout
#: Exit codes after which another life would end in the same way: its arguments are wrong, in click and argparse, or
#: there is no such command, in shells.
HOPELESS = (exits.USAGE, 126, 127)
#: Exit codes of a worker that has not failed: it was done, or asked to go.
WELL = (exits.OK, exits.DRAINED)


def failed(code: int) -> bool:
    """Whether a worker that ended with this code has failed."""
    return code not in WELL


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

    async def heard(self) -> None:
        """Wait for the last words of one that has ended, but not for long."""

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""

    def kill(self) -> None:
        """End it at once."""


T = TypeVar("T")
C = TypeVar("C", bound=Child)


class Restarts:
    """When a process is started again, and how often it was.

    Parameters
    ----------
    most
        How often it may be started again in all.
    pause
        After how many seconds the first time; then after twice as many each time.
    well
        Exit codes of a process that has not failed.
    why
        What another life is for, which then begins without a pause.
    replaces
        Whether the next life takes the place of the one before, by a token in its environment.
    possible
        Whether another life could continue the work now.
    """

    def __init__(
        self, most: int, pause: float = PAUSE_S, *, well: Container[int] = WELL, why: str = "", replaces: bool = True,
        possible: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self.num = 0
        self.pause = 0.0 if why else pause  # before the life that comes next
        self.replaces = replaces
        self._most = most
        self._well = well
        self._why = why
        self._possible = possible
        self._token = secrets.token_hex(KEY_NBYTES)

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables of the life under way; empty if the process is never restarted."""
        return {TOKEN: self._token, RESTART: str(self.num)} if self._most else {}

    def failed(self, code: int) -> bool:
        """Whether a life that ended with this code has failed."""
        return code not in self._well

    def may_follow(self, code: int) -> bool:
        """Whether another life may follow one that ended with this code."""
        return self.failed(code) and code not in HOPELESS and self.num < self._most and self._possible()

    def text(self, failure: NodeFailedError, code: int, again: bool) -> str:
        """Say how a life has failed, and what follows."""
        failed, number = f"{failure.name} failed with {failure.how}", f"{self.num + 1} of {self._most}"
        if again and self._why:
            return f"{failed} and is started again ({number}): {self._why}"
        text = f"{failed}; its last lines:\n{failure.tail}"
        if again:
            return f"{text}\n  it starts again in {self.pause:g} s: restart {number}"
        if code in HOPELESS and self._most:
            return f"{text}\n  it does not start again: exit code {code} says that this would be no use"
        if self.num == self._most and (self._most or self._why):
            most = f": it was restarted {counted(self._most, 'time')}, as often as it may" if self._most else ""
            return f"{text}\n  it does not start again{most}"
        return text

    def begin(self) -> None:
        """The next life begins."""
        assert self.num < self._most
        self.num += 1
        self.pause = max(self.pause, min(2 * self.pause, MOST_PAUSE_S))


@dataclass(frozen=True, slots=True)
class End(Generic[C]):
    """How one life of a process has ended: its code, negative for a signal, and whether the process starts again."""

    child: C
    code: int
    again: bool
    text: str  # how it has failed, with its last lines, and what follows; empty if it has not failed

    @property
    def level(self) -> str:
        """How grave a failure is, for a log."""
        return "warning" if self.again else "error"


async def supervise(
    restarts: Restarts, start: Callable[[], Awaitable[C]], told: Callable[[End[C]], Awaitable[None]],
    over: asyncio.Event, *, lost: Callable[[C, int], object] = lambda child, code: None, child: C | None = None,
) -> int:  # fmt: skip
    """Run a process, and again as often as it may be; return the exit code of its last life.

    Parameters
    ----------
    restarts
        When it is started again.
    start
        Starts it. What it raises ends the supervision.
    told
        Called at the end of each life, when all that it has said has arrived.
    over
        Set once nothing is started again. This ends a pause, too.
    lost
        Called at once with each process, and its exit code, whose place no other life takes.
    child
        The first life, if it has begun.
    """
    ended: list[tuple[C, int]] = []
    child = await start() if child is None else child
    while True:
        code = await child.exited()
        ended.append((child, code))
        if not restarts.replaces or over.is_set() or not restarts.may_follow(code):
            for life in ended:
                lost(*life)
            ended.clear()
        await child.heard()
        again = not over.is_set() and restarts.may_follow(code)
        text = restarts.text(child.failure(code), code, again) if restarts.failed(code) else ""
        await told(End(child, code, again, text))
        if not again:
            return code
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), restarts.pause)
        if over.is_set():
            return code
        restarts.begin()
        child = await start()


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
