"""The whole server: the extensions of the kernel, which are registered here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.node.member import Identity
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action, Connected, Stop
from zmqps.core.server.builds import Builds, Room
from zmqps.core.server.clients import Client
from zmqps.core.server.leaving import Leaving
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.measured import in_all
from zmqps.core.server.orders import Orders
from zmqps.core.server.recut import await_parents, cut
from zmqps.core.server.replicas.replication import ReplicaStreams
from zmqps.core.server.saves import FileRelay, FileRequest, Files, Saves, Saving, restore
from zmqps.core.server.shard import Shard


class ServerMachine(ServerKernel):
    """A server as it is run: with tables and copies, checkpoints, and draining."""

    def __init__(
        self,
        identity: Identity,  # this and the next: as of `ServerKernel`
        coordinator: str,
        # builds a shard: ``make_shard(job, placement, index, room)``, one at a time. Its errors are reported to the
        # coordinator, and by it to the worker that started the job
        make_shard: Callable[[JobSpec, Placement, int, Room], Shard],
        available: Callable[[], int] = lambda: 1 << 62,  # returns the available bytes of memory on this host
        files: Files | None = None,  # where checkpoints are written and read; None: nowhere
    ) -> None:
        super().__init__(identity, coordinator)
        self.orders = Orders(self, Builds(self.tenants, make_shard, available, partial(begin_from, files)))
        self.replication = replication = ReplicaStreams(self)
        self.saves = saves = Saves(files)
        self.relay = FileRelay()
        self.leaving = Leaving(self.member)
        hooks, handlers = self.hooks, self.handlers
        handlers.orders.update(
            {
                m.Lead: replication.lead,
                m.Yield: replication.give_up_place,
                m.Cut: self._cut,
                m.Draining: self.leaving.told,
                m.Save: self._save,
                m.Unsave: self._unsave,
                m.FileAnswer: self.relay.answer,
            }
        )
        handlers.requests.update(
            {m.PushRows: self.push, m.PullRows: self.pull, m.ScanRows: self.pull, m.Replicate: self._follow}
        )
        handlers.events.update({Stop: self.leaving.stop, FileRequest: self.relay.ask})
        handlers.returned[Saving] = saves.returned
        hooks.assigned.append(replication.assigned)
        hooks.built.append(replication.built)
        hooks.loaded.append(replication.loaded)
        hooks.welcomed.append(replication.welcomed)
        hooks.committed.append(saves.committed)
        hooks.discarded.extend([replication.discarded, saves.discarded])
        hooks.counted.extend([replication.counters, saves.counters])
        hooks.timers.extend([replication, self.leaving])
        hooks.validated.extend([replication.validate, saves.validate])

    def counters(self) -> Mapping[str, Any]:
        """Return the counters for the status, with those of all jobs."""
        found = super().counters()
        return {**in_all(found["jobs"].values()), **found}

    def _connected(self, event: Connected, now: float) -> list[Action]:
        return [*super()._connected(event, now), *self.relay.again()]

    def _follow(self, client: Client, record: m.Replicate) -> list[Action]:
        tenant = self.tenant_of(record.epoch, client)
        answer, whole = self.replication.follow(client, tenant, record)
        return [*answer, *self.report_ready(tenant)] if whole else answer

    def _save(self, message: m.Save, now: float) -> list[Action]:
        return self.saves.ask(message, self.tenants.get(message.epoch), now)

    def _unsave(self, message: m.Unsave, now: float) -> list[Action]:
        return self.saves.end(message.epoch, message.number)

    def _cut(self, message: m.Cut, now: float) -> list[Action]:
        tenant, parents = self.tenant_of(message.epoch), [self.tenant_of(epoch) for epoch in message.parents]
        cut(tenant, parents, self.replication.backups, message.version)
        return self.report_ready(tenant)


def begin_from(files: Files | None, shard: Shard, job: JobSpec, source: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Restore a new shard from a checkpoint, or let it wait for other copies on this server."""
    ledgers: Mapping[str, Any] = {}
    if source.get("cut"):
        await_parents(shard)
    else:
        ledgers = restore(files, shard, job, source)
    return ledgers if source.get("ledgers") else None
