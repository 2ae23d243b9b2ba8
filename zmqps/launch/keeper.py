"""Runs one process of a cluster where another system has placed it, as Ray and Dask do: starts it again, and ends it.

A keeper lives in a process of that system. What it runs ends with it, however it ends (`zmqps.launch.processes`,
`zmqps.launch.guard`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from zmqps.errors import ConfigurationError, NodeFailedError, PSError
from zmqps.keys import Keys, load_node_keys
from zmqps.launch.config import GRACE_S
from zmqps.launch.far import FILES, filled
from zmqps.launch.guard import Guard
from zmqps.launch.handout import FOR_NODES, write_files
from zmqps.launch.processes import (
    DRAIN_S,
    Piped,
    describe_exit,
    end,
    node_command,
    node_environment,
    worker_command,
    worker_environment,
)
from zmqps.launch.reports import Reports
from zmqps.launch.supervision import PAUSE_S, End, Restarts, supervise
from zmqps.logs.lines import read_entry
from zmqps.nodes.inquiry import inquire

#: In a node's settings: by which address its host is reached.
HOST = "{host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a keeper runs.

    Parameters
    ----------
    role
        coordinator, server or worker.
    command
        A worker's.
    settings
        A node's, as plain data.
    address, index
        The coordinator, of all but itself; and a worker's number.
    env
        More variables of a worker.
    files
        What `zmqps.launch.handout.key_files` has made for this host.
    directory
        Where it runs; empty: where the keeper does.
    restarts, pause
        How often it is started again when it fails, and after how many seconds the first time; then after twice as
        many each time.
    """

    role: str
    command: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    address: str = ""
    index: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    restarts: int = 0
    pause: float = PAUSE_S


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process has ended for good: its exit code, negative for a signal, and its last lines."""

    code: int
    tail: str

    @property
    def how(self) -> str:
        """How, in words."""
        return describe_exit(self.code)

    def text(self, name: str) -> str:
        """Say whose failure it was."""
        return f"{name} failed with {self.how}; its last lines:\n{self.tail}"


class Keeper:
    """One process, from its start to its end.

    Parameters
    ----------
    name
        The process's name.
    host
        By which address this host is reached from the others.
    say
        Takes what the process says, a line at a time; a node's log as text.
    """

    def __init__(self, name: str, host: str, say: Callable[[str], None] = print) -> None:
        self._name = name
        self._host = host
        self._say = say
        self._process: Piped | None = None
        self._announced: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self._settled = asyncio.Event()  # a node has announced its endpoint, or never will
        self._endpoint = ""
        self._error: PSError | None = None
        self._guard: Guard | None = None
        self._folder: Path | None = None
        self._keys: Keys | None = None
        self._reports = Reports()

    async def run(self, order: Order) -> Ended:
        """Run a process until it has ended well, was asked to end, or has failed as often as it may."""
        try:
            self._prepare(order)
            if self._ending.is_set():
                return Ended(0, "")
            restarts = Restarts(order.restarts, order.pause, replaces=order.role == "worker")
            start, lost = partial(self._start, order, restarts), partial(self._report, order)
            return Ended(await supervise(restarts, start, self._told, self._ending, lost=lost), self._tail())
        except ConfigurationError as error:
            self._error = error
            return Ended(error.code, f"  {error}")
        finally:
            if self._process is not None:
                self._process.kill()
            await self._leave()
            self._settled.set()
            if self._ending.is_set():
                await self._reports.close()
            self._clear()

    async def address(self) -> dict[str, Any]:
        """Return the endpoint that a node has announced, or the error that kept it from that, as plain data."""
        await self._settled.wait()
        if self._endpoint:
            return {"address": self._endpoint}
        error = self._error or NodeFailedError(name=self._name, how="nothing said", tail=self._tail())
        return {"code": error.code, "text": str(error), "facts": error.facts()}

    async def status(self, timeout: float, servers: int = 0) -> dict[str, Any]:
        """Return what a coordinator that runs here says of its cluster once it has ``servers`` servers.

        Raises
        ------
        TimeoutError
            It did not say that in time.
        """

        def joined(status: Mapping[str, Any]) -> bool:
            return bool(sum(member["role"] == "server" for member in status["members"]) >= servers)

        try:
            return await inquire(self._endpoint, timeout=timeout, until=joined, keys=self._keys)
        except PSError as error:  # another process may not be able to unpickle it
            raise TimeoutError(str(error)) from None

    async def stop(self) -> None:
        """End the process, a few seconds at most; `run` returns."""
        self._ending.set()
        if self._process is not None:
            await end([self._process], signal.SIGTERM, GRACE_S)

    # --- one life of the process ----------------------------------------------------------------

    def _prepare(self, order: Order) -> None:
        self._guard = Guard(apart=True)
        self._folder = Path(tempfile.mkdtemp(prefix="zmqps-keeper-"))
        self._guard.remove(self._folder)
        write_files(self._folder, order.files)
        if order.files:
            self._keys = load_node_keys(self._folder / FOR_NODES)
        elif token := order.env.get("ZMQPS_TOKEN"):
            self._keys = Keys.of_token(token)
        if order.directory:
            try:
                os.chdir(order.directory)
            except OSError as error:
                raise ConfigurationError(
                    f"there is no directory {order.directory!r} on {self._host} ({error.strerror})"
                ) from None

    async def _start(self, order: Order, restarts: Restarts) -> Piped:
        assert self._guard is not None
        settings = None
        if order.role == "worker":
            command = worker_command(order.command)
            env = {**worker_environment(order.address, order.index, lives=restarts), **order.env}
        else:
            host = f"[{self._host}]" if ":" in self._host else self._host
            settings = filled(order.settings, {FILES: str(self._folder), HOST: host})
            command, env = node_command(order.role, f"--name={settings['name']}"), node_environment()
        process = Piped(self._name, command, self._take, log=Path(os.devnull), env=env, settings=settings)
        self._process = process
        self._guard.watch(process.popen.pid)
        if settings is not None:
            self._announced = asyncio.create_task(self._announce(process))
        return process

    def _take(self, lines: Sequence[str]) -> None:
        for line in lines:
            entry = read_entry(line)
            self._say(line if entry is None else entry.text())

    def _report(self, order: Order, process: Piped, code: int) -> None:
        if not self._ending.is_set():
            self._reports.tell(process, code, order.address, self._keys)

    async def _told(self, end: End[Piped]) -> None:
        assert self._guard is not None
        self._guard.forget(end.child.popen.pid)
        await self._leave()
        if end.again:
            self._say(end.text)

    async def _leave(self) -> None:
        """Release what this process holds of the last life."""
        if self._announced is not None:
            await asyncio.wait([self._announced], timeout=DRAIN_S)
            self._announced.cancel()
            self._announced = None
        if self._process is not None:
            self._process.close()

    async def _announce(self, process: Piped) -> None:
        try:
            self._endpoint = await process.announcement()
            self._settled.set()
        except NodeFailedError:
            pass  # `run` says how it has ended
        except PSError as error:
            self._error = error

    def _tail(self) -> str:
        return self._process.tail if self._process is not None else "  (it said nothing)"

    def _clear(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._guard is not None:
            self._guard.close()
        self._guard = self._folder = None
