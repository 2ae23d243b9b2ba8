"""A simulated network: delays, bandwidth, and the faults a test asks for.

A connection is what ZeroMQ over TCP is: while it lives all messages arrive, whole and in order, however long it
takes. A *loss* therefore breaks the connection: everything on its way is gone, what is sent before the connection is
back is dropped, and both ends are told. A *drop* loses one message although the connection lives: the receiver had no
memory for it. Duplication and reordering do what TCP never does; the data plane has to bear them anyway, because a
request is sent again over a new connection when its answer was on its way over the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple

from zmqps.core.protocol.events import Peer, Reader

#: How long a broken connection takes to come back once it can.
RECONNECT_S = (0.05, 2.0)
#: A connection that is cut off, and loses what is sent meanwhile, is known to have ended after so long: nothing is
#: confirmed any more.
SILENCE_S = 3.0
#: What ZeroMQ, TCP and IP add to a message.
OVERHEAD_NBYTES = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong in a simulation, drawn from its seed.

    Parameters
    ----------
    delay
        Mean of the seconds that each message takes longer, exponentially distributed.
    loss
        Probability that a message breaks its connection.
    drop
        Probability that a message between workers and servers is lost although its connection lives.
    duplication, reordering
        Probability that a message arrives twice, or after messages sent later. Only between workers
        and servers: what goes to and from the coordinator relies on the order of a connection.
    partition
        How often a second some node is cut off from all others.
    route
        How often a second the way between some worker and some server is cut; both reach all others.
    ways
        How often a second some node is cut off from some others, in one direction or both.
    deaf
        How often a second the heartbeats of some server are lost, and nothing else.
    veil
        How often a second that happens while what the coordinator says to that server and to workers is late.
    partition_s
        For how many seconds a node or a way is cut off, on average.
    crash, server_crash, coordinator_crash
        How often a second some worker, some server or the coordinator dies without a word. Whoever
        supervises them starts another one.
    stop, server_stop
        How often a second some worker, or some server, is stopped, as by SIGSTOP.
    stop_s
        For how many seconds, on average.
    freeze
        How often a second one node or two are stopped, whatever they are: for a moment, or for several timeouts; what
        is sent to them meanwhile waits, or is lost as their connections break.
    memory
        Probability that a server's request for memory fails.
    departure
        Probability that a server's connection breaks as it is about to be told that a member has gone.
    disk
        Probability that what the disk of checkpoints is asked for fails.
    saving
        Probability that a node dies as it sends or takes a message of a checkpoint.
    falling
        The same where a job goes back to a checkpoint.
    drain
        How often a second some server is asked to go; another one comes in its place.
    scale
        How often a second another number of servers is asked for.
    trace
        How often a second an operator asks for a trace.
    report
        Probability that the supervisor of a node that has ended tells the coordinator so.
    copying
        Probability that a server dies as it sends or takes a message about copies of shards.
    """

    delay: float = 0.0
    loss: float = 0.0
    drop: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    partition: float = 0.0
    route: float = 0.0
    ways: float = 0.0
    deaf: float = 0.0
    veil: float = 0.0
    partition_s: float = 4.0
    crash: float = 0.0
    server_crash: float = 0.0
    coordinator_crash: float = 0.0
    stop: float = 0.0
    server_stop: float = 0.0
    stop_s: float = 4.0
    freeze: float = 0.0
    memory: float = 0.0
    departure: float = 0.0
    disk: float = 0.0
    saving: float = 0.0
    falling: float = 0.0
    drain: float = 0.0
    scale: float = 0.0
    trace: float = 0.0
    report: float = 0.0
    copying: float = 0.0

    @property
    def may_lose(self) -> bool:
        """Whether members may fall silent."""
        silent = self.loss, self.partition, self.ways, self.deaf, self.veil, self.stop, self.server_stop, self.freeze
        return any((*silent, self.crash, self.server_crash, self.coordinator_crash, self.copying))


class Reading:
    """A buffer in use until its message has left; the transport's `zmqps.core.protocol.events.Reader`."""

    def __init__(self) -> None:
        self.done = False


