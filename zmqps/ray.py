"""Clusters placed by Ray: actors in a placement group start the processes, watch them and restart them.

What is trained does not travel through Ray: workers talk to servers over zmqps's own connections.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from zmqps import checks
from zmqps.core.protocol import exits
from zmqps.core.protocol.endpoints import is_loopback
from zmqps.errors import ClosedError, ConfigurationError, DeadlineError, NodeFailedError, counted, from_wire, listed
from zmqps.extras import advice
from zmqps.keys import Keys, create
from zmqps.keys.security import Security
from zmqps.launch.agent import THREADS
from zmqps.launch.config import GRACE_S, ClusterConfig
from zmqps.launch.far import FILES
from zmqps.launch.handout import FOR_NODES, key_files
from zmqps.launch.keeper import HOST, Ended, Keeper, Order
from zmqps.launch.processes import CHANNEL_SECRET
from zmqps.launch.supervision import failed
from zmqps.settings.cluster import ClusterSettings
from zmqps.settings.coordinator import Limits
from zmqps.settings.server import Servers

__all__ = ["Placement", "RayCluster", "start"]

STRATEGIES = ("SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK")
#: How long an actor may take to answer beyond what it was given.
ANSWER_S = 5.0
DEFAULTS = ClusterSettings()
MOST_NAMED = 8

log = logging.getLogger("zmqps.ray")


@checks.options_of("Placement")
@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where Ray runs the processes, what it reserves for them, and how often they are restarted; an option of `start`.

    Parameters
    ----------
    strategy : {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}
        Ray's: on few hosts, or on many.
    server_resources, worker_resources : mapping, optional
        What Ray reserves for each, such as ``{"CPU": 2, "GPU": 1}``; by default ``{"CPU": 1}``. The coordinator has
        a part of the first server's.
    restart_servers, restart_workers : int
        How often each server, or worker, that fails is started again. A lost actor is counted apart from the processes
        that it has started. What a lost server held is lost: the job ends with `PeerLostError` in its workers, and
        starts again with the restarted ones.
    port : int
        The coordinator's; 0 takes a free one.
    """

    strategy: str = "PACK"
    server_resources: Mapping[str, float] | None = None
    worker_resources: Mapping[str, float] | None = None
    restart_servers: int = DEFAULTS.restart_servers
    restart_workers: int = 0
    port: int = 0

    def __post_init__(self) -> None:
        checks.one_of("strategy", self.strategy, STRATEGIES)
        for label in ("restart_servers", "restart_workers", "port"):
            checks.whole(label, getattr(self, label), at_least=0)
        for label in ("server_resources", "worker_resources"):
            resources(label, getattr(self, label))

    def reserved(self, role: str) -> dict[str, float]:
        """Return what Ray reserves for a process: amounts by name."""
        label = f"{role}_resources"
        return resources(label, getattr(self, label))

    def restarts(self, role: str) -> int:
        """Return how often a process is started again; a coordinator never."""
        return 0 if role == "coordinator" else int(getattr(self, f"restart_{role}s"))


