"""Runs one of many equal tasks of a cluster: what ``zmqps run`` is on each host.

The tasks know of each other through the coordinator: each joins it as an observer named after its rank, and as a second
one when its workers have ended well. Rank 0, which runs the coordinator, ends it when all have come that far, or when a
task is gone that has not; and when the coordinator ends, so do the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmqps
from zmqps.cli.running.output import LogFile, Pump, Terminal
from zmqps.core.protocol import exits
from zmqps.errors import PSError, ShutdownError, listed
from zmqps.folder import Folder
from zmqps.keys import Keys, load_node_keys
from zmqps.launch.config import GRACE_S, ClusterConfig
from zmqps.launch.handout import worker_keys
from zmqps.launch.nodes import AT_ONCE
from zmqps.launch.processes import (
    Process,
    all_exited,
    describe_exit,
    end,
    mark_of,
    node_command,
    node_environment,
    start_of,
    tail,
    worker_command,
    worker_environment,
)
from zmqps.launch.ranks import Roles
from zmqps.launch.reports import Reports
from zmqps.launch.supervision import DRAIN_TIMEOUT_S, Restarts, failed, while_all_run
from zmqps.logs.handler import VARIABLE as LOG_NODE
from zmqps.net.system.signals import answered
from zmqps.nodes.inquiry import inquire

#: How often a task looks whether the others are still there.
LOOK_S = 0.5
DRAIN_S = 1.0
#: The job that the tasks observe; no worker trains it. The user's jobs are left to the user.
JOB = "zmqps-run"
MOST_NAMED = 8
NAME, DONE = "task-", "-done"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """What a task is told.

    Parameters
    ----------
    cluster
        The coordinator and servers; its address is where rank 0 binds.
    roles
        What this task runs.
    rank, size
        Which task it is, of how many.
    address
        The coordinator's endpoint.
    own
        The address at which this host's servers are reached.
    host
        This host's name, for logs.
    command
        What each worker runs.
    env
        Variables that workers get which have none of that name.
    name, directory
        Logs go to ``runs/NAME/logs`` below the directory.
    timeout
        Seconds to wait for the start.
    restarts
        How often each worker that fails is started again.
    drain_timeout
        Seconds that workers have to end after SIGTERM.
    combine
        Which workers combine their gradients, as in `zmqps.connect`.
    """

    cluster: ClusterConfig
    roles: Roles
    rank: int
    size: int
    address: str
    own: str
    host: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    name: str
    directory: Path
    timeout: float
    restarts: int = 0
    drain_timeout: float = DRAIN_TIMEOUT_S
    combine: str = "none"


class Task:
    """This task, from its start to its end.

    Parameters
    ----------
    config
        What to run.
    terminal
        Shows what happens.
    """

    def __init__(self, config: TaskConfig, terminal: Terminal) -> None:
        self._config = config
        self._terminal = terminal
        self._nodes: list[Process] = []
        self._servers: dict[str, int] = {}  # their numbers, by name
        self._workers: dict[int, Process] = {}  # by number: the life under way, or the last one
        self._shown: dict[str, str] = {}  # where they find the key that they show
        self._pumps: dict[str, Pump] = {}
        self._reports = Reports()
        self._files: dict[str, LogFile] = {}  # the logs of nodes and workers, by name
        self._node_keys: Keys | None = None
        self._asked: signal.Signals | None = None
        self._ending = False
        self._observers: list[zmqps.Worker] = []  # that this task is there, and then that its workers have ended
        self._seen: set[str] = set()
        self._mark = mark_of(os.getpid(), start_of(os.getpid()))

    async def run(self) -> int:
        """Run until the cluster ends; return the exit code."""
        code = await self._run()
        return exits.of_cluster(code, self._nodes[0].popen.returncode if self._config.roles.coordinator else None)

    async def _run(self) -> int:
        task, config = asyncio.current_task(), self._config
        assert task is not None
        async with contextlib.AsyncExitStack() as self._stack:
            where = ("runs", config.name, "logs")
            self._folder = self._stack.enter_context(Folder(config.directory.absolute(), *where, make=True))
            log = LogFile(self._name(f"{NAME}{config.rank}"), self._folder, self._file(f"{NAME}{config.rank}"),
                          self._terminal)  # fmt: skip
            self._log = log
            asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            self._stack.enter_context(answered(asked, lambda number: self._ask(number, task)))
            try:
                await self._start()
                return await self._supervise()
            except asyncio.CancelledError:
                if self._asked is None:
                    raise
                return exits.INTERRUPTED if self._asked == signal.SIGINT else exits.TERMINATED
            finally:
                self._ending = True
                await self._end()
                log.close()

    # --- the start ------------------------------------------------------------------------------

    async def _start(self) -> None:
        config = self._config
        if config.cluster.keys is not None and config.roles.workers:  # they have no use for what a node may
            folder = await self._stack.enter_async_context(worker_keys(config.cluster.keys, self._log.say))
            self._shown = {"ZMQPS_KEYS": str(folder)}
        if config.roles.coordinator:
            name = self._name("coordinator")
            coordinator = self._spawn_node("coordinator", "coordinator", config.cluster.coordinator(name))
            await coordinator.announcement()
        for index in config.roles.servers:
            server = self._spawn_server(index)
            self._servers[server.name] = index
            await server.announcement()

        def ready(status: Mapping[str, Any]) -> bool:
            here: int = sum(member["role"] == "server" for member in status["members"])
            return here >= config.cluster.options.servers

        keys = self._node_keys = load_node_keys(config.cluster.keys)
        joined = inquire(config.address, timeout=config.timeout, until=ready, keys=keys)
        await while_all_run(joined, self._nodes)
        await self._observe(f"{NAME}{config.rank}")

    def _spawn_worker(self, index: int, lives: Restarts) -> Process:
        config = self._config
        env = worker_environment(config.address, index, config.cluster.job_secret, lives) | self._shown
        env = dict(config.env) | env | {"ZMQPS_COMBINE": config.combine, LOG_NODE: self._name(f"worker-{index}")}
        worker = self._workers[index] = self._spawn(f"worker-{index}", worker_command(config.command), env)
        return worker

    def _name(self, role: str) -> str:
        return f"{role}@{self._config.host}"

    def _file(self, role: str) -> str:
        return f"{self._name(role)}.log"

    def _spawn_node(self, role: str, kind: str, flags: Sequence[str]) -> Process:
        process = self._spawn(role, node_command(kind, *flags), node_environment(), is_node=True)
        self._nodes.append(process)
        return process

    def _spawn_server(self, index: int) -> Process:
        role, config = f"server-{index}", self._config
        flags = config.cluster.server(index, config.address, bind=f"tcp://{config.own}:0", name=self._name(role))
        return self._spawn_node(role, "server", flags)

    def _spawn(self, role: str, command: Sequence[str], env: Mapping[str, str], *, is_node: bool = False) -> Process:
        name = self._name(role)
        if name not in self._files:
            self._files[name] = LogFile(name, self._folder, self._file(role), self._terminal)
        else:
            self._pumps[name].close()  # of the life before
        log, env = self._files[name], {**env, **self._mark}
        process = Process(name, command, stdout=subprocess.PIPE, log=log.path, env=env, is_node=is_node)
        assert process.popen.stdout is not None
        self._pumps[name] = Pump(process.popen.stdout, log)
        return process

    # --- training -------------------------------------------------------------------------------

    async def _supervise(self) -> int:
        """Wait for the end of the own workers, then for that of all; return the exit code."""
        nodes = [asyncio.ensure_future(self._watch(node)) for node in self._nodes]
        workers = [asyncio.ensure_future(self._watch_worker(index)) for index in self._config.roles.workers]
        others = asyncio.ensure_future(self._watch_others())
        waiting: set[asyncio.Future[int]] = {*nodes, *workers, others}
        try:
            while True:
                if waiting.isdisjoint(workers) and len(self._observers) == 1:
                    await self._observe(f"{NAME}{self._config.rank}{DONE}")
                finished, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if others in finished:
                    return others.result()
                for future in finished:
                    if code := future.result():
                        return await self._cause(code) if future in workers else code
        finally:
            for future in (*nodes, *workers, others):
                future.cancel()
            await asyncio.gather(*nodes, *workers, others, return_exceptions=True)

    async def _observe(self, name: str) -> None:
        """Join as an observer, which the other tasks see by its name."""
        observer = await asyncio.to_thread(
            zmqps.connect, self._config.address, job=JOB, observer=True, name=name, timeout=self._config.timeout,
            job_secret=self._config.cluster.job_secret, keys=self._config.cluster.keys,
        )  # fmt: skip
        self._observers.append(observer)

    async def _watch(self, process: Process) -> int:
        """Wait for the end of a node; return what it means for this task: servers may start again."""
        cluster = self._config.cluster
        lives = Restarts(cluster.restart_servers)
        while True:
            code = await process.exited()
            if not code or code == exits.COORDINATOR_LOST:  # what `_watch_others` says better
                return exits.OK
            if process.name in self._servers:
                self._report(process, code)
            outlived = process.name in self._servers and cluster.outlives_servers
            if not outlived or not lives.may_follow(code):
                await self._say_failure(process, code, "it does not start again" if outlived else "")
                return exits.OK if outlived else exits.of_process(code)
            self._log.say(
                "warning",
                f"{process.name} failed with {describe_exit(code)} and {lives.again(cluster.why_servers_return)}",
            )
            lives.begin()
            self._nodes.remove(process)
            process.close()
            process = self._spawn_server(self._servers[process.name])

    async def _watch_worker(self, index: int) -> int:
        """Run a worker, and again as often as it may fail; return what its end means for this task."""
        lives = Restarts(self._config.restarts)
        while True:
            worker = self._spawn_worker(index, lives)
            code = await worker.exited()
            if not failed(code):
                self._report(worker, code)  # one that fails has another life, or the cluster ends with it
                if code:
                    self._log.say("info", f"{worker.name} has drained")
                return exits.OK
            await self._say_failure(worker, code, lives.what_follows(code))
            if not lives.may_follow(code):
                return exits.of_process(code)
            await asyncio.sleep(lives.pause)
            lives.begin()

    def _report(self, process: Process, code: int) -> None:
        self._reports.tell(process, code, self._config.address, self._node_keys)

    async def _say_failure(self, process: Process, code: int, follows: str = "") -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pumps[process.name].ended.wait(), DRAIN_S)
        text = f"{process.name} failed with {describe_exit(code)}; its last lines:\n{tail(process.log)}"
        self._log.say("error", f"{text}\n  {follows}" if follows else text)

    async def _watch_others(self) -> int:
        """Look until the cluster has to end, or has ended; return the exit code."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._config.timeout
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                status = await asyncio.to_thread(self._observers[0].status)
            except PSError as error:
                if all(w.ended and not failed(w.popen.returncode) for w in self._workers.values()):
                    return exits.OK
                self._log.say("error", f"workers of this task are at work, but {error}")
                return _code_of(error)
            if self._config.rank == 0 and (code := self._verdict(status, loop.time() > ends_at)) is not None:
                return code

    async def _cause(self, code: int) -> int:
        """Return what a worker's failure means for this task: its workers fail, too, when the cluster has ended."""
        try:
            await asyncio.to_thread(self._observers[0].status)
        except PSError as error:
            self._log.say("error", f"a worker of this task failed: {error}")
            return _code_of(error)
        return code

    def _verdict(self, status: Mapping[str, Any], late: bool) -> int | None:
        """Return the exit code of the cluster if it is to end: a task is gone or has not come, or all are done."""
        ours = {member["name"] for member in status["members"] if member["role"] == "observer"}
        self._seen |= ours
        for entry in status["gone"]:
            name = entry["name"]
            if entry["role"] == "observer" and entry["job"] == JOB and not name.endswith(DONE):
                self._log.say("error", f"{name} is gone before all workers had ended: {entry['how']}")
                return exits.HOST_LOST if entry["how"] == "lost" else exits.WORKERS_FAILED
        if all(f"{NAME}{number}{DONE}" in ours for number in range(self._config.size)):
            self._log.say("info", f"the workers of all {self._config.size} tasks have ended well")
            return exits.OK
        missing = [str(number) for number in range(self._config.size) if f"{NAME}{number}" not in self._seen]
        if late and missing:
            absent = listed(missing, MOST_NAMED)
            self._log.say(
                "error", f"of {self._config.size} tasks these have not come in {self._config.timeout:g} s: {absent}"
            )
            return exits.COORDINATOR_LOST
        return None

    # --- the end --------------------------------------------------------------------------------

    def _ask(self, number: signal.Signals, task: asyncio.Task[int]) -> None:
        saves = self._config.cluster.checkpoints.saves_at_end
        if self._asked is not None or (self._ending and not saves):
            for process in [*self._workers.values(), *self._nodes]:
                process.kill()
            return
        if self._ending:
            self._asked = number
            self._log.say("info", f"{number.name}: what was trained is being saved; once more to end at once, without")
            return
        self._asked = number
        self._log.say("info", f"{number.name}: ending this task, and with it the cluster")
        task.cancel()

    async def _end(self) -> None:
        number = signal.SIGINT if self._asked == signal.SIGINT else signal.SIGTERM
        grace = self._config.drain_timeout if self._asked == signal.SIGTERM else GRACE_S
        await end(self._workers.values(), number, grace)
        await self._reports.close()
        for observer in self._observers:
            with contextlib.suppress(PSError):
                await asyncio.to_thread(observer.close)
        cluster = self._config.cluster
        if self._config.roles.coordinator:
            await end(self._nodes[:1], signal.SIGTERM, cluster.goodbye_s)
        elif cluster.checkpoints.saves_at_end and self._observers:  # servers are told, once what they have is saved
            await all_exited(self._nodes, cluster.goodbye_s)
        await end(self._nodes, AT_ONCE, GRACE_S)
        for pump in self._pumps.values():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pump.ended.wait(), DRAIN_S)
            pump.close()
        for log in self._files.values():
            log.close()
        for node in self._nodes:
            node.close()


def _code_of(error: PSError) -> int:
    """Return the exit code of a task if its cluster ended before its workers."""
    return exits.WORKERS_FAILED if isinstance(error, ShutdownError) else exits.COORDINATOR_LOST
