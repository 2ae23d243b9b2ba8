"""The coordinator's orders to a server: which shards to keep, what to commit, and which members to forget."""

from __future__ import annotations

from collections.abc import Iterable

from zmqps.core.protocol import exits
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import COORDINATOR, Action, Exit, Log, Send
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.security.guard import check_welcome
from zmqps.core.server.builds import Builds, Built, build_error
from zmqps.core.server.hooks import Hook
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.parts import COMMITTED
from zmqps.core.server.tenant import Tenant
from zmqps.errors import BY_CODE, EvictedError, IdentityError, LimitError, ProtocolError, counted

#: Jobs at the same time; the coordinator accepts no more.
MAX_TENANTS = 256


class Orders:
    """Carries out the coordinator's orders, and reports to it."""

    def __init__(
        self,
        host: ServerKernel,  # their target: its jobs and clients
        builds: Builds,  # shards to build for those jobs
    ) -> None:
        self._host = host
        self._builds = builds
        host.handlers.orders.update(
            {
                m.Welcome: self._welcome,
                m.Assign: self._assign,
                m.Commit: self._commit,
                m.Discard: self._discard,
                m.Departed: self._depart,
                m.Shutdown: self._shut_down,
                m.Error: self._end,
            }
        )
        host.handlers.returned[m.Assign] = self._built

    def _built(self, assign: m.Assign, built: Built | Exception, now: float) -> list[Action]:
        """A shard is built, or could not be."""
        tenants = self._host.tenants
        tenant = tenants.get(assign.epoch)
        actions: list[Action] = []
        if tenant is None:
            pass  # of a job that was given up meanwhile
        elif isinstance(built, Exception):
            # repeated, because our answer was lost, it fails again
            actions += self._hooked(self._host.hooks.discarded, tenants.pop(assign.epoch), now)
            error = build_error(self._host.member.identity.name, assign, built)
            actions += self._host.refuse(COORDINATOR, assign.epoch, error)
        else:
            shard = tenant.shard = built.shard
            tenant.ledgers.restore(built.ledgers)
            actions += self._hooked(self._host.hooks.built, tenant, now)
            text = f"job {assign.name!r}: shard {shard.index} of {shard.placement.num_shards}, "
            text += f"{shard.placement.nbytes(shard.index) / 1e6:.1f} MB in {counted(len(shard.slices), 'slice')}"
            actions += [Log("info", text, job=assign.name), *self._host.report_ready(tenant)]
        return actions + self._builds.next()

    def _welcome(self, message: m.Welcome, now: float) -> list[Action]:
        member = self._host.member
        try:
            check_welcome(member.identity.job_secret, member.handshake.hello, message)
        except IdentityError as error:
            return [Log("error", str(error), error=error.number), Exit(exits.FAILED, str(error))]
        return [action for tenant in self._host.tenants.values() for action in self._report_step(tenant, now)]

    def _report_step(self, tenant: Tenant, now: float) -> list[Action]:
        """Report the last step of a shard to a coordinator that was away: it knows it, unless its journal is behind."""
        shard = tenant.shard
        if shard is None or not shard.loaded or shard.steps is None or not shard.version or tenant.follows:
            return []
        return self._tell(tenant, m.Committed(tenant.assign.epoch, shard.version - 1), now)

    def _tell(self, tenant: Tenant, message: m.Committed, now: float) -> list[Action]:
        """Report a step to the coordinator, once the required copies have it."""
        return [Send(COORDINATOR, message)] if tenant.gate is None else tenant.gate.committed(tenant, message, now)

    def _hooked(self, hooks: Iterable[Hook], tenant: Tenant, now: float) -> list[Action]:
        return [action for hook in hooks for action in hook(tenant, now)]

    def _assign(self, message: m.Assign, now: float) -> list[Action]:
        tenants = self._host.tenants
        if message.epoch in self._host.discarded:
            return [Send(COORDINATOR, m.Discarded(message.epoch))]  # the end of its job came first
        if message.epoch in tenants:
            return self._host.report_ready(tenants[message.epoch])  # a repeated Assign
        if len(tenants) >= MAX_TENANTS:
            raise LimitError(what="number of jobs on a server", got=len(tenants) + 1, limit=MAX_TENANTS)
        tenant = self._builds.new_tenant(message)
        opened = self._hooked(self._host.hooks.assigned, tenant, now)
        tenants[message.epoch] = tenant
        return [*self._builds.add(message), *opened]

    def _commit(self, message: m.Commit, now: float) -> list[Action]:
        tenant = self._host.tenant_of(message.epoch)
        shard = tenant.ready()
        steps = shard.dense.steps
        if steps is None:
            raise ProtocolError("this job is not synchronous, there is nothing to commit")
        if message.step > steps.version and shard.is_empty:  # and it may have learned of no step
            steps.version = message.step
        if message.step > steps.version:
            raise ProtocolError(f"commit of step {message.step}, but this shard is at {steps.version}")
        if message.step == steps.version:  # else the coordinator has not had our answer
            if message.measure:
                squares = steps.measure(message.step, message.contributors, message.examples)
                return [Send(COORDINATOR, m.Measured(message.epoch, message.step, squares))]
            left_out = bool(message.left_out)
            shard.commit(message.step, message.contributors, message.terms, message.examples, left_out=left_out)
        due = self._host.unpark(tenant, [(COMMITTED, steps.version)]) if tenant.parked.awaited else []
        told = self._tell(tenant, m.Committed(message.epoch, message.step), now)
        return [*told, *due, *self._hooked(self._host.hooks.committed, tenant, now)]

    def _discard(self, message: m.Discard, now: float) -> list[Action]:
        """Free a copy of a shard; the coordinator informs its workers."""
        discarded, clients = self._host.discarded, self._host.clients
        tenant = self._host.tenants.pop(message.epoch, None)
        actions: list[Action] = []
        if tenant is not None:
            actions += self._hooked(self._host.hooks.discarded, tenant, now)
            discarded.add(message.epoch, tenant.name, moved=bool(message.moved))
            error = discarded.error(message.epoch)
            peers = {who: clients.by_incarnation[who].peer for who, _ in tenant.parked}
            actions += [Send(peers[who], m.Error.of(request, error)) for who, request in tenant.parked]
            for incarnation in clients.drop(message.epoch):
                clients.forget(incarnation)  # but not its pushes: copies here of other shards know of them
            why = f"shard {tenant.assign.shard} is elsewhere now" if message.moved else "has ended"
            actions.append(Log("info", f"job {tenant.name!r}: {why}; what was kept of it is freed", job=tenant.name))
        discarded.add(message.epoch, moved=bool(message.moved))
        return [*actions, Send(COORDINATOR, m.Discarded(message.epoch))]

    def _depart(self, message: m.Departed, now: float) -> list[Action]:
        self._host.depart(message.incarnation, message.evicted)
        return [Send(COORDINATOR, m.Forgotten(message.incarnation))]

    def _shut_down(self, message: m.Shutdown, now: float) -> list[Action]:
        return [*self._host.member.leave(DepartureCause.FINISHED, now), Exit(exits.OK, message.reason)]

    def _end(self, message: m.Error, now: float) -> list[Action]:
        evicted = message.code == EvictedError.code
        number = BY_CODE[message.code].number if message.code in BY_CODE else ""
        code = exits.EVICTED if evicted else exits.FAILED
        return [Log("error", message.text, error=number), Exit(code, message.text)]
