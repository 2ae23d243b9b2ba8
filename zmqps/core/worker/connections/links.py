"""A worker's links to the shards of its job: by shard and by connection, opened, watched and closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from zmqps.core.job.keyspace import Placement
from zmqps.core.node.handshake import LOOK_S, Connections, Handshake
from zmqps.core.node.member import Member
from zmqps.core.protocol.encoding import Coding
from zmqps.core.protocol.events import Action, Log, Looked, Peer, Send
from zmqps.core.protocol.messages import Leave
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.security.keys import key_of, same
from zmqps.core.worker.connections.link import Link, LinkCommons, ShardServer
from zmqps.core.worker.connections.wire import WireSpeed
from zmqps.errors import ConfigurationError, PeerLostError, ProtocolError, PSError, listed, printable

#: The most unreachable servers to name.
MOST_UNREACHED = 4


class Links:
    """The links of one session, by shard; those to shards of one server share a connection."""

    def __init__(self, member: Member, coding: Coding) -> None:
        self.by_shard: list[Link] = []
        self.by_peer: dict[Peer, list[Link]] = {}
        self.commons = LinkCommons(coding=coding)
        self._member = member
        self._connections = Connections()

    @property
    def counts(self) -> Counter[str]:
        """The links' counters."""
        return sum((link.counts for link in self.by_shard), Counter())

    @property
    def saved_nbytes(self) -> int:
        """The bytes saved by codecs, both ways."""
        return sum(link.packer.saved_nbytes for link in self.by_shard)

    @property
    def in_flight_nbytes(self) -> int:
        """Bytes sent or requested and not yet answered."""
        return sum(link.in_flight.nbytes for link in self.by_shard)

    @property
    def wires(self) -> dict[int, WireSpeed]:
        """The measured wire to each server, by its rank; to one with several shards the fastest."""
        found: dict[int, WireSpeed] = {}
        for link in self.by_shard:
            speed, known = link.wire.speed, found.get(link.server.rank)
            if known is None or known.bytes_per_s < speed.bytes_per_s:
                found[link.server.rank] = speed
        return found

    def _slowest_wire(self) -> Mapping[str, Any]:
        """Return the slowest of the measured wires."""
        known = {rank: wire for rank, wire in self.wires.items() if wire.bytes_per_s}
        if not known:
            return {}
        rank = min(known, key=lambda rank: known[rank].bytes_per_s)
        return {"slowest_wire": rank, **known[rank].counters()}

    def on_deadline(self, now: float) -> list[Action]:
        """Hellos and resends."""
        actions: list[Action] = []
        for link in self.by_shard:
            due = link.next_deadline()
            if due is not None and now >= due:
                actions += link.on_deadline(now)
        return actions

    def title_of(self, peer: Peer) -> str:
        """Return a server's name, by its connection; all others are the coordinator's."""
        links = self.by_peer.get(peer)
        return links[0].server.title if links else "the coordinator"

    def of_answer(self, peer: Peer, request: int) -> Link | None:
        """Return the link of an answered request; None if it was given up before."""
        return next((link for link in self.by_peer.get(peer, ()) if link.awaits(request)), None)

    def of_proof(self, peer: Peer, proof: bytes) -> Link | None:
        """Return the link that this proof welcomes; None if a server shows another one."""
        return next((link for link in self.by_peer.get(peer, ()) if same(proof, link.server.proof)), None)

    def connect(self, placement: Placement, wire: Mapping[str, Any], now: float) -> list[Action]:
        """Open the links to the shards of a job, from its placement."""
        servers = servers_of(wire, placement.num_shards)
        endpoints = {(server["rank"], server["endpoint"]) for server in servers}
        if twice := [e for e, number in Counter(endpoint for _, endpoint in endpoints).items() if number > 1]:
            raise ConfigurationError(
                f"two servers of this job advertise {printable(twice[0])}; give each its own address: "
                "zmqps server --advertise HOST:PORT"
            )
        actions: list[Action] = []
        self.by_shard = []
        for shard, server in enumerate(servers):
            greeted, first = self._greet(server, now)
            self.by_shard.append(Link(greeted, placement.num_slices(shard), self.commons, shard=shard))
            actions += first
        return [*actions, *self._sort()]

    def move(self, shard: int, server: Mapping[str, Any], now: float) -> list[Action]:
        """A shard has another server."""
        greeted, first = self._greet(server, now)
        self.by_shard[shard].retarget(greeted)
        return [*first, *self._sort()]

    def _greet(self, server: Mapping[str, Any], now: float) -> tuple[ShardServer, list[Action]]:
        """Send Hello to a server, over the existing connection or a new one."""
        endpoint = server["endpoint"]
        peer, was_open = self._connections.open(endpoint)
        hello = self._member.identity.hello(key_of(server["ticket"]), server["epoch"])
        handshake = Handshake(hello, peer, endpoint)
        proof, epoch, rank = key_of(server["proof"]), server["epoch"], server["rank"]
        greeted = ShardServer(title=_title(server), handshake=handshake, proof=proof, epoch=epoch, rank=rank)
        if not was_open:
            return greeted, handshake.start(now)
        return greeted, handshake.beside([link.server.handshake for link in self.by_peer.get(peer, ())], now)

    def _sort(self) -> list[Action]:
        """Group the links by their connections, and close connections without links."""
        self.by_peer = {}
        for link in self.by_shard:
            self.by_peer.setdefault(link.server.peer, []).append(link)
            self.commons.alarm.by(link.next_deadline())
        return self._connections.close_others(self.by_peer)

    @property
    def lost_server(self) -> PSError | None:
        """The error for a lost server with a part of the job; None: none is lost."""
        errors = (link.server.lost for link in self.by_shard)
        return next((e for e in errors if isinstance(e, PeerLostError) and e.role == "server"), None)

    def connected(self, peer: Peer, now: float) -> list[Action]:
        """The connection to a server is open, perhaps again."""
        links = self.by_peer.get(peer, ())
        actions = [action for link in links for action in link.on_connected(now)]
        for link in links:
            self.commons.alarm.by(link.next_deadline())
        return actions

    def disconnected(self, peer: Peer, now: float) -> list[Action]:
        """The connection to a server has ended; it comes back by itself."""
        for link in self.by_peer.get(peer, ()):
            link.on_disconnected(now)
            self.commons.alarm.by(link.next_deadline())
        return []

    def part(self, reason: DepartureCause) -> list[Action]:
        """Say goodbye to the servers that have welcomed us."""
        servers = [link.server for link in self.by_shard]
        known = {server.peer for server in servers if server.handshake.welcome is not None and server.lost is None}
        self.forget_servers()
        return [Send(peer, Leave(reason)) for peer in self.by_peer if peer in known]

    def forget_servers(self) -> None:
        """Wait for no server any more: one that ends now is not missed."""
        for link in self.by_shard:
            link.server.handshake.stop()

    def looked(self, looked: Looked, now: float) -> list[Action]:
        """Report why a server does not answer, here and to the coordinator."""
        news = [link for link in self.by_peer.get(looked.peer, ()) if link.server.handshake.looked(looked.why)]
        if not news:
            return []
        self._member.report(now)
        server = news[0].server
        silent_s, why = server.handshake.silence(now), server.handshake.why
        return [Log("warning", f"cannot reach {server.title} for {silent_s:.0f} s: {why}")]

    def counters(self, now: float) -> Mapping[str, Any]:
        """Return the status: unreachable servers, the slowest wire."""
        return {**self.unreached(now), **self._slowest_wire()}

    def unreached(self, now: float) -> Mapping[str, str]:
        """Return the unreachable servers, with duration and reason."""
        servers = [link.server for link in self.by_shard]
        silent = [(each.title, each.handshake.silence(now), each.handshake.because) for each in servers]
        texts = [f"{title} for {s:.0f} s{because}" for title, s, because in silent if s >= LOOK_S or because]
        texts = list(dict.fromkeys(texts))  # a server with several shards is named once
        return {"unreached": listed(texts, MOST_UNREACHED)} if texts else {}

    def validate(self) -> None:
        """Assert that there are only the connections of links, without leftovers."""
        self._connections.validate(self.by_peer)
        self.commons.alarm.validate(link.next_deadline() for link in self.by_shard)
        for link in self.by_shard:
            link.validate()


def _title(server: Mapping[str, Any]) -> str:
    """Return a server's name for errors and logs."""
    return printable(f"server {server['rank']} ({server['name']}, {server['endpoint'].partition(' ')[0]})")


def servers_of(placement: Mapping[str, Any], num_shards: int) -> list[Mapping[str, Any]]:
    """Return the servers of shards, as they travel with a placement."""
    servers = placement.get("servers")
    if type(servers) is not list or len(servers) != num_shards:
        raise ProtocolError("a job names one server a shard")
    for server in servers:
        _check(server)
    return servers


def _check(server: Any) -> None:
    """Raise `ProtocolError` unless this names a server, with all that is needed to use its shard."""
    texts, numbers = ("name", "endpoint", "ticket", "proof"), ("rank", "epoch")
    if (
        type(server) is not dict
        or any(type(server.get(key)) is not str for key in texts)
        or any(type(server.get(key)) is not int or not 0 <= server[key] < 1 << 32 for key in numbers)
    ):
        raise ProtocolError("a server has a name, a rank and an endpoint, an epoch, a ticket and a proof")
