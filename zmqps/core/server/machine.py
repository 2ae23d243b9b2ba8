"""The server's machine: joins, takes what happens, and answers workers; what the coordinator says is in `orders.py`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from zmqps.core.node.member import Identity, Member
from zmqps.core.node.throttle import Throttle
from zmqps.core.protocol import exits
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.encoding import RAW, check_for_values
from zmqps.core.protocol.events import (
    COORDINATOR,
    Action,
    Connected,
    Disconnected,
    Exit,
    Log,
    Looked,
    Peer,
    Received,
    Returned,
    Run,
    Send,
    Stop,
    Undecodable,
    Unreachable,
)
from zmqps.core.protocol.messages.hello import check_hello
from zmqps.core.protocol.messages.large import Large
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.security import roles
from zmqps.core.protocol.security.keys import alias
from zmqps.core.server.clients import Client, Clients, departed
from zmqps.core.server.discarded import DiscardedJobs
from zmqps.core.server.hooks import Handlers, Hooks
from zmqps.core.server.ledger import Result
from zmqps.core.server.parked import MAX_ALL_PARKED_NBYTES, nbytes_of
from zmqps.core.server.parts import PULLS, PUSHES, AnyPull, AnyPush, Awaited
from zmqps.core.server.shard import Shard
from zmqps.core.server.shortage import as_error
from zmqps.core.server.tenant import Tenant
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

#: Events of a connection, whichever end opened it.
OF_CONNECTIONS = (Connected, Disconnected, Looked, Unreachable)


class ServerKernel:
    """A server process without its sockets.

    With `Orders` it trains, and no more; `zmqps.core.server.extensions.ServerMachine` is what servers run.
    """

    def __init__(
        self,
        identity: Identity,  # of this server; ``endpoint`` is where workers reach it
        coordinator: str,  # the coordinator's endpoint
    ) -> None:
        self.member = Member(identity, coordinator, self.counters)
        self.tenants: dict[int, Tenant] = {}  # by epoch
        self.clients = Clients(keyed=identity.keyed)
        self.discarded = DiscardedJobs()
        self.now = 0.0  # of the event being handled
        self.hooks = Hooks()
        self.handlers = Handlers()
        self.handlers.requests.update(
            {m.Push: self.push, m.Pull: self.pull, m.Load: self.load, m.Withdraw: self._withdraw, m.Leave: self._leave}
        )
        self.handlers.returned[Large] = self._opened
        self.handlers.events.update(
            {
                Stop: self._stop,
                Undecodable: self._undecodable,
                Unreachable: self._unreachable,
                Disconnected: self._disconnected,
                Connected: self._connected,
                Looked: self._looked,
                Returned: self._returned,
            }
        )
        self._num_refused = 0
        self._throttle = Throttle()
        self._unread: deque[m.Message] = deque()  # a large message that is being read, and what came behind it
        self._ending = False

    @property
    def title(self) -> str:
        """The name of this server in errors."""
        return self.member.title

    def start(self, now: float) -> list[Action]:
        """Begin to join."""
        identity = self.member.identity
        return [Log("info", f"server {identity.name} at {identity.endpoint}"), *self.member.start(now)]

    def counters(self) -> Mapping[str, Any]:
        """Return the counters shown in the status."""
        of_jobs = {}
        for epoch, tenant in self.tenants.items():
            found = of_jobs[str(epoch)] = tenant.counters(self.now)
            for counted in self.hooks.counted:
                found |= counted(tenant, self.now)
        return {"refused": self._num_refused, "clients": len(self.clients), "jobs": of_jobs}

    def handle(self, event: Any, now: float) -> list[Action]:
        """Take an event; every failure becomes an `Error` to its sender, never an exception."""
        self.now = now
        if type(event) is Received:
            message = event.message
            if event.peer == COORDINATOR:
                put_off = self._in_turn(message, now)
                return self._from_coordinator(message) if put_off is None else put_off
            try:
                return self.from_client(event, message)
            except (MemoryError, PSError) as error:
                return self.failed(event.peer, message, error)
        take = self.handlers.links.get(event.peer) if isinstance(event, OF_CONNECTIONS) else None
        return (take or self.handlers.events[type(event)])(event, now)

    def _stop(self, event: Stop, now: float) -> list[Action]:
        return [*self.member.leave(DepartureCause.CLOSED, now), Exit(exits.OK, event.reason)]

    def _undecodable(self, event: Undecodable, now: float) -> list[Action]:
        return self.refuse(event.peer, 0, event.error)

    def _returned(self, event: Returned, now: float) -> list[Action]:
        return self.handlers.returned[type(event.tag)](event.tag, event.value, now)

    def _connected(self, event: Connected, now: float) -> list[Action]:
        return self.member.on_connected(now)

    def _unreachable(self, event: Unreachable, now: float) -> list[Action]:
        if event.peer == COORDINATOR:
            return [Exit(exits.FAILED, str(event.error))]
        return self._disconnected(event, now)

    def _disconnected(self, event: Disconnected | Unreachable, now: float) -> list[Action]:
        """A client's connection has ended: if it comes back it asks again for what it has not got."""
        if (client := self.clients.find(event.peer)) is not None:
            for epoch in client.epochs:
                self.tenants[epoch].parked.drop(client.hello.incarnation)
        return []

    def _looked(self, event: Looked, now: float) -> list[Action]:
        return self.member.looked(event.why, now) if event.peer == COORDINATOR else []

    # --- the coordinator ------------------------------------------------------------------------

    def _in_turn(self, message: m.Message, now: float) -> list[Action] | None:
        """Read a large message in the background, and defer what follows; None: handle it now."""
        if not self._unread and not isinstance(message, Large):
            return None
        self.member.heard_at = now
        self._unread.append(message)
        if isinstance(message, Large) and len(self._unread) == 1:
            return [Run(message, message.opened, message.nbytes)]
        return []

    def _read_on(self) -> tuple[list[m.Message], list[Action]]:
        """The first large message is read: return those behind it whose turn is now, and read the next large one."""
        self._unread.popleft()
        ready: list[m.Message] = []
        while self._unread:
            if isinstance(message := self._unread[0], Large):
                return ready, [Run(message, message.opened, message.nbytes)]
            ready.append(self._unread.popleft())
        return ready, []

    def _from_coordinator(self, message: m.Message) -> list[Action]:
        try:
            roles.check_client(message, roles.COORDINATOR)
            actions = self.member.on_message(message, self.now)
            if self.member.restarted:
                return [*actions, *self.end(self.now)]
            take = self.handlers.orders.get(type(message))  # what is not there concerns the member alone
            return actions if take is None else [*actions, *take(message, self.now)]
        except (MemoryError, PSError) as error:
            return self.failed(COORDINATOR, message, error)

    def end(self, now: float) -> list[Action]:
        """The coordinator is lost: end as well, and inform the clients."""
        if self._ending:
            return []
        self._ending = True
        member = self.member
        again = "start it again to join this one" if member.restarted else "start the cluster again"
        error = member.loss(f"{member.title} has ended with it, and its values are lost; {again}", now)
        told, clients = m.Error.of(0, error), self.clients.by_incarnation.values()
        farewells: list[Action] = [Send(client.peer, told) for client in clients]
        return [*farewells, Log("error", str(error), error=error.number), Exit(exits.COORDINATOR_LOST, str(error))]

    def _opened(self, large: Large, found: m.Message | Exception, now: float) -> list[Action]:
        """A large message of the coordinator is read: take it, and what came behind it."""
        behind, actions = self._read_on()
        if isinstance(found, PSError):
            actions += self.refuse(COORDINATOR, 0, found)
        elif isinstance(found, Exception):
            actions += self.refuse(COORDINATOR, 0, JobError(f"{self.title} cannot read a message: {found!r:.200}"))
        else:
            behind.insert(0, found)
        return [*(action for message in behind for action in self._from_coordinator(message)), *actions]

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        dues = [self.member.due, *[timer.due for timer in self.hooks.timers]]
        return min([due for due in dues if due is not None], default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Heartbeats, what extensions have to do, and the end when the coordinator is lost."""
        self.now = now
        actions = self.member.on_deadline(now)
        for timer in self.hooks.timers:
            if timer.due is not None and now >= timer.due:
                actions += timer.on_deadline(now)
        if (left_out := self._throttle.summary(now)) is not None:
            actions.append(Log("warning", left_out))
        return [*actions, *self.end(now)] if self.member.lost else actions

    def validate(self) -> None:
        """Assert the invariants."""
        self.clients.validate(self.tenants)
        clients = self.clients.by_incarnation
        for epoch, tenant in self.tenants.items():
            assert epoch not in self.discarded
            # workers whose ledgers came from elsewhere may not have come here yet
            assert tenant.ledgers.inherited or tenant.follows or tenant.ledgers.keys() <= clients.keys()
            tenant.validate(clients)
        assert self._parked_nbytes <= MAX_ALL_PARKED_NBYTES
        for validated in self.hooks.validated:
            validated()

    # --- jobs ----------------------------------------------------------------------------------

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

    def report_ready(self, tenant: Tenant) -> list[Action]:
        """Tell the coordinator that a shard is there, and whether it has its values."""
        if tenant.shard is None:
            return []
        ready = Send(COORDINATOR, m.Ready(tenant.assign.epoch, int(tenant.shard.loaded)))
        if not tenant.shard.loaded:
            return [ready]
        return [ready, *(action for loaded in self.hooks.loaded for action in loaded(tenant, self.now))]

    # --- requests ------------------------------------------------------------------------------

    def from_client(self, event: Received, message: m.Message) -> list[Action]:
        """Handle a message of a peer that is not the coordinator.

        Raises
        ------
        PSError, MemoryError
            It cannot be done, and has changed nothing.
        """
        client = self.clients.find(event.peer)
        if client is None:
            return self._from_stranger(event, message)
        if type(message) not in client.may:
            roles.check_client(message, client.hello.role)
        if (take := self.handlers.requests.get(type(message))) is not None:
            return take(client, message)
        if isinstance(message, m.Hello):
            return self._welcome(event, message)
        raise ProtocolError(f"this server takes no {type(message).__name__}")

    def _from_stranger(self, event: Received, message: m.Message) -> list[Action]:
        """Handle a message on a connection that has shown no ticket; unless it is one, keep nothing."""
        if (take := self.handlers.links.get(event.peer)) is not None:
            return take(event, self.now)
        if isinstance(message, m.Hello):
            return self._welcome(event, message)
        if isinstance(message, m.Leave):
            return [Send(event.peer, m.Left())]  # the coordinator was faster to say that it has left
        self.clients.check_known(event.peer)
        if isinstance(message, (m.Load, *PUSHES, *PULLS)) and message.epoch in self.discarded:
            raise self.discarded.error(message.epoch)
        raise NotJoinedError(f"{type(message).__name__} before Hello")

    def _welcome(self, event: Received, hello: m.Hello) -> list[Action]:
        check_hello(hello, ("worker", "observer", "server"))
        tenant = self.tenant_of(hello.epoch)
        if hello.job != tenant.name:
            raise ProtocolError(f"epoch {hello.epoch} is not of the job {hello.job[:100]!r}")
        tenant.check_role(hello.role)
        identity, member = self.member.identity, self.member
        welcome = m.Welcome(
            m.PROTOCOL_VERSION, identity.incarnation, identity.name, max(0, member.rank), 0.0, 0.0,
            member.cluster.num_workers, member.cluster.num_servers,
            proof=self.clients.welcome(event.peer, hello, tenant.assign.key, event.holder, tenant.ledgers.past),
        )  # fmt: skip
        client = self.clients.find(event.peer)
        assert client is not None
        known = [Send(event.peer, tenant.known_of(hello.incarnation))] if tenant.ledgers.recalled else []
        more = [action for welcomed in self.hooks.welcomed for action in welcomed(client, tenant)]
        return [Send(event.peer, welcome), *known, *more]

    def _withdraw(self, client: Client, message: m.Withdraw) -> list[Action]:
        for epoch in client.epochs:
            self.tenants[epoch].withdraw(client.hello.incarnation, message.request)
        return []

    def _leave(self, client: Client, message: m.Leave) -> list[Action]:
        self.depart(client.hello.incarnation)
        return [Send(client.peer, m.Left())]

    def load(self, client: Client, message: m.Load) -> list[Action]:
        tenant = self.tenant_of(message.epoch, client)
        if message.epoch not in client.loads:
            raise IdentityError("initial values are taken from the worker that the coordinator asks for them")
        shard = tenant.built()
        already = shard.loaded
        shard.dense.load(message.parts, message.payload)
        ack: list[Action] = [Send(client.peer, m.Ack(message.request, (), ()))]
        return ack if already or not shard.loaded else [*ack, *self.report_ready(tenant)]

    def push(self, client: Client, message: AnyPush) -> list[Action]:
        """Check a push, see whether it is known, apply it, and answer."""
        tenant = self.tenant_of(message.epoch, client)
        shard = shard_for(tenant, message)
        ledger = tenant.ledgers[client.hello.incarnation]
        result = ledger.look_up(message.seq)
        if result is None:
            note = partial(ledger.record, message.seq)
            result = shard.takes[type(message)](message, client, message.payload, note, self.now)
            tenant.counts["pushes"] += 1
            for buffer in message.payload:
                tenant.counts["pushed_nbytes"] += memoryview(buffer).nbytes
        else:
            tenant.counts["duplicates"] += 1
        answer = None if tenant.gate is None else tenant.gate.pushed(client, tenant, message, self.now)
        if answer is None:
            answer = self._answer(client, tenant, shard, message, result)
        if tenant.parked.awaited:
            answer += self.unpark(tenant, zip([index for index, _, _ in message.parts], result[0], strict=False))
        return answer

    def pull(self, client: Client, message: AnyPull) -> list[Action]:
        """Answer a pull, now or when its version has come."""
        tenant = self.tenant_of(message.epoch, client)
        tenant.ready()
        check_for_values(message.codec)
        if tenant.gate is not None and (held := tenant.gate.asked(client, tenant, message, self.now)) is not None:
            return held
        return self._read(client, tenant, message)

    def answer_held(self, client: Client, tenant: Tenant, message: AnyPush | AnyPull) -> list[Action]:
        """Answer a push that was applied a while ago, or a pull, with the values as they are now."""
        try:
            if isinstance(message, PULLS):
                return self._read(client, tenant, message)
            result = tenant.ledgers[client.hello.incarnation].look_up(message.seq)
            assert result is not None
            return self._answer(client, tenant, tenant.ready(), message, result)
        except (MemoryError, PSError) as error:
            return self.failed(client.peer, message, error)

    def _answer(self, client: Client, tenant: Tenant, shard: Shard, message: AnyPush, result: Result) -> list[Action]:
        """Answer a push that is applied, with values if it asks for them."""
        try:
            if not message.reply:
                return [Send(client.peer, m.Ack(message.request, *result))]
            return [self._values(client, tenant, shard, message, message.reply_codec, result[1])]
        except MemoryError as error:  # it is applied: the worker asks for the answer again, by the same number
            short = as_error(self.member.identity.name, message, error)
            line = self._throttle.admit(f"cannot answer {client.name} yet: {short}", self.now, client.peer)
            return [Log("warning", line, job=tenant.name, peer=client.name, error=short.number)] if line else []

    def _read(self, client: Client, tenant: Tenant, message: AnyPull) -> list[Action]:
        shard = tenant.ready()
        part = shard.part_of[type(message)]
        if part.is_available(message):
            return [self._pulled(client, tenant, shard, message)]
        return self.park(client, tenant, message, part.awaited(message))

    def park(self, client: Client, tenant: Tenant, message: AnyPull, awaits: Sequence[Awaited]) -> list[Action]:
        """Park a pull until its version has arrived. If there is no room, the client with the most loses one."""
        who, nbytes, parked = client.hello.incarnation, nbytes_of(message), tenant.parked
        parked.remove(who, message.request)  # asked again
        parked.check_room(who, nbytes)
        of_client, actions = parked.nbytes_for(who) + nbytes, list[Action]()
        while (in_all := self._parked_nbytes + nbytes) > MAX_ALL_PARKED_NBYTES:
            full = LimitError(what="bytes of all waiting pulls", got=in_all, limit=MAX_ALL_PARKED_NBYTES)
            fullest = max(self.tenants.values(), key=lambda tenant: tenant.parked.heaviest()).parked
            most, heaviest = fullest.heaviest()
            if of_client > most:  # of those before it is sent, too
                return [*actions, *self.refuse(client.peer, message.request, full)]
            request = fullest.newest(heaviest)
            fullest.remove(heaviest, request)
            actions += self.refuse(self.clients.by_incarnation[heaviest].peer, request, full)
        parked.add(who, message, nbytes, awaits, self.now)
        return actions

    @property
    def _parked_nbytes(self) -> int:
        return sum([tenant.parked.nbytes for tenant in self.tenants.values()])

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
                        tenant.parked.add(who, message, nbytes_of(message), part.awaited(message), self.now)
                except (MemoryError, PSError) as error:
                    actions += self.failed(client.peer, message, error)
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
        parts, versions, readers = part.find(message, client.puller, self.now)
        codec = None
        if codec_text != RAW:
            codec = part.codec(message, codec_text, sum([array.nbytes for pieces in parts for array in pieces]))
        # the same for a version whichever client asks, however often and in whatever order
        seed = versions[0] << 32 | message.parts[0][0] if versions else 0
        out = shard.memory.send(codec, parts, seed, readers)
        if shard.dense.remembers_reads:  # not before: what cannot be sent has not been read
            shard.dense.note_read(message.parts, client.puller)
        for array in out.payload:
            tenant.counts["pulled_nbytes"] += array.nbytes
        text = RAW if codec is None else codec.spec
        return Send(
            client.peer, m.Values(message.request, text, versions, staleness, out.payload), out.readers, out.after
        )

    def depart(self, incarnation: bytes, evicted: int = 0) -> None:
        """A client has left for good: its messages are ignored from now on."""
        self.clients.bar(incarnation, departed(evicted))
        self.forget(incarnation)

    def forget(self, incarnation: bytes) -> None:
        """Forget a client; it may come back."""
        self.clients.forget(incarnation)
        for tenant in self.tenants.values():
            tenant.forget(incarnation)

    def refuse(self, peer: Peer, request: int, error: PSError) -> list[Action]:
        """Answer with an error, count it, and log it unless there are too many."""
        self._num_refused += 1
        client = self.clients.find(peer)
        who = client.name if client else "the coordinator" if peer == COORDINATOR else f"peer {alias(peer)}"
        line = self._throttle.admit(f"refused a request of {who}: {error}", self.now, peer)
        answer = Send(peer, m.Error.of(request, error))
        said = Log("warning", line or "", peer=client.name if client else "", error=error.number)
        return [said, answer] if line else [answer]

    def failed(self, peer: Peer, message: m.Message, error: Exception) -> list[Action]:
        """Answer a request that has failed, and changed nothing."""
        of_leader = isinstance(message, m.Hello) and message.role == "server"
        # what is taken, and is not a request, is about a copy: the error carries the copy's number
        taken = peer == COORDINATOR or type(message) in self.handlers.requests
        of_copy = of_leader or (taken and not hasattr(message, "request"))
        number = getattr(message, "epoch" if of_copy else "request", 0)
        if isinstance(error, MemoryError):
            error = as_error(self.member.identity.name, message, error)
        assert isinstance(error, PSError)
        if of_leader and isinstance(error, JobError | StaleEpochError):
            return [
                Send(peer, m.Error.of(number, error))
            ]  # it heard of this copy before this server did, and asks again
        if isinstance(error, DeposedError) and not of_copy:  # a shard has moved: no peer is at fault
            return [Send(peer, m.Error.of(number, error))]
        actions = self.refuse(peer, number, error)
        tenant = self.tenants.get(getattr(message, "epoch", 0))
        if isinstance(error, ShardBrokenError) and peer != COORDINATOR and tenant is not None:
            if not tenant.counts["broken"]:  # the coordinator logs it, too: one line is enough
                actions.append(Send(COORDINATOR, m.Error.of(tenant.assign.epoch, error)))
            tenant.counts["broken"] = 1
        return actions


def shard_for(tenant: Tenant, message: AnyPush) -> Shard:
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
