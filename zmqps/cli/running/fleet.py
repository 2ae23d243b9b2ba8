"""Runs a cluster and its workers on many hosts, from their start to their end: what ``zmqps launch`` is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import traceback
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from zmqps import __version__
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
from zmqps.launch.supervision import Restarts, failed, while_all_run
from zmqps.logs.handler import VARIABLE as LOG_NODE
from zmqps.net.system.signals import answered

#: Where the keys are while the cluster lives, beside the state file.
KEYS = "keys"
MOST_NAMED = 8


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
        self._processes: list[RemoteProcess] = []
        self._servers: dict[RemoteProcess, tuple[Place, int]] = {}  # where each of them is, and which it is
        self._logs: contextlib.ExitStack = contextlib.ExitStack()
        self._node_logs: dict[str, LogFile] = {}  # by name
        self._first = asyncio.Event()  # something has failed
        self._code = exits.OK
        self._drained: list[str] = []  # workers that were asked to go, and have gone in order
        self._asked: signal.Signals | None = None
        self._ending = False
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
        coordinators = [process.code.result() for process in self._processes if process.role == "coordinator"]
        return exits.of_cluster(code, *coordinators)

    async def _run(self) -> int:
        task = asyncio.current_task()
        assert task is not None
        config = self._config
        with Claim(config.directory) as claim, self._logs:
            where = ("runs", config.name, "logs")
            self._folder = self._logs.enter_context(Folder(config.directory.absolute(), *where, make=True))
            for old in os.listdir(self._folder.fd):
                if is_log(old):
                    self._folder.remove(old)
            self._log = self._new_log("zmqps", "supervisor.log")
            asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            self._logs.enter_context(answered(asked, lambda number: self._ask(number, task)))
            self._keys = self._logs.enter_context(self._find_keys())
            saves = config.cluster.checkpoints.saves_at_end
            state = State.of_this_process(config.name, self._folder.path, self._keys, saves=saves)
            claim.write(state)
            try:
                await self._start()
                claim.write(replace(state, address=self._address))
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
            logs = "".join(f"\n{process.name}:\n{tail(process.log)}" for process in self._processes)
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
            if not self._ending:
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
        coordinator = self._start_node(place, name, "coordinator", cluster.coordinator(name))
        self._address = await while_all_run(coordinator.announcement(), self._processes)
        self._missing = "the servers to start"
        servers = [self._start_server(place, index) for place in config.places for index in place.servers]
        await self._each(
            "servers started", [while_all_run(server.announcement(), self._processes) for server in servers]
        )
        all_joined = asyncio.Event()

        def joined(here: int) -> None:
            self._missing = f"{len(servers) - here} of {len(servers)} servers to join"
            self._progress(f"{here} of {len(servers)} servers joined")
            if here >= len(servers):
                all_joined.set()

        coordinator.host.joined = joined
        coordinator.host.tell({"do": "joined", "address": self._address, "servers": len(servers)})
        await while_all_run(all_joined.wait(), self._processes)
        self._progress("")

    def _start_server(self, place: Place, index: int) -> RemoteProcess:
        name, cluster = f"server-{index}@{place.host.name}", self._cluster(place, 0)
        flags = cluster.server(index, self._address, bind=cluster.address, name=name)
        process = self._start_node(place, name, "server", flags)
        self._servers[process] = place, index
        return process

    def _cluster(self, place: Place, port: int) -> ClusterConfig:
        """Return what the nodes of a host are told."""
        address = self._addresses[place.host.name]
        secret = Path(FILES) / "job.secret" if self._config.cluster.job_secret is not None else None
        insecure = self._keys is None and not is_loopback(address)
        return replace(
            self._config.cluster, address=join(address, port), job_secret=secret, insecure=insecure, keys=None
        )

    def _start_node(self, place: Place, name: str, role: str, flags: Sequence[str]) -> RemoteProcess:
        keys = [f"--keys={FILES}/{FOR_NODES}"] * (self._keys is not None)
        process = self._begin(place, name, role, {"flags": [*flags, *keys], "address": self._address})
        self._processes.append(process)
        return process

    def _begin(self, place: Place, name: str, role: str, facts: Mapping[str, Any]) -> RemoteProcess:
        if name not in self._node_logs:
            self._node_logs[name] = self._new_log(name, f"{name}.log")
        log = self._node_logs[name]
        return self._hosts[place.host.name].start(name, role, log.path, log.take, facts)

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
        watches = [asyncio.create_task(self._watch_node(node)) for node in self._processes]
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
        well = len(workers) - len(self._drained)
        if self._drained:
            text = f"{well} of {counted(len(workers), 'worker')} have ended well; {listed(self._drained, 8)} drained"
        else:
            text = f"all {well} workers have ended well" if well != 1 else "the worker has ended well"
        self._log.say("info", text)
        return exits.OK if well else exits.DRAINED

    async def _watch_worker(self, place: Place, index: int) -> None:
        name = f"worker-{index}@{place.host.name}"
        lives = Restarts(self._config.restarts)
        log = self._new_log(name, f"{name}.log")
        while True:
            facts = {
                "command": list(self._config.command), "address": self._address, "index": index,
                "env": {LOG_NODE: name} | dict(lives.environment),
            }  # fmt: skip
            process = self._hosts[place.host.name].start(name, "worker", log.path, log.take, facts)
            self._processes.append(process)
            code = await process.exited()
            if not failed(code):
                if code:
                    self._drained.append(name)
                    self._log.say("info", f"{name} has drained")
                return
            if self._ending or code == exits.HOST_LOST:
                return
            text = f"{name} failed with {describe_exit(code)}; its last lines:\n{tail(process.log)}"
            if follows := lives.what_follows(code):
                text = f"{text}\n  {follows}"
            if not lives.may_follow(code):
                return self._fail(code, text)
            self._log.say("error", text)
            await asyncio.sleep(lives.pause)
            lives.begin()
            self._processes.remove(process)

    async def _watch_node(self, node: RemoteProcess) -> None:
        """Wait for a node's failure, which ends everything unless jobs go on without it: such servers start again."""
        cluster = self._config.cluster
        lives = Restarts(cluster.restart_servers)
        while (code := await node.exited()) not in (exits.OK, exits.HOST_LOST) and not self._ending:
            if node not in self._servers or not cluster.outlives_servers:
                return self._fail(code, str(node.failure(code)))
            if not lives.may_follow(code):
                return self._log.say("error", f"{node.failure(code)}\n  it does not start again")
            self._log.say(
                "warning",
                f"{node.name} failed with {describe_exit(code)} and {lives.again(cluster.why_servers_return)}",
            )
            lives.begin()
            place, index = self._servers.pop(node)
            self._processes.remove(node)
            node = self._start_server(place, index)

    def _fail(self, code: int, text: str) -> None:
        """Note a failure; the first one ends everything."""
        if self._first.is_set() or self._asked is not None:
            return
        self._code = exits.of_process(code)
        self._log.say("error", text)
        self._first.set()

    # --- the end --------------------------------------------------------------------------------

    def _ask(self, number: signal.Signals, task: asyncio.Task[int]) -> None:
        saves = self._config.cluster.checkpoints.saves_at_end
        if self._asked is not None or (self._ending and not saves):
            for host in self._hosts.values():
                host.kill()  # the agents notice, and end the rest
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
        by_role = {role: [p for p in self._processes if p.role == role] for role in ("worker", "coordinator", "server")}
        grace = self._config.drain_timeout if self._asked == signal.SIGTERM else GRACE_S
        await end(by_role["worker"], number, grace)
        await end(by_role["coordinator"], signal.SIGTERM, self._config.cluster.goodbye_s)
        await end(by_role["server"], AT_ONCE, GRACE_S)
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
