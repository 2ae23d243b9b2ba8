"""A simulated network: delays, bandwidth, and the faults a test asks for.

By default a connection is what ZeroMQ over TCP is: messages arrive whole and in order, or not at
all. A *loss* therefore breaks the connection: everything on its way is gone, and what is sent
before the connection is back is dropped. Duplication and reordering do what TCP never does; the
data plane has to bear them anyway, because a request is sent again when its answer is late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from zmqps.core.protocol.events import Peer, Reader

#: How long a broken connection takes to come back: ZeroMQ tries again after 50 ms to 2 s.
RECONNECT_S = (0.05, 2.0)
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
    duplication, reordering
        Probability that a message arrives twice, or after messages sent later. Only between workers
        and servers: what goes to and from the coordinator relies on the order of a connection.
    partition
        How often a second some node is cut off from all others.
    partition_s
        For how many seconds, on average.
    crash, server_crash, coordinator_crash
        How often a second some worker, some server or the coordinator dies without a word. Whoever
        supervises them starts another one.
    stop
        How often a second some worker is stopped, as by SIGSTOP.
    stop_s
        For how many seconds, on average.
    memory
        Probability that a server's request for memory fails.
    departure
        Probability that a server's connection breaks as it is about to be told that a member has gone.
    """

    delay: float = 0.0
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    partition: float = 0.0
    partition_s: float = 4.0
    crash: float = 0.0
    server_crash: float = 0.0
    coordinator_crash: float = 0.0
    stop: float = 0.0
    stop_s: float = 4.0
    memory: float = 0.0
    departure: float = 0.0

    @property
    def may_lose(self) -> bool:
        """Whether members may fall silent."""
        return any((self.loss, self.partition, self.crash, self.server_crash, self.coordinator_crash, self.stop))


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

    @classmethod
    def of(cls, frames: Sequence[Any], readers: Sequence[list[Reader]]) -> Packet:
        """Return the packet of a message, registered with those who must know it is being read."""
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
    blocked_until: float = 0.0
    blocked_loses: bool = False
    last_arrival: list[float] = field(default_factory=lambda: [0.0, 0.0])  # by receiver
    missed: bool = False  # the one who accepted it knows that it has ended, and has heard nothing since


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
        #: Called when a connection has ended, for the one who accepted it to notice.
        self.ended: Callable[[Connection], None] = lambda connection: None
        self._rng = rng
        self._latency = latency
        self._bandwidth = bandwidth
        self._of: dict[str, list[Connection]] = {}
        self._orphans: dict[str, list[Connection]] = {}  # by acceptor that is gone
        self._sent_by: dict[str, float] = {}  # when a node's last byte has left
        self._cut: list[tuple[frozenset[str], float, bool]] = []

    def connect(self, opener: str, acceptor: str, names: tuple[Peer, Peer], control: bool, now: float) -> Connection:
        """Open a connection."""
        connection = Connection(ends=(opener, acceptor), names=names, control=control)
        for end in connection.ends:
            self._of.setdefault(end, []).append(connection)
        for inside, until, loses in self._cut:
            if now < until and (opener in inside) != (acceptor in inside):
                connection.blocked_until, connection.blocked_loses = until, loses
        return connection

    def arrivals(self, connection: Connection, receiver: int, nbytes: int, now: float) -> list[float]:
        """Return when a packet sent now arrives: never, once, or as often as duplication has it."""
        sender = connection.ends[1 - receiver]
        if now < connection.up_at or (now < connection.blocked_until and connection.blocked_loses):
            return self._none()
        if self.happens(self.faults.loss):
            self.reset(connection, now)
            return self._none()
        leaves = max(now, self._sent_by.get(sender, 0.0)) + nbytes / self._bandwidth
        self._sent_by[sender] = leaves
        arrival = max(leaves, connection.blocked_until) + self._latency + self._extra()
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
        connection.up_at = now + self._rng.uniform(*RECONNECT_S)
        connection.last_arrival[:] = [0.0, 0.0]
        self.ended(connection)

    def partition(self, inside: Collection[str], seconds: float, now: float) -> None:
        """Cut nodes off from all others: what is sent meanwhile arrives later or, where connections break, never."""
        until, loses = now + seconds, self._rng.random() < 0.5
        self._cut = [cut for cut in self._cut if now < cut[1]] + [(frozenset(inside), until, loses)]
        for connection in dict.fromkeys(c for name in inside for c in self._of.get(name, ())):
            if (connection.ends[0] in inside) != (connection.ends[1] in inside):
                connection.blocked_until, connection.blocked_loses = max(connection.blocked_until, until), loses

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

    def revive(self, name: str, now: float) -> dict[Peer, Connection]:
        """A node is started again where one was before: return the connections that find it by themselves."""
        there = [c for c in self._orphans.pop(name, ()) if c.ends[0] in self._of]
        for connection in there:
            self.reset(connection, now)
            connection.blocked_until = 0.0
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
