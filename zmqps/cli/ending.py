"""Ends a cluster from outside: its supervisor, or what a killed one has left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

from zmqps.errors import UnsafeFileError
from zmqps.launch.processes import children_of, gone, session_of, start_of


async def end_supervisor(pid: int, start: int, timeout: float, path: str) -> bool:
    """Ask a supervisor to end; kill it and its children when it does not. Return which.

    Raises
    ------
    UnsafeFileError
        The process of that number is not the one that had written the file at ``path``.
    """
    ended = asyncio.ensure_future(gone(pid))
    await asyncio.sleep(0)  # it holds on to the process now, before its number can be given away
    if not start or start_of(pid) != start:
        ended.cancel()
        await asyncio.wait([ended])
        why = f"process {pid}, which it names, is not the supervisor that this user has started"
        raise UnsafeFileError(path=path, why=why, advice="end the supervisor by hand, and remove the file")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if (await asyncio.wait([ended], timeout=timeout))[0]:
        return True
    await _kill([pid, *children_of(pid)], timeout)
    await ended
    return False


async def end_rest(pid: int, start: int, timeout: float) -> None:
    """Wait for what a killed supervisor has left to end by itself; kill it when it does not."""
    rest = _left(pid, start)
    if rest and (await asyncio.wait([asyncio.ensure_future(gone(process)) for process in rest], timeout=timeout))[1]:
        await _kill(_left(pid, start), timeout)


def _left(pid: int, start: int) -> list[int]:
    """Return the processes of this user in the session of a supervisor that have started after it."""
    return [process for process in session_of(pid) if start_of(process) >= start > 0]


async def _kill(pids: Sequence[int], timeout: float) -> None:
    """Kill processes and the groups they lead, and wait until they are gone."""
    waits = [asyncio.ensure_future(gone(pid)) for pid in pids]
    await asyncio.sleep(0)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL) if os.getpgid(pid) == pid else os.kill(pid, signal.SIGKILL)
    if waits:
        await asyncio.wait(waits, timeout=timeout)
