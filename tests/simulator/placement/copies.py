"""Looks at all copies of shards at once: whatever is acknowledged is in each that could take over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tests.simulator.engine import Node
from zmqps.core.coordinator.placement.copies import Replica
from zmqps.core.coordinator.run import JobRun
from zmqps.core.protocol.messages import Ack, Committed, Message, Push, PushRows, Values
from zmqps.core.server.extensions import ServerMachine
from zmqps.core.server.replicas.records import RECORD_NBYTES
from zmqps.core.server.replicas.stream import Stream
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.server.tenant import Tenant

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: When all servers are there, and reach each other, every shard has its backups again within so many seconds, of the
#: coordinator's own time.
WHOLE_S = 6.0
#: The same where connections break, or messages come too late: a silent backup is asked what it has after 3 s.
WHOLE_IN_SPITE_S = 12.0


class CopyWitness:
    """Asserts what must hold of the copies of each shard, wherever they are.

    Parameters
    ----------
    simulation
        Whose.
    """

    def __init__(self, simulation: SimulatedCluster) -> None:
        self.num_compared = 0  # backups that had confirmed all
        self._simulation = simulation
        # the pushes, by server, worker and request: epoch and sequence number there
        self._pushed: dict[tuple[str, str, int], tuple[int, int]] = {}
        self._compared: dict[int, int] = {}  # by epoch of a backup: the record after which it was
        self._degraded_since: float | None = None  # although all servers are there
        self._spare_since: float | None = None  # although nothing is to move
        self._machine: object = None  # the coordinator's, of which that is known
        simulation.on_send.append(self._sent)
        simulation.on_receive.append(self._received)

    # --- what is acknowledged ------------------------------------------------------------------

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        if isinstance(message, (Push, PushRows)) and receiver.role == "server":
            self._pushed[receiver.name, sender, message.request] = message.epoch, message.seq

    def _sent(self, sender: Node, receiver: str, message: Message) -> None:
        if isinstance(message, (Ack, Values)) and sender.role == "server":
            pushed = self._pushed.get((sender.name, receiver, message.request))
            if pushed is not None:
                self._check_acknowledged(sender, self._simulation.nodes[receiver], *pushed)
        elif isinstance(message, Committed):
            self._check_committed(sender, message)

    def _check_acknowledged(self, server: Node, worker: Node, epoch: int, seq: int) -> None:
        """Assert that every copy that could be asked for it tomorrow knows of a push."""
        who = worker.identity.incarnation
        if not worker.alive and who not in self._simulation.coordinator.membership.members:
            return  # repeated to a member that has gone: a newer copy does not know that member
        for copy, node, tenant in self._siblings(server, epoch):
            shard = tenant.shard
            if shard is None or shard.steps is not None or not copy.whole:
                continue
            machine = node.machine
            assert isinstance(machine, ServerMachine)
            if who in tenant.ledgers.past or machine.clients.bars(who):
                continue  # it has gone, and there that is known already
            ledger = tenant.ledgers.get(who)
            known = ledger is not None and (seq <= ledger.floor or ledger.results.get(seq) is not None)
            assert known, f"{server.name} acknowledges push {seq} of {worker.name}, which {node.name} may not know soon"

    def _check_committed(self, server: Node, committed: Committed) -> None:
        """Assert that a step that is over for the coordinator is in every copy that is whole."""
        for copy, node, tenant in self._siblings(server, committed.epoch):
            if copy.whole and tenant.shard is not None:
                version, step = tenant.shard.version, committed.step
                assert version > step, f"{server.name} has confirmed step {step}, and {node.name} is at {version}"

    def _siblings(self, server: Node, epoch: int) -> Iterator[tuple[Replica, Node, Tenant]]:
        """Yield all copies of a shard that live, as the coordinator sees it, where one of them has this number."""
        simulation = self._simulation
        machine = server.machine
        if not isinstance(machine, ServerMachine) or epoch not in machine.tenants or simulation.restarting:
            return
        mine = machine.tenants[epoch].assign
        run = simulation.coordinator.runs.get(mine.name)
        welcome = machine.member.welcome
        if run is None or welcome is None or welcome.incarnation != simulation.coordinator.identity.incarnation:
            return
        if simulation.life_of_copy(welcome.incarnation, epoch)[1] != run.startup.epoch:
            return  # of a job that had this name before
        nodes = {node.identity.incarnation: node for node in simulation.servers if node.alive}
        for copy in run.startup.copies:
            node = nodes.get(copy.server.incarnation)
            if copy.shard != mine.shard or node is None or not isinstance(node.machine, ServerMachine):
                continue
            if (tenant := node.machine.tenants.get(copy.epoch)) is not None:
                yield copy, node, tenant

    # --- what copies are -----------------------------------------------------------------------

    def check(self, node: Node) -> None:
        """Assert what must hold after an event of a server, or of the coordinator."""
        machine = node.machine
        if isinstance(machine, ServerMachine):
            for epoch, stream in machine.replication.streams.items():
                tenant = machine.tenants[epoch]
                self._check_bound(machine, tenant, stream)
                self._check_equal(node, tenant, stream)
        elif node.role == "coordinator":
            self._check_whole()

    def _check_bound(self, machine: ServerMachine, tenant: Tenant, stream: Stream) -> None:
        """Assert that what waits for backups is counted, and that there is a bound for it."""
        followers = stream.followers.values()
        waiting = {id(r): r.nbytes for follower in followers for _, r in follower.queue.unconfirmed if r.position}
        nbytes, counted = sum(waiting.values()), stream.counters()["unconfirmed_nbytes"]
        assert nbytes <= counted, f"{nbytes} bytes wait for backups, {counted} count"
        unconfirmed = machine.replication.unconfirmed
        if unconfirmed.nbytes > unconfirmed.limit:  # one push may be larger, and the mean of a step is
            shards = [t.shard for t in machine.tenants.values() if t.shard is not None]
            most = sum(s.placement.nbytes(s.index) + (len(s.slices) + 2) * RECORD_NBYTES for s in shards)
            tables = [table for s in shards for table in rows_in(s).tables]
            most += sum(2 * RECORD_NBYTES + len(table) * table.store.row_nbytes for table in tables)
            assert unconfirmed.nbytes <= most, f"{unconfirmed.nbytes} bytes wait for backups"

    def _check_equal(self, node: Node, tenant: Tenant, stream: Stream) -> None:
        """Assert that a backup that has confirmed all is the same as its leader, bit by bit."""
        if stream.has_untold:
            return
        for epoch, follower in stream.followers.items():
            if not follower.is_filled or follower.queue.unconfirmed or tenant.shard is None or _is_coming(tenant):
                continue
            for other in self._simulation.servers:
                machine = other.machine
                if not isinstance(machine, ServerMachine) or not other.alive:
                    continue
                theirs, backup = machine.tenants.get(epoch), machine.replication.backups.get(epoch)
                if theirs is None or backup is None or theirs.shard is None or _is_coming(theirs):
                    continue
                if self._compared.get(epoch) == backup.number or self._follows_another(epoch, tenant):
                    continue
                self._compared[epoch] = backup.number
                self.num_compared += 1
                who = f"{other.name}, which has confirmed all of {node.name},"
                _check_same(who, tenant.shard, theirs.shard)
                for worker in tenant.ledgers.keys() & theirs.ledgers.keys() if tenant.shard.steps is None else ():
                    ours, there = tenant.ledgers[worker], theirs.ledgers[worker]
                    known = {seq: result for seq, result in ours.results.items() if result is not None}
                    assert (ours.floor, known) == (there.floor, dict(there.results)), f"{who} has another ledger"

    def _follows_another(self, epoch: int, tenant: Tenant) -> bool:
        """Return whether a backup has got a newer leader than this one, which has handed its place on."""
        machines = [node.machine for node in self._simulation.servers if node.alive]
        return any(
            epoch in stream.followers and machine.tenants[other].generation > tenant.generation
            for machine in machines
            if isinstance(machine, ServerMachine)
            for other, stream in machine.replication.streams.items()
        )

    # --- whole again ---------------------------------------------------------------------------

    def _check_whole(self) -> None:
        """Assert that shards do not go without backups for long when all is well."""
        simulation = self._simulation
        coordinator, now = simulation.nodes["coordinator"], simulation.now
        awake = simulation.time_of(coordinator)  # while it sleeps no server is given copies
        machine = simulation.coordinator
        alive = [node for node in simulation.servers if node.alive]
        there = {s.incarnation for s in machine.servers} == {node.identity.incarnation for node in alive}
        well = there and len(alive) >= machine.options.servers and now >= simulation.network.cut_until
        runs = [run for run in machine.runs.values() if run.startup.ready and run.lost_shard is None]
        degraded = [text for run in runs for text in _degraded(run)]
        said = [text for run in runs for text in run.replication.status(awake).get("degraded", ())]
        assert len(said) <= len(degraded), f"it is said that {said}, and they have all their copies"
        same, self._machine = self._machine is machine, machine
        well = well and same and not any(now < node.stopped_until for node in (coordinator, *alive))
        faults = simulation.network.faults
        limit_s = WHOLE_IN_SPITE_S if faults.loss or faults.reordering else WHOLE_S
        self._degraded_since = _lasts(self._degraded_since, awake, bool(degraded) and well)
        for_s = awake - (awake if self._degraded_since is None else self._degraded_since)
        assert for_s < limit_s, f"for {for_s:.0f} s, and all servers are there: {degraded}"
        moves = machine.scales.wanted is not None or machine.drains.going or machine.touched.moving
        still = well and not degraded and not moves
        spare = [text for run in runs for text in _spare(run)] if still else []
        self._spare_since = _lasts(self._spare_since, awake, bool(spare))
        for_s = awake - (awake if self._spare_since is None else self._spare_since)
        assert for_s < limit_s, f"for {for_s:.0f} s, and nothing is to move: {spare}"


def _is_coming(tenant: Tenant) -> bool:
    """Whether a copy is one of a shard that is to be, and has not got its values yet."""
    return bool(tenant.assign.restore.get("cut")) and not tenant.loaded


def _check_same(who: str, ours: Shard, theirs: Shard) -> None:
    """Assert that two shards are the same, bit by bit."""
    assert ours.version == theirs.version, f"{who} is at step {theirs.version}, not {ours.version}"
    for mine, other in zip(ours.slices, theirs.slices, strict=True):
        numbers = mine.version, mine.steps.tolist(), [a.tobytes() for a in (mine.value, *mine.slots)]
        same = other.version, other.steps.tolist(), [a.tobytes() for a in (other.value, *other.slots)]
        assert numbers == same, f"{who} has another slice {mine.slice.index}: {other.value}, not {mine.value}"

    for ours_of, theirs_of in zip(_tables(ours), _tables(theirs), strict=True):
        assert ours_of == theirs_of, f"{who} has other rows"


def _tables(shard: Shard) -> list[object]:
    """Return all that a shard has of its tables: their numbers, and their rows by ids."""
    found: list[object] = []
    for table in rows_in(shard).tables:
        store = table.store
        rows = np.flatnonzero(store.live[: store.end])
        kept = table.kept(rows[np.argsort(store.ids[rows])])
        found += [table.spec.name, table.version, table.steps, *[array.tobytes() for array in kept.arrays]]
    return found


def _degraded(run: JobRun) -> Iterator[str]:
    """Yield which shards lack a leader or a whole backup, whatever the coordinator makes of that."""
    whole = Counter(copy.shard for copy in run.startup.copies if copy.whole)
    leaders = {shard for shard, _, _ in run.startup.leaders()}
    wanted = 1 + run.replication.replicas
    for shard in range(run.startup.placement.num_shards if run.startup.placement is not None else 0):
        if whole[shard] < wanted or shard not in leaders:
            yield f"shard {shard} has {whole[shard]} of {wanted} copies"


def _spare(run: JobRun) -> Iterator[str]:
    """Yield which shards have more copies than they should."""
    wanted = 1 + run.replication.replicas
    for shard, num in sorted(Counter(copy.shard for copy in run.startup.copies).items()):
        if num > wanted:
            yield f"shard {shard} has {num} copies, of which {wanted} are wanted"


def _lasts(since: float | None, now: float, holds: bool) -> float | None:
    """Return since when something holds that held since then or not at all before."""
    return (now if since is None else since) if holds else None
