"""Ends a cluster from outside: its supervisor, or what a killed one has left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

from zmqps.launch.processes import children_of, gone, session_of


async def end_supervisor(pid: int, timeout: float) -> bool:
    """Ask a supervisor to end; kill it and its children when it does not. Return which."""
    ended = asyncio.ensure_future(gone(pid))
    await asyncio.sleep(0)  # it holds on to the process now, before its number can be given away
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if (await asyncio.wait([ended], timeout=timeout))[0]:
        return True
    await _kill([pid, *children_of(pid)], timeout)
    await ended
    return False


async def end_rest(pid: int, timeout: float) -> None:
    """Wait for what a killed supervisor has left to end by itself; kill it when it does not."""
    rest = session_of(pid)
    if rest and (await asyncio.wait([asyncio.ensure_future(gone(process)) for process in rest], timeout=timeout))[1]:
        await _kill(session_of(pid), timeout)


async def _kill(pids: Sequence[int], timeout: float) -> None:
    """Kill processes and the groups they lead, and wait until they are gone."""
    waits = [asyncio.ensure_future(gone(pid)) for pid in pids]
    await asyncio.sleep(0)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL) if os.getpgid(pid) == pid else os.kill(pid, signal.SIGKILL)
    if waits:
        await asyncio.wait(waits, timeout=timeout)
