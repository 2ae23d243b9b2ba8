"""Runs a cluster and its workers on many hosts, from their start to their end: what ``zmqps launch`` is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from zmqps import __version__
from zmqps.cli.running.children import MOST_NAMED, Asked, how_ended
from zmqps.cli.running.follow import is_log
from zmqps.cli.running.launch_config import LaunchConfig
from zmqps.cli.running.output import LogFile, Terminal
from zmqps.cli.running.state import Claim, State, state_path
from zmqps.core.protocol import exits
from zmqps.core.protocol.endpoints import is_loopback, join
from zmqps.errors import DeadlineError, NodeFailedError, PSError, counted, listed
from zmqps.folder import Folder
from zmqps.keys import create
from zmqps.launch.code import Code, rsync_missing
from zmqps.launch.config import GRACE_S, ClusterConfig
from zmqps.launch.far import FILES, pack
from zmqps.launch.handout import FOR_NODES, FOR_WORKERS, Version, changed, key_files, version
from zmqps.launch.hosts import Place
from zmqps.launch.nodes import AT_ONCE
from zmqps.launch.processes import CHANNEL_SECRET, describe_exit, end, tail
from zmqps.launch.reach import undecided
from zmqps.launch.remote import RemoteHost, RemoteProcess
from zmqps.launch.supervision import End, Restarts, supervise, while_all_run
from zmqps.logs.handler import VARIABLE as LOG_NODE
from zmqps.settings.node import NodeSettings

#: Where the keys are while the cluster lives, next to the state file.
KEYS = "keys"


class Fleet:
    """Starts everything, watches it, and ends it in order: workers, coordinator, servers, agents.

    Ctrl-C, SIGTERM and SIGHUP end the cluster; a second one does so at once. The first process that fails ends it as
    well, and so does a host that is lost.

    Parameters
    ----------
    config
        What to run.
    terminal
        Shows what happens.
    """

    def __init__(self, config: LaunchConfig, terminal: Terminal | None) -> None:
        self._config = config
        self._terminal = terminal
        self._hosts: dict[str, RemoteHost] = {}
        self._addresses: dict[str, str] = {}
        self._processes: dict[str, RemoteProcess] = {}  # by name: the life under way, or the last one
        self._servers: dict[str, tuple[Place, int]] = {}  # by name: where each of them is, and which it is
        self._workers: dict[str, Restarts] = {}  # by name
        self._drained: list[str] = []  # workers that were asked to leave, and left in order
        self._logs: contextlib.ExitStack = contextlib.ExitStack()
        self._process_logs: dict[str, LogFile] = {}  # by name
        self._first = asyncio.Event()  # something has failed
        self._code = exits.OK
        self._address = ""
        self._missing = "the hosts to answer"

    async def run(self) -> int:
        """Run the cluster until its end; return the exit code.

        Raises
        ------
        PSError
            What kept the cluster from starting; nothing is left behind.
        """
        code = await self._run()
        coordinators = [process.code.result() for process in self._of("coordinator")]
        return exits.of_cluster(code, *coordinators)

    async def _run(self) -> int:
        config = self._config
        with Claim(config.directory) as claim, self._logs:
            where = ("runs", config.name, "logs")
            self._folder = self._logs.enter_context(Folder(config.directory.absolute(), *where, make=True))
            for old in os.listdir(self._folder.fd):
                if is_log(old):
                    self._folder.remove(old)
            self._log = self._new_log("zmqps", "supervisor.log")
            says = "ending the cluster; once more to end it at once"
            self._asked = Asked(self._log, config.cluster, says, self._kill)
            self._logs.enter_context(self._asked.answered())
            self._keys = self._logs.enter_context(self._find_keys())
            saves = config.cluster.saving.saves_at_end
            state = State.of_this_process(config.name, self._folder.path, self._keys, saves=saves)
            claim.write(state)

            async def start_and_supervise() -> int:
                await self._start()
                claim.write(replace(state, address=self._address))
                return await self._supervise()

            try:
                return await self._asked.code_of(start_and_supervise())
            finally:
                self._progress("")
                await self._end()

    # --- the start ------------------------------------------------------------------------------

    async def _start(self) -> None:
        try:
            async with asyncio.timeout(self._config.timeout):
                known = () if self._keys is None else version(self._keys, has_nodes=True)  # of what is handed out
                await self._reach_hosts()
                if self._keys is not None:
                    self._logs.callback(asyncio.create_task(self._renew(self._keys, known)).cancel)
                await self._start_nodes()
        except TimeoutError:
            logs = "".join(f"\n{process.name}:\n{tail(process.log)}" for process in self._processes.values())
            text = self._missing + (f"; the last log lines:{logs}" if logs else "")
            raise DeadlineError(
                operation="the start of the cluster", seconds=self._config.timeout, waiting_for=text
            ) from None
        hosts = len(self._hosts)
        self._log.say(
            "info", f"cluster at {self._address} on {hosts} host{'s' * (hosts != 1)}, logs in {self._folder.path}"
        )

    async def _reach_hosts(self) -> None:
        config, shell = self._config, self._config.shell
        places = [place for place in config.places if place.is_used]
        for place in places:
            name = place.host.name
            self._hosts[name] = RemoteHost(
                place.host, shell.agent(place.host), __version__, shell.silence, partial(self._heard, name)
            )
            self._hosts[name].not_renewed = partial(self._not_renewed, name)
        await self._each("hosts reached", [self._reach(host) for host in self._hosts.values()])
        if config.code is not None and config.num_copies:
            self._say_what_is_copied(config.code)
            await self._each("hosts have the code", [self._copy(host) for host in self._hosts.values()])
        await self._each("hosts ready", [self._set_up(place) for place in places])
        names, towards = undecided(self._addresses)
        for name in names:
            self._addresses[name] = await self._hosts[name].route(towards) if towards else "127.0.0.1"
        beyond = sorted({address for address in self._addresses.values() if not is_loopback(address)})
        if beyond and self._keys is None:
            self._log.say(
                "warning",
                f"nothing is encrypted: any process that reaches {listed(beyond, MOST_NAMED)} can join (--insecure)",
            )

    @contextlib.contextmanager
    def _find_keys(self) -> Iterator[Path | None]:
        """Yield the directory of the cluster's keys: the user's, or new ones that end with this cluster."""
        told = self._config.cluster.keys
        if told is not None or self._config.cluster.insecure or all(p.host.is_local for p in self._config.places):
            yield told
            return
        path = state_path(self._config.directory.absolute()).with_name(KEYS)
        shutil.rmtree(path, ignore_errors=True)  # of a launcher that was killed
        create(path)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    async def _reach(self, host: RemoteHost) -> None:
        await host.open()
        self._watch(host)

    def _watch(self, host: RemoteHost) -> None:
        async def lost() -> None:
            await host.gone.wait()
            if not self._asked.ending:
                self._fail(exits.HOST_LOST, f"{host.name} is lost: {host.lost}")

        self._logs.callback(asyncio.create_task(lost()).cancel)

    async def _copy(self, host: RemoteHost) -> None:
        if host.host.is_local:
            return
        code = self._config.code
        assert code is not None
        process = await asyncio.create_subprocess_exec(
            *self._config.shell.copy(host.host, code.folder, code.there), stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, process_group=0,
        )  # fmt: skip
        try:
            said, _ = await process.communicate(code.listing)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            text = said.decode(errors="replace")
            if missing := rsync_missing(process.returncode, text, host.name):
                raise missing
            last = "\n".join(f"  {line}" for line in text.splitlines()[-10:])
            raise NodeFailedError(name=f"rsync to {host.name}", how=describe_exit(process.returncode), tail=last)

    def _say_what_is_copied(self, code: Code) -> None:
        self._log.say("info", f"copying {code.describe(self._config.num_copies)}")
        if code.secrets:
            self._log.say("warning", code.without())
        if code.is_much:
            self._log.say(
                "warning", f"that is much for code: most of it is {code.largest()}; have git ignore what the hosts do "
                "not need, or keep it in another folder than the script"
            )  # fmt: skip

    async def _set_up(self, place: Place) -> None:
        host, config = place.host, self._config
        env = {"ZMQPS_CHANNEL_SECRET": CHANNEL_SECRET, **config.env}
        files, env = self._files(place, env)
        if config.cluster.job_secret is not None:
            files["job.secret"] = pack(config.cluster.job_secret)
            env["ZMQPS_JOB_SECRET"] = f"{FILES}/job.secret"
        facts = {
            "directory": config.remote_directory, "files": files, "env": env, "workers": len(place.workers),
            "name": host.name, "local": host.is_local, "address": host.address, "interface": host.interface,
            "keys": "" if self._keys is None else FOR_NODES if place.has_nodes else FOR_WORKERS,
        }  # fmt: skip
        self._addresses[host.name] = await self._hosts[host.name].set_up(facts)

    def _files(self, place: Place, env: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the keys that a host gets, and the variables of its workers: only those of a node are a node's."""
        if self._keys is None:
            return {}, env
        files = key_files(self._keys, has_nodes=place.has_nodes)
        return files, env | {"ZMQPS_KEYS": f"{FILES}/{FOR_WORKERS}"}

    async def _renew(self, keys: Path, known: Version) -> None:
        """Hand the keys out again whenever they change, to each host what it got at first."""
        places = [place for place in self._config.places if place.is_used]
        while True:
            known = await changed(keys, known, has_nodes=True)
            try:
                files = {has_nodes: key_files(keys, has_nodes=has_nodes) for has_nodes in (True, False)}
            except PSError as error:
                self._log.say("error", f"the keys have changed, and hosts have those of before: {error}")
                continue
            for place in places:
                self._hosts[place.host.name].renew(files[place.has_nodes])
            self._log.say("info", f"the keys have changed, {counted(len(places), 'host')} get them")

    def _not_renewed(self, host: str, why: str) -> None:
        self._log.say("error", f"the keys have changed, and {host} has those of before: {why}")

    async def _start_nodes(self) -> None:
        config = self._config
        self._missing = "the coordinator to start"
        self._progress("starting the coordinator")
        (place,) = (place for place in config.places if place.coordinator)
        name = f"coordinator@{place.host.name}"
        cluster = self._cluster(place, config.port)
        coordinator = self._start_node(place, cluster.for_coordinator(name))
        self._address = await while_all_run(coordinator.announcement(), self._processes.values())
        self._missing = "the servers to start"
        servers = [self._start_server(place, index) for place in config.places for index in place.servers]
        await self._each(
            "servers started", [while_all_run(server.announcement(), self._processes.values()) for server in servers]
        )
        all_joined = asyncio.Event()

        def joined(here: int) -> None:
            self._missing = f"{len(servers) - here} of {len(servers)} servers to join"
            self._progress(f"{here} of {len(servers)} servers joined")
            if here >= len(servers):
                all_joined.set()

        coordinator.host.joined = joined
        coordinator.host.tell({"do": "joined", "address": self._address, "servers": len(servers)})
        await while_all_run(all_joined.wait(), self._processes.values())
        self._progress("")

    def _start_server(self, place: Place, index: int) -> RemoteProcess:
        name, cluster = f"server-{index}@{place.host.name}", self._cluster(place, 0)
        self._servers[name] = place, index
        return self._start_node(place, cluster.for_server(index, self._address, bind=cluster.address, name=name))

    def _cluster(self, place: Place, port: int) -> ClusterConfig:
        """Return the settings of a host's nodes."""
        address = self._addresses[place.host.name]
        insecure = self._keys is None and not is_loopback(address)
        return replace(self._config.cluster, address=join(address, port), insecure=insecure)

    def _start_node(self, place: Place, told: NodeSettings) -> RemoteProcess:
        secret = f"{FILES}/job.secret" if told.job_secret is not None else None
        keys = f"{FILES}/{FOR_NODES}" if self._keys is not None else None
        settings = told.document() | {"job_secret": secret, "keys": keys}
        return self._begin(place, told.name, told.role, {"settings": settings, "address": self._address})

    def _begin(self, place: Place, name: str, role: str, facts: Mapping[str, Any]) -> RemoteProcess:
        if name not in self._process_logs:
            self._process_logs[name] = self._new_log(name, f"{name}.log")
        log = self._process_logs[name]
        process = self._hosts[place.host.name].start(name, role, log.path, log.take, facts)
        self._processes[name] = process
        return process

    async def _each(self, what: str, works: Sequence[Coroutine[Any, Any, Any]]) -> None:
        """Do several things at once, and show how far that has come; the first that fails ends the others."""
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            for count, done in enumerate(asyncio.as_completed(tasks)):
                self._missing = f"{len(tasks) - count} of {len(tasks)} ({what})"
                self._progress(f"{count} of {len(tasks)} {what}")
                await done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- training -------------------------------------------------------------------------------

    async def _supervise(self) -> int:
        watches = [asyncio.create_task(self._watch_node(node)) for node in self._processes.values()]
        numbers = [(place, index) for place in self._config.places for index in place.workers]
        workers = [asyncio.create_task(self._watch_worker(place, index)) for place, index in numbers]
        failed = asyncio.create_task(self._first.wait())
        done = asyncio.ensure_future(asyncio.gather(*workers))
        tasks: list[asyncio.Future[Any]] = [failed, done, *watches]
        try:
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._first.is_set():
            return self._code
        self._log.say("info", how_ended(self._workers, self._drained))
        return exits.OK if len(self._drained) < len(workers) else exits.DRAINED

    async def _watch_worker(self, place: Place, index: int) -> None:
        """Run a worker, and again as often as it may fail; then its failure ends everything."""
        name = f"worker-{index}@{place.host.name}"
        restarts = self._workers[name] = Restarts(
            self._config.restart_workers, possible=lambda: not self._is_lost(name)
        )

        async def start() -> RemoteProcess:
            env = {LOG_NODE: name, **restarts.environment}
            facts = {"command": list(self._config.command), "address": self._address, "index": index, "env": env}
            return self._begin(place, name, "worker", facts)

        async def told(end: End[RemoteProcess]) -> None:
            if end.code == exits.DRAINED:
                self._drained.append(name)
                self._log.say("info", f"{name} has drained")
            await self._told(end, ends_all=True)

        await supervise(restarts, start, told, self._asked.over)

    async def _watch_node(self, node: RemoteProcess) -> None:
        """Wait for a node's failure, which ends everything unless jobs survive it: such servers start again."""
        cluster, is_server = self._config.cluster, node.name in self._servers
        restarts = Restarts(0, well=(exits.OK,), replaces=False)
        if is_server:
            restarts = cluster.restarts_of_server(possible=lambda: not self._is_lost(node.name))

        async def start() -> RemoteProcess:
            return self._start_server(*self._servers[node.name])

        told = partial(self._told, ends_all=not (is_server and cluster.outlives_servers))
        await supervise(restarts, start, told, self._asked.over, child=node)

    def _is_lost(self, name: str) -> bool:
        """Whether the host of a process is lost, which ends everything."""
        return self._processes[name].host.gone.is_set()

    async def _told(self, end: End[RemoteProcess], *, ends_all: bool) -> None:
        if not end.text or self._asked.ending or self._is_lost(end.child.name):
            return
        if ends_all and not end.again:
            self._fail(end.code, end.text)
        else:
            self._log.say(end.level, end.text)

    def _fail(self, code: int, text: str) -> None:
        """Note a failure; the first one ends everything."""
        if self._first.is_set() or self._asked.ending:
            return
        self._code = exits.of_process(code)
        self._log.say("error", text)
        self._first.set()

    # --- the end --------------------------------------------------------------------------------

    def _of(self, role: str) -> list[RemoteProcess]:
        return [process for process in self._processes.values() if process.role == role]

    def _kill(self) -> None:
        for host in self._hosts.values():
            host.kill()  # the agents notice, and end the rest

    async def _end(self) -> None:
        await end(self._of("worker"), self._asked.passed_on, self._asked.grace(self._config.drain_timeout))
        await end(self._of("coordinator"), signal.SIGTERM, self._config.cluster.goodbye_s)
        await end(self._of("server"), AT_ONCE, GRACE_S)
        await asyncio.gather(*(host.close() for host in self._hosts.values()))

    # --- what is said ---------------------------------------------------------------------------

    def _new_log(self, name: str, file: str) -> LogFile:
        log = LogFile(name, self._folder, file, self._terminal)
        self._logs.callback(log.close)
        return log

    def _heard(self, host: str, text: str) -> None:
        self._log.say("info", f"{host}: {text}")

    def _progress(self, state: str) -> None:
        if self._terminal is not None:
            self._terminal.progress(state)
