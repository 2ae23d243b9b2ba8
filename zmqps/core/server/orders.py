"""What the coordinator tells a server: which shards to keep, what to commit, and whom to forget."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from zmqps.core.node.member import Member
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import COORDINATOR, Action, Exit, Log, Peer, Run, Send
from zmqps.core.protocol.messages import (
    Assign,
    Commit,
    Committed,
    Cut,
    Departed,
    Discard,
    Discarded,
    Draining,
    Error,
    FileAnswer,
    Forgotten,
    Measured,
    Message,
    Promote,
    Ready,
    Replicas,
    Save,
    Shutdown,
    Unsave,
    Welcome,
    Yield,
)
from zmqps.core.protocol.messages.large import Large
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.security import roles
from zmqps.core.protocol.security.guard import check_welcome
from zmqps.core.server.builds import Builds, Built, build_error
from zmqps.core.server.clients import Clients
from zmqps.core.server.discarded import DiscardedJobs
from zmqps.core.server.leaving import Leaving
from zmqps.core.server.parts import COMMITTED, Awaited
from zmqps.core.server.recut import cut
from zmqps.core.server.relay import FileRelay
from zmqps.core.server.replicas.replication import ReplicaStreams
from zmqps.core.server.saves import Saves
from zmqps.core.server.tenant import Tenant
from zmqps.errors import BY_CODE, EvictedError, IdentityError, LimitError, ProtocolError, PSError, counted

#: Jobs at the same time; the coordinator accepts no more.
MAX_TENANTS = 256


class OrdersHost(Protocol):
    """What orders need of their machine."""

    member: Member
    tenants: dict[int, Tenant]
    clients: Clients
    discarded: DiscardedJobs
    relay: FileRelay
    replication: ReplicaStreams
    leaving: Leaving

    def tenant_of(self, epoch: int) -> Tenant:
        """Return the job of an epoch, or raise why it is not here."""

    def unpark(self, tenant: Tenant, versions: Iterable[Awaited]) -> list[Action]:
        """Answer the pulls that have waited for these versions."""

    def refuse(self, peer: Peer, request: int, error: PSError) -> list[Action]:
        """Answer with an error."""

    def depart(self, incarnation: bytes, evicted: int = 0) -> None:
        """A client has gone for good."""


class Orders:
    """Carries out what the coordinator says, reports to it, and ends with it."""

    def __init__(
        self,
        host: OrdersHost,  # the machine: its jobs and clients
        builds: Builds,  # shards to build for those jobs
        saves: Saves,  # writes shards for checkpoints
    ) -> None:
        self._host = host
        self._builds = builds
        self._saves = saves
        self._ending = False
        self._unread: deque[Message] = deque()  # a large message that is being read, and what came behind it

    def in_turn(self, message: Message, now: float) -> list[Action] | None:
        """Read a large message aside, and let what comes behind one wait; None: this one's turn is now."""
        is_large = isinstance(message, Large)
        if not is_large and not self._unread:
            return None
        self._host.member.heard_at = now
        self._unread.append(message)
        return (
            [Run(message, message.opened, message.nbytes)]
            if isinstance(message, Large) and len(self._unread) == 1
            else []
        )

    def opened(self) -> tuple[list[Message], list[Action]]:
        """The first large message is read: return those behind it whose turn is now, and read the next large one."""
        self._unread.popleft()
        ready: list[Message] = []
        while self._unread:
            if isinstance(message := self._unread[0], Large):
                return ready, [Run(message, message.opened, message.nbytes)]
            ready.append(self._unread.popleft())
        return ready, []

    def handle(self, message: Message, now: float) -> list[Action]:
        """Take a message of the coordinator; what is not in `HANDLERS` concerns the member alone.

        Raises
        ------
        PSError, MemoryError
            It cannot be done, and has changed nothing.
        """
        roles.check_client(message, roles.COORDINATOR)
        actions = self._host.member.on_message(message, now)
        if self._host.member.restarted:
            return [*actions, *self.end(now)]
        take = HANDLERS.get(type(message))
        return actions if take is None else [*actions, *take(self, message, now)]

    def end(self, now: float) -> list[Action]:
        """The coordinator is gone: end as well, and tell the clients."""
        if self._ending:
            return []
        self._ending = True
        member = self._host.member
        again = "start it again to join this one" if member.restarted else "start the cluster again"
        error = member.loss(f"{member.title} has ended with it, and its values are gone; {again}", now)
        told, clients = Error.of(0, error), self._host.clients.by_incarnation.values()
        farewells: list[Action] = [Send(client.peer, told) for client in clients]
        return [*farewells, Log("error", str(error), error=error.number), Exit(exits.COORDINATOR_LOST, str(error))]

    def built(self, assign: Assign, built: Built | Exception, now: float) -> list[Action]:
        """A shard is built, or could not be."""
        tenants = self._host.tenants
        tenant = tenants.get(assign.epoch)
        actions: list[Action] = []
        if tenant is None:
            pass  # of a job that was given up meanwhile
        elif isinstance(built, Exception):
            # asked again, because our answer was lost, it fails again
            actions += self._host.replication.discarded(tenants.pop(assign.epoch))
            error = build_error(self._host.member.identity.name, assign, built)
            actions += self._host.refuse(COORDINATOR, assign.epoch, error)
        else:
            shard = tenant.shard = built.shard
            tenant.ledgers.recall(built.ledgers)
            actions += self._host.replication.built(tenant)
            text = f"job {assign.name!r}: shard {shard.index} of {shard.placement.num_shards}, "
            text += f"{shard.placement.nbytes(shard.index) / 1e6:.1f} MB in {counted(len(shard.slices), 'slice')}"
            actions += [Log("info", text, job=assign.name), *self.report_ready(tenant, now)]
        return actions + self._builds.next()

    def report_ready(self, tenant: Tenant, now: float) -> list[Action]:
        """Tell the coordinator that a shard is there, and whether it has its values; then its backups are filled."""
        if tenant.shard is None:
            return []
        ready = Send(COORDINATOR, Ready(tenant.assign.epoch, int(tenant.shard.loaded)))
        return [ready, *self._host.replication.loaded(tenant, now)] if tenant.shard.loaded else [ready]

    def _welcome(self, message: Welcome, now: float) -> list[Action]:
        member = self._host.member
        try:
            check_welcome(member.identity.job_secret, member.handshake.hello, message)
        except IdentityError as error:
            return [Log("error", str(error), error=error.number), Exit(exits.FAILED, str(error))]
        return [action for tenant in self._host.tenants.values() for action in self._report_step(tenant, now)]

    def _report_step(self, tenant: Tenant, now: float) -> list[Action]:
        """Tell a coordinator that was away the last step of a shard: it knows of it, unless its journal is behind."""
        shard = tenant.shard
        if shard is None or not shard.loaded or shard.steps is None or not shard.version or tenant.backup is not None:
            return []
        last = Committed(tenant.assign.epoch, shard.version - 1)
        if tenant.stream is not None:  # not before its backups have it
            return self._host.replication.committed(tenant, last, now)
        return [Send(COORDINATOR, last)]

    def _assign(self, message: Assign, now: float) -> list[Action]:
        tenants = self._host.tenants
        if message.epoch in self._host.discarded:
            return [Send(COORDINATOR, Discarded(message.epoch))]  # it was overtaken by the end of its job
        if message.epoch in tenants:
            return self.report_ready(tenants[message.epoch], now)  # a repeated Assign
        if len(tenants) >= MAX_TENANTS:
            raise LimitError(what="number of jobs on a server", got=len(tenants) + 1, limit=MAX_TENANTS)
        tenant = self._builds.new_tenant(message)
        opened = self._host.replication.assigned(tenant, now)
        tenants[message.epoch] = tenant
        return [*self._builds.add(message), *opened]

    def _commit(self, message: Commit, now: float) -> list[Action]:
        tenant = self._host.tenant_of(message.epoch)
        shard = tenant.ready()
        steps = shard.dense.steps
        if steps is None:
            raise ProtocolError("this job is not synchronous, there is nothing to commit")
        if message.step > steps.version and shard.is_empty:  # and it may have been told of no step
            steps.version = message.step
        if message.step > steps.version:
            raise ProtocolError(f"commit of step {message.step}, but this shard is at {steps.version}")
        if message.step == steps.version:  # else the coordinator has not had our answer
            if message.measure:
                squares = steps.measure(message.step, message.contributors, message.examples)
                return [Send(COORDINATOR, Measured(message.epoch, message.step, squares))]
            left_out = bool(message.left_out)
            shard.commit(message.step, message.contributors, message.terms, message.examples, left_out=left_out)
        due = self._host.unpark(tenant, [(COMMITTED, steps.version)]) if tenant.parked.awaited else []
        committed, saved = Committed(message.epoch, message.step), self._saves.committed(tenant, now)
        if tenant.stream is not None:
            return [*due, *self._host.replication.committed(tenant, committed, now), *saved]
        return [Send(COORDINATOR, committed), *due, *saved]

    def _discard(self, message: Discard, now: float) -> list[Action]:
        """Free a copy of a shard; its workers are told by the coordinator."""
        discarded, clients = self._host.discarded, self._host.clients
        tenant = self._host.tenants.pop(message.epoch, None)
        actions: list[Action] = []
        if tenant is not None:
            actions += self._host.replication.discarded(tenant)
            discarded.add(message.epoch, tenant.name, moved=bool(message.moved))
            error = discarded.error(message.epoch)
            peers = {who: clients.by_incarnation[who].peer for who, _ in tenant.parked}
            actions += [Send(peers[who], Error.of(request, error)) for who, request in tenant.parked]
            for incarnation in clients.drop(message.epoch):
                clients.forget(incarnation)  # but not its pushes: other copies here, of other shards, know of them
            actions += self._saves.end(message.epoch)
            why = f"shard {tenant.assign.shard} is elsewhere now" if message.moved else "has ended"
            actions.append(Log("info", f"job {tenant.name!r}: {why}; what was kept of it is freed", job=tenant.name))
        discarded.add(message.epoch, moved=bool(message.moved))
        return [*actions, Send(COORDINATOR, Discarded(message.epoch))]

    def _replicas(self, message: Replicas, now: float) -> list[Action]:
        return self._host.replication.retarget(message, now)

    def _promote(self, message: Promote, now: float) -> list[Action]:
        return self._host.replication.promote(message, now)

    def _yield(self, message: Yield, now: float) -> list[Action]:
        return self._host.replication.give_up_place(message, now)

    def _cut(self, message: Cut, now: float) -> list[Action]:
        tenant = self._host.tenant_of(message.epoch)
        cut(tenant, [self._host.tenant_of(epoch) for epoch in message.parents], message.version)
        return self.report_ready(tenant, now)

    def _draining(self, message: Draining, now: float) -> list[Action]:
        return self._host.leaving.told(message, now)

    def _save(self, message: Save, now: float) -> list[Action]:
        return self._saves.ask(message, self._host.tenants.get(message.epoch), now)

    def _file(self, message: FileAnswer, now: float) -> list[Action]:
        return self._host.relay.answer(message)

    def _unsave(self, message: Unsave, now: float) -> list[Action]:
        return self._saves.end(message.epoch, message.number)

    def _depart(self, message: Departed, now: float) -> list[Action]:
        self._host.depart(message.incarnation, message.evicted)
        return [Send(COORDINATOR, Forgotten(message.incarnation))]

    def _shut_down(self, message: Shutdown, now: float) -> list[Action]:
        return [*self._host.member.leave(DepartureCause.FINISHED, now), Exit(exits.OK, message.reason)]

    def _end(self, message: Error, now: float) -> list[Action]:
        evicted = message.code == EvictedError.code
        number = BY_CODE[message.code].number if message.code in BY_CODE else ""
        code = exits.EVICTED if evicted else exits.FAILED
        return [Log("error", message.text, error=number), Exit(code, message.text)]


#: What is done at each message.
HANDLERS: dict[type[Message], Callable[[Orders, Any, float], list[Action]]] = {
    Welcome: Orders._welcome,
    Assign: Orders._assign,
    Commit: Orders._commit,
    Discard: Orders._discard,
    Replicas: Orders._replicas,
    Promote: Orders._promote,
    Yield: Orders._yield,
    Cut: Orders._cut,
    Draining: Orders._draining,
    Save: Orders._save,
    FileAnswer: Orders._file,
    Unsave: Orders._unsave,
    Departed: Orders._depart,
    Shutdown: Orders._shut_down,
    Error: Orders._end,
}
