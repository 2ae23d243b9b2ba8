"""Runs one of many equal tasks of a cluster: what ``zmqps run`` is on each host.

The tasks know of each other through the coordinator: each joins it as an observer named after its rank, and as a second
one when its workers have ended well. Rank 0, which runs the coordinator, ends it when all have come that far, or when a
task leaves earlier; and when the coordinator ends, so do the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmqps
from zmqps.cli.running.children import MOST_NAMED, Asked, Children
from zmqps.cli.running.output import LogFile, Terminal
from zmqps.core.protocol import exits
from zmqps.errors import PSError, ShutdownError, listed
from zmqps.folder import Folder
from zmqps.keys import Keys, load_node_keys
from zmqps.launch.config import GRACE_S, ClusterConfig
from zmqps.launch.handout import worker_keys
from zmqps.launch.nodes import AT_ONCE
from zmqps.launch.processes import (
    Piped,
    all_exited,
    end,
    worker_command,
    worker_environment,
)
from zmqps.launch.ranks import Roles
from zmqps.launch.reports import Reports
from zmqps.launch.supervision import End, Restarts, failed, supervise, while_all_run
from zmqps.logs.handler import VARIABLE as LOG_NODE
from zmqps.nodes.inquiry import inquire
from zmqps.settings.cluster import RunSettings
from zmqps.settings.fields import nested

#: How often a task looks whether the others are still there.
LOOK_S = 0.5
#: The job that the tasks observe; no worker trains it. The user's jobs are left to the user.
JOB = "zmqps-run"
NAME, DONE = "task-", "-done"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig(RunSettings):
    """What a task runs; the address of its cluster is where rank 0 binds.

    Parameters
    ----------
    rank, size
        Which task it is, of how many.
    address
        The coordinator's endpoint.
    roles
        What this task runs.
    own
        The address at which this host's servers are reached.
    here
        This host's name, for logs.
    command
        What each worker runs.
    env
        Variables that workers get which have none of that name.
    """

    cluster: ClusterConfig = nested(ClusterConfig)
    rank: int = 0
    size: int = 1
    roles: Roles
    own: str
    here: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


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
        self._servers: dict[str, int] = {}  # their numbers, by name
        self._workers: dict[str, Restarts] = {}  # by name
        self._shown: dict[str, str] = {}  # where they find the key that they show
        self._reports = Reports()
        self._node_keys: Keys | None = None
        self._observers: list[zmqps.Worker] = []  # that this task is there, and then that its workers have ended
        self._seen: set[str] = set()

    async def run(self) -> int:
        """Run until the cluster ends; return the exit code."""
        code = await self._run()
        return exits.of_cluster(code, self._children.code(self._name("coordinator")))

    async def _run(self) -> int:
        config = self._config
        async with contextlib.AsyncExitStack() as self._stack:
            where = ("runs", config.name, "logs")
            folder = self._stack.enter_context(Folder(config.directory.absolute(), *where, make=True))
            name = self._name(f"{NAME}{config.rank}")
            self._log = LogFile(name, folder, f"{name}.log", self._terminal)
            self._stack.callback(self._log.close)
            self._children = Children(folder, self._terminal)
            says = "ending this task, and with it the cluster"
            self._asked = Asked(self._log, config.cluster, says, self._children.kill)
            self._stack.enter_context(self._asked.answered())
            try:
                return await self._asked.code_of(self._start_and_supervise())
            finally:
                await self._end()

    # --- the start ------------------------------------------------------------------------------

    async def _start_and_supervise(self) -> int:
        await self._start()
        return await self._supervise()

    async def _start(self) -> None:
        config = self._config
        if config.cluster.keys is not None and config.roles.workers:  # they have no use for what a node may
            folder = await self._stack.enter_async_context(worker_keys(config.cluster.keys, self._log.say))
            self._shown = {"ZMQPS_KEYS": str(folder)}
        if config.roles.coordinator:
            name = self._name("coordinator")
            await self._children.start_node(config.cluster.for_coordinator(name)).announcement()
        for index in config.roles.servers:
            name = self._name(f"server-{index}")
            self._servers[name] = index
            await self._start_server(name).announcement()

        def ready(status: Mapping[str, Any]) -> bool:
            here: int = sum(member["role"] == "server" for member in status["members"])
            return here >= config.cluster.servers

        keys = self._node_keys = load_node_keys(config.cluster.keys)
        joined = inquire(config.address, timeout=config.timeout, until=ready, keys=keys)
        await while_all_run(joined, self._nodes)
        await self._observe(f"{NAME}{config.rank}")

    def _name(self, role: str) -> str:
        return f"{role}@{self._config.here}"

    @property
    def _nodes(self) -> list[Piped]:
        """The processes of nodes; the coordinator is the first one."""
        return [process for name, process in self._children.processes.items() if name not in self._workers]

    @property
    def _worker_processes(self) -> list[Piped]:
        return [process for name, process in self._children.processes.items() if name in self._workers]

    def _start_server(self, name: str) -> Piped:
        config, index = self._config, self._servers[name]
        told = config.cluster.for_server(index, config.address, bind=f"tcp://{config.own}:0", name=name)
        return self._children.start_node(told)

    # --- training -------------------------------------------------------------------------------

    async def _supervise(self) -> int:
        """Wait for the end of the own workers, then for that of all; return the exit code."""
        nodes = [asyncio.ensure_future(self._watch_node(node)) for node in self._nodes]
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
            security=zmqps.Security(job_secret=self._config.cluster.job_secret, keys=self._config.cluster.keys),
        )  # fmt: skip
        self._observers.append(observer)

    async def _watch_node(self, node: Piped) -> int:
        """Wait for the end of a node; return what it means for this task: servers may start again."""
        cluster, is_server = self._config.cluster, node.name in self._servers
        done = (exits.OK, exits.COORDINATOR_LOST)  # what `_watch_others` says better
        restarts = cluster.restarts_of_server(done) if is_server else Restarts(0, well=done, replaces=False)

        async def start() -> Piped:
            return self._start_server(node.name)

        def lost(process: Piped, code: int) -> None:
            if is_server and restarts.failed(code):
                self._report(process, code)

        code = await supervise(restarts, start, self._told, self._asked.over, lost=lost, child=node)
        outlived = is_server and cluster.outlives_servers
        return exits.OK if outlived or not restarts.failed(code) else exits.of_process(code)

    async def _watch_worker(self, index: int) -> int:
        """Run a worker, and again as often as it may fail; return what its end means for this task."""
        config, name = self._config, self._name(f"worker-{index}")
        restarts = self._workers[name] = Restarts(config.restart_workers)

        async def start() -> Piped:
            env = worker_environment(config.address, index, config.cluster.job_secret, restarts) | self._shown
            env = {**config.env, **env, "ZMQPS_COMBINE": config.combine, LOG_NODE: name}
            return self._children.start(name, worker_command(config.command), env)

        code = await supervise(restarts, start, self._told, self._asked.over, lost=self._report)
        return exits.of_process(code) if failed(code) else exits.OK

    def _report(self, process: Piped, code: int) -> None:
        self._reports.tell(process, code, self._config.address, self._node_keys)

    async def _told(self, end: End[Piped]) -> None:
        if end.text:
            self._log.say(end.level, end.text)
        elif end.code == exits.DRAINED:
            self._log.say("info", f"{end.child.name} has drained")

    async def _watch_others(self) -> int:
        """Look until the cluster has to end, or has ended; return the exit code."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._config.timeout
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                status = await asyncio.to_thread(self._observers[0].status)
            except PSError as error:
                if all(w.ended and not failed(w.popen.returncode) for w in self._worker_processes):
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
        """Return the exit code of the cluster if it should end: a task has left or has not come, or all are done."""
        ours = {member["name"] for member in status["members"] if member["role"] == "observer"}
        self._seen |= ours
        for entry in status["gone"]:
            name = entry["name"]
            if entry["role"] == "observer" and entry["job"] == JOB and not name.endswith(DONE):
                self._log.say("error", f"{name} left before all workers had ended: {entry['how']}")
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

    async def _end(self) -> None:
        await end(self._worker_processes, self._asked.passed_on, self._asked.grace(self._config.drain_timeout))
        await self._reports.close()
        for observer in self._observers:
            with contextlib.suppress(PSError):
                await asyncio.to_thread(observer.close)
        cluster = self._config.cluster
        if self._config.roles.coordinator:
            await end(self._nodes[:1], signal.SIGTERM, cluster.goodbye_s)
        elif cluster.saving.saves_at_end and self._observers:  # they end once their shards are saved
            await all_exited(self._nodes, cluster.goodbye_s)
        await end(self._nodes, AT_ONCE, GRACE_S)
        await self._children.close()


def _code_of(error: PSError) -> int:
    """Return the exit code of a task if its cluster ended before its workers."""
    return exits.WORKERS_FAILED if isinstance(error, ShutdownError) else exits.COORDINATOR_LOST