@dataclass(slots=True, eq=False)
class Packet:
    """A message on its way: the frames as they are, and as they were when it was sent."""

    frames: Sequence[Any]
    copies: list[bytes]
    reading: Reading | None
    lent: Sequence[Any] = ()  # frames that the receiver reads in the sender's memory

    @classmethod
    def of(cls, frames: Sequence[Any], readers: Sequence[list[Reader]]) -> Packet:
        """Return the packet of a message, registered with the nodes that must know it is being read."""
        reading = Reading() if readers else None
        if reading is not None:
            for watchers in readers:
                watchers.append(reading)
        return cls(frames, [bytes(frame) for frame in frames], reading)

    @property
    def nbytes(self) -> int:
        """Its size on the wire."""
        return sum(map(len, self.copies)) + OVERHEAD_NBYTES

    def left(self) -> None:
        """The transport is done with the buffers; they must hold what was sent."""
        if self.reading is not None and not self.reading.done:
            self.reading.done = True
            same = all(bytes(frame) == copy for frame, copy in zip(self.frames, self.copies, strict=True))
            assert same, "a buffer was written to while the transport still read it"
        self.frames = ()


@dataclass(slots=True, eq=False, kw_only=True)
class Connection:
    """One connection, from the node that opened it (0) to the one that accepted it (1)."""

    ends: tuple[str, str]
    names: tuple[Peer, Peer]  # what end 0 calls end 1, and the reverse
    control: bool  # to the coordinator
    life: int = 0  # a packet of an earlier life is lost
    up_at: float = 0.0
    blocked_until: list[float] = field(default_factory=lambda: [0.0, 0.0])  # by receiver
    blocked_loses: bool = False
    last_arrival: list[float] = field(default_factory=lambda: [0.0, 0.0])  # by receiver
    missed: bool = False  # the accepting end knows that it has ended, and has heard nothing since
    missed_since: float | None = None  # the same of the one that opened it: since when, by its time


class Cut(NamedTuple):
    """A partition under way: which ways carry nothing, until when, and whether what is sent meanwhile is lost."""

    blocks: Callable[[str, str], bool]  # of sender and receiver
    until: float
    loses: bool


