"""Runs a cluster and its workers from their start to their end: what ``zmqps up`` is, attached or not."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zmqps.cli.running.children import MOST_NAMED, Asked, Children, how_ended
from zmqps.cli.running.follow import is_log
from zmqps.cli.running.output import LogFile, Terminal
from zmqps.cli.running.state import Claim, State
from zmqps.core.coordinator.members.places import FINISHED
from zmqps.core.protocol import exits
from zmqps.errors import PSError, counted, listed
from zmqps.folder import Folder
from zmqps.gpu.pinning import pin
from zmqps.launch.config import ClusterConfig
from zmqps.launch.handout import worker_keys
from zmqps.launch.nodes import Nodes
from zmqps.launch.processes import (
    Piped,
    Process,
    describe_exit,
    end,
    worker_command,
    worker_environment,
)
from zmqps.launch.reports import Reports
from zmqps.launch.supervision import RESTART_S, RESTARTS, End, Restarts, failed, supervise
from zmqps.logs.handler import VARIABLE as LOG_NODE
from zmqps.nodes.inquiry import inquire
from zmqps.nodes.journal import FILE, forget_journal
from zmqps.nodes.page import read_page
from zmqps.settings.cluster import UpSettings
from zmqps.settings.fields import nested
from zmqps.settings.node import NodeSettings

#: How long the coordinator may take to say which workers were lost.
STATUS_S = 3.0
#: Exit codes of a node that has done its work.
NODE_DONE = (exits.OK, exits.IDLE, exits.WORKERS_FAILED, exits.NOT_SAVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpConfig(UpSettings):
    """What ``zmqps up`` runs.

    Parameters
    ----------
    command
        What each worker runs; empty: workers are started by hand.
    gpus
        Those that workers are pinned to, in turn; none: they see what this process sees.
    """

    cluster: ClusterConfig = nested(ClusterConfig)
    command: Sequence[str] = ()
    gpus: Sequence[str] = ()

    @property
    def logs(self) -> tuple[str, str, str]:
        """Where the log files go, below the directory."""
        return "runs", self.name, "logs"


class Supervisor:
    """Starts everything, watches it, and ends it in order: workers, coordinator, servers.

    Ctrl-C, SIGTERM and SIGHUP end the cluster; a second one does so at once.

    Parameters
    ----------
    config
        What to run.
    terminal
        Shows what happens; None in the background.
    ready
        Called once all servers have joined.
    """

    def __init__(self, config: UpConfig, terminal: Terminal | None, ready: Callable[[State], None]) -> None:
        self._config = config
        self._terminal = terminal
        self._ready = ready
        self._nodes = Nodes(config.cluster, self._spawn_node)
        self._workers: dict[str, Restarts] = {}  # by name
        self._keys: dict[str, str] = {}  # where workers find what they show
        self._reports = Reports()
        self._silent: list[str] = []  # members that ended well, but without a goodbye
        self._node_watches: list[asyncio.Task[int]] = []
        self._a_node_failed = False
        self._verdict: tuple[str, str] | None = None  # how the workers have ended, for the last line

    async def run(self) -> int:
        """Run the cluster until its end; return the exit code.

        Raises
        ------
        PSError
            What kept the cluster from starting; nothing is left behind.
        """
        code = await self._run()
        return exits.of_cluster(code, self._children.code("coordinator"))

    async def _run(self) -> int:
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            self._claim = stack.enter_context(Claim(config.directory))
            if (journal := config.cluster.journal) is not None:  # one that is left is of a cluster that is over
                forget_journal(journal)
                stack.callback(forget_journal, journal)
            folder = stack.enter_context(Folder(config.directory.absolute(), *config.logs, make=True))
            for old in os.listdir(folder.fd):
                if is_log(old):
                    folder.remove(old)
            self._log = LogFile("zmqps", folder, "supervisor.log", self._terminal)
            stack.callback(self._log.close)
            self._children = Children(folder, self._terminal)
            says = "ending the cluster; once more to end it at once"
            self._asked = Asked(self._log, config.cluster, says, self._children.kill)
            stack.enter_context(self._asked.answered())
            saves = config.cluster.saving.saves_at_end
            self._state = State.of_this_process(config.name, folder.path, config.cluster.keys, saves=saves)
            self._write()
            try:
                return await self._asked.code_of(self._start_and_supervise(stack))
            finally:
                await self._end()
                self._write(unsaved=self._children.code("coordinator") == exits.NOT_SAVED)  # for the `down` that waits
                if self._verdict is not None:
                    self._log.say(*self._verdict)

    def _write(self, **facts: Any) -> None:
        """Have other commands know what has changed."""
        self._state = replace(self._state, **facts)
        self._claim.write(self._state)

    async def _start_and_supervise(self, stack: contextlib.AsyncExitStack) -> int:
        config = self._config
        if config.cluster.keys is not None and config.command:  # they have no use for what a node may
            folder = await stack.enter_async_context(worker_keys(config.cluster.keys, self._log.say))
            self._keys = {"ZMQPS_KEYS": str(folder)}
        await self._nodes.start(config.timeout)
        self._write(address=self._nodes.address, page=self._page())
        self._log.say("info", f"cluster at {self._state.address}, logs in {self._state.logs}")
        if self._state.page:
            self._log.say("info", f"page at {self._state.page}")
        self._ready(self._state)
        return await self._supervise()

    def _page(self) -> str:
        """Return the address of the coordinator's page, with its token."""
        cluster = self._config.cluster
        return read_page(cluster.journal).url if cluster.page and cluster.journal is not None else ""

    async def _supervise(self) -> int:
        coordinator = asyncio.create_task(self._watch_node(0))
        servers = range(1, len(self._nodes.processes))
        self._node_watches = [coordinator, *(asyncio.create_task(self._watch_node(index)) for index in servers)]
        if not self._config.command:
            await self._asked.over.wait()
            if self._a_node_failed:  # its shard is lost, no worker can continue
                return exits.FAILED
            code = await coordinator
            await self._nodes.ended_by_themselves()
            await asyncio.gather(*self._node_watches)
            if code in (exits.IDLE, exits.WORKERS_FAILED, exits.NOT_SAVED):
                return code
            return exits.FAILED if self._a_node_failed else exits.OK
        codes = await asyncio.gather(*(self._watch_worker(index) for index in range(self._config.cluster.workers or 0)))
        if self._a_node_failed:  # whatever became of the workers followed from that
            return exits.FAILED
        ends = dict(zip(self._workers, codes, strict=True))
        if failures := [f"{name} ({describe_exit(code)})" for name, code in ends.items() if failed(code)]:
            of_all = f"{len(failures)} of {counted(len(codes), 'worker')}"
            self._verdict = ("warning", f"{of_all} failed: {listed(failures, MOST_NAMED)}")
            return exits.WORKERS_FAILED
        if lost := await self._lost():
            self._verdict = ("error", f"all workers have ended well, but {lost}: its part of the data may be unused")
            return exits.WORKERS_FAILED
        drained = [name for name, code in ends.items() if code == exits.DRAINED]
        self._verdict = ("info", how_ended(self._workers, drained))
        return exits.OK if len(drained) < len(ends) else exits.DRAINED

    async def _lost(self) -> str:
        """Say which workers were lost and did not come back, or have ended without a goodbye; empty if none has."""
        await self._reports.settle(STATUS_S)
        if self._nodes.coordinator.ended:  # with the job, and has said it
            code = await self._nodes.coordinator.exited()
            return "a worker was lost, see the coordinator's last line" if code == exits.WORKERS_FAILED else ""
        try:
            status = await inquire(self._nodes.address, timeout=STATUS_S, keys=self._nodes.keys)
        except PSError as error:
            self._log.say("warning", f"whether a worker was lost is not known: {error}")
            return ""
        if self._silent:
            return f"{listed(self._silent, MOST_NAMED)} ended without worker.finish() or close()"
        said = [run["lost"] for run in status["jobs"].values() if run["lost"]]
        but = f"{FINISHED}, but "
        said += [job["how"].removeprefix(but) for job in status["ended"] if job["how"].startswith(but)]
        return "; ".join(said)

    @property
    def _worker_processes(self) -> list[Piped]:
        return [process for name, process in self._children.processes.items() if name in self._workers]

    async def _watch_worker(self, index: int) -> int:
        """Run a worker, and again as often as it may fail; return how its last life has ended."""
        name = f"worker-{index}"
        restarts = self._workers[name] = Restarts(self._config.restart_workers)

        async def start() -> Piped:
            env = worker_environment(self._nodes.address, index, self._config.cluster.job_secret, restarts)
            env |= {LOG_NODE: name} | self._keys | (pin(gpus, index) if (gpus := self._config.gpus) else {})
            return self._children.start(name, worker_command(self._config.command), env)

        async def told(end: End[Piped]) -> None:
            if end.text and not self._asked.ending:
                self._log.say(end.level, end.text)
                others = sum(not process.ended for process in self._worker_processes)
                if others and not end.again:
                    self._log.say("info", "another worker continues" if others == 1 else f"{others} workers continue")
            elif end.code == exits.DRAINED:
                self._log.say("info", f"{name} has drained")

        return await supervise(restarts, start, told, self._asked.over, lost=self._report)

    def _report(self, process: Process, code: int) -> None:
        """Tell the coordinator that a process has ended; if it ended well, its members left without a goodbye."""
        then = self._silent.extend if not code else lambda lost: None
        self._reports.tell(process, code, self._nodes.address, self._nodes.keys, then)

    async def _watch_node(self, index: int) -> int:
        """Start a node again when it fails, as often as may be; return how its last life has ended.

        The coordinator, 0, resumes from its journal, and a server starts again where jobs outlive it. Any other
        failure, and the end of the coordinator, ends the cluster.
        """
        cluster, over = self._config.cluster, self._asked.over
        if is_server := index > 0:
            restarts = cluster.restarts_of_server(NODE_DONE)
        else:
            why = "it resumes from its journal, the others wait for it"
            restarts = Restarts(RESTARTS, well=NODE_DONE, why=why, replaces=False, possible=self._has_journal)

        async def start() -> Process:
            await asyncio.wait_for(self._nodes.restart(index), RESTART_S)
            return self._nodes.processes[index]

        async def told(end: End[Process]) -> None:
            if end.text and not self._asked.ending:
                self._log.say(end.level, end.text)
            if not end.again:
                finished(bool(end.text))

        def finished(has_failed: bool) -> None:
            if not is_server or (has_failed and not cluster.outlives_servers):
                self._a_node_failed |= has_failed
                over.set()

        def lost(process: Process, code: int) -> None:
            if is_server and restarts.failed(code):
                self._report(process, code)

        child = self._nodes.processes[index]
        try:
            return await supervise(restarts, start, told, over, lost=lost, child=child)
        except (PSError, TimeoutError) as error:
            why = str(error) or f"it takes more than {RESTART_S:.0f} s"
            self._log.say("error", f"{child.name} cannot be started again: {why}")
            finished(True)
            return exits.FAILED

    def _has_journal(self) -> bool:
        """Whether there is a journal from which the coordinator can resume; a cluster that has ended leaves none."""
        journal = self._config.cluster.journal
        return journal is not None and (journal / FILE).exists()

    async def _end(self) -> None:
        for watch in self._node_watches:
            watch.cancel()
        await asyncio.gather(*self._node_watches, return_exceptions=True)
        await end(self._worker_processes, self._asked.passed_on, self._asked.grace(self._config.drain_timeout))
        await self._reports.close()
        await self._nodes.stop()
        await self._children.close()

    def _spawn_node(self, told: NodeSettings) -> Process:
        return self._children.start_node(told)
