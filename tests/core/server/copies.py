"""Servers that keep copies of each other's shards, over links that lose what is on its way when they break."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import Any

import numpy as np

from tests.core.machines import KEY, M, assign, identity, job, make_shard, peer, placement, ticketed
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import (
    COORDINATOR,
    Action,
    Connect,
    Connected,
    Disconnect,
    Disconnected,
    Log,
    Peer,
    Received,
    Returned,
    Run,
    Send,
)
from zmqps.core.protocol.security.keys import proof_of, ticket_of
from zmqps.core.protocol.wire import decode, encode
from zmqps.core.server.extensions import ServerMachine
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.server.tables.table import RowTable

LEADER = 1
WELCOME = m.Welcome(1, b"i" * 16, "c", 0, 1.0, 1e9, 1, 1)


def row(name: str, epoch: int, of: str = "p") -> dict[str, Any]:
    """Return what a leader is told of a backup."""
    leader = identity("server", of).incarnation
    return {
        "name": name,
        "rank": 1,
        "endpoint": f"tcp://{name}:1",
        "epoch": epoch,
        "ticket": ticket_of(KEY, "server", leader).hex(),
        "proof": proof_of(KEY, "server", leader).hex(),
    }


def rows_of(table: RowTable) -> tuple[Any, ...]:
    """Return a table's rows, in the order of their ids, and by what their stamps go."""
    rows = np.flatnonzero(table.store.live[: table.store.end])
    kept = table.kept(rows[np.argsort(table.store.ids[rows])])
    return (*table.times, *[array.tobytes() for array in kept.arrays])


class Node:
    """A server's machine, and what it has said to the coordinator and to workers."""

    def __init__(self, name: str, make: Any = make_shard) -> None:
        self.name = name
        self.machine = ServerMachine(identity("server", name), "tcp://coordinator:1", make)
        self.told: list[m.Message] = []  # to the coordinator
        self.answers: dict[str, list[m.Message]] = {}  # by worker
        self.logged: list[str] = []

    def shard(self, epoch: int) -> Shard:
        return self.machine.tenants[epoch].built()

    def state(self, epoch: int) -> tuple[Any, ...]:
        """Return everything that must be the same, bit for bit."""
        shard = self.shard(epoch)
        slices = [
            (s.version, tuple(s.steps.tolist()), s.value.tobytes(), *[slot.tobytes() for slot in s.slots])
            for s in shard.slices
        ]
        return shard.version, tuple(slices), tuple(map(rows_of, rows_in(shard).tables))

    def remembered(self, epoch: int) -> dict[tuple[bytes, int], Any]:
        """Return what the ledgers have of pushes that were applied."""
        ledgers = self.machine.tenants[epoch].ledgers
        return {(who, seq): r for who, of in ledgers.items() for seq, r in of.results.items() if r is not None}


