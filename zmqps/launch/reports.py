"""Tells the coordinator which processes have ended, as soon as their supervisor sees it.

A process that is killed says no goodbye: without this, others would wait for it until its heartbeats are missed.
"""

from __future__ import annotations

import asyncio
import logging

from zmqps.core.node.inquiry import Inquiry
from zmqps.core.protocol.messages import Exited
from zmqps.errors import PSError
from zmqps.launch.processes import Process, describe_exit
from zmqps.net.keyring import Keys
from zmqps.nodes.inquiry import ask

#: A coordinator that is away, and comes back from its journal, is told when it is back. One that does not answer for so
#: long has missed the heartbeats as well by then.
REPORT_S = 20.0

log = logging.getLogger("zmqps.launch")


class Reports:
    """What one supervisor says of the processes that it has started."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, process: Process, code: int, address: str, keys: Keys | None) -> None:
        """Tell the coordinator at an address that a process has ended, and go on; again until it has answered.

        Parameters
        ----------
        process
            One that has ended. Where it is not sure that all who say that they live in it have ended as well, nothing is
            said: their heartbeats will show it.
        code
            Its exit code, negative for a signal.
        address
            The coordinator's endpoint.
        keys
            Those of this cluster, of whatever role; None: it has none.
        """
        if process.ended_whole and address:
            task = asyncio.create_task(report(process.token, describe_exit(code), address, keys))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Say no more: the cluster ends."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def report(token: bytes, how: str, address: str, keys: Keys | None, timeout: float = REPORT_S) -> None:
    """Tell the coordinator at an address that the process with a token has ended; return when it has answered."""
    try:
        await ask(Inquiry(address, question=Exited(1, token, how)), "report of an exit", timeout, keys)
    except PSError as error:
        log.debug("the coordinator does not know yet that a process has ended (%s): %s", how, error)
