"""The loop of the simulator: one heap of events, the machines that take them, their actions carried out."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, nextafter
from random import Random
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from tests.simulator.network import Connection, Network, Packet
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.node.awake import LOOK_S as AWAKE_LOOK_S
from zmqps.core.node.awake import AwakeClock
from zmqps.core.node.inquiry import Inquiry
from zmqps.core.node.member import Identity
from zmqps.core.node.tracing import Tracer
from zmqps.core.protocol.arrays import STAYS, borrow
from zmqps.core.protocol.events import (
    COORDINATOR,
    Action,
    Connect,
    Connected,
    Disconnect,
    Disconnected,
    Exit,
    Log,
    Look,
    Looked,
    Notify,
    Peer,
    Received,
    Record,
    Resolve,
    Returned,
    Run,
    Send,
    Stop,
)
from zmqps.core.protocol.messages import Message, Push
from zmqps.core.protocol.messages.large import decode_but_assign, decode_small
from zmqps.core.protocol.plain import pack
from zmqps.core.protocol.security.roles import KeyHolder
from zmqps.core.protocol.wire import decode, encode
from zmqps.core.server.machine import ServerKernel
from zmqps.core.worker.layout.moves import ReplayGradients
from zmqps.core.worker.operations import Operation
from zmqps.core.worker.session import SessionKernel
from zmqps.errors import PSError

AnyMachine: TypeAlias = CoordinatorMachine | ServerKernel | SessionKernel | Inquiry | Tracer

#: A worker's script: it yields ``(operation, timeout)`` and gets the result, or has its error raised
#: at that place; it yields a float to compute for so many seconds.
Program: TypeAlias = Generator[tuple[Operation, float] | float, Any, None]

#: Lines of the trace that a failure shows.
TRACE_LINES = 200
#: How long it takes to find out why there is no answer.
LOOK_S = 1.0
#: A machine whose deadline is due again and again at the same moment would spin forever.
MOST_RINGS = 5

#: In an inbox in the place of a message: the connection is there.
UP = Packet((), [], None)

#: What nodes of some roles leave to be read aside.
DECODERS: dict[str, Callable[[Sequence[Any]], Message]] = {"coordinator": decode_small, "server": decode_but_assign}
#: Where nodes have keys: the key that each role shows.
HOLDERS = {"server": KeyHolder("node", "node"), "worker": KeyHolder("worker", "worker")}


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """A simulated process."""

    name: str
    role: str
    identity: Identity
    machine: AnyMachine
    number: int = -1  # of a worker: how many came before it
    alive: bool = True
    finished: bool = False  # a worker whose program came to its end
    exit: Exit | None = None
    connections: dict[Peer, Connection] = field(default_factory=dict)
    clock: AwakeClock = field(default_factory=lambda: AwakeClock(0.0))  # the time of its machine
    busy_until: float = 0.0
    started_at: float = 0.0
    stopped_until: float = 0.0  # it does nothing before, as after SIGSTOP
    stops: list[tuple[float, float]] = field(default_factory=list)  # from when until when it did nothing
    inbox: deque[tuple[Connection, int, Packet | None]] = field(default_factory=deque)
    timer_at: float | None = None
    rings: tuple[float, int] = (0.0, 0)
    program: Program | None = None
    pending: dict[Operation, None] = field(default_factory=dict)


class Engine:
    """Nodes, the events on their way to them, and what happens when one arrives.

    Parameters
    ----------
    rng
        Where everything random comes from.
    network
        When messages arrive.
    message_s
        Seconds that a node computes for a message.
    """

    def __init__(self, rng: Random, network: Network, message_s: float) -> None:
        self.rng = rng
        self.network = network
        network.ended, network.at = self._disconnected, self.at
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.counters: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.digest = 0  # of what has happened: equal digests, equal runs
        #: Called before a message leaves: ``hook(sender, receiver's name, message)``; it may kill.
        self.on_send: list[Callable[[Node, str, Message], None]] = []
        #: Called before a message is taken: ``hook(receiver, sender's name, message)``.
        self.on_receive: list[Callable[[Node, str, Message], None]] = []
        #: Called before a node's journal takes records, and after that: ``hook(node)``; they may kill.
        self.on_write: list[Callable[[Node], None]] = []
        self.on_written: list[Callable[[Node], None]] = []
        #: Called with each line that a node logs: ``hook(node, line)``.
        self.on_log: list[Callable[[Node, Log], None]] = []
        #: Called when a node begins something aside, which will take so long: ``hook(node, run, seconds)``.
        self.on_run: list[Callable[[Node, Run, float], None]] = []
        #: What the journals of nodes hold, by name and key, as it lies on a disk.
        self.journals: dict[str, dict[str, bytes]] = defaultdict(dict)
        #: Whether a message is lost, and nothing else: ``hook(sender, receiver's name, message)``.
        self.swallows: list[Callable[[Node, str, Message], bool]] = []
        self._message_s = message_s
        #: Seconds that a node computes for each message it sends, before it takes the next event.
        self.send_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._counter = 0
        self._trace: deque[tuple[float, str, Any]] = deque(maxlen=TRACE_LINES)
        self._early: dict[str, dict[Peer, Connection]] = {}  # connections to nodes that have not started yet

    def at(self, time: float, do: Callable[[], object]) -> None:
        """Do something at a simulated time."""
        self._counter += 1
        heapq.heappush(self._heap, (max(time, self.now), self._counter, do))

    def step(self) -> None:
        """Let the next event happen."""
        self.now, _, do = heapq.heappop(self._heap)
        self.counters["events"] += 1
        do()

    @property
    def next_at(self) -> float | None:
        """When the next event is."""
        return self._heap[0][0] if self._heap else None

    def note(self, who: str, what: Any) -> None:
        """Add a line to the trace."""
        self.digest = crc32(
            f"{self.now!r} {who} {type(what[1]) if isinstance(what, tuple) else what}".encode(), self.digest
        )
        self._trace.append((self.now, who, what))

    def trace(self) -> str:
        """Return the last events, as text."""
        return "\n".join(f"{time:12.6f}  {who:12} {_line(what)}" for time, who, what in self._trace)

    # --- what subclasses say -------------------------------------------------------------------

    def check(self, node: Node) -> None:
        """Assert what must hold after an event of ``node``."""

    def run_s(self) -> float:
        """Return how long the work of a `Run` takes."""
        return 0.0

    def ended(self, node: Node) -> None:
        """A node is gone."""

    def resolved(self, node: Node, operation: Operation, value: Any) -> None:
        """An operation of ``node`` is done."""

    def notified(self, node: Node, event: Any) -> None:
        """A node tells its process something unrequested."""

    # --- nodes ---------------------------------------------------------------------------------

    def start(self, node: Node) -> Node:
        """Let a node begin."""
        if node.name in self.nodes:
            node.connections.update(self.network.revive(node.name, self.now))
        self.nodes[node.name] = node
        node.connections.update(early := self._early.pop(node.name, {}))
        for connection in early.values():
            self.at(connection.up_at, partial(self._back, connection, connection.life))
        self.note(node.name, "starts")
        node.clock, node.started_at = self._new_clock(node), self.now
        self._do(node, node.machine.start(self.time_of(node)))
        if node.program is not None:
            self._advance(node, partial(next, node.program))
        return node

    def kill(self, node: Node) -> None:
        """End a node as SIGKILL does."""
        if node.alive:
            self.note(node.name, "is killed")
            self._end(node, killed=True)

    def stop(self, node: Node, seconds: float) -> None:
        """Stop a node for some time as SIGSTOP does: what comes meanwhile waits."""
        if node.alive:
            self.note(node.name, f"is stopped for {seconds:.3f} s")
            if self.now >= node.stopped_until:
                node.clock.look(self.now, AWAKE_LOOK_S)
            begin, until = max(self.now, node.stopped_until), self.now + seconds
            if until > begin:  # it may have been stopped already, and for longer
                node.stops.append((begin, until))
            node.stopped_until = max(node.stopped_until, until)
            self.at(node.stopped_until, partial(self._wake, node))

    def _wake(self, node: Node) -> None:
        """From now on a node looks at its clock as often as it has to."""
        if self.now >= node.stopped_until:
            node.clock.look(self.now, inf)

    def _new_clock(self, node: Node) -> AwakeClock:
        """Return the clock of a node that starts."""
        clock = AwakeClock(self.now)
        clock.look(self.now, inf)
        return clock

    def time_of(self, node: Node) -> float:
        """Return a node's own time, which stands still while the node does."""
        return node.clock.now(self.now)

    def woke_at(self, node: Node) -> float:
        """Return when, in its own time, a node has begun to look at its clock again; 0 for one that was never stopped.

        What is due by then is done soon after, not at its time.
        """
        return node.clock.now(node.stopped_until) if node.stops else 0.0  # to the bit: differences of times round

    def _when(self, node: Node, due: float) -> float:
        """Return when a node's own time will be ``due``, if it is not stopped before."""
        time = due + node.clock.stood_s
        while time - node.clock.stood_s < due:  # as it rounds
            time = nextafter(time, inf)
        return time

    def _end(self, node: Node, *, killed: bool) -> None:
        node.alive = False
        node.pending.clear()
        node.inbox.clear()
        if node.program is not None:
            node.program.close()
        self.network.forget(node.name, self.now, killed=killed)
        self.ended(node)

    # --- events and actions --------------------------------------------------------------------

    def _do(self, node: Node, actions: list[Action]) -> None:
        """Execute what a node's machine has said to an event, check what must hold."""
        if self.send_s:
            sends = sum(isinstance(action, Send) for action in actions)
            node.busy_until = max(node.busy_until, self.now) + sends * self.send_s
        transaction: list[Record] = []
        for action in actions:
            if isinstance(action, Record):
                transaction.append(action)
                continue
            if transaction:
                self._write(node, transaction)
            if node.alive:
                self._execute(node, action)
            if not node.alive:
                return  # killed in the middle of what it was doing, or at its own word
            transaction = []
        if transaction:
            self._write(node, transaction)
            if not node.alive:
                return
        self.check(node)
        due = node.machine.next_deadline()
        if due is not None and (node.timer_at is None or due < node.timer_at):
            node.timer_at = due
            self.at(self._when(node, due), partial(self._ring, node, due))

    def _write(self, node: Node, records: list[Record]) -> None:
        """Let a node's journal take records: all, or none where it dies before."""
        for hook in self.on_write:
            hook(node)
        if not node.alive:
            return
        journal = self.journals[node.name]
        for record in records:
            if record.data is None:
                journal.pop(record.key, None)
            else:
                journal[record.key] = as_kept(record.data)
        self.note(node.name, f"keeps {', '.join(record.key for record in records)}"[:300])
        for hook in self.on_written:
            hook(node)

    def _ring(self, node: Node, due: float) -> None:
        if not node.alive or node.timer_at != due:
            return
        ready = max(node.stopped_until, node.busy_until if self.send_s else 0.0)
        if self.now < ready:
            self.at(ready, partial(self._ring, node, due))
            return
        node.timer_at, now = None, self.time_of(node)
        late = [operation.title for operation in node.pending if operation.deadline < now - 1e-6]
        assert not late or self.now <= node.stopped_until, f"{node.name} waits beyond the deadline of {late}"
        still_due = node.machine.next_deadline()
        if still_due is None or still_due > now:
            self._do(node, [])  # it has moved; only the timer is armed again
            return
        node.rings = (self.now, node.rings[1] + 1 if node.rings[0] == self.now else 1)
        assert node.rings[1] < MOST_RINGS, f"the timer of {node.name} spins: due at {still_due}, again and again"
        self._do(node, node.machine.on_deadline(now))

    def _execute(self, node: Node, action: Action) -> None:
        match action:
            case Send(peer, message, readers, after):
                if after is not None:
                    after.wait()
                self._send(node, peer, message, readers)
            case Resolve(operation, value):
                self._resolve(node, operation, value)
            case Notify(event):
                self.note(node.name, f"is notified of {event}")
                self.notified(node, event)
            case Log(level, text):
                self.note(node.name, f"{level}: {text}")
                for hook in self.on_log:
                    hook(node, action)
            case Connect(peer, endpoint):
                assert peer not in node.connections, f"{node.name} opens {peer!r} twice"
                acceptor = endpoint.removeprefix("sim://")
                names = peer, b"@" + self.rng.randbytes(16)
                link = self.network.connect(node.name, acceptor, names, acceptor == "coordinator", self.now)
                node.connections[peer] = link
                there = self.nodes.get(acceptor)
                if there and there.alive:
                    there.connections[names[1]] = link
                    self.at(link.up_at, partial(self._back, link, link.life))
                else:
                    self._early.setdefault(acceptor, {})[names[1]] = link
            case Disconnect(peer):
                link = node.connections.pop(peer)
                self.network.close(link)
                self._early.get(link.ends[1], {}).pop(link.names[1], None)
            case Look(peer, _):
                self.at(self.now + LOOK_S, lambda: self.event(node, Looked(peer, "nobody answers there")))
            case Run(tag, work):
                seconds = self.run_s()
                for begun in self.on_run:
                    begun(node, action, seconds)
                self.at(self.now + seconds, partial(self._return, node, tag, work))
            case Exit():
                node.exit = action
                self.note(node.name, f"exits with {action.code}: {action.reason}")
                self._end(node, killed=False)

    def _return(self, node: Node, tag: Any, work: Callable[[], Any]) -> None:
        """Do what a node has begun aside; what one that has died had begun is not done."""
        if node.alive:
            self.event(node, Returned(tag, _outcome(work)))

    def event(self, node: Node, event: Any) -> None:
        """Let a node take an event."""
        if node.alive and self.now < node.stopped_until:  # stopped while it computed: what it did is taken afterwards
            self.at(node.stopped_until, partial(self.event, node, event))
        elif node.alive:
            self._do(node, node.machine.handle(event, self.time_of(node)))

    def _send(self, node: Node, peer: Peer, message: Message, readers: Any) -> None:
        connection = node.connections.get(peer)
        if connection is None:
            return  # as a ROUTER does with an identity it does not know
        receiver = 1 if connection.ends[0] == node.name else 0
        to = connection.ends[receiver]
        for hook in self.on_send:
            hook(node, to, message)
            if not node.alive:
                return
        if self.swallows and any([swallows(node, to, message) for swallows in self.swallows]):
            self.network.lost += 1
            return
        packet = Packet.of(encode(message), readers)
        if isinstance(message, Push) and message.checked == STAYS:
            packet.lent = message.payload
        nbytes = packet.nbytes
        self.counters["messages"] += 1
        self.counters["coordinator messages"] += connection.control
        self.counters["nbytes"] += nbytes
        times = self.network.arrivals(connection, receiver, nbytes, self.now)
        if not times:
            packet.left()
        for time in times:
            self.at(time, partial(self._arrive, connection, connection.life, receiver, packet))

    def _arrive(self, connection: Connection, life: int, receiver: int, packet: Packet) -> None:
        packet.left()
        node = self.nodes.get(connection.ends[receiver])
        if node is None or not node.alive or life != connection.life:
            self.network.lost += 1
            return
        # one message at a time: those that come meanwhile wait, in the order they came
        node.inbox.append((connection, receiver, packet))
        if len(node.inbox) == 1:
            self._work(node)

    def _disconnected(self, connection: Connection) -> None:
        """Let both ends of a connection notice its end, after what has come over it; and one that it is back."""
        for end, name in enumerate(connection.ends):
            node = self.nodes.get(name)
            if node is not None and node.alive and connection.names[end] in node.connections:
                node.inbox.append((connection, end, None))
                if len(node.inbox) == 1:
                    self.at(self.now, partial(self._work, node))
        if connection.up_at < float("inf"):
            self.at(connection.up_at, partial(self._back, connection, connection.life))

    def _back(self, connection: Connection, life: int) -> None:
        """Let the one that opens a connection notice that it is there, if the other one is."""
        opener, acceptor = (self.nodes.get(name) for name in connection.ends)
        if opener is not None and any(of is connection and packet is None for of, _, packet in opener.inbox):
            # it has yet to take that the connection has ended, as after a stop: that comes before its return
            ready = max(self.now, opener.stopped_until, opener.busy_until) + self._message_s
            return self.at(ready, partial(self._back, connection, life))
        if opener is not None and opener.connections.get(connection.names[0]) is not connection:
            return None  # closed meanwhile
        if opener is not None and acceptor is not None and acceptor.alive and connection.life == life:
            self.note(opener.name, f"is connected to {acceptor.name}")
            if opener.inbox:  # the end of the connection before this one may wait there
                opener.inbox.append((connection, 0, UP))
            else:
                self.event(opener, Connected(connection.names[0]))

    def _work(self, node: Node) -> None:
        """Take the messages that wait, as fast as a node can."""
        while node.alive and node.inbox:
            ready = max(node.busy_until, node.stopped_until)
            if self.now < ready:
                self.at(ready, partial(self._work, node))
                return
            connection, receiver, packet = node.inbox[0]
            node.busy_until = self.now + self._message_s
            self._receive(node, connection, receiver, packet)
            if node.inbox:
                node.inbox.popleft()

    def _receive(self, node: Node, connection: Connection, receiver: int, packet: Packet | None) -> None:
        peer = connection.names[receiver]
        if node.connections.get(peer) is not connection:
            return None  # closed meanwhile
        if packet is UP:
            return self.event(node, Connected(peer))
        if receiver == 1:
            connection.missed = packet is None
        elif packet is not None:
            connection.missed_since = None
        elif connection.missed_since is None:
            connection.missed_since = self.time_of(node)
        if packet is None:
            self.note(node.name, f"{peer.decode() if receiver == 0 else peer[1:5].hex()} is disconnected")
            return self.event(node, Disconnected(peer))
        message = DECODERS.get(node.role, decode)(packet.copies)
        if isinstance(message, Push) and packet.lent:
            frames = [np.frombuffer(frame, np.uint8) for frame in packet.lent]
            message = replace(message, payload=[borrow(frame, 0, frame.size, None) for frame in frames])
        self.note(node.name, (peer, message))
        for hook in self.on_receive:
            hook(node, connection.ends[1 - receiver], message)
        opener = self.nodes[connection.ends[0]]
        holder = HOLDERS[opener.role] if node.identity.keyed and receiver == 1 else None
        self.event(node, Received(peer, message, holder=holder))

    # --- programs ------------------------------------------------------------------------------

    def _resolve(self, node: Node, operation: Operation, value: Any) -> None:
        self.note(node.name, f"{operation.title}: {value!r}"[:300])
        if isinstance(operation, ReplayGradients):
            return  # the session's own
        assert operation in node.pending, f"{operation.title} is resolved twice or was never asked for"
        del node.pending[operation]
        self.resolved(node, operation, value)
        self.outcomes[type(value).__name__ if isinstance(value, Exception) else operation.title.split()[0]] += 1
        program = node.program
        if program is not None:
            step = partial(program.throw if isinstance(value, Exception) else program.send, value)
            self.at(self.now, lambda: self._advance(node, step))

    def _advance(self, node: Node, step: Callable[[], Any]) -> None:
        """Let a program run up to its next wait."""
        if not node.alive:
            return
        if self.now < node.stopped_until:
            self.at(node.stopped_until, lambda: self._advance(node, step))
            return
        try:
            wait = step()
        except StopIteration:
            node.finished = True
            return self.event(node, Stop("the script has ended"))
        except PSError as error:
            self.note(node.name, f"its script fails: {error!r}"[:300])
            return self.event(node, Stop("the script has failed"))
        if isinstance(wait, float):
            program = node.program
            assert program is not None
            self.at(self.now + wait, lambda: self._advance(node, partial(next, program)))
        else:
            operation, timeout = wait
            operation.deadline = self.time_of(node) + timeout
            node.pending[operation] = None
            self.event(node, operation)


def as_kept(data: Any) -> bytes:
    """Return plain data as a journal has it on its disk."""
    return pack(data)


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (PSError, MemoryError, OSError) as error:  # any other one is of a check, or a mistake
        return error


def _line(what: Any) -> str:
    if isinstance(what, tuple):
        peer, message = what
        who = peer.decode() if peer == COORDINATOR or peer.startswith(b"server") else peer[1:5].hex()
        return f"<- {who}: {message!r}"[:300]
    return str(what)
