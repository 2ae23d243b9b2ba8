"""Doubles for the tests of the machines: identities, hellos, and short ways to look at actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

import numpy as np

from tests.simulator.jobs.training import ReferenceRules
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.run import JobRun
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.node.member import Identity
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action, Exit, Log, Peer, Received, Resolve, Send
from zmqps.core.protocol.security.keys import LOADER, ticket_of
from zmqps.core.server.builds import Room
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import Rows
from zmqps.errors import from_wire
from zmqps.optim import OptimizerSpec, sgd

M = TypeVar("M", bound=m.Message)
E = TypeVar("E", bound=Exception)

INTERVAL, TIMEOUT = 1.0, 10.0
MOVED, REWOUND, CUT = m.ChangeKind


def identity(role: str, name: str = "a", job: str = "default") -> Identity:
    endpoint, job = (f"tcp://{name}:1", "") if role in ("server", "coordinator") else ("", job)
    return Identity(
        role=role,
        incarnation=name.encode().ljust(16, b"."),
        name=name,
        host="host",
        pid=7,
        endpoint=endpoint if role == "server" else "",
        job=job,
        secret=name.encode().ljust(16, b"!"),
    )


#: Of the shards that tests assign to a server.
KEY = b"the key of shard"


def hello(role: str, name: str = "a", job: str = "default") -> m.Hello:
    return identity(role, name, job).hello()


def ticketed(role: str, name: str = "a", job: str = "default", *, epoch: int = 1, loads: bool = False) -> m.Hello:
    """Return what a member says to a server, with the ticket that the coordinator has made for it."""
    who = identity(role, name, job)
    return who.hello(ticket_of(KEY, LOADER if loads else role, who.incarnation), epoch)


def assign(spec: JobSpec, where: Placement, *, epoch: int = 1, shard: int = 0, name: str = "default") -> m.Assign:
    return m.Assign(epoch, name, 1, 1, shard, spec.to_wire(), where.to_wire(), KEY)


def peer(name: str) -> Peer:
    return b"@" + name.encode()


def job(*names: str, learning_rate: float = 1.0, size: int = 8, mode: str = "async", **options: Any) -> JobSpec:
    parameters = tuple(Parameter(name, (size,), "float32") for name in names or ("w", "b"))
    return JobSpec(parameters=parameters, optimizer=sgd(learning_rate).to_wire(), mode=mode, **options)


def placement(spec: JobSpec, shards: int = 1, slice_nbytes: int = 32) -> Placement:
    return Placement.balance(KeySpace.of(spec), shards, slice_nbytes)


def make_shard(
    spec: JobSpec, where: Placement, index: int, room: Room | None = None, rows: Rows | None = None
) -> Shard:
    rules = ReferenceRules(OptimizerSpec.from_wire(spec.optimizer))
    options = {"synchronous": spec.mode == "sync", "aggregate": spec.aggregate, "retain": spec.retain}
    return Shard(
        where, index, rules, reject_nonfinite=spec.nonfinite == "reject", others=[rows or Rows((), 0)], **options
    )


def sent(actions: list[Action], kind: type[M], to: Peer | None = None, **fields: Any) -> list[M]:
    """Return the messages of one kind among the actions, those with these fields, or of which that is true."""
    sends = [action for action in actions if isinstance(action, Send) and to in (None, action.peer)]
    return [send.message for send in sends if _is(send.message, kind, fields)]


def receivers(actions: list[Action], kind: type[m.Message], **fields: Any) -> list[Peer]:
    return [action.peer for action in actions if isinstance(action, Send) and _is(action.message, kind, fields)]


def _is(message: m.Message, kind: type[m.Message], fields: dict[str, Any]) -> bool:
    return isinstance(message, kind) and all(
        value(getattr(message, name)) if callable(value) else getattr(message, name) == value
        for name, value in fields.items()
    )


def sent_to(actions: list[Action], kind: type[M], **fields: Any) -> list[tuple[str, M]]:
    """Return the messages of one kind among the actions, each with the name of its receiver."""
    return [
        (to[1:].decode(), message)
        for to, message in zip(receivers(actions, kind, **fields), sent(actions, kind, **fields), strict=True)
    ]


def of_heir(backups: dict[str, Any]) -> bool:
    """Whether what a copy is told that leads its shard lets it take over."""
    rows = backups.get("rows")
    return rows is None or any("number" in row for row in rows)


def of_leader(backups: dict[str, Any]) -> bool:
    """Whether it says which backups there are now."""
    return not of_heir(backups)


def server_of(view: m.View) -> dict[str, Any]:
    """Return where the only shard is that a member is told of."""
    (server,) = view.placement["servers"]
    return server  # type: ignore[no-any-return]


def errors(actions: list[Action], to: Peer | None = None) -> list[int]:
    return [message.code for message in sent(actions, m.Error, to)]


def error_of(actions: list[Action], kind: type[E], to: Peer | None = None) -> E:
    """Return the only error among the messages."""
    (message,) = sent(actions, m.Error, to)
    error = from_wire(message.code, message.text, message.facts)
    assert isinstance(error, kind)
    return error


def resolved(actions: list[Action]) -> list[tuple[Any, Any]]:
    return [(action.operation, action.value) for action in actions if isinstance(action, Resolve)]


def failed(actions: list[Action], kind: type[E], operation: Any = None) -> E:
    """Return with what the only operation that has ended (and none but this one, where one is given) has failed."""
    ((ended, value),) = resolved(actions)
    assert operation is None or ended is operation
    assert isinstance(value, kind)
    return value


def exits_of(actions: list[Action]) -> list[int]:
    return [action.code for action in actions if isinstance(action, Exit)]


def logged(actions: list[Action], level: str = "") -> str:
    """Return what is logged, at a level or at any."""
    return "\n".join(action.text for action in actions if isinstance(action, Log) and level in (action.level, ""))


class Coordinator:
    """A coordinator and the clock, with its invariants checked after every event.

    Workers whose name has a part behind a dot are there for the job of that name, the others for ``default``.
    """

    def __init__(self, store: Any = None, resumptions: Any = {}, **options: Any) -> None:  # noqa: B006  (not changed)
        options = {"servers": 1, "heartbeat_interval": INTERVAL, "heartbeat_timeout": TIMEOUT, **options}
        machine = CoordinatorMachine(identity("coordinator"), CoordinatorOptions(**options), store, resumptions)
        self.machine = machine
        self.now = 0.0
        self.machine.start(0.0)

    @classmethod
    def joined(cls, *names: str, **options: Any) -> Self:
        """Return one that nodes have joined."""
        coordinator = cls(**options)
        coordinator.join(*names)
        return coordinator

    @classmethod
    def trains(cls, *names: str, **options: Any) -> Self:
        """Return one with servers and workers, and a job that is trained."""
        coordinator = cls(**options)
        coordinator.train(*names)
        return coordinator

    def take(self, name: str, message: m.Message) -> list[Action]:
        return self.handle(Received(peer(name), message))

    def handle(self, event: Any) -> list[Action]:
        actions = self.machine.handle(event, self.now)
        self.machine.validate()
        return actions

    def reply(
        self, actions: list[Action], kind: type[M], *answers: Callable[[M], m.Message], **fields: Any
    ) -> list[Action]:
        """Let nodes that are sent a message of one kind answer it so."""
        return [
            action
            for name, message in sent_to(actions, kind, **fields)
            for answer in answers
            for action in self.take(name, answer(message))
        ]

    def promoted(self, actions: list[Action], step: int = 0) -> list[Action]:
        """Let the servers that were asked to take over say that they have."""
        return self.reply(actions, m.Lead, lambda got: m.Leading(got.epoch, got.generation, step), backups=of_heir)

    def follow(self, actions: list[Action]) -> list[Action]:
        """Let the members that were told of a new server talk to it."""
        sends = [(name, got) for name, got in sent_to(actions, m.View, change=MOVED) if got.placement]
        return [action for name, got in sends for action in self.take(name, m.Followed(got.epoch, got.revision, 0))]

    def join(self, *names: str) -> list[Action]:
        """Let nodes join; a name that begins with s is a server's, with o an observer's."""
        roles = {"s": "server", "w": "worker", "o": "observer"}
        return [
            action
            for name in names
            for action in self.take(name, hello(roles[name[0]], name, name.partition(".")[2] or "default"))
        ]

    def run(self, job: str = "default") -> JobRun:
        return self.machine.runs[job]

    def init(self, name: str, spec: JobSpec | None, request: int = 1) -> list[Action]:
        return self.take(name, m.Init(request, spec.to_wire() if spec else {}))

    def attach(self, name: str, spec: JobSpec | None, request: int = 1) -> list[Action]:
        """Let a worker or an observer join; return what comes of its asking for a job."""
        self.join(name)
        return self.init(name, spec, request)

    def init_all(self, spec: JobSpec | None, *names: str) -> list[Action]:
        return [action for name in names for action in self.init(name, spec)]

    def epochs(self, name: str, job: str = "default") -> list[int]:
        """Return the numbers of the copies of a job's shards that a server has."""
        return [copy.epoch for copy in self.run(job).startup.copies if copy.server.hello.name == name]

    def ready(self, *names: str, loaded: bool = True, epoch: int | None = None, job: str = "default") -> list[Action]:
        """Let servers be ready with their shards; ``epoch``: with this one, whoever has it."""
        return [
            action
            for name in names
            for number in (self.epochs(name, job) if epoch is None else [epoch])
            for action in self.take(name, m.Ready(number, int(loaded)))
        ]

    def build(self, *names: str, **options: Any) -> list[Action]:
        """Let servers build their shards, and have the values of them."""
        self.ready(*names, loaded=False, **options)
        return self.ready(*names, **options)

    def train(self, *names: str) -> None:
        """Bring servers and workers to a job that is trained."""
        self.join(*names)
        servers = [name for name in names if name[0] == "s"]
        workers = [name for name in names if name[0] == "w"]
        for worker in workers:
            self.init(worker, job())
        for name in dict.fromkeys(worker.partition(".")[2] or "default" for worker in workers):
            self.build(*servers, job=name)
            assert self.run(name).startup.ready

    def wait(self, until: float, *alive: str) -> list[Action]:
        """Let time pass up to ``until``; those alive give signs of life."""
        actions: list[Action] = []
        new: list[Action] = []
        while self.now < until and not exits_of(new):
            new = []
            due = self.machine.next_deadline()
            self.now = min(until, self.now + 1.0, self.now + 1.0 if due is None else max(due, self.now))
            for name in alive:
                new += self.take(name, m.Heartbeat({}))
            due = self.machine.next_deadline()
            if due is not None and due <= self.now:
                new += self.machine.on_deadline(self.now)
                self.machine.validate()
            actions += new
        return actions


class Trained(Coordinator):
    """A coordinator of some servers, which have a shard each, and two workers that train."""

    def __init__(self, servers: int = 3, replicas: int = 0, resumptions: Any = {}, **options: Any) -> None:  # noqa: B006
        super().__init__(None, resumptions, servers=servers, replicas=replicas)
        self.names = [f"s{n}" for n in range(servers)]
        self.join(*self.names, "w0", "w1")
        self.init_all(job(**options), "w0", "w1")
        self.done = self.build(*self.names)

    def lose(self, name: str) -> list[Action]:
        return self.take(name, m.Leave("closed"))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.machine.status(self.now)["jobs"]["default"]
        return found


def zeros(spec: JobSpec) -> list[np.ndarray[Any, Any]]:
    return [np.zeros(p.size, p.storage_dtype) for p in spec.parameters]
