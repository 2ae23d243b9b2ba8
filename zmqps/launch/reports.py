"""Tells the coordinator which processes have ended, as soon as their supervisor sees it.

A process that is killed says no goodbye: without this, others would wait for it until its heartbeats are missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from zmqps.errors import PSError
from zmqps.keys.keyring import Keys
from zmqps.launch.processes import Process, describe_exit
from zmqps.nodes.inquiry import report_exit

#: A coordinator that is away, and comes back from its journal, is informed when it is back. One that does not answer
#: for this long has missed the heartbeats as well by then.
REPORT_S = 20.0

log = logging.getLogger("zmqps.launch")


class Reports:
    """What one supervisor says of the processes that it has started."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(
        self,
        process: Process,
        code: int,
        address: str,
        keys: Keys | None,
        then: Callable[[Sequence[str]], None] = lambda lost: None,
    ) -> None:
        """Tell the coordinator at an address that a process has ended, without waiting; again until it has answered.

        Parameters
        ----------
        process
            One that has ended. Where some of those that say that they live in it may not have ended as well, nothing is
            said: their heartbeats will show it.
        code
            Its exit code, negative for a signal.
        address
            The coordinator's endpoint.
        keys
            Those of this cluster, of whatever role; None: it has none.
        then
            Takes the members lost with it.
        """
        if process.ended_whole and address:
            task = asyncio.create_task(_tell(process.token, describe_exit(code), address, keys, then))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def settle(self, timeout: float) -> None:
        """Wait until the coordinator knows of all, for ``timeout`` seconds at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    async def close(self) -> None:
        """Say no more: the cluster ends."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _tell(token: bytes, how: str, address: str, keys: Keys | None, then: Callable[[Sequence[str]], None]) -> None:
    try:
        then(await report_exit(address, token, how, timeout=REPORT_S, keys=keys))
    except PSError as error:
        log.debug("the coordinator does not know yet that a process has ended (%s): %s", how, error)
