"""A whole cluster of the real core machines on a simulated clock and network, replayable from its seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Protocol

from tests.simulator.cluster import SimulatedCluster, token_of
from tests.simulator.engine import Node, Program
from tests.simulator.jobs.asynchronous import AsyncTraining
from tests.simulator.jobs.training import Training
from tests.simulator.members.attackers import Attackers
from tests.simulator.members.comebacks import PATIENCE_S, Comebacks
from tests.simulator.members.departures import Departures
from tests.simulator.members.orphans import Orphans
from tests.simulator.members.reach import check_told
from tests.simulator.members.returns import Returns
from tests.simulator.members.sleepers import Sleepers
from tests.simulator.members.successors import Successors
from tests.simulator.memory import ScarceMemory
from tests.simulator.network import Faults, Network
from tests.simulator.placement.copies import CopyWitness
from tests.simulator.placement.fallbacks import Fallbacks
from tests.simulator.placement.replicas import LostServers, replicated
from tests.simulator.placement.resizing import Resizing
from tests.simulator.placement.rolling import Rolling
from tests.simulator.placement.savers import Savers
from tests.simulator.placement.stores import Disk, SavedJob
from tests.simulator.troubles import LONGEST_S, Troubles
from tests.simulator.watching.thrift import Thrift
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.node.member import Identity
from zmqps.core.protocol.messages import Discard, Message
from zmqps.core.protocol.plain import unpack
from zmqps.core.protocol.security.keys import KEY_NBYTES, process_of
from zmqps.core.server.builds import Room
from zmqps.core.server.extensions import ServerMachine
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.shard import Shard
from zmqps.core.worker.extensions import SessionMachine
from zmqps.core.worker.layout.rollbacks import Rollback
from zmqps.core.worker.operations import Operation, StartJob
from zmqps.errors import DeadlineError

#: So long after the last fault begins, all is well: partitions are over, the lost are known, connections are back.
SETTLED_S = 45.0
#: How long until a worker that has died is started again; with claims it is sometimes longer than until it is missed.
SOON_S, LATE_S, LATE_RETURNS = (0.1, 3.0), (10.0, 16.0), 0.2
#: A message takes so long at least, and a node computes so long for it.
LATENCY_S, MESSAGE_S = 50e-6, 10e-6
#: All workers are done by then, whatever happens.
LIMIT_S = 3600.0
#: After the last program has ended, the cluster has this long to end as well.
ENDING_S = 15.0
#: The roles whose nodes are looked at after each of their events.
CHECKED = ("coordinator", "server", "worker", "observer")
#: With it alone jobs can be ended from outside.
END_KEY = b"the key of ends."


class SimulationError(AssertionError):
    """An invariant was violated; the text says how to replay it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a simulation amounted to, in simulated ``seconds``.

    ``training_s`` are those since the first ``init`` was answered, and ``digest`` is of all events.
    """

    seed: int
    seconds: float
    steps: int
    events: int
    messages: int
    nbytes: int
    lost: int
    outcomes: dict[str, int]  # results and errors of operations, by name
    coordinator_messages: int  # that it took or sent
    training_s: float
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is otherwise in a run than in a plain one.

    Parameters
    ----------
    supervised
        Whether servers and coordinators that die are started again.
    validate
        Whether every machine's ``validate()`` is called after each of its events.
    attacked
        Whether there are `tests.simulator.members.attackers.Attackers`.
    keyed
        Whether nodes have keys.
    orphaned
        Whether the coordinator dies for good: `tests.simulator.members.orphans.Orphans`.
    succeeded
        Whether it dies, and another one is started at its address: `tests.simulator.members.successors.Successors`.
    journaled
        Whether it dies again and again and comes back from its journal: `tests.simulator.members.comebacks.Comebacks`.
    claimed
        Whether workers that are started again have a claim to their place: `tests.simulator.members.returns.Returns`.
    thrifty
        Whether next to nothing may be sent twice: `tests.simulator.watching.thrift.Thrift`.
    """

    supervised: bool = False
    validate: bool = True
    attacked: bool = False
    keyed: bool = False
    orphaned: bool = False
    succeeded: bool = False
    journaled: bool = False
    claimed: bool = False
    thrifty: bool = False