@checks.options()
def start(
    servers: int | Servers = DEFAULTS.servers,
    workers: int | None = None,
    *,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    placement: Placement | None = None,
    security: Security | None = None,
    insecure: bool = False,
    limits: Limits | None = None,
    timeout: float = 120.0,
) -> RayCluster:
    """Start a cluster on Ray, and the workers of a job if there is a command for them.

    Ray is asked for a placement group with a bundle for each server and each worker; the coordinator runs next to the
    first server. In each bundle an actor starts the process, watches it, and starts it again when it fails. An actor
    that is lost with its host is started again by Ray where there is room. All processes end with the job of Ray that
    has started them, however it ends.

    Connects to Ray, as ``ray.init()`` does, unless this process has done so. zmqps has to be installed on all hosts.

    Parameters
    ----------
    servers : int or Servers
        How many servers, or a `zmqps.Servers`, which also says what they compute with. For ``device="cuda"`` reserve
        GPUs: ``Placement(server_resources={"GPU": 1})``.
    workers : int, optional
        How many workers run `command`. Without one: how many a job expects unless `init` says so; by default, any.
    command : sequence of str, optional
        What each worker runs, such as ``["python", "train.py"]``; it finds the cluster by ``ZMQPS_COORDINATOR``, its
        number in ``ZMQPS_WORKER_INDEX``. Without one only the nodes are started: see `RayCluster.environment`.
    env : mapping, optional
        More environment variables of the workers.
    directory : path, optional
        Where the workers run, on each host; by default the ``working_dir`` of Ray's job, else this process's directory.
    placement : Placement, optional
        Where Ray runs the processes, what it reserves for them, and how often they are restarted.
    security : zmqps.Security, optional
        The cluster's ``keys``; by default new ones are made, unless all hosts have loopback addresses. They travel to
        the actors over Ray's connections.
    insecure : bool
        Start without keys, so that any process that reaches the hosts can join.
    limits : zmqps.Limits, optional
        When nodes count as lost, how long jobs are kept, and how large messages are.
    timeout : float
        Seconds to wait for the start.

    Returns
    -------
    RayCluster
        Keep it: the cluster ends with it.

    Raises
    ------
    ConfigurationError
        An option cannot be used, or Ray is not installed.
    DeadlineError
        Says what is missing. Nothing is left behind.
    NodeFailedError, PSError
        What kept a node from starting. Nothing is left behind.

    Examples
    --------
    >>> with zmqps.ray.start(servers=2, workers=4, command=["python", "train.py"]) as cluster:  # doctest: +SKIP
    ...     raise SystemExit(cluster.wait())
    """
    server = servers if isinstance(servers, Servers) else Servers(servers)
    if server.servers_per_gpu is not None:
        raise ConfigurationError('Ray gives servers their GPUs: Placement(server_resources={"GPU": 1})')
    places = checks.group("placement", placement, Placement, "zmqps.ray")
    shown = checks.group("security", security, Security).of_cluster()
    seconds = checks.seconds("timeout", timeout)
    if command is not None and (isinstance(command, str) or not list(command)):
        checks.refuse("command", 'a program and its arguments, such as ["python", "train.py"]', command)
    if command is not None and workers is None:
        raise ConfigurationError("say how many workers run the command: workers=4")
    if shown.job_secret is not None:
        raise ConfigurationError("a cluster on Ray has keys in place of a job secret: Security(keys=DIR)")
    if shown.keys is not None and insecure:
        raise ConfigurationError("give keys, or insecure=True for a cluster without")
    told: dict[str, Any] = {"servers": server.number, "workers": workers, "insecure": insecure}  # which is checked
    config = ClusterConfig.taken_from(
        checks.group("limits", limits, Limits), **told, server=server, address=f"tcp://{HOST}:{places.port}"
    )
    cluster = RayCluster(config, places)
    ends_at = time.monotonic() + seconds
    try:
        number = workers if command is not None and workers is not None else 0
        cluster._place(number, ends_at)
        cluster._start_nodes(None if shown.keys is None else Path(shown.keys), ends_at)
        if command is not None:
            threads = str(max(1, int(places.reserved("worker").get("CPU", 1))))
            cluster._start_workers(list(command), dict.fromkeys(THREADS, threads) | dict(env or {}), directory)
    except BaseException:
        cluster.stop()
        raise
    return cluster


