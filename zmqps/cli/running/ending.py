"""Ends a cluster from outside: its supervisor, or what a killed one has left.

A process is known by more than its number, which may be another one's at any time: the supervisor by when it started,
and what it has started by a mark in the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from functools import partial

from zmqps.errors import UnsafeFileError
from zmqps.launch.processes import gone, has_mark, mark_of, marked, signal_if, start_of


async def end_supervisor(pid: int, start: int, timeout: float, path: str) -> bool:
    """Ask a supervisor to end; kill it and what it has started when it does not. Return which.

    Raises
    ------
    UnsafeFileError
        The process of that number is not the one that had written the file at ``path``.
    """
    ended = asyncio.ensure_future(gone(pid))
    await asyncio.sleep(0)  # it holds on to the process now, before its number can be given away

    def is_it() -> bool:
        return start > 0 and start_of(pid) == start

    if not is_it():
        ended.cancel()
        await asyncio.wait([ended])
        why = f"process {pid}, which it names, is not the supervisor that this user has started"
        raise UnsafeFileError(path=path, why=why, advice="end the supervisor by hand, and remove the file")
    session = pid
    with contextlib.suppress(ProcessLookupError):
        session = os.getsid(pid)  # its own only where it was detached
    signal_if(pid, signal.SIGTERM, is_it)
    if (await asyncio.wait([ended], timeout=timeout))[0]:
        return True
    signal_if(pid, signal.SIGKILL, is_it)
    await ended
    await _kill_rest(session, mark_of(pid, start), timeout)
    return False


async def end_rest(pid: int, start: int, timeout: float) -> None:
    """Wait for what a killed supervisor has left to end by itself; kill it when it does not."""
    mark = mark_of(pid, start)
    rest = marked(pid, mark) if start > 0 else []
    if rest and (await asyncio.wait([asyncio.ensure_future(gone(process)) for process in rest], timeout=timeout))[1]:
        await _kill_rest(pid, mark, timeout)


async def _kill_rest(session: int, mark: dict[str, str], timeout: float) -> None:
    """Kill what a supervisor has started, and what that starts meanwhile, and wait until all of it has ended."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout
    while rest := marked(session, mark):
        waits = [asyncio.ensure_future(gone(pid)) for pid in rest]
        await asyncio.sleep(0)
        for pid in rest:
            signal_if(pid, signal.SIGKILL, partial(has_mark, pid, mark))
        if (await asyncio.wait(waits, timeout=max(0.0, ends_at - loop.time())))[1]:
            return