class Checking(Protocol):
    """Asserts what must hold."""

    def check(self, node: Node, /) -> None:
        """Assert it after an event of a node."""


def _short(
    training: Training, faults: Faults, servers: int, workers: int, replicas: int, *, journaled: bool
) -> CoordinatorOptions:
    """Return what the coordinator of a short test is told, which expects all workers."""
    jobs = training.num_jobs
    plain = CoordinatorOptions(
        servers=servers,
        workers=workers // jobs,
        once=jobs == 1 and not (faults.server_crash or replicas),  # else it ends with a server
        slice_size=training.slice_nbytes,
        patience=PATIENCE_S if journaled else 0.0,
    )
    return replicated(plain, replicas)


class Simulation(SimulatedCluster):
    """One run; everything random in it comes from ``seed``.

    Parameters
    ----------
    seed
        Of the one random number generator.
    servers, workers
        How many.
    faults
        What goes wrong.
    training
        What the workers do and what must hold; its invariants are checked after every event.
    options
        The coordinator's; by default those of a short test, expecting all workers.
    bandwidth
        Bytes a second that a node sends.
    calm_s
        Simulated seconds after which nothing goes wrong any more; what is asked for `SETTLED_S`
        later or more must be answered.
    disk
        Where the job is saved, and has been saved before: `tests.simulator.placement.savers.Savers`.
    resumed
        The checkpoint that the job begins from.
    first_worker
        The number of the first worker: of those that one checkpoint has seen there is none again.
    power_fails_s
        When everything dies at once, and nothing comes after it.
    replicas
        How many backups each shard has.
    spares
        Servers beyond those.
    unconfirmed_nbytes
        What may wait for the backups of a server; None: as much as really may.
    **circumstances
        See `Circumstances`.

    Examples
    --------
    >>> from tests.simulator import Faults, Simulation
    >>> report = Simulation(seed=1, servers=2, workers=4, faults=Faults(loss=0.01)).run()
    """

    def __init__(
        self,
        seed: int,
        servers: int = 2,
        workers: int = 2,
        faults: Faults = Faults(),  # noqa: B008  (frozen)
        training: Training | None = None,
        *,
        options: CoordinatorOptions | None = None,
        bandwidth: float = 1.25e9,
        calm_s: float = float("inf"),
        disk: Disk | None = None,
        resumed: SavedJob | None = None,
        first_worker: int = 0,
        power_fails_s: float = float("inf"),
        replicas: int = 0,
        spares: int = 0,
        unconfirmed_nbytes: int | None = None,
        **circumstances: bool,
    ) -> None:
        self.seed = seed
        self._has = has = Circumstances(**circumstances)
        self.faults = faults
        self.training = training or AsyncTraining()
        rng = Random(seed)
        options = options or _short(self.training, faults, servers, workers, replicas, journaled=has.journaled)
        super().__init__(rng, Network(rng, faults, LATENCY_S, bandwidth), MESSAGE_S, options, workers)
        self._calm_s = calm_s
        self._num_running = 0
        self._began_at: float | None = None
        self._again: deque[Identity] = deque()  # of workers to be started again
        self.num_started = first_worker
        self._disk = disk
        self._resumptions = {self.training.name: resumed.resumption()} if resumed is not None else {}
        self.power_fails_s = power_fails_s
        self.on_receive.append(self._freed)
        if has.validate:
            self.training.watch(self)
            self._departures = Departures(self, faults.departure, calm_s)
            self.sleepers = Sleepers(self, faults)
        self.savers: Savers | None = None
        self._fallbacks: Fallbacks | None = None
        if disk is not None:
            self._save_at(disk)
        self._orphans = Orphans(self) if has.orphaned else None
        self._successors = Successors(self) if has.succeeded else None
        self.copies = CopyWitness(self) if options.replicas and has.validate else None
        self.losses = LostServers(self, faults.copying) if options.replicas else None
        self.comebacks = Comebacks(self, self.losses) if has.journaled else None
        self._known_as: Identity | None = None  # what the coordinator's journal says that it is
        self._thrift = Thrift(self, strict=has.thrifty)
        self._move_copies()
        self._unconfirmed_nbytes = unconfirmed_nbytes
        self._spares = spares
        self.returns = Returns(self) if has.claimed else None
        self._attackers = Attackers(self, seed, self.training.name, keyed=has.keyed) if has.attacked else None
        self._checks = {role: self._checks_of(role) for role in CHECKED} if has.validate else {}
        self._start_all(servers, workers)
        self._let_go_wrong()

    def _save_at(self, disk: Disk) -> None:
        """Let jobs be saved on a disk that fails now and then, and go back to what is there."""
        disk.fails = lambda: self.network.happens(self.faults.disk)
        self.copies_move = True
        self.savers = Savers(self, disk, self.faults.saving, self.training)
        self._fallbacks = Fallbacks(self, disk, self.faults.falling, self.training)

    def _move_copies(self) -> None:
        """Let servers come and go while jobs are trained."""
        faults, another = self.faults, self._start_another
        self._rolling = Rolling(self, faults, another, saved=self._disk is not None) if faults.drain else None
        self._resizing = Resizing(self, faults, another, END_KEY) if faults.scale else None
        self.copies_move |= faults.drain > 0 or faults.scale > 0
        if self.copies_move:  # a coordinator may die after that, before anything else is looked at
            self.on_written.append(lambda node: self.note_copies())

    def _let_go_wrong(self) -> None:
        """Let things go wrong until all is calm."""
        Troubles(self, self.faults, self.losses, self._rolling, self._resizing)
        if self._calm_s < float("inf"):
            self.at(self._calm_s, self._calm)

    def _start_all(self, servers: int, workers: int) -> None:
        """Let all nodes start within the first half second, in any order."""
        self.at(self.rng.random() * 0.3, self.start_coordinator)
        for number in range(servers + self._spares):
            self.at(self.rng.random() * 0.3, partial(self.start_server, number >= servers))
        for _ in range(workers):
            self.at(self.rng.random() * 0.5, self.start_worker)

    # --- running -------------------------------------------------------------------------------

    def run(self) -> Report:
        """Run until all workers are done and the cluster has had the time to end.

        Raises
        ------
        SimulationError
            An invariant was violated.
        """
        try:
            while not self.finished:
                next_at = self.next_at
                assert next_at is not None, f"nothing happens any more, yet these wait: {self._waiting()}"
                if next_at >= self.power_fails_s:
                    break
                assert next_at <= LIMIT_S, f"after {LIMIT_S} s these are not done: {self._waiting()}"
                self.step()
            finished_at = self.now
            self.network.quiet = True
            ends_at = min(finished_at + ENDING_S, self.power_fails_s)
            while self.next_at is not None and self.next_at < ends_at and self._anybody_alive:
                self.step()
            for server in self.servers:
                self.training.check_freed(self, server)
            self.training.check_end(self)
            if self._has.validate and self.now < self.power_fails_s:
                self._departures.check_end()
            for part in (self.savers, self._successors):
                if part is not None:
                    part.check_end()
            self._thrift.check_end()
            if self._attackers is not None:
                self._attackers.check_end(nobody_lost=not self.faults.may_lose)
        except Exception as error:
            raise SimulationError(f"seed {self.seed}: {error!r}\n{self.trace()}") from error
        c = self.counters
        return Report(
            seed=self.seed,
            seconds=finished_at,
            steps=c["steps"],
            events=c["events"],
            messages=c["messages"],
            nbytes=c["nbytes"],
            lost=self.network.lost,
            outcomes=dict(sorted(self.outcomes.items())),
            coordinator_messages=c["coordinator messages"],
            training_s=finished_at - (self._began_at or finished_at),
            digest=self.digest,
        )

    def _waiting(self) -> dict[str, list[str]]:
        return {node.name: [o.title for o in node.pending] for node in self.workers if node.alive}

    @property
    def finished(self) -> bool:
        """Whether no worker runs or is still to come."""
        return not self.workers_to_come and not self._num_running

    @property
    def _anybody_alive(self) -> bool:
        return any(node.alive for node in self.nodes.values())

    @property
    def _is_whole(self) -> bool:
        """Whether coordinator and servers work, and all workers that are expected have come."""
        alive = "coordinator" in self.nodes and self.nodes["coordinator"].alive
        runs = self.coordinator.runs.values() if alive else ()
        return alive and not self.job_failed and not any(run.num_missing or run.fallback.active for run in runs)

    @property
    def _is_supervised(self) -> bool:
        return self._has.supervised and not self._has.orphaned

    # --- nodes ---------------------------------------------------------------------------------

    def start_coordinator(self) -> Node:
        """Start the coordinator, perhaps again, at the same address."""
        self.restarting = False
        identity, kept = self._identity("coordinator", "coordinator"), None
        if self.comebacks is not None:
            identity = self._known_as = self._known_as or identity
            kept = {key: unpack(data) for key, data in self.journals["coordinator"].items()}
        machine = CoordinatorMachine(identity, self.options, self._disk, self._resumptions, kept)
        node = Node(name="coordinator", role="coordinator", identity=identity, machine=machine)
        self.start(node)
        if self.comebacks is not None and node.alive:
            self.comebacks.started(node)
        return node

    def start_server(self, spare: bool = False) -> Node:
        """Start one more server."""
        name = f"server-{len(self.servers)}"
        identity = replace(self._identity("server", name), spare=spare)
        make_shard = self._shard if self.faults.memory else self.training.shard
        machine = ServerMachine(identity, "sim://coordinator", make_shard, files=self._disk)
        if self._unconfirmed_nbytes is not None:
            machine.replication.unconfirmed.limit = self._unconfirmed_nbytes
        return self.start(Node(name=name, role="server", identity=identity, machine=machine))

    def _start_another(self) -> None:
        """Start a server in the place of one that has gone, unless all is over."""
        if not self.finished:
            self.start_server()

    def _shard(self, job: JobSpec, placement: Placement, index: int, room: Room) -> Shard:
        """Build a shard whose memory fails now and then once it is there."""
        built: list[Shard] = []
        memory = ScarceMemory(lambda: bool(built) and self.network.happens(self.faults.memory))
        built.append(self.training.shard(job, placement, index, room, memory))
        return built[0]

    def start_worker(self, program: Program | None = None) -> Node:
        """Start one more worker, which runs a program; by default the training's."""
        if program is None:
            self.workers_to_come -= 1
        name = f"worker-{self.num_started}"
        before = self._again.popleft() if self._again else None
        known_as, job = (before.name, before.job) if before else (name, self.training.job_of(self.num_started))
        identity = self._identity("worker", name, known_as, job)
        if self._has.claimed:
            token = before.token if before else self.rng.randbytes(KEY_NBYTES)
            identity = replace(identity, token=token, life=before.life + 1 if before else 0)
        node = Node(
            name=name,
            role="worker",
            identity=identity,
            machine=SessionMachine(identity, "sim://coordinator"),
            number=self.num_started,
        )
        node.program = program or self.training.program(self, node)
        if self.savers is not None:
            node.program = self.savers.program(node, node.program)
        if self._orphans is not None:
            node.program = self._orphans.program(node, node.program)
        self.num_started += 1
        self._num_running += 1
        return self.start(node)

    def _identity(self, role: str, name: str, known_as: str = "", job: str = "") -> Identity:
        incarnation = self.rng.randbytes(16)
        return Identity(
            role=role,
            incarnation=incarnation,
            name=known_as or name,
            host="simulated",
            pid=len(self.nodes),
            endpoint=f"sim://{name}",
            job=job,
            secret=self.rng.randbytes(KEY_NBYTES),
            end_key=END_KEY if role == "coordinator" else b"",
            keyed=self._has.keyed,
            process=process_of(token_of(incarnation)),
        )

    def _calm(self) -> None:
        self.note("the network", "has no faults any more")
        self.network.quiet = True

    # --- what the engine asks ------------------------------------------------------------------

    def check(self, node: Node) -> None:
        """Assert what must hold after an event of ``node``."""
        if self._has.validate:
            node.machine.validate()
            for check in self._checks.get(node.role, ()):
                check(node)

    def _checks_of(self, role: str) -> list[Callable[[Node], None]]:
        """Return what asserts, beside its machine, what must hold after an event of a node of this role."""
        checks: list[Callable[[Node], None]] = [partial(self.training.check, self)]
        parts: list[Checking | None]
        if role == "coordinator":
            parts = [self.copies, self.losses, self._attackers, self._fallbacks, self._successors, self.comebacks]
            checks = [self._check_fleet, *checks]
            parts += [self.returns, self.savers, self.sleepers]
        elif role == "server":
            parts = [self.copies, self._attackers, self._successors, self._departures, self.sleepers]
            checks = [self._check_told, *checks]
        else:
            parts = [self._orphans if role == "worker" else None, self.savers, self._successors, self.sleepers]
            checks = [self._check_told, *checks]
        checks += [part.check for part in parts if part is not None]
        return [*checks, self._check_parked] if role == "server" else checks

    def _check_fleet(self, coordinator: Node) -> None:
        if self.copies_move:
            self.note_copies()
        if self._rolling is not None:
            self._rolling.check()
        if self._resizing is not None:
            self._resizing.check()

    def _check_told(self, node: Node) -> None:
        check_told(node, self.time_of(node), self.woke_at(node))

    def _check_parked(self, server: Node) -> None:
        """Assert that a server keeps no pulls of peers that are gone."""
        assert isinstance(server.machine, ServerKernel)
        clients = server.machine.clients.by_incarnation
        for tenant in server.machine.tenants.values():
            for who, _ in tenant.parked:
                connection = server.connections.get(clients[who].peer)
                missed = connection is not None and connection.missed
                assert not missed, f"{server.name} keeps pulls of peers that are gone"

    def _freed(self, receiver: Node, sender: str, message: Message) -> None:
        if isinstance(message, Discard):
            self.training.check_freed(self, receiver)

    def notified(self, node: Node, event: object) -> None:
        """A node reports something unrequested: a worker that its job has gone back, a coordinator what is logged."""
        if self._fallbacks is not None and isinstance(event, Rollback):
            self._fallbacks.notified(node, event)
        self.training.notified(self, node, event)

    def run_s(self) -> float:
        """Return how long building a shard takes."""
        return self.training.run_s(self.rng)

    def ended(self, node: Node) -> None:
        """A node that has gone may be started again, a worker under the name it had."""
        if self._has.validate and node.exit is not None:
            self.sleepers.check(node)
        if self._rolling is not None and node.role == "server":
            self._rolling.ended(node)
        if node.role == "worker":
            self._num_running -= 1
            if self.training.restarts(self, node):
                self.workers_to_come += 1
                self._again.append(node.identity)
                late = self._has.claimed and self.rng.random() < LATE_RETURNS
                self.at(self.now + self.rng.uniform(*(LATE_S if late else SOON_S)), self.start_worker)
        elif node.role in ("server", "coordinator") and self._is_supervised and (node.exit is None or node.exit.code):
            if node.role == "coordinator" and node.exit is not None:
                return  # with its job, perhaps not well
            is_server = node.role == "server"
            start = partial(self.start_server, node.identity.spare) if is_server else self.start_coordinator
            self.restarting |= node.role == "coordinator"
            self.at(self.now + self.rng.uniform(0.5, 5.0), lambda: None if self.finished else start())

    def resolved(self, node: Node, operation: Operation, value: object) -> None:
        """When all has been calm for long, nothing waits in vain in a cluster that can work."""
        if self._began_at is None and isinstance(operation, StartJob):
            self._began_at = self.now
        assert isinstance(node.machine, SessionMachine)
        if self._has.validate:
            self.sleepers.resolved(node, operation, value)
        if self._orphans is not None:
            self._orphans.resolved(node, operation, value)
        if self._successors is not None:
            self._successors.resolved(node, operation, value)
        if self.comebacks is not None:
            f = self.faults
            self.comebacks.resolved(
                node, operation, value, may_be_lost=bool(f.partition or f.ways or f.stop or f.freeze or f.loss)
            )
        if node.machine.member.lost:
            return  # it has lost the coordinator, and is not told what has become of its servers
        began, settled_at = operation.started_at + node.clock.stood_s, self._calm_s + SETTLED_S
        long = began > settled_at or (self.now > settled_at and self.now - began > LONGEST_S + SETTLED_S)
        if isinstance(value, DeadlineError) and long and self._is_whole:
            assert self.training.may_wait(self, value), f"{node.name} waits although all is well: {value}"