class Actor(Keeper):
    """A keeper in a process of Ray, which prints what the process says: Ray shows it where `start` was called."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _ray().util.get_node_ip_address())

    def __repr__(self) -> str:
        return self._name

    async def host(self) -> str:
        """Return by which address this host is reached from the others."""
        return self._host


class RayCluster:
    """A cluster that `start` has started.

    Parameters
    ----------
    config
        The nodes' options.
    placement
        Where Ray runs them.
    """

    def __init__(self, config: ClusterConfig, placement: Placement) -> None:
        self._config = config
        self._placement = placement
        self._ray = _ray()
        self._group: Any = None
        self._actors: dict[str, Any] = {}
        self._runs: dict[Any, str] = {}
        self._outcome: Outcome | None = None
        self._address = ""
        self._token = ""
        self._stopped = False

    @property
    def address(self) -> str:
        """The coordinator's endpoint, which `zmqps.connect` takes."""
        self._must_run()
        return self._address

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to join: for your own tasks and actors.

        There ``zmqps.connect(os.environ["ZMQPS_COORDINATOR"])`` is all; ``ZMQPS_TOKEN`` is a secret.
        """
        self._must_run()
        found = {"ZMQPS_COORDINATOR": self._address, "ZMQPS_CHANNEL_SECRET": CHANNEL_SECRET}
        return found | ({"ZMQPS_TOKEN": self._token} if self._token else {})

    @property
    def failure(self) -> str:
        """What has failed first, with its last lines; empty while nothing has."""
        return self._outcome.failure if self._outcome is not None else ""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all workers have ended, or something has failed, and end the cluster; without workers for its end.

        Returns
        -------
        int
            0; 75 if all workers have drained; or the exit code of what failed first, which is logged with its last
            lines: 128 and the number of a signal; 8 for an actor that Ray has lost and does not start again.

        Raises
        ------
        DeadlineError
            Work continues after that many seconds; it is left alone.
        """
        if self._outcome is not None and self._outcome.code is not None:
            return self._outcome.code
        self._must_run()
        assert self._outcome is not None
        ends_at = None if timeout is None else time.monotonic() + checks.seconds("timeout", timeout)
        while (code := self._outcome.code) is None:
            left = None if ends_at is None else max(0.0, ends_at - time.monotonic())
            done, _ = self._ray.wait(list(self._runs), num_returns=1, timeout=left)
            if not done:
                waited = f"{listed(sorted(self._outcome.awaited), MOST_NAMED)} to end"
                raise DeadlineError(operation="wait", seconds=timeout or 0.0, waiting_for=waited)
            name = self._runs.pop(done[0])
            self._outcome.take(name, self._ended(done[0]))
        if self.failure:
            log.error("%s", self.failure)
        self.stop()
        return code

    def status(self, *, timeout: float = 5.0) -> dict[str, Any]:
        """Return the coordinator's view of the cluster, as ``zmqps status --json`` prints it.

        Raises
        ------
        DeadlineError
            The coordinator does not answer.
        """
        self._must_run()
        return self._ask(timeout, 0)

    def stop(self) -> None:
        """End all processes, a few seconds at most, and give back what Ray has reserved."""
        if self._stopped:
            return
        self._stopped = True
        for role in ("worker", "coordinator", "server"):
            actors = [actor for name, actor in self._actors.items() if role_of(name) == role]
            if actors and self._ray.is_initialized():
                ends = [actor.stop.remote() for actor in actors]
                ends += [run for run, name in self._runs.items() if role_of(name) == role]
                self._ray.wait(ends, num_returns=len(ends), timeout=2 * GRACE_S + ANSWER_S)
        if self._ray.is_initialized():
            for actor in self._actors.values():
                self._ray.kill(actor, no_restart=True)
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)
        self._actors.clear()
        self._runs.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        where = "stopped" if self._stopped else f"at {self._address}"
        return f"<zmqps.ray.RayCluster of {counted(self._config.servers, 'server')}, {where}>"

    # --- the start ------------------------------------------------------------------------------

    def _place(self, workers: int, ends_at: float) -> None:
        """Have Ray find room for all, and start the actors in it."""
        ray, placement = self._ray, self._placement
        if not ray.is_initialized():
            ray.init()
        names = [f"server-{index}" for index in range(self._config.servers)]
        names += [f"worker-{index}" for index in range(workers)]
        bundles = [placement.reserved(role_of(name)) for name in names]
        self._group = ray.util.placement_group(bundles, strategy=placement.strategy)
        if not self._group.wait(max(0.0, ends_at - time.monotonic())):
            has = {kind: amount for kind, amount in ray.cluster_resources().items() if ":" not in kind}
            raise DeadlineError(
                operation="the start of the cluster", seconds=ends_at - time.monotonic(),
                waiting_for=f"Ray to find room for {bundles} ({placement.strategy}); it has {has} in all",
            )  # fmt: skip
        cls = ray.remote(Actor)
        for name, bundle in [("coordinator", 0), *((name, index) for index, name in enumerate(names))]:
            role = role_of(name)
            restarts = placement.restarts(role)
            self._actors[name] = cls.options(
                **asked({} if role == "coordinator" else placement.reserved(role)), max_restarts=restarts,
                max_task_retries=restarts, scheduling_strategy=self._in(bundle),
            ).remote(name)  # fmt: skip
        self._outcome = Outcome(list(self._actors))

    def _in(self, bundle: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)

    def _start_nodes(self, directory: Path | None, ends_at: float) -> None:
        """Start coordinator and servers; return when all servers have joined."""
        hosts = self._get(
            [actor.host.remote() for actor in self._actors.values()], "the actors of Ray to start", ends_at
        )
        with tempfile.TemporaryDirectory(prefix="zmqps-ray-") as folder:
            if directory is None and not self._config.insecure and not all(map(is_loopback, hosts)):
                directory = Path(folder, "keys")
                create(directory)
            files = {} if directory is None else key_files(directory, has_nodes=True)
            keys = None if directory is None else Keys.load(directory)
        more = {"keys": f"{FILES}/{FOR_NODES}"} if files else {}
        settings = self._config.for_coordinator().document() | more
        self._run("coordinator", Order(role="coordinator", settings=settings, files=files))
        answer = self._get([self._actors["coordinator"].address.remote()], "the coordinator to start", ends_at)[0]
        if "address" not in answer:
            raise from_wire(**answer)
        self._address = answer["address"]
        self._token = keys.token("worker", keys.pair("worker"), self._address) if keys is not None else ""
        for index in range(self._config.servers):
            settings = self._config.for_server(index, self._address, bind=f"tcp://{HOST}:0").document() | more
            order = Order(
                role="server", settings=settings, address=self._address, files=files,
                restarts=self._placement.restart_servers,
            )  # fmt: skip
            self._run(f"server-{index}", order)
        left = max(0.0, ends_at - time.monotonic())
        joined = self._actors["coordinator"].status.remote(left, self._config.servers)
        done, _ = self._ray.wait([joined, *self._runs], num_returns=1, timeout=left + ANSWER_S)
        for run in done:
            if run is not joined:
                name, ended = self._runs[run], self._ended(run)
                how, tail = ended.how if ended is not None else "its actor", ended.tail if ended is not None else ""
                raise NodeFailedError(name=name, how=how, tail=tail)
        self._ask(left, self._config.servers, joined)

    def _start_workers(self, command: list[str], env: dict[str, str], directory: str | os.PathLike[str] | None) -> None:
        if directory is None:
            runtime = self._ray.get_runtime_context().runtime_env or {}
            directory = "" if runtime.get("working_dir") else os.getcwd()
        for index in range(len(self._actors) - 1 - self._config.servers):
            order = Order(
                role="worker", command=command, address=self._address, index=index, env=self.environment | env,
                directory=os.fspath(directory), restarts=self._placement.restart_workers,
            )  # fmt: skip
            self._run(f"worker-{index}", order)

    def _run(self, name: str, order: Order) -> None:
        self._runs[self._actors[name].run.remote(order)] = name

    # --- what actors say ------------------------------------------------------------------------

    def _get(self, refs: list[Any], waiting_for: str, ends_at: float) -> list[Any]:
        left = max(0.0, ends_at - time.monotonic())
        try:
            found: list[Any] = self._ray.get(refs, timeout=left)
        except self._ray.exceptions.GetTimeoutError:
            raise DeadlineError(operation="the start of the cluster", seconds=left, waiting_for=waiting_for) from None
        except self._ray.exceptions.RayActorError as error:
            raise NodeFailedError(name="an actor of Ray", how="an error of Ray's", tail=f"  {error}") from None
        return found

    def _ask(self, timeout: float, servers: int, asked: Any = None) -> dict[str, Any]:
        """Return the status of the coordinator once it has that many servers."""
        asked = self._actors["coordinator"].status.remote(timeout, servers) if asked is None else asked
        try:
            found: dict[str, Any] = self._ray.get(asked, timeout=timeout + ANSWER_S)
        except (TimeoutError, self._ray.exceptions.RayActorError) as error:
            waited = f"the coordinator at {self._address} with {counted(servers, 'server')}"
            raise DeadlineError(operation="status", seconds=timeout, waiting_for=waited) from error
        return found

    def _ended(self, run: Any) -> Ended | None:
        """Return how a process has ended; None where its actor is lost for good."""
        try:
            found: Ended = self._ray.get(run)
        except self._ray.exceptions.RayActorError:
            return None
        return found

    def _must_run(self) -> None:
        if self._stopped:
            raise ClosedError("this cluster has ended; start another with zmqps.ray.start")


