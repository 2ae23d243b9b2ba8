"""`LocalCluster`: a coordinator and its servers as child processes of a program."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from zmqps import checks
from zmqps.core.protocol import exits
from zmqps.errors import ClosedError, ConfigurationError, ForkedError, counted
from zmqps.files import make_directory
from zmqps.folder import Folder
from zmqps.gpu.pinning import spread, visible_gpus
from zmqps.keys import find_keys
from zmqps.keys.security import Security
from zmqps.launch.config import ClusterConfig
from zmqps.launch.nodes import Nodes
from zmqps.launch.processes import Process, launched_for, node_command, node_environment
from zmqps.logs.uncaught import show_briefly
from zmqps.nodes.coordinator import CoordinatorConfig
from zmqps.nodes.inquiry import ask_status, run_blocking, scale_servers
from zmqps.nodes.server import ServerConfig
from zmqps.settings.cluster import UpSettings
from zmqps.settings.coordinator import Limits, Watching
from zmqps.settings.node import NodeSettings
from zmqps.settings.saving import Saving
from zmqps.settings.server import Servers

T = TypeVar("T")

START_TIMEOUT = UpSettings().timeout
DEFAULTS = ClusterConfig()

log = logging.getLogger("zmqps.cluster")

_clusters: weakref.WeakSet[_Cluster] = weakref.WeakSet()


#: Names of other systems -> what a cluster has.
ELSEWHERE = {
    "close": "stop(), or a with statement",
    "shutdown": "stop(), or a with statement",
    "endpoint": "address",
    "connect": "zmqps.connect(cluster.address)",
    "workers": "zmqps.run(train, workers=n), or status()",
    "logs": "directory",
}


class _Cluster:
    """The processes of a cluster on this host, from their start to their end.

    Parameters
    ----------
    config
        What it consists of.
    timeout, directory
        As `LocalCluster` has them.
    """

    def __init__(self, config: ClusterConfig, timeout: float, directory: str | Path | None) -> None:
        if not isinstance(directory, str | os.PathLike | None):
            checks.refuse("directory", "a path or None", directory)
        self._nodes = Nodes(config, self._spawn)
        self._num_servers = config.servers
        self._joined = ""  # the cluster that this process was launched for
        self._timeout = checks.seconds("timeout", timeout)
        self._stack = contextlib.ExitStack()
        self._directory = Path(directory) if directory is not None else None
        self._state = "not started"
        show_briefly()
        self._stopping = threading.RLock()  # a signal handler may come in between
        self._pid = os.getpid()
        self._removal: weakref.finalize[..., Any] | None = None  # of a temporary directory
        _clusters.add(self)

    if not TYPE_CHECKING:  # for which there is no other attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(checks.no_attribute("a cluster", name, ELSEWHERE), name=name, obj=self)

    @property
    def address(self) -> str:
        """The coordinator's endpoint, which `zmqps.connect` takes."""
        self._must_run()
        return self._joined or self._nodes.address

    @property
    def directory(self) -> Path:
        """Where the nodes' logs are, one file a node; the temporary directory goes with the cluster."""
        self._must_run()
        assert self._directory is not None
        return self._directory

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of the nodes, by name."""
        return {process.name: process.popen.pid for process in self._nodes.processes}

    def start(self) -> Self:
        """Start the processes; return when all servers have joined.

        Raises
        ------
        DeadlineError
            Says what is missing, with the last log lines. Nothing is left behind.
        ConfigurationError, NodeFailedError
            What kept a node from starting. Nothing is left behind.
        """
        if self._state != "not started":
            raise ClosedError(f"the cluster is {self._state}; make another LocalCluster")
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="zmqps-"))
            self._removal = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
            self._stack.callback(self._removal)
        else:
            make_directory(self._directory)
        self._state = "running"
        if launched := launched_for():
            self._joined, index = launched
            log.warning(
                "this process was launched as worker %s of the cluster at %s: LocalCluster joins that one, with its "
                "servers and options, and starts none",
                index, self._joined,
            )  # fmt: skip
            return self
        try:
            run_blocking(self._nodes.start(self._timeout))
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all processes and wait for it; connected workers get `ShutdownError`.

        That takes a few seconds at most, and where jobs are saved (`Saving`) as long as that does. An error
        is logged, with the coordinator's last words, where a job could not be saved.

        Raises
        ------
        ForkedError
            The processes are those of the process that this one was forked from.
        """
        self._refuse_in_fork()
        with self._stopping:  # a second caller waits until the first is done
            if self._state != "running":
                return
            self._state = "stopped"
            try:
                run_blocking(self._nodes.stop())
                for node in self._nodes.processes[:1]:  # none in a launched worker
                    if (code := node.popen.returncode) == exits.NOT_SAVED:
                        log.error("%s", node.failure(code))
            finally:
                self._nodes.close()
                self._stack.close()

    def status(self, *, timeout: float = 5.0) -> dict[str, Any]:
        """Return the coordinator's view of the cluster, as ``zmqps status --json`` prints it.

        Raises
        ------
        DeadlineError
            The coordinator does not answer.
        ConfigurationError
            In a worker that was launched: ``ZMQPS_KEYS`` or ``ZMQPS_TOKEN`` cannot be read.
        """
        theirs = find_keys(None, None, os.environ) if self._joined else None  # as `zmqps.connect` finds them
        return ask_status(self.address, timeout=timeout, keys=theirs or self._nodes.keys)

    def scale(self, servers: int, *, timeout: float | None = None) -> str:
        """Spread all jobs over this many servers while they are trained; return how that went.

        Missing servers are started. Surplus servers hand over their shards, and end.

        Parameters
        ----------
        servers, timeout
            How many, and the seconds that it may take; by default as for the start.

        Raises
        ------
        DeadlineError, ScaleError
            It takes longer, and continues; it cannot be done.
        ConfigurationError, NodeFailedError
            What kept a server from starting; or this process was launched, and the cluster is not its own.
        """
        self._must_run()
        if self._joined:
            raise ConfigurationError("this process was launched for a cluster: change that by zmqps scale")
        seconds = self._timeout if timeout is None else checks.seconds("timeout", timeout)
        number = checks.whole("servers", servers, 1, 4096)

        nodes = self._nodes
        run_blocking(nodes.grow(number, seconds))
        return scale_servers(self.address, number, timeout=seconds, job_secret=nodes.job_secret, keys=nodes.keys)

    def _spawn(self, told: NodeSettings) -> Process:
        assert self._directory is not None
        log, command = f"{told.name}.log", node_command(told.role, f"--name={told.name}")
        with Folder(self._directory, own=True) as folder, folder.begin(log) as file:
            node = Process(
                told.name, command, stdout=file, log=folder.path / log, env=node_environment(), settings=told.document()
            )
        if self._nodes.processes:
            self._nodes.coordinator.watch(node)
        return node

    def _refuse_in_fork(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(what="cluster", pid=self._pid, advice="start another one in this one, or let it connect")

    def _disown(self) -> None:
        """Let go, in a forked child, of what would keep the nodes alive, and of what would remove their logs."""
        self._nodes.close()
        if self._removal is not None:
            self._removal.detach()

    def _must_run(self) -> None:
        self._refuse_in_fork()
        if self._state != "running":
            raise ClosedError(f"the cluster is {self._state}; use it in a with statement, or call start()")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if os.getpid() == self._pid:  # a forked child that leaves the block leaves the cluster to its parent
            self.stop()

    def __repr__(self) -> str:
        servers = len(self._nodes.servers) or self._num_servers
        where = f" at {self._nodes.address}" if self._state == "running" else ""
        if self._joined:
            return f"<zmqps.LocalCluster: the one at {self._joined} that this worker was launched for, {self._state}>"
        return f"<zmqps.LocalCluster of {counted(servers, 'server')}{where}, {self._state}>"


class LocalCluster(_Cluster):
    """A coordinator and servers as processes on this host, for tests, notebooks and small jobs.

    They are the processes ``zmqps up`` starts. They end with the ``with`` statement, whatever jobs begin
    and end in it, and at the latest with this process, however it ends.

    In a worker that ``zmqps up`` or another launcher has started, this is the launcher's cluster: nothing is started or
    ended, `address` is that of its coordinator, and a line in the log says so.

    Parameters
    ----------
    servers : int or Servers
        How many servers, or a `Servers`, which also says what they compute with.
    workers : int, optional
        How many workers a job expects unless `init` says so; by default any number.
    replicas : int
        Copies of each shard on other servers, up to 2, which take over when one is lost.
    saving : Saving, optional
        Where jobs are saved, how often, and what they begin from; by default nothing is saved.
    limits : Limits, optional
        When nodes count as lost, how long jobs are kept, and how large messages are.
    watching : Watching, optional
        The page of the cluster, and where values that scripts log are written; by default, none and nowhere.
    security : Security, optional
        The keys of the cluster, or the secret of its jobs; then give them to `zmqps.connect`, too. By default there are
        none, and nothing is encrypted: only this host can reach the cluster.
    directory : path, optional
        Where the nodes' logs go, and stay; by default a temporary directory.
    log_level : {"info", "debug", "warning", "error"}
        What they log.
    timeout : float
        Seconds to wait for the start.

    Examples
    --------
    >>> with zmqps.LocalCluster(servers=2) as cluster:  # doctest: +SKIP
    ...     with zmqps.connect(cluster.address) as worker:
    ...         worker.init({"w": np.zeros(10, np.float32)}, optimizer=zmqps.optim.sgd(learning_rate=0.1))
    """

    @checks.options()
    def __init__(
        self,
        servers: int | Servers = DEFAULTS.servers,
        workers: int | None = DEFAULTS.workers,
        *,
        replicas: int = DEFAULTS.replicas,
        saving: Saving | None = None,
        limits: Limits | None = None,
        watching: Watching | None = None,
        security: Security | None = None,
        directory: str | Path | None = None,
        log_level: str = DEFAULTS.log_level,
        timeout: float = START_TIMEOUT,
    ) -> None:
        server = servers if isinstance(servers, Servers) else Servers(servers)
        gpus = () if server.servers_per_gpu is None else visible_gpus()
        devices = spread(server.device, server.servers_per_gpu, gpus) or ()
        shown = checks.group("security", security, Security).of_cluster()
        told: dict[str, Any] = {  # the struct checks what it gets
            "workers": workers, "replicas": replicas, "log_level": log_level, "keys": shown.keys,
            "job_secret": shown.job_secret, "saving": checks.group("saving", saving, Saving),
        }  # fmt: skip
        config = ClusterConfig.taken_from(
            checks.group("limits", limits, Limits), checks.group("watching", watching, Watching), **told,
            address="tcp://127.0.0.1:0", servers=len(devices) or server.number, devices=devices, server=server,
        )  # fmt: skip
        CoordinatorConfig.taken_from(config)  # which raises what a process would be refused for
        ServerConfig.taken_from(config.for_server(0, "tcp://127.0.0.1:1"))
        super().__init__(config, timeout, directory)


def _disown_all() -> None:
    for cluster in list(_clusters):
        cluster._disown()


os.register_at_fork(after_in_child=_disown_all)