class Network:
    """All connections, and when a packet arrives.

    Parameters
    ----------
    rng
        The simulation's.
    faults
        What goes wrong.
    latency, bandwidth
        Seconds that a message takes at least, and bytes a second that a node sends.
    """

    def __init__(self, rng: Random, faults: Faults, latency: float, bandwidth: float) -> None:
        self.faults = faults
        self.quiet = False  # no faults any more
        self.lost = 0
        #: Called when a connection has ended, for both ends to notice; it is back at its ``up_at``.
        self.ended: Callable[[Connection], None] = lambda connection: None
        #: Whether a connection may be lost now.
        self.may_break: Callable[[Connection], bool] = lambda connection: True
        #: Does something at a simulated time.
        self.at: Callable[[float, Callable[[], object]], None] = lambda time, do: None
        self._rng = rng
        self._latency = latency
        self.bandwidth = bandwidth
        self._of: dict[str, list[Connection]] = {}
        self._orphans: dict[str, list[Connection]] = {}  # by acceptor that is gone
        self._sent_by: dict[str, float] = {}  # when a node's last byte has left
        self._cuts: list[Cut] = []

    def connect(self, opener: str, acceptor: str, names: tuple[Peer, Peer], control: bool, now: float) -> Connection:
        """Open a connection."""
        connection = Connection(ends=(opener, acceptor), names=names, control=control)
        for end in connection.ends:
            self._of.setdefault(end, []).append(connection)
        for cut in self._cuts:
            for receiver in self._blocked(connection, cut) if now < cut.until else ():
                connection.blocked_until[receiver], connection.blocked_loses = cut.until, cut.loses
                connection.up_at = cut.until + self._rng.uniform(*RECONNECT_S)
        return connection

    def arrivals(self, connection: Connection, receiver: int, nbytes: int, now: float) -> list[float]:
        """Return when a packet sent now arrives: never, once, or as often as duplication has it."""
        sender = connection.ends[1 - receiver]
        blocked_until = connection.blocked_until[receiver]
        if now < connection.up_at or (now < blocked_until and connection.blocked_loses):
            return self._none()
        if self.happens(self.faults.loss) and self.may_break(connection):
            self.reset(connection, now)
            return self._none()
        if connection.control:  # which is little, and has its share of a link beside other connections
            leaves = now + nbytes / self.bandwidth
        else:
            leaves = self._sent_by[sender] = max(now, self._sent_by.get(sender, 0.0)) + nbytes / self.bandwidth
            if self.happens(self.faults.drop):
                return self._none()
        arrival = max(leaves, blocked_until) + self._latency + self._extra()
        if connection.control or not self.happens(self.faults.reordering):
            arrival = connection.last_arrival[receiver] = max(arrival, connection.last_arrival[receiver])
        else:
            arrival += self._rng.uniform(0.0, 0.1)
        if not connection.control and self.happens(self.faults.duplication):
            return [arrival, arrival + self._rng.choice((0.0, 0.01, 1.0)) * self._rng.random()]
        return [arrival]

    def reset(self, connection: Connection, now: float) -> None:
        """Break a connection; it comes back after a while."""
        connection.life += 1
        connection.up_at = max(now, *connection.blocked_until) + self._rng.uniform(*RECONNECT_S)
        connection.last_arrival[:] = [0.0, 0.0]
        self.ended(connection)

    def reset_all(self, name: str, now: float) -> None:
        """Break all connections of a node."""
        for connection in list(self._of.get(name, ())):
            if connection.up_at < float("inf"):
                self.reset(connection, now)

    def partition(self, inside: Collection[str], seconds: float, now: float) -> None:
        """Cut nodes off from all others: what is sent meanwhile arrives later, or is lost as connections break."""
        there = frozenset(inside)
        loses = self._rng.random() < 0.5
        self._begin(Cut(lambda sender, receiver: (sender in there) != (receiver in there), now + seconds, loses), now)

    def cut_ways(
        self, ways: Collection[tuple[str, str]], seconds: float, now: float, *, loses: bool | None = None
    ) -> None:
        """Cut the ways from some nodes to others, pairs of sender and receiver; back they may reach them."""
        there = frozenset(ways)
        loses = self._rng.random() < 0.5 if loses is None else loses
        self._begin(Cut(lambda sender, receiver: (sender, receiver) in there, now + seconds, loses), now)

    @property
    def cut_until(self) -> float:
        """When the last cut ends, and connections are back that it has broken."""
        return max((cut.until + RECONNECT_S[1] for cut in self._cuts), default=0.0)

    def _begin(self, cut: Cut, now: float) -> None:
        self._cuts = [other for other in self._cuts if now < other.until] + [cut]
        for connection in dict.fromkeys(c for connections in self._of.values() for c in connections):
            if receivers := self._blocked(connection, cut):
                self._block(connection, receivers, cut, now)

    def _blocked(self, connection: Connection, cut: Cut) -> list[int]:
        """Return which ends of a connection hear nothing."""
        ends = connection.ends
        return [receiver for receiver in (0, 1) if cut.blocks(ends[1 - receiver], ends[receiver])]

    def _block(self, connection: Connection, receivers: Sequence[int], cut: Cut, now: float) -> None:
        for receiver in receivers:
            connection.blocked_until[receiver] = max(connection.blocked_until[receiver], cut.until)
        connection.blocked_loses = cut.loses
        if cut.loses:
            noticed_at = min(cut.until, now + SILENCE_S)
            self.at(noticed_at, partial(self._break, connection, connection.life, noticed_at))

    def _break(self, connection: Connection, life: int, now: float) -> None:
        """What was sent while a connection was cut is lost: so it has broken, and comes back after the cut."""
        if connection.life == life and connection.up_at < float("inf"):
            self.reset(connection, now)

    def forget(self, name: str, now: float, *, killed: bool) -> None:
        """A node is gone. If it was killed, each of its connections lost the last of what it had sent or none of it."""
        for connection in self._of.pop(name, ()):
            if connection.ends[1] == name:
                self._orphans.setdefault(name, []).append(connection)
            if killed and self._rng.random() < 0.5:
                self.reset(connection, now)
            connection.up_at = float("inf")
            self.ended(connection)
            other = connection.ends[connection.ends[0] == name]
            if other in self._of:
                self._of[other].remove(connection)

    def close(self, connection: Connection) -> None:
        """The end that opened a connection has closed it: the last of what it has sent arrives, or none of it."""
        if self._rng.random() < 0.5:
            connection.life += 1
        connection.up_at = float("inf")
        self.ended(connection)
        for connections in (*(self._of.get(end, []) for end in connection.ends), *self._orphans.values()):
            if connection in connections:
                connections.remove(connection)

    def revive(self, name: str, now: float) -> dict[Peer, Connection]:
        """A node is started again where one was before: return the connections that find it by themselves."""
        there = [c for c in self._orphans.pop(name, ()) if c.ends[0] in self._of]
        for connection in there:
            self.reset(connection, now)
            connection.blocked_until[:] = [0.0, 0.0]
            for end in connection.ends:
                self._of.setdefault(end, []).append(connection)
        return {connection.names[1]: connection for connection in there}

    def happens(self, probability: float) -> bool:
        """Draw whether something goes wrong now."""
        return probability > 0.0 and not self.quiet and self._rng.random() < probability

    def _extra(self) -> float:
        mean = self.faults.delay
        return self._rng.expovariate(1.0 / mean) if mean and not self.quiet else 0.0

    def _none(self) -> list[float]:
        self.lost += 1
        return []