class Outcome:
    """What the ends of the processes mean for all.

    Parameters
    ----------
    names
        The processes.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.code: int | None = None
        self.failure = ""
        roles = {name: role_of(name) for name in names}
        self._have_drained = True  # all that have ended
        #: Whose ends are the end, if they are good ones.
        self.awaited = {n for n, role in roles.items() if role == "worker"} or {"coordinator"}

    def take(self, name: str, ended: Ended | None) -> None:
        """Hear that a process has ended for good; None: with its actor."""
        if self.code is not None:
            return
        if ended is None:
            self.code, self.failure = exits.HOST_LOST, f"Ray has lost the actor of {name}, or the host that it was on"
        elif failed(ended.code):
            self.code = exits.of_process(ended.code)
            self.failure = ended.text(name)
        elif name in self.awaited:
            self.awaited.discard(name)
            self._have_drained &= ended.code == exits.DRAINED
            if not self.awaited:
                self.code = exits.DRAINED if self._have_drained else exits.OK


def resources(label: str, told: Mapping[str, float] | None) -> dict[str, float]:
    """Return what Ray reserves for a process: amounts by name, of which one is above 0."""
    found = {"CPU": 1.0} if told is None else dict(checks.mapping(label, told, "resources of Ray"))
    for name, amount in found.items():
        checks.number(f"{label}[{name!r}]", amount, at_least=0)
    if not any(found.values()):
        raise ConfigurationError(f'{label} reserves nothing, and Ray places only what takes something: {{"CPU": 1}}')
    return found


def asked(reserved: Mapping[str, float]) -> dict[str, Any]:
    """Return the options of an actor that takes all that is reserved for it."""
    rest = {name: amount for name, amount in reserved.items() if name not in ("CPU", "GPU", "memory")}
    options: dict[str, Any] = {
        "num_cpus": reserved.get("CPU", 0),
        "num_gpus": reserved.get("GPU", 0),
        "resources": rest,
    }
    return options | ({"memory": reserved["memory"]} if "memory" in reserved else {})


def role_of(name: str) -> str:
    """Return the role of a process by its name."""
    return name.partition("-")[0]


def _ray() -> Any:
    """Return the library."""
    try:
        import ray
        import ray.util
    except ModuleNotFoundError:
        raise ConfigurationError(f"Ray is not installed here: {advice('ray')}, on all its hosts") from None
    return ray
