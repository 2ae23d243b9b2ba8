"""A server's part in copies of shards: as a leader for its backups, and as a backup for its leader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from zmqps.core.node.handshake import Connections, Handshake
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import (
    COORDINATOR,
    Action,
    Connected,
    Disconnected,
    Log,
    Looked,
    NetworkEvent,
    Peer,
    Received,
    Send,
    Unreachable,
)
from zmqps.core.protocol.security.keys import key_of, same
from zmqps.core.protocol.security.roles import BACKUP, check_client
from zmqps.core.server.clients import Client
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.parked import CONFIRMED
from zmqps.core.server.parts import PUSHES, AnyPull, AnyPush
from zmqps.core.server.replicas.backup import Backup
from zmqps.core.server.replicas.follower import Follower
from zmqps.core.server.replicas.stream import HeldAnswer, Stream, Unconfirmed
from zmqps.core.server.tenant import AnswerGate, Tenant
from zmqps.core.treatments import make_treatment
from zmqps.errors import (
    ConfigurationError,
    DeposedError,
    JobError,
    ProtocolError,
    ServerMemoryError,
    StaleEpochError,
    counted,
    from_wire,
    listed,
    printable,
)

#: Copies of a shard besides the leader.
MAX_BACKUPS = 4
TEXTS, NUMBERS = ("name", "endpoint", "ticket", "proof"), ("rank", "epoch")


class ReplicaStreams(AnswerGate):
    """The connections of a server to others, and the copies that are kept equal over them."""

    def __init__(self, host: ServerKernel) -> None:  # the machine: its jobs and clients
        self.due: float | None = None  # when to call `on_deadline`
        self.streams: dict[int, Stream] = {}  # of the leaders here with backups, by epoch
        self.backups: dict[int, Backup] = {}  # the copies here that follow a leader, by epoch
        self._host = host
        self.unconfirmed = Unconfirmed()  # the bytes that wait for the backups of all shards here
        self._connections = Connections()  # to other servers
        self._peers: dict[Peer, dict[int, Follower]] = {}  # the streams over them, by epoch
        self._leaders: dict[int, int] = {}  # epoch of a backup -> of its leader on this server

    # --- messages of the coordinator -----------------------------------------------------------

    def assigned(self, tenant: Tenant, now: float) -> list[Action]:
        """A shard has been given to this server: as a backup, or as a leader with backups."""
        assign = tenant.assign
        if assign.backup:
            _check_job(assign)
            self.backups[assign.epoch] = Backup(assign.epoch, tenant.ledgers)
            tenant.follows = True
            return []
        return self._retarget(tenant, assign.backups, now) if assign.backups else []

    def built(self, tenant: Tenant, now: float) -> list[Action]:
        """A shard is built; a backup gets its slices from the leader, unless it starts with the same."""
        if not tenant.follows:
            return []
        if not tenant.assign.restore.get("cut"):
            tenant.built().follow()
        there = [client for client in self._host.clients.by_incarnation.values() if client.hello.role == "server"]
        leaders = [client for client in there if tenant.assign.epoch in client.epochs]
        return [action for client in leaders for action in self.welcomed(client, tenant)]

    def loaded(self, tenant: Tenant, now: float) -> list[Action]:
        """A shard has its values: its backups must get them, too."""
        stream = self._stream_of(tenant)
        if stream is None:
            return []
        stream.begin(tenant.built())
        return self._pumped(stream, now)

    def _stream_of(self, tenant: Tenant) -> Stream | None:
        return self.streams.get(tenant.assign.epoch)

    def lead(self, message: m.Lead, now: float) -> list[Action]:
        """A copy leads its shard: it takes over, unless it has already; or its backups have changed."""
        tenant = self._host.tenant_of(message.epoch)
        if message.generation < tenant.generation:
            return []
        actions = [self._take_over(tenant, message.generation)] if tenant.follows else []
        if message.generation > tenant.generation:  # it stays the leader
            tenant.yielding = False
        if "rows" in message.backups:  # before any change that they do not have
            actions += self._retarget(tenant, message.backups, now)
        tenant.generation = message.generation
        step = 0 if tenant.shard is None else tenant.shard.version
        return [Send(COORDINATOR, m.Leading(message.epoch, message.generation, step)), *actions]

    def _retarget(self, tenant: Tenant, backups: Any, now: float) -> list[Action]:
        rows = {row["epoch"]: row for row in _rows(backups)}
        stream = self._stream_of(tenant)
        if rows:
            _check_job(tenant.assign)
            if stream is None:
                stream = self.streams[tenant.assign.epoch] = Stream(tenant.ledgers, self.unconfirmed)
                tenant.gate = self
                if tenant.shard is not None and tenant.shard.loaded:
                    stream.begin(tenant.shard)
        if stream is None:
            return []
        for epoch in set(stream.followers) - set(rows):
            self._lose(stream, epoch)
        actions: list[Action] = []
        for epoch, row in rows.items():
            if epoch not in stream.followers:
                actions += self._open(tenant, stream, row, now)
        actions += [*self._released(tenant, stream), *self._pumped(stream, now)]
        if not stream.followers:
            self._end(tenant, stream)
        text = ", ".join(follower.title for follower in stream.followers.values()) or "none"
        return [
            *actions,
            *self._close_idle(),
            Log("info", f"job {tenant.name!r}: backups of shard {tenant.assign.shard}: {text}", job=tenant.name),
        ]

    def _open(self, tenant: Tenant, stream: Stream, row: dict[str, Any], now: float) -> list[Action]:
        endpoint, epoch = row["endpoint"], row["epoch"]
        title = printable(f"server {row['rank']} ({row['name']}, {endpoint.partition(' ')[0]})")
        peer, was_open = self._connections.open(endpoint)
        hello = self._host.member.identity.hello(key_of(row["ticket"]), epoch)
        handshake = Handshake(replace(hello, job=tenant.name), peer, endpoint)
        follower = Follower(title, handshake, key_of(row["proof"]), epoch, row.get("number"))
        self._host.handlers.links[peer] = self.handle
        others = [other.handshake for other in self._peers.setdefault(peer, {}).values()]
        self._peers[peer][epoch] = follower
        self._leaders[epoch] = tenant.assign.epoch
        stream.follow(follower)
        return handshake.beside(others, now) if was_open else handshake.start(now)

    def _end(self, tenant: Tenant, stream: Stream) -> None:
        """Stop sending a shard's changes."""
        stream.stop()
        tenant.gate = None
        del self.streams[tenant.assign.epoch]

    def _lose(self, stream: Stream, epoch: int) -> None:
        follower = stream.followers[epoch]
        stream.lose(epoch)
        self._peers[follower.peer].pop(epoch, None)
        self._leaders.pop(epoch, None)

    def _take_over(self, tenant: Tenant, generation: int) -> Action:
        """A backup becomes the leader."""
        shard, backup = tenant.built(), self.backups[tenant.assign.epoch]
        if backup.broken is not None:
            raise backup.broken.again()
        if not shard.loaded:
            raise JobError(f"this backup of shard {shard.index} is not whole: it cannot be promoted")
        del self.backups[tenant.assign.epoch]
        tenant.follows = False
        shard.came.filling, tenant.ledgers.inherited = False, True
        text = f"job {tenant.name!r}: this server is the leader of shard {shard.index} now, with all up to record "
        text += f"{backup.number} of the one before (generation {generation})"
        return Log("warning", text, job=tenant.name)

    def give_up_place(self, message: m.Yield, now: float) -> list[Action]:
        """Stop answering for a shard, and report when the backups have everything: one of them will be the leader.

        Clients should wait for the coordinator. In synchronous mode nothing is done while gradients wait for their
        commit: the backups do not have them.
        """
        tenant = self._host.tenant_of(message.epoch)
        if message.generation < tenant.generation:
            return []
        tenant.generation = message.generation
        shard, stream = tenant.built(), self._stream_of(tenant)
        if not tenant.yielding:
            if shard.has_open_step or shard.dense.updates.broken is not None:
                return [Send(COORDINATOR, m.Yielded(message.epoch, message.generation, 1))]
            tenant.yielding = True
        pumped = [] if stream is None else self._pumped(stream, now)
        return [*pumped, *self._yielded(tenant, stream)]

    def _yielded(self, tenant: Tenant, stream: Stream | None) -> list[Action]:
        """Report that other copies may take over, if the backups have everything."""
        if stream is not None and stream.is_behind:
            return []
        followers = {} if stream is None else stream.followers
        error = DeposedError(job=tenant.name, generation=tenant.generation)
        actions = self._turn_away(tenant, [], error)
        numbers = {str(epoch): follower.queue.last for epoch, follower in followers.items() if follower.is_filled}
        return [*actions, Send(COORDINATOR, m.Yielded(tenant.assign.epoch, tenant.generation, 0, numbers))]

    def _turn_away(self, tenant: Tenant, waiting: Iterable[tuple[bytes, int]], error: DeposedError) -> list[Action]:
        """Inform clients with deferred answers, of waiting pulls too, that another copy will answer."""
        waiting = [*waiting, *tenant.parked]
        clients = self._host.clients.by_incarnation
        actions: list[Action] = [
            Send(clients[who].peer, m.Error.of(request, error)) for who, request in waiting if who in clients
        ]
        for who, request in list(tenant.parked):
            tenant.parked.remove(who, request)
        return actions

    def committed(self, tenant: Tenant, message: m.Committed, now: float) -> list[Action]:
        """Report a step to the coordinator as soon as all backups have it."""
        stream = self.streams[tenant.assign.epoch]
        stream.end_step(tenant.built())
        if stream.is_behind:
            stream.hold(b"", message.step, message, now)
            return self._pumped(stream, now)
        return [Send(COORDINATOR, message)]

    def discarded(self, tenant: Tenant, now: float = 0.0) -> list[Action]:
        """A shard is freed."""
        self.backups.pop(tenant.assign.epoch, None)
        if (stream := self._stream_of(tenant)) is not None:
            for epoch in list(stream.followers):
                self._lose(stream, epoch)
            stream.drain()
            self._end(tenant, stream)
        return self._close_idle()

    def _close_idle(self) -> list[Action]:
        """Close the connections without any backup's stream."""
        self._peers = {peer: followers for peer, followers in self._peers.items() if followers}
        for peer in self._host.handlers.links.keys() - self._peers.keys():
            del self._host.handlers.links[peer]
        return self._connections.close_others(self._peers)

    # --- a leader -----------------------------------------------------------------------------

    def pushed(self, client: Client, tenant: Tenant, message: AnyPush, now: float) -> list[Action] | None:
        """Answer a push as soon as all backups have it; in synchronous mode commits wait for that."""
        stream, shard = self.streams[message.epoch], tenant.built()
        held = shard.steps is None and stream.is_behind
        return self._forwarded(client, stream, message, now) if held else None

    def asked(self, client: Client, tenant: Tenant, message: AnyPull, now: float) -> list[Action] | None:
        """Answer a pull whose worker relies on it once all backups have confirmed that they still follow this leader.

        A deposed leader that does not know it must not claim that no other is ahead.
        """
        stream, who = self.streams[message.epoch], client.hello.incarnation
        if tenant.is_bounded and stream.ask(who, message.request):
            return self._forwarded(client, stream, message, now)
        last = stream.awaited(who)  # after the answers to its pushes
        return None if last is None else self._host.park(client, tenant, message, [(CONFIRMED, last)])

    def withdraw(self, tenant: Tenant, incarnation: bytes, request: int) -> None:
        self.streams[tenant.assign.epoch].withdraw(incarnation, request)

    def _forwarded(self, client: Client, stream: Stream, message: AnyPush | AnyPull, now: float) -> list[Action]:
        """Answer as soon as all backups have everything done so far."""
        try:
            stream.hold(client.hello.incarnation, message.request, message, now)
        finally:
            actions = self._pumped(stream, now)
        return actions

    def handle(self, event: NetworkEvent, now: float) -> list[Action]:
        """Process an event of the connection to another server, which has backups."""
        if isinstance(event, Received):
            return self._heard(event.peer, event.message, now)
        if isinstance(event, Connected):
            return self.connected(event.peer, now)
        if isinstance(event, Looked):
            return self.looked(event, now)
        assert isinstance(event, Disconnected | Unreachable)
        return self.disconnected(event, now)

    def _heard(self, peer: Peer, message: m.Message, now: float) -> list[Action]:
        check_client(message, BACKUP)
        followers, actions = self._peers[peer], list[Action]()
        if isinstance(message, m.Welcome):
            for follower in followers.values():
                if same(message.proof, follower.proof):
                    follower.on_welcome(message, now)
        elif isinstance(message, m.Replicated) and message.epoch in followers:
            actions += followers[message.epoch].on_replicated(message, now)
            tenant = self._tenant_behind(message.epoch)
            if tenant is not None and (stream := self._stream_of(tenant)) is not None:
                actions += self._released(tenant, stream)
        elif isinstance(message, m.Error) and message.request in followers:
            actions += self._refused(followers[message.request], message, now)
        self._set_due()
        return actions

    def _refused(self, follower: Follower, message: m.Error, now: float) -> list[Action]:
        """A backup refused a record."""
        error = from_wire(message.code, message.text, message.facts)
        tenant = self._tenant_behind(follower.epoch)
        if isinstance(error, DeposedError):
            # after a yield it answers no client; a coordinator that was away asks it again which copies are complete
            stream = None if tenant is None else self._stream_of(tenant)
            has_yielded = tenant is not None and tenant.yielding and stream is not None and not stream.is_behind
            return [] if tenant is None or has_yielded else self._depose(tenant, error.generation)
        news = follower.on_error(error, now)
        early = follower.handshake.welcome is None and isinstance(error, JobError | StaleEpochError)
        if not news or early or isinstance(error, ServerMemoryError):
            return []
        return [Log("warning", f"{follower.title} cannot follow as a backup yet: {error}", error=error.number)]

    def _tenant_behind(self, epoch: int) -> Tenant | None:
        return self._host.tenants.get(self._leaders.get(epoch, -1))

    def _depose(self, tenant: Tenant, generation: int) -> list[Action]:
        """Another copy has become the leader: stop answering for this shard."""
        stream, shard = self.streams[tenant.assign.epoch], tenant.built()
        error = DeposedError(job=tenant.name, generation=generation)
        shard.dense.updates.broken = error
        waiting = [
            (held.who, held.message.request) for held in stream.drain() if not isinstance(held.message, m.Committed)
        ]
        actions = self._turn_away(tenant, waiting, error)
        actions += self.discarded(tenant)
        text = f"job {tenant.name!r}: another server is the leader of shard {shard.index} now"
        text += f" (generation {generation}); this one answers for it no more"
        return [*actions, Log("warning", text, job=tenant.name)]

    def _released(self, tenant: Tenant, stream: Stream) -> list[Action]:
        """Send the answers that waited for the backups."""
        actions: list[Action] = []
        for held in stream.release():
            actions += self._answer(tenant, held)
            if tenant.parked.awaited:
                actions += self._host.unpark(tenant, [(CONFIRMED, held.position)])
        return [*actions, *self._yielded(tenant, stream)] if tenant.yielding else actions

    def _answer(self, tenant: Tenant, held: HeldAnswer) -> list[Action]:
        if isinstance(held.message, m.Committed):
            return [Send(COORDINATOR, held.message)]
        client, ledger = self._host.clients.by_incarnation.get(held.who), tenant.ledgers.get(held.who)
        if client is None:
            return []  # it has departed
        if isinstance(held.message, PUSHES) and (ledger is None or ledger.results.get(held.message.seq) is None):
            return []
        return self._host.answer_held(client, tenant, held.message)

    def _pumped(self, stream: Stream, now: float) -> list[Action]:
        actions = stream.pump(now)
        self._set_due()
        return actions

    # --- a backup ------------------------------------------------------------------------------

    def welcomed(self, client: Client, tenant: Tenant) -> list[Action]:
        """Report this backup's position to a leader, once it can be filled: then pushes wait for it."""
        backup = self.backups.get(tenant.assign.epoch)
        return [] if backup is None or tenant.shard is None else [Send(client.peer, backup.position)]

    def follow(self, client: Client, tenant: Tenant, record: m.Replicate) -> tuple[list[Action], bool]:
        """Apply a record of the leader; return the answer, and whether this copy is complete since."""
        tenant.check_role(client.hello.role)
        shard = tenant.built()
        before = shard.came.loaded
        answer = self.backups[record.epoch].take(shard, record)
        who = record.origin
        if who in tenant.ledgers and (who in tenant.ledgers.past or self._host.clients.bars(who)):
            tenant.forget(who)  # it departed while this was in flight
        return [] if answer is None else [Send(client.peer, answer)], shard.came.loaded and not before

    # --- connections and time ------------------------------------------------------------------

    def connected(self, peer: Peer, now: float) -> list[Action]:
        """The connection to another server is open, perhaps again."""
        actions = [action for follower in self._peers[peer].values() for action in follower.on_connected(now)]
        self._set_due()
        return actions

    def disconnected(self, event: Disconnected | Unreachable, now: float) -> list[Action]:
        """The connection to another server has ended, and comes back by itself; or it cannot be made, and why."""
        for follower in self._peers[event.peer].values():
            follower.on_disconnected(now)
        self._set_due()
        if isinstance(event, Disconnected):
            return []
        titles = listed([follower.title for follower in self._peers[event.peer].values()], 1)
        return [Log("error", f"no connection to {titles}, which has a backup: {event.error}")]

    def looked(self, looked: Looked, now: float) -> list[Action]:
        """Report why the server of a backup does not answer."""
        news = [follower for follower in self._peers[looked.peer].values() if follower.handshake.looked(looked.why)]
        if not news:
            return []
        waits = counted(len(news), "shard")
        why = f"{news[0].handshake.silence(now):.0f} s: {news[0].handshake.why}"
        return [Log("warning", f"cannot reach {news[0].title}, which has backups of {waits} here, for {why}")]

    def on_deadline(self, now: float) -> list[Action]:
        """Hellos, questions, and the next slices."""
        actions: list[Action] = []
        for follower in [follower for followers in self._peers.values() for follower in followers.values()]:
            due = follower.next_deadline()
            if due is not None and now >= due:
                actions += follower.on_deadline(now)
        self._set_due()
        return actions

    def _set_due(self) -> None:
        dues = [follower.next_deadline() for followers in self._peers.values() for follower in followers.values()]
        self.due = min([due for due in dues if due is not None], default=None)

    def counters(self, tenant: Tenant, now: float) -> Mapping[str, Any]:
        """Return the status of a leader with backups, or of a backup."""
        if (stream := self._stream_of(tenant)) is not None:
            return stream.counters(now)
        if not tenant.follows:
            return {}
        found = {"backup": 1, "filled": int(tenant.loaded), "loaded": True}
        if (shard := tenant.shard) is not None:
            present = sum(state.slice.index not in shard.came.missing for state in shard.slices)
            found |= {"slices": len(shard.slices), "slices_filled": present}
        return found

    def validate(self) -> None:
        """Assert that all backups have a leader, and that waiting bytes are counted."""
        tenants, streams = self._host.tenants, self.streams
        assert streams.keys() == {epoch for epoch, tenant in tenants.items() if tenant.gate is self}
        assert self.backups.keys() == {epoch for epoch, tenant in tenants.items() if tenant.follows}
        assert self._host.handlers.links.keys() == self._peers.keys()
        assert self._leaders == {copy: epoch for epoch, stream in streams.items() for copy in stream.followers}
        self._connections.validate(self._peers)
        assert self._leaders.keys() == {copy for followers in self._peers.values() for copy in followers}
        for stream in streams.values():
            stream.validate()


def _check_job(assign: m.Assign) -> None:
    """Raise `ConfigurationError` for a job that cannot have copies."""
    treatment = make_treatment(assign.job.get("treatment"))  # the job is read in the background, which takes long
    if treatment is not None and treatment.needs_read:
        raise ConfigurationError(
            f"a job with treatment={treatment.name!r} cannot have replicas, nor move to other servers: what each "
            "worker has read is known to the leader alone; choose another treatment, or start the cluster with "
            "--replicas 0"
        )


def _rows(backups: Any) -> list[dict[str, Any]]:
    """Return the rows of backups; raise `ProtocolError` unless they name servers and copies."""
    rows = backups.get("rows", [])
    if type(rows) is not list or len(rows) > MAX_BACKUPS:
        raise ProtocolError(f"a shard has up to {MAX_BACKUPS} backups")
    for row in rows:
        if (
            type(row) is not dict
            or any(type(row.get(key)) is not str for key in TEXTS)
            or any(type(row.get(key)) is not int or not 0 <= row[key] < 1 << 32 for key in NUMBERS)
            or type(row.get("number", 0)) is not int
        ):
            raise ProtocolError("a backup has a name, a rank and an endpoint, an epoch, a ticket and a proof")
    return rows
