"""The server's machine: joins, gets shards of jobs assigned, answers workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.node.member import Identity, Member
from zmqps.core.node.throttle import Throttle
from zmqps.core.protocol import exits
from zmqps.core.protocol.encoding import RAW, check_for_values
from zmqps.core.protocol.events import (
    COORDINATOR,
    Action,
    Connected,
    Disconnected,
    Exit,
    Log,
    Looked,
    NetworkEvent,
    Peer,
    Received,
    Returned,
    Send,
    Stop,
    Undecodable,
    Unreachable,
)
from zmqps.core.protocol.messages import (
    PROTOCOL_VERSION,
    Ack,
    Assign,
    Commit,
    Cut,
    Discard,
    Error,
    Hello,
    Leave,
    Left,
    Load,
    Message,
    Promote,
    Replicas,
    Replicate,
    Values,
    Welcome,
    Withdraw,
    Yield,
)
from zmqps.core.protocol.messages.hello import check_hello
from zmqps.core.protocol.messages.large import Large
from zmqps.core.protocol.security.keys import alias
from zmqps.core.protocol.security.roles import check_client
from zmqps.core.server.admission import Room
from zmqps.core.server.builds import Builds
from zmqps.core.server.clients import Client, Clients, departed
from zmqps.core.server.discarded import DiscardedJobs
from zmqps.core.server.leaving import Leaving
from zmqps.core.server.ledger import Result
from zmqps.core.server.orders import Orders
from zmqps.core.server.parked import CONFIRMED, MAX_ALL_PARKED_NBYTES, nbytes_of
from zmqps.core.server.parts import PULLS, PUSHES, AnyPull, AnyPush, Awaited
from zmqps.core.server.relay import FileRelay, FileRequest
from zmqps.core.server.replicas.replication import ReplicaStreams
from zmqps.core.server.saves import Files, Saves, Saving
from zmqps.core.server.shard import Shard
from zmqps.core.server.shortage import as_error
from zmqps.core.server.tenant import Tenant, in_all
from zmqps.errors import (
    DeposedError,
    IdentityError,
    JobError,
    LimitError,
    NotJoinedError,
    ProtocolError,
    PSError,
    ShardBrokenError,
    StaleEpochError,
    listed,
)

#: Messages about a copy: its number stands in the error that answers them.
OF_COPY = (Assign, Commit, Cut, Discard, Replicas, Promote, Replicate, Yield)


class ServerMachine:
    """A server process without its sockets."""

    def __init__(
        self,
        identity: Identity,  # who this server is; ``endpoint`` is where workers reach it
        coordinator: str,  # the coordinator's endpoint
        # builds a shard: ``make_shard(job, placement, index, room)``, one at a time. An error it raises is reported to
        # the coordinator, and by it to the worker that started the job
        make_shard: Callable[[JobSpec, Placement, int, Room], Shard],
        available: Callable[[], int] = lambda: 1 << 62,  # returns the bytes of memory that can be had on this host
        files: Files | None = None,  # where checkpoints are written and read; None: this server does neither
    ) -> None:
        self.member = Member(identity, coordinator, self.counters)
        self.tenants: dict[int, Tenant] = {}  # by epoch
        self.clients = Clients(keyed=identity.keyed)
        self.discarded = DiscardedJobs()
        self.replication = ReplicaStreams(self)
        self._saves = Saves(files)
        self.relay = FileRelay()
        self.leaving = Leaving(self.member)
        self._orders = Orders(self, Builds(self.tenants, make_shard, available, files), self._saves)
        self._num_refused = 0
        self._throttle = Throttle()
        self._now = 0.0  # of the event being handled

    @property
    def title(self) -> str:
        """Who this server is, for errors."""
        return self.member.title

    def start(self, now: float) -> list[Action]:
        """Begin to join."""
        identity = self.member.identity
        return [Log("info", f"server {identity.name} at {identity.endpoint}"), *self.member.start(now)]

    def counters(self) -> Mapping[str, Any]:
        """Return the counters shown in the status."""
        saving = self._saves.counters
        of_jobs = {str(n): {**tenant.counters(self._now), **saving(n)} for n, tenant in self.tenants.items()}
        return {**in_all(of_jobs.values()), "refused": self._num_refused, "clients": len(self.clients), "jobs": of_jobs}

    def handle(self, event: NetworkEvent | Stop | Returned | FileRequest, now: float) -> list[Action]:
        """Take an event; every failure becomes an `Error` to its sender, never an exception."""
        self._now = now
        if type(event) is Received:
            message = event.message
            if event.peer == COORDINATOR:
                put_off = self._orders.in_turn(message, now)
                return self._from_coordinator(message) if put_off is None else put_off
            try:
                return self._from_client(event, message)
            except (MemoryError, PSError) as error:
                return self._failed(event.peer, message, error)
        if isinstance(event, Stop):
            return self.leaving.stop(event, now)
        if isinstance(event, Undecodable):
            return self.refuse(event.peer, 0, event.error)
        if isinstance(event, Unreachable) and event.peer == COORDINATOR:
            return [Exit(exits.FAILED, str(event.error))]
        if isinstance(event, (Disconnected, Unreachable)):  # if it comes back it asks again for what it has not got
            if self.replication.takes(event.peer):
                return self.replication.disconnected(event, now)
            if (client := self.clients.find(event.peer)) is not None:
                for epoch in client.epochs:
                    self.tenants[epoch].parked.drop(client.hello.incarnation)
            return []
        if isinstance(event, Connected):
            if self.replication.takes(event.peer):
                return self.replication.connected(event.peer, now)
            return [*self.member.on_connected(now), *self.relay.again()]
        if isinstance(event, FileRequest):
            return self.relay.ask(event)
        if isinstance(event, Returned) and isinstance(event.tag, Saving):
            return self._saves.returned(event.tag, event.value, now)
        if isinstance(event, Returned) and isinstance(event.tag, Large):
            return self._opened(event.value)
        if isinstance(event, Returned):
            return self._orders.built(event.tag, event.value, now)
        if isinstance(event, Looked):
            if self.replication.takes(event.peer):
                return self.replication.looked(event, now)
            return self.member.looked(event.why, now) if event.peer == COORDINATOR else []
        raise AssertionError(f"a server does not know {event!r:.200}")

    def _from_coordinator(self, message: Message) -> list[Action]:
        try:
            return self._orders.handle(message, self._now)
        except (MemoryError, PSError) as error:
            return self._failed(COORDINATOR, message, error)

    def _opened(self, found: Message | Exception) -> list[Action]:
        """A large message of the coordinator is read: take it, and what came behind it."""
        behind, actions = self._orders.opened()
        if isinstance(found, PSError):
            actions += self.refuse(COORDINATOR, 0, found)
        elif isinstance(found, Exception):
            actions += self.refuse(COORDINATOR, 0, JobError(f"{self.title} cannot read a message: {found!r:.200}"))
        else:
            behind.insert(0, found)
        return [*(action for message in behind for action in self._from_coordinator(message)), *actions]

    def _failed(self, peer: Peer, message: Message, error: Exception) -> list[Action]:
        """Answer a request that has failed, and changed nothing."""
        of_leader = isinstance(message, Hello) and message.role == "server"
        of_copy = of_leader or isinstance(message, OF_COPY)
        number = message.epoch if of_copy else getattr(message, "request", 0)  # type: ignore[attr-defined]
        if isinstance(error, MemoryError):
            error = as_error(self.member.identity.name, message, error)
        assert isinstance(error, PSError)
        if of_leader and isinstance(error, JobError | StaleEpochError):
            return [Send(peer, Error.of(number, error))]  # it was told of this copy before we were, and asks again
        if isinstance(error, DeposedError) and not of_copy:  # a shard has moved: nobody has done anything wrong
            return [Send(peer, Error.of(number, error))]
        actions = self.refuse(peer, number, error)
        asked = (*PUSHES, *PULLS, Replicate)
        if isinstance(error, ShardBrokenError) and peer != COORDINATOR and isinstance(message, asked):
            tenant = self.tenants[message.epoch]
            if not tenant.counts["broken"]:  # the coordinator logs it, too: one line is enough
                actions.append(Send(COORDINATOR, Error.of(message.epoch, error)))
            tenant.counts["broken"] = 1
        return actions

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        dues = (self.replication.due, self.member.due, self.leaving.due)
        return min([due for due in dues if due is not None], default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Heartbeats, what backups are due, and the end when the coordinator is gone."""
        self._now = now
        actions = self.member.on_deadline(now)
        if self.replication.due is not None and now >= self.replication.due:
            actions += self.replication.on_deadline(now)
        if self.leaving.due is not None and now >= self.leaving.due:
            actions += self.leaving.on_deadline(now)
        if (left_out := self._throttle.summary(now)) is not None:
            actions.append(Log("warning", left_out))
        return [*actions, *self._orders.end(now)] if self.member.lost else actions

    def validate(self) -> None:
        """Assert the invariants."""
        self.clients.validate(self.tenants)
        self._saves.validate()
        clients = self.clients.by_incarnation
        for epoch, tenant in self.tenants.items():
            assert epoch not in self.discarded
            # workers whose ledgers came from elsewhere may not have come here yet
            inherited = tenant.ledgers.inherited or tenant.backup is not None
            assert inherited or tenant.ledgers.keys() <= clients.keys()
            tenant.validate(clients)
        assert self._parked_nbytes <= MAX_ALL_PARKED_NBYTES
        self.replication.validate()

    def tenant_of(self, epoch: int, client: Client | None = None) -> Tenant:
        """Return the shard of an epoch, for one of its clients."""
        tenant = self.tenants.get(epoch)
        if tenant is None:
            if epoch in self.discarded:
                raise self.discarded.error(epoch)
            if not self.tenants:
                raise JobError("this server has no shard yet; call worker.init(...) first")
            raise StaleEpochError(ours=max(self.tenants), theirs=epoch)
        if client is not None and epoch not in client.epochs:
            known = listed(sorted(map(str, client.epochs)), 4)
            raise NotJoinedError(f"this connection is for epoch {known}; say Hello with the ticket of {epoch}")
        if tenant.yielding and client is not None:
            raise DeposedError(job=tenant.name, generation=tenant.generation)
        return tenant

    # --- workers -------------------------------------------------------------------------------

    def _from_client(self, event: Received, message: Message) -> list[Action]:
        client = self.clients.find(event.peer)
        if client is None:
            return self._from_stranger(event, message)
        if type(message) not in client.may:
            check_client(message, client.hello.role)
        if isinstance(message, PUSHES):
            return self._push(client, self.tenant_of(message.epoch, client), message)
        if isinstance(message, PULLS):
            return self._pull(client, message)
        if isinstance(message, Load):
            return self._load(client, message)
        if isinstance(message, Withdraw):
            for epoch in client.epochs:
                self.tenants[epoch].withdraw(client.hello.incarnation, message.request)
            return []
        if isinstance(message, Leave):
            self.depart(client.hello.incarnation)
            return [Send(event.peer, Left())]
        if isinstance(message, Hello):
            return self._welcome(event, message)
        assert isinstance(message, Replicate)
        return self._follow(client, self.tenant_of(message.epoch, client), message)

    def _from_stranger(self, event: Received, message: Message) -> list[Action]:
        """Take what comes over a connection on which nobody has shown a ticket; but for that, keep nothing."""
        if self.replication.takes(event.peer):
            return self.replication.handle(event.peer, message, self._now)
        if isinstance(message, Hello):
            return self._welcome(event, message)
        if isinstance(message, Leave):
            return [Send(event.peer, Left())]  # the coordinator was faster to say that it has left
        self.clients.check_known(event.peer)
        if isinstance(message, (Load, *PUSHES, *PULLS)) and message.epoch in self.discarded:
            raise self.discarded.error(message.epoch)
        raise NotJoinedError(f"{type(message).__name__} before Hello")

    def _welcome(self, event: Received, hello: Hello) -> list[Action]:
        check_hello(hello, ("worker", "observer", "server"))
        tenant = self.tenant_of(hello.epoch)
        if hello.job != tenant.name:
            raise ProtocolError(f"epoch {hello.epoch} is not of the job {hello.job[:100]!r}")
        self.replication.check_role(tenant, hello.role)
        identity, member = self.member.identity, self.member
        welcome = Welcome(
            PROTOCOL_VERSION, identity.incarnation, identity.name, max(0, member.rank), 0.0, 0.0,
            member.cluster.num_workers, member.cluster.num_servers,
            proof=self.clients.welcome(event.peer, hello, tenant.assign.key, event.holder, tenant.ledgers.past),
        )  # fmt: skip
        client = self.clients.find(event.peer)
        assert client is not None
        known = [Send(event.peer, tenant.known_of(hello.incarnation))] if tenant.ledgers.recalled else []
        return [Send(event.peer, welcome), *known, *self.replication.welcomed(client, tenant)]

    def _follow(self, client: Client, tenant: Tenant, record: Replicate) -> list[Action]:
        answer, whole = self.replication.follow(client, tenant, record)
        return [*answer, *self._orders.report_ready(tenant, self._now)] if whole else answer

    def _load(self, client: Client, message: Load) -> list[Action]:
        tenant = self.tenant_of(message.epoch, client)
        if message.epoch not in client.loads:
            raise IdentityError("initial values are taken from the worker that the coordinator asks for them")
        shard = tenant.built()
        already = shard.loaded
        shard.dense.load(message.parts, message.payload)
        ack: list[Action] = [Send(client.peer, Ack(message.request, (), ()))]
        return ack if already or not shard.loaded else [*ack, *self._orders.report_ready(tenant, self._now)]

    def answer_held(self, client: Client, tenant: Tenant, message: AnyPush | AnyPull) -> list[Action]:
        """Answer a push that was applied a while ago, or a pull, with the values as they are now."""
        try:
            if isinstance(message, PULLS):
                return self._read(client, tenant, message)
            result = tenant.ledgers[client.hello.incarnation].recall(message.seq)
            assert result is not None
            return self._answer(client, tenant, tenant.ready(), message, result)
        except (MemoryError, PSError) as error:
            return self._failed(client.peer, message, error)

    def _push(self, client: Client, tenant: Tenant, message: AnyPush) -> list[Action]:
        """Check a push, see whether it is known, apply it, which forwards it to the backups, and answer."""
        shard = _guarded(tenant, message)
        ledger = tenant.ledgers[client.hello.incarnation]
        result = ledger.recall(message.seq)
        if result is None:
            note = partial(ledger.record, message.seq)
            result = shard.applies[type(message)](message, client, message.payload, note, self._now)
            tenant.counts["pushes"] += 1
            for buffer in message.payload:
                tenant.counts["pushed_nbytes"] += memoryview(buffer).nbytes
        else:
            tenant.counts["duplicates"] += 1
        if tenant.stream is not None and shard.dense.steps is None and tenant.stream.is_behind:
            answer = self.replication.forwarded(client, tenant, message, self._now)
        else:
            answer = self._answer(client, tenant, shard, message, result)
        if tenant.parked.awaited:
            answer += self.unpark(tenant, zip([index for index, _, _ in message.parts], result[0], strict=False))
        return answer

    def _answer(self, client: Client, tenant: Tenant, shard: Shard, message: AnyPush, result: Result) -> list[Action]:
        """Answer a push that is applied, with values if it asks for them."""
        try:
            if not message.reply:
                return [Send(client.peer, Ack(message.request, *result))]
            return [self._values(client, tenant, shard, message, message.reply_codec, result[1])]
        except MemoryError as error:  # it is applied: the worker asks for the answer again, by the same number
            short = as_error(self.member.identity.name, message, error)
            line = self._throttle.admit(f"cannot answer {client.name} yet: {short}", self._now, client.peer)
            return [Log("warning", line, job=tenant.name, peer=client.name, error=short.number)] if line else []

    def _pull(self, client: Client, message: AnyPull) -> list[Action]:
        tenant = self.tenant_of(message.epoch, client)
        tenant.ready()
        check_for_values(message.codec)
        who = client.hello.incarnation
        # a leader that was deposed, and has not heard of it, must not say that nobody is ahead of what it has
        if tenant.stream is not None and tenant.is_bounded and tenant.stream.ask(who, message.request):
            return self.replication.forwarded(client, tenant, message, self._now)
        if tenant.stream is not None and (last := tenant.stream.awaited(who)) is not None:
            return self._park(client, tenant, message, [(CONFIRMED, last)])  # behind the answers to its pushes
        return self._read(client, tenant, message)

    def _read(self, client: Client, tenant: Tenant, message: AnyPull) -> list[Action]:
        shard = tenant.ready()
        part = shard.part_of[type(message)]
        if part.is_available(message):
            return [self._pulled(client, tenant, shard, message)]
        return self._park(client, tenant, message, part.awaited(message))

    def _park(self, client: Client, tenant: Tenant, message: AnyPull, awaits: Sequence[Awaited]) -> list[Action]:
        """Keep a pull until its version has come. Where there is no room, who has most parked pays for it."""
        who, nbytes, parked = client.hello.incarnation, nbytes_of(message), tenant.parked
        parked.remove(who, message.request)  # asked again
        parked.check_room(who, nbytes)
        of_client, actions = parked.nbytes_for(who) + nbytes, list[Action]()
        while (in_all := self._parked_nbytes + nbytes) > MAX_ALL_PARKED_NBYTES:
            full = LimitError(what="bytes of all waiting pulls", got=in_all, limit=MAX_ALL_PARKED_NBYTES)
            fullest = max(self.tenants.values(), key=lambda tenant: tenant.parked.heaviest()).parked
            most, heaviest = fullest.heaviest()
            if of_client > most:  # of those before it is told, too
                return [*actions, *self.refuse(client.peer, message.request, full)]
            request = fullest.newest(heaviest)
            fullest.remove(heaviest, request)
            actions += self.refuse(self.clients.by_incarnation[heaviest].peer, request, full)
        parked.add(who, message, awaits, self._now)
        return actions

    @property
    def _parked_nbytes(self) -> int:
        return sum(tenant.parked.nbytes for tenant in self.tenants.values())

    def unpark(self, tenant: Tenant, versions: Iterable[Awaited]) -> list[Action]:
        """Answer the pulls that have waited for slices to be at these versions, unless they lack others."""
        actions: list[Action] = []
        shard = tenant.ready()
        for updated in versions:
            for who, message in tenant.parked.due(updated):
                client = self.clients.by_incarnation[who]
                try:
                    part = shard.part_of[type(message)]
                    if part.is_available(message):
                        actions.append(self._pulled(client, tenant, shard, message))
                    else:
                        tenant.parked.add(who, message, part.awaited(message), self._now)
                except (MemoryError, PSError) as error:
                    actions += self._failed(client.peer, message, error)
        return actions

    def _pulled(self, client: Client, tenant: Tenant, shard: Shard, message: AnyPull) -> Action:
        answer = self._values(client, tenant, shard, message, message.codec)
        tenant.counts["pulls"] += 1
        return answer

    def _values(
        self,
        client: Client,
        tenant: Tenant,
        shard: Shard,
        message: AnyPush | AnyPull,
        codec_text: str,
        staleness: Sequence[int] = (),
    ) -> Send:
        """Answer with values."""
        part = shard.part_of[type(message)]
        parts, versions, readers = part.find(message, client.puller, self._now)
        codec = None
        if codec_text != RAW:
            codec = part.codec(message, codec_text, sum([array.nbytes for pieces in parts for array in pieces]))
        # the same of a version for everybody, however often and in whatever order they ask
        seed = versions[0] << 32 | message.parts[0][0] if versions else 0
        out = shard.memory.send(codec, parts, seed, readers)
        if shard.dense.remembers_reads:  # not before: what cannot be sent has not been read
            shard.dense.note_read(message.parts, client.puller)
        for array in out.payload:
            tenant.counts["pulled_nbytes"] += array.nbytes
        text = RAW if codec is None else codec.spec
        return Send(
            client.peer, Values(message.request, text, versions, staleness, out.payload), out.readers, out.after
        )

    def depart(self, incarnation: bytes, evicted: int = 0) -> None:
        """A client has gone for good: nothing is taken of it any more."""
        self.clients.bar(incarnation, departed(evicted))
        self.forget(incarnation)

    def forget(self, incarnation: bytes) -> None:
        """Keep nothing of a client; it may come back."""
        self.clients.forget(incarnation)
        for tenant in self.tenants.values():
            tenant.forget(incarnation)

    def refuse(self, peer: Peer, request: int, error: PSError) -> list[Action]:
        """Answer with an error, count it, and log it unless there are too many."""
        self._num_refused += 1
        client = self.clients.find(peer)
        who = client.name if client else "the coordinator" if peer == COORDINATOR else f"peer {alias(peer)}"
        line = self._throttle.admit(f"refused a request of {who}: {error}", self._now, peer)
        answer = Send(peer, Error.of(request, error))
        said = Log("warning", line or "", peer=client.name if client else "", error=error.number)
        return [said, answer] if line else [answer]


def _guarded(tenant: Tenant, message: AnyPush) -> Shard:
    """Return the shard of a push; raise `PSError` where it is not ready, or is asked for what there is not."""
    shard = tenant.shard
    if shard is None or not shard.came.loaded or shard.dense.updates.broken is not None:
        shard = tenant.ready()
    if not message.examples:
        raise ProtocolError("a gradient is made of at least one example")
    if message.reply:
        if shard.dense.steps is not None:
            raise ProtocolError("a synchronous push is not applied before the commit; pull after it")
        if message.reply_codec != RAW:
            check_for_values(message.reply_codec)
    return shard
