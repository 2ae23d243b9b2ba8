"""Runs a cluster and its workers from their start to their end: what ``zmqps up`` is, attached or not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zmqps.cli.running.follow import is_log
from zmqps.cli.running.output import LogFile, Pump, Terminal
from zmqps.cli.running.state import Claim, State
from zmqps.core.coordinator.members.places import FINISHED
from zmqps.core.protocol import exits
from zmqps.errors import PSError, counted, listed
from zmqps.folder import Folder
from zmqps.gpu.pinning import pin
from zmqps.launch.config import GRACE_S, ClusterConfig
from zmqps.launch.handout import worker_keys
from zmqps.launch.nodes import Nodes
from zmqps.launch.processes import (
    Process,
    describe_exit,
    end,
    mark_of,
    node_environment,
    tail,
    worker_command,
    worker_environment,
)
from zmqps.launch.reports import Reports
from zmqps.launch.supervision import DRAIN_TIMEOUT_S, RESTART_S, RESTARTS, Restarts, failed
from zmqps.logs.handler import VARIABLE as LOG_NODE
from zmqps.net.system.signals import answered
from zmqps.nodes.inquiry import inquire
from zmqps.nodes.journal import FILE, forget_journal
from zmqps.nodes.page import read_page

#: How long the output of ended processes may take to arrive; longer only if another process holds the pipe.
DRAIN_S = 1.0
#: How long the coordinator may take to say which workers were lost.
STATUS_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpConfig:
    """What ``zmqps up`` is told.

    Parameters
    ----------
    cluster
        The coordinator and servers.
    command
        What each worker runs; empty: workers are started by hand.
    num_workers
        How many of them.
    name
        The cluster's, for its folder under ``runs/``.
    directory
        Where ``runs/`` and ``.zmqps/`` are.
    timeout
        Seconds to wait for the start.
    gpus
        Those that workers are pinned to, in turn; none: they see what this process sees.
    restarts
        How often each worker that fails is started again.
    drain_timeout
        Seconds that workers have to end after SIGTERM.
    """

    cluster: ClusterConfig
    command: Sequence[str]
    num_workers: int
    name: str
    directory: Path
    timeout: float
    gpus: Sequence[str] = ()
    restarts: int = 0
    drain_timeout: float = DRAIN_TIMEOUT_S

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
        self._workers: dict[int, Process] = {}  # by number: the life under way, or the last one
        self._lives: dict[int, Restarts] = {}
        self._files: dict[str, LogFile] = {}  # the logs of nodes and workers, by name
        self._keys: dict[str, str] = {}  # where workers find what they show
        self._pumps: dict[str, Pump] = {}
        self._reports = Reports()
        self._silent: list[str] = []  # members that ended well, but without a goodbye
        self._node_watches: list[asyncio.Task[int]] = []
        self._a_node_failed = asyncio.Event()
        self._asked: signal.Signals | None = None
        self._ending = False
        self._verdict: tuple[str, str] | None = None  # how the workers have ended, for the last line

    async def run(self) -> int:
        """Run the cluster until its end; return the exit code.

        Raises
        ------
        PSError
            What kept the cluster from starting; nothing is left behind.
        """
        code = await self._run()
        return exits.of_cluster(code, self._nodes.coordinator.popen.returncode)

    async def _run(self) -> int:
        task = asyncio.current_task()
        assert task is not None
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            claim = stack.enter_context(Claim(config.directory))
            if (journal := config.cluster.journal) is not None:  # one that is left is of a cluster that is over
                forget_journal(journal)
                stack.callback(forget_journal, journal)
            self._logs = stack.enter_context(Folder(config.directory.absolute(), *config.logs, make=True))
            logs = self._logs.path
            for old in os.listdir(self._logs.fd):
                if is_log(old):
                    self._logs.remove(old)
            self._log = LogFile("zmqps", self._logs, "supervisor.log", self._terminal)
            stack.callback(self._log.close)
            asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            stack.enter_context(answered(asked, lambda number: self._ask(number, task)))
            saves = config.cluster.checkpoints.saves_at_end
            state = State.of_this_process(config.name, logs, config.cluster.keys, saves=saves)
            self._mark = mark_of(state.pid, state.start)
            claim.write(state)
            try:
                if config.cluster.keys is not None and config.command:  # they have no use for what a node may
                    folder = await stack.enter_async_context(worker_keys(config.cluster.keys, self._log.say))
                    self._keys = {"ZMQPS_KEYS": str(folder)}
                await self._nodes.start(config.timeout)
                state = replace(state, address=self._nodes.address, page=self._page())
                claim.write(state)
                self._log.say("info", f"cluster at {state.address}, logs in {logs}")
                if state.page:
                    self._log.say("info", f"page at {state.page}")
                self._ready(state)
                return await self._supervise()
            except asyncio.CancelledError:
                if self._asked is None:
                    raise
                return exits.INTERRUPTED if self._asked == signal.SIGINT else exits.TERMINATED
            except Exception as error:
                text = str(error) if isinstance(error, PSError) else traceback.format_exc()
                known = error.number if isinstance(error, PSError) else ""
                self._log.say("error", text, shown=False, error=known)  # its handler shows it
                raise
            finally:
                self._ending = True
                await self._end()
                nodes = self._nodes.processes
                unsaved = bool(nodes) and nodes[0].popen.returncode == exits.NOT_SAVED
                claim.write(replace(state, unsaved=unsaved))  # for the `down` that has asked for this end
                if self._verdict is not None:
                    self._log.say(*self._verdict)

    def _page(self) -> str:
        """Return the address of the coordinator's page, with its token."""
        cluster = self._config.cluster
        return read_page(cluster.journal).url if cluster.page and cluster.journal is not None else ""

    async def _supervise(self) -> int:
        ended = asyncio.create_task(self._watch_coordinator())
        self._node_watches = [
            asyncio.create_task(self._watch_server(index)) for index in range(1, len(self._nodes.processes))
        ]
        self._node_watches.append(ended)
        if not self._config.command:
            fails = asyncio.create_task(self._a_node_failed.wait())
            await asyncio.wait((fails, ended), return_when=asyncio.FIRST_COMPLETED)
            fails.cancel()
            if self._a_node_failed.is_set():  # its shard is gone, no worker can go on
                return exits.FAILED
            code = await ended
            await self._nodes.ended_by_themselves()
            await asyncio.gather(*self._node_watches)
            if code in (exits.IDLE, exits.WORKERS_FAILED, exits.NOT_SAVED):
                return code
            return exits.FAILED if self._a_node_failed.is_set() else exits.OK
        codes = await asyncio.gather(*(self._watch_worker(index) for index in range(self._config.num_workers)))
        if self._a_node_failed.is_set():  # whatever became of the workers followed from that
            return exits.FAILED
        failures = [f"worker-{index} ({describe_exit(code)})" for index, code in enumerate(codes) if failed(code)]
        if failures:
            of_all = f"{len(failures)} of {counted(len(codes), 'worker')}"
            self._verdict = ("warning", f"{of_all} failed: {listed(failures, 8)}")
            return exits.WORKERS_FAILED
        if lost := await self._lost():
            self._verdict = ("error", f"all workers have ended well, but {lost}: its part of the data may be unused")
            return exits.WORKERS_FAILED
        drained = [f"worker-{index}" for index, code in enumerate(codes) if code == exits.DRAINED]
        again = [f"worker-{i} was restarted {counted(life.num, 'time')}" for i, life in self._lives.items() if life.num]
        well = len(codes) - len(drained)
        named = "the worker has" if len(codes) == 1 else f"all {well} workers have"
        named = f"{well} of {counted(len(codes), 'worker')} have" if drained else named
        more = [*again, *([f"{listed(drained, 8)} drained"] if drained else [])]
        self._verdict = ("info", "; ".join([f"{named} ended well", *more[:8]]))
        return exits.OK if well else exits.DRAINED

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
            return f"{listed(self._silent, 8)} ended without worker.finish() or close()"
        said = [run["lost"] for run in status["jobs"].values() if run["lost"]]
        but = f"{FINISHED}, but "
        said += [job["how"].removeprefix(but) for job in status["ended"] if job["how"].startswith(but)]
        return "; ".join(said)

    async def _watch_worker(self, index: int) -> int:
        """Run a worker, and again as often as it may fail; return how the last life has ended."""
        life = self._lives[index] = Restarts(self._config.restarts)
        over: list[tuple[Process, int]] = []
        while True:
            worker = self._spawn_worker(index)
            code = await worker.exited()
            if self._ending or self._asked is not None:
                return code
            over.append((worker, code))
            if not life.may_follow(code):  # else its next life says so, and takes its place
                for process, how in over:
                    self._report(process, how)
            if not code:
                return code
            await self._said(worker.name)
            if not failed(code):
                self._log.say("info", f"{worker.name} has drained")
                return code
            text = f"{worker.name} failed with {describe_exit(code)}; its last lines:\n{tail(worker.log)}"
            ends = not life.may_follow(code) or self._is_over
            what = "" if self._is_over else life.what_follows(code)
            self._log.say("error", f"{text}\n  {what}" if what else text)
            if ends:
                self._say_who_goes_on()
                return code
            await asyncio.sleep(life.pause)
            if self._is_over:  # what it died of was noticed meanwhile
                return code
            life.begin()

    def _report(self, process: Process, code: int) -> None:
        """Tell the coordinator that a process has ended; if it ended well, its members left without a goodbye."""
        then = self._silent.extend if not code else lambda lost: None
        self._reports.tell(process, code, self._nodes.address, self._nodes.keys, then)

    @property
    def _is_over(self) -> bool:
        """Whether there is nothing left that a worker could be started again for."""
        return self._a_node_failed.is_set() or (self._nodes.coordinator.ended and not self._has_journal)

    def _say_who_goes_on(self) -> None:
        if others := sum(not other.ended for other in self._workers.values()):
            self._log.say("info", "another worker goes on" if others == 1 else f"{others} workers go on")

    async def _watch_coordinator(self) -> int:
        """Start the coordinator again when it fails and can go on; return how it has ended."""
        code = await self._watch_node(
            0, RESTARTS, lambda: self._has_journal, "it goes on from its journal, the others wait for it"
        )
        await self._judge(self._nodes.coordinator, code)
        return code

    async def _watch_server(self, index: int) -> int:
        """Start a server again when it fails, where its shards can be had without it; return how it has ended."""
        cluster = self._config.cluster
        outlived, most = cluster.outlives_servers, cluster.restart_servers
        code = await self._watch_node(index, most, lambda: outlived, cluster.why_servers_return)
        server = self._nodes.processes[index]
        if outlived and not self._has_ended(code):
            await self._said(server.name)
            self._log.say("error", f"{server.failure(code)}\n  it does not start again")
        else:
            await self._judge(server, code)
        return code

    async def _watch_node(self, index: int, most: int, returns: Callable[[], bool], what: str) -> int:
        """Start a node again when it fails, as often as may be; return how its last life has ended."""
        life = Restarts(most)
        while True:
            node = self._nodes.processes[index]
            code = await node.exited()
            if index and not self._has_ended(code):
                self._report(node, code)
            if self._has_ended(code) or not life.may_follow(code) or not returns():
                return code
            await self._said(node.name)
            self._log.say("warning", f"{node.name} failed with {describe_exit(code)} and {life.again(what)}")
            life.begin()
            try:
                await asyncio.wait_for(self._nodes.restart(index), RESTART_S)
            except (PSError, TimeoutError) as error:
                why = str(error) or f"it takes more than {RESTART_S:.0f} s"
                self._log.say("error", f"{node.name} cannot be started again: {why}")
                return exits.FAILED

    @property
    def _has_journal(self) -> bool:
        """Whether there is something from which the coordinator goes on: none is left of a cluster that has ended."""
        journal = self._config.cluster.journal
        return journal is not None and (journal / FILE).exists()

    def _has_ended(self, code: int) -> bool:
        """Whether a node was asked to end, or has done its work."""
        ends = (exits.OK, exits.IDLE, exits.WORKERS_FAILED, exits.NOT_SAVED)
        return code in ends or self._ending or self._asked is not None

    async def _judge(self, node: Process, code: int) -> None:
        """Note how a node has ended, and say so unless that was well."""
        if not self._has_ended(code):
            self._a_node_failed.set()
            await self._said(node.name)
            self._log.say("error", str(node.failure(code)))

    async def _said(self, name: str) -> None:
        """Wait for the last words of a process that has ended."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pumps[name].ended.wait(), DRAIN_S)

    # --- the end ------------------------------------------------------------------------------

    def _ask(self, number: signal.Signals, task: asyncio.Task[int]) -> None:
        saves = self._config.cluster.checkpoints.saves_at_end
        if self._asked is not None or (self._ending and not saves):
            for process in [*self._workers.values(), *self._nodes.processes]:
                process.kill()
            return
        if self._ending:
            self._asked = number
            self._log.say("info", f"{number.name}: what was trained is being saved; once more to end at once, without")
            return
        self._asked = number
        self._log.say("info", f"{number.name}: ending the cluster; once more to end it at once")
        task.cancel()

    async def _end(self) -> None:
        number = signal.SIGINT if self._asked == signal.SIGINT else signal.SIGTERM
        grace = self._config.drain_timeout if self._asked == signal.SIGTERM else GRACE_S
        await end(self._workers.values(), number, grace)
        await self._reports.close()
        await self._nodes.stop()
        for name, pump in self._pumps.items():
            await self._said(name)
            pump.close()
        for log in self._files.values():
            log.close()
        for watch in self._node_watches:
            watch.cancel()
        await asyncio.gather(*self._node_watches, return_exceptions=True)
        self._nodes.close()

    # --- children -----------------------------------------------------------------------------

    def _spawn_node(self, name: str, command: Sequence[str]) -> Process:
        return self._spawn(name, command, node_environment(), is_node=True)

    def _spawn_worker(self, index: int) -> Process:
        env = worker_environment(self._nodes.address, index, self._config.cluster.job_secret, self._lives[index])
        env |= {LOG_NODE: f"worker-{index}"} | self._keys | (pin(gpus, index) if (gpus := self._config.gpus) else {})
        worker = self._workers[index] = self._spawn(f"worker-{index}", worker_command(self._config.command), env)
        return worker

    def _spawn(self, name: str, command: Sequence[str], env: dict[str, str], *, is_node: bool = False) -> Process:
        if name not in self._files:
            self._files[name] = LogFile(name, self._logs, f"{name}.log", self._terminal)
        else:
            self._pumps[name].close()  # of the life before
        log, env = self._files[name], env | self._mark
        process = Process(name, command, stdout=subprocess.PIPE, log=log.path, env=env, is_node=is_node)
        assert process.popen.stdout is not None
        self._pumps[name] = Pump(process.popen.stdout, log)
        return process