class Copies:
    """Nodes, the links between them, and a clock; invariants are checked after every event."""

    def __init__(
        self, spec: JobSpec | None = None, slice_nbytes: int = 32, make: Any = make_shard, *, empty: bool = False
    ) -> None:
        self.spec = job("a", "b") if spec is None else spec
        self.where = placement(self.spec, shards=1 + empty, slice_nbytes=slice_nbytes)
        self.shard = next((i for i, slices in enumerate(self.where.slices) if not slices), 0)
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.make = make
        self.routes: dict[tuple[str, Peer], str] = {}  # connections that a node has opened
        self.wires: dict[tuple[str, str], deque[m.Message]] = {}  # what is on its way, (from, to)
        self.down: set[tuple[str, str]] = set()
        self.sent: Counter[str] = Counter()
        for name in "pbc":
            node = self.nodes[name] = Node(name, make)
            self.carry(node, node.machine.start(0.0))
            self.order(name, WELCOME)

    # --- events --------------------------------------------------------------------------------

    def handle(self, name: str, event: Any) -> None:
        node = self.nodes[name]
        self.carry(node, node.machine.handle(event, self.now))
        node.machine.validate()

    def carry(self, node: Node, actions: list[Action]) -> None:
        events: list[tuple[str, Any]] = []
        for action in actions:
            if isinstance(action, Run):
                try:
                    value: Any = action.work()
                except Exception as error:
                    value = error
                events.append((node.name, Returned(action.tag, value)))
            elif isinstance(action, Connect) and action.peer != COORDINATOR:
                self.routes[node.name, action.peer] = action.endpoint[6:7]
            elif isinstance(action, Disconnect):
                to = self.routes.pop((node.name, action.peer))
                for wire in ((node.name, to), (to, node.name)):
                    self.wires.pop(wire, None)
                events.append((to, Disconnected(peer(node.name))))
            elif isinstance(action, Log):
                self.logged(node, action)
            elif isinstance(action, Send):
                self._send(node, action.peer, decode([bytes(frame) for frame in encode(action.message)]))
        for name, event in events:
            self.handle(name, event)

    def logged(self, node: Node, action: Log) -> None:
        node.logged.append(action.text)

    def _send(self, node: Node, to: Peer, message: m.Message) -> None:
        if to == COORDINATOR:
            node.told.append(message)
            return
        name = self.routes.get((node.name, to)) or to[1:].decode()
        if name not in self.nodes:
            node.answers.setdefault(name, []).append(message)
        elif (node.name, name) not in self.down and self._is_open(node.name, name):
            self.sent[type(message).__name__] += 1
            self.wires.setdefault((node.name, name), deque()).append(message)

    def _is_open(self, one: str, other: str) -> bool:
        """Whether one of two nodes has opened a connection to the other."""
        return any({opener, to} == {one, other} for (opener, _), to in self.routes.items())

    def deliver(self, wire: tuple[str, str]) -> None:
        """Let the oldest message of a wire arrive."""
        origin, to = wire
        message = self.wires[wire].popleft()
        opened = next((p for (name, p), other in self.routes.items() if (name, other) == (to, origin)), None)
        self.handle(to, Received(peer(origin) if opened is None else opened, message))

    @property
    def busy(self) -> list[tuple[str, str]]:
        """Wires with something on them."""
        return sorted(wire for wire, waiting in self.wires.items() if waiting)

    def settle(self) -> None:
        """Let all that is on its way arrive, and what comes of it."""
        for _ in range(100_000):
            if not self.busy:
                return
            self.deliver(self.busy[0])
        raise AssertionError("it never ends")

    def wait(self, seconds: float) -> None:
        """Let time pass, and everything arrive meanwhile."""
        end = self.now + seconds
        self.settle()
        for _ in range(10_000):
            dues = [(due, name) for name in self.nodes if (due := self.nodes[name].machine.next_deadline()) is not None]
            due, name = min(dues, default=(end, ""))
            if due >= end:
                self.now = end
                return
            self.now = max(self.now, due)
            self.carry(self.nodes[name], self.nodes[name].machine.on_deadline(self.now))
            self.settle()
        raise AssertionError("it never ends")

    def cut(self, one: str, other: str) -> None:
        """End the connection from one to the other: what is on its way is lost."""
        for wire in ((one, other), (other, one)):
            self.down.add(wire)
            self.wires.pop(wire, None)
        opened = next((p for (name, p), to in self.routes.items() if (name, to) == (one, other)), None)
        if opened is not None:
            self.handle(one, Disconnected(opened))
        self.handle(other, Disconnected(peer(one)))

    def mend(self, one: str, other: str) -> None:
        """It is back."""
        if (one, other) in self.down:
            self.down -= {(one, other), (other, one)}
            opened = next((p for (name, p), to in self.routes.items() if (name, to) == (one, other)), None)
            if opened is not None:
                self.handle(one, Connected(opened))

    # --- the coordinator -----------------------------------------------------------------------

    def order(self, name: str, message: m.Message) -> None:
        self.handle(name, Received(COORDINATOR, message))

    def begin(self, *backups: tuple[str, int], load: bool = True) -> None:
        """Give p a shard with these backups, on servers that get their copies first."""
        plain = assign(self.spec, self.where, shard=self.shard)
        for name, epoch in backups:
            self.order(name, replace(plain, epoch=epoch, backup=1))
        rows = {"rows": [row(*backup) for backup in backups]} if backups else {}
        self.order("p", replace(plain, backups=rows))
        if load and self.where.slices[self.shard]:
            self.load()

    def load(self) -> None:
        size = self.where.nbytes(0) // 4
        parts = tuple((s.index, 0, ()) for s in self.where.slices[0])
        self.join("loader", loads=True)
        self.from_worker("p", "loader", m.Load(1, LEADER, parts, (np.arange(size, dtype=np.float32),)))

    def retarget(self, *backups: tuple[str, int], generation: int = 1) -> None:
        self.order("p", m.Lead(LEADER, generation, {"rows": [row(*backup) for backup in backups]}))

    def assign_backup(self, name: str, epoch: int) -> None:
        self.order(name, replace(assign(self.spec, self.where, shard=self.shard), epoch=epoch, backup=1))

    def promote(self, name: str, epoch: int, generation: int = 1) -> None:
        self.order(name, m.Lead(epoch, generation))

    def commit(self, step: int, *names: str) -> None:
        contributors = tuple((identity("worker", name).incarnation, (step,)) for name in names)
        self.order("p", m.Commit(LEADER, step, contributors))

    def told(self, name: str, kind: type[M]) -> list[M]:
        return [message for message in self.nodes[name].told if isinstance(message, kind)]

    @property
    def committed(self) -> list[int]:
        return [message.step for message in self.told("p", m.Committed)]

    # --- workers -------------------------------------------------------------------------------

    def hello(self, worker: str, epoch: int = LEADER, *, loads: bool = False) -> m.Hello:
        return ticketed("worker", worker, epoch=epoch, loads=loads)

    def join(self, worker: str, server: str = "p", epoch: int = LEADER, *, loads: bool = False) -> None:
        self.from_worker(server, worker, self.hello(worker, epoch, loads=loads))

    def from_worker(self, server: str, worker: str, message: m.Message) -> None:
        self.handle(server, Received(peer(worker), message))

    def push(self, worker: str, message: m.Push | m.PushRows, server: str = "p") -> None:
        self.from_worker(server, worker, message)

    def answers(self, worker: str, server: str = "p") -> list[m.Message]:
        """Return what a worker has been answered, but for its welcome."""
        found = self.nodes[server].answers.get(worker, [])
        return [message for message in found if isinstance(message, (m.Ack, m.Values, m.Error))]

    def answered(self, worker: str, server: str = "p") -> list[int]:
        """Return the requests of a worker that were answered, in that order."""
        return [message.request for message in self.answers(worker, server)]  # type: ignore[attr-defined]

    def refused(self, worker: str, server: str = "p") -> list[int]:
        """Return the codes of the errors that a worker was answered."""
        return [message.code for message in self.answers(worker, server) if isinstance(message, m.Error)]

    def is_copied(self, name: str, epoch: int, server: str = "p", of: int = LEADER) -> bool:
        """Whether a backup has all that its leader has, and knows what was pushed where that counts on arrival."""
        backup, leader = self.nodes[name], self.nodes[server]
        knows = self.spec.mode == "sync" or backup.remembered(epoch) == leader.remembered(of)
        return knows and backup.state(epoch) == leader.state(of)


def push(seq: int, value: Any, *slices: int, epoch: int = LEADER, reply: int = 0, **over: Any) -> m.Push:
    """Return a push of whole slices of eight elements each."""
    fields = {"request": 100 + seq, "seq": seq, "epoch": epoch, "reply": reply, "checked": 0, "codec": "raw"}
    fields |= {"step": 0, "attempt": 0, "examples": 1, "reply_codec": "raw", "terms": ()}
    parts = tuple((index, 0, ()) for index in slices or (0,))
    payload = (np.full(8 * len(parts), value, np.float32),)
    return m.Push(**{**fields, "parts": parts, "payload": payload, **over})


def pull(request: int, *slices: int, epoch: int = LEADER) -> m.Pull:
    return m.Pull(request, epoch, 0, 0, "raw", tuple((index, 0, ()) for index in slices or (0,)))
