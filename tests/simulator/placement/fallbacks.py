"""Simulated jobs that go back to a checkpoint: what goes wrong meanwhile, and what must hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.simulator.engine import Node
from tests.simulator.jobs.tables import IDS, shards_of_ids, there
from tests.simulator.jobs.training import Life, Training, life_of
from tests.simulator.placement.stores import Disk, SavedJob
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.job.keyspace import Placement
from zmqps.core.protocol.messages import Ack, Assign, ChangeKind, Followed, Message, Ready, Recalled, Values, View
from zmqps.core.server.ledger import Ledger
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.server.tables.table import RowTable
from zmqps.core.worker.connections.link import Link
from zmqps.core.worker.layout.rollbacks import Rollback
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import PushTransfer as Pushing
from zmqps.core.worker.transfer import Request

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster


class Fallbacks:
    """Breaks what lets a job go back to a checkpoint, and looks at what it has gone back to.

    Parameters
    ----------
    simulation
        Whose.
    disk
        Where checkpoints are.
    crash
        Probability that a node dies as it sends or takes a message of this.
    training
        What must hold.
    """

    def __init__(self, simulation: SimulatedCluster, disk: Disk, crash: float, training: Training) -> None:
        self._simulation = simulation
        self._disk = disk
        self._crash = crash
        self._training = training
        self._restored: dict[tuple[str, int], Assign] = {}  # by server and epoch: copies loaded for a job under way
        # by worker and shard: the messages of its pushes that were acknowledged, and what they are of
        self._acked: dict[tuple[str, int], dict[int, Pushing]] = defaultdict(dict)
        # by worker and shard: pushes of which it was told that they are lost, whatever of them is applied after that
        self._told: dict[tuple[str, int], dict[int, Pushing]] = defaultdict(dict)
        self._falling: dict[tuple[Life, int], str] = {}  # by shard: the checkpoint
        self._times: dict[Life, int] = defaultdict(int)
        self._loaded: dict[int, str] = {}  # by epoch: the checkpoint that a copy was loaded from
        simulation.on_send.append(self._sent)
        simulation.on_receive.append(self._received)

    def _saved(self, path: str) -> SavedJob:
        return next(saved for saved in self._disk.published if saved.path == path)

    def _sent(self, sender: Node, receiver: str, message: Message) -> None:
        if (
            isinstance(message, Assign)
            and message.restore
            and (run := self._simulation.coordinator.runs.get(message.name)) is not None  # it may just have ended
            and run.fallback.active
        ):
            self._restored[receiver, message.epoch] = message
            self._perhaps(sender)
        elif isinstance(message, Ready) and message.loaded and (sender.name, message.epoch) in self._restored:
            assign = self._restored[sender.name, message.epoch]
            self._loaded[message.epoch] = assign.restore["path"]
            self._check_loaded(sender, assign)
        elif _is_of_this(message):
            if isinstance(message, View):
                self.check(sender)  # before anything that follows from it is sent
                self._check_told(message)
            self._perhaps(sender)

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        if isinstance(message, (Ack, Values)) and receiver.role == "worker":
            if (found := self._request_of(receiver, sender, message.request)) is not None:
                link, request = found
                assert isinstance(request.transfer, Pushing)
                self._acked[receiver.name, link.shard][request.seq] = request.transfer
                if self._is_given_up(receiver, link.server.epoch):
                    self._training.miss(receiver, link.shard, request.transfer)
        elif _is_of_this(message):
            self._perhaps(receiver)

    def _is_given_up(self, worker: Node, epoch: int) -> bool:
        """Whether a copy is of a shard that has gone back since, though its server and the worker may not know."""
        assert isinstance(worker.machine, SessionKernel)
        run = self._simulation.coordinator.runs.get(worker.machine.member.identity.job)
        if run is None or (run.replication.views.all_followed and not run.fallback.active):
            return False
        return epoch not in run.startup.copies.by_epoch

    def _perhaps(self, node: Node) -> None:
        if self._simulation.network.happens(self._crash):
            self._simulation.kill(node)

    @staticmethod
    def _request_of(worker: Node, server: str, number: int) -> tuple[Link, Request] | None:
        """Return the push, and its link, that a server answers; None if the worker has no use for that."""
        machine = worker.machine
        assert isinstance(machine, SessionKernel)
        for link in machine.links.by_shard:
            connection, request = worker.connections.get(link.server.peer), link.in_flight.get(number)
            if connection is not None and connection.ends[1] == server and request is not None and request.seq:
                return link, request
        return None

    # --- what must hold ------------------------------------------------------------------------

    def _check_loaded(self, server: Node, assign: Assign) -> None:
        """Assert that a copy is what the checkpoint has, when it says that it is whole."""
        assert isinstance(server.machine, ServerKernel)
        saved, tenant = self._saved(assign.restore["path"]), server.machine.tenants[assign.epoch]
        if tenant.counts["pushes"] or tenant.built().version != (
            assign.restore["version"] if tenant.built().steps else 0
        ):
            return  # it says so again
        for state in tenant.built().slices:
            for s in state.slice.segments:
                expected = saved.values[s.parameter][s.start : s.start + s.size]
                got = state.value[s.position : s.position + s.size]
                assert np.array_equal(got, expected), f"{server.name} has {got}, {saved.path} has {expected}"
        for table in rows_in(tenant.built()).tables:
            self._check_loaded_rows(server, table, tenant.built().placement, saved)

    @staticmethod
    def _check_loaded_rows(server: Node, table: RowTable, placement: Placement, saved: SavedJob) -> None:
        """Assert that a table has the rows of the checkpoint that are its own, with their slots, and no others."""
        number = placement.keyspace.sparse.index(table.spec)
        shards = shards_of_ids(placement, number)
        which, arrays = saved.rows_of(table.spec.name, number)
        mine = shards[which] == table.slice.shard
        assert sorted(which[mine]) == np.flatnonzero(there(table, shards, table.slice.shard)).tolist()
        rows = table.store.find(IDS[which[mine]])
        for expected, kept in zip(arrays, (table.store.values, *table.store.slots), strict=False):
            text = f"{server.name} has rows {kept[rows]}, {saved.path} has {expected[mine]}"
            assert np.array_equal(kept[rows], expected[mine]), text

    def _check_told(self, message: View) -> None:
        """Assert that all shards are loaded from what members are told that they go back to."""
        for row in message.placement.get("servers", ()):
            found, told = self._loaded.get(row["epoch"]), message.restored["path"]
            assert found == told, f"a shard was loaded from {found}, and {told} is what members are told"

    def notified(self, worker: Node, rollback: object) -> None:
        """Assert that a worker is told how much is lost, no more and no less."""
        assert isinstance(rollback, Rollback)
        saved, life = self._saved(rollback.path), life_of(worker)
        assert rollback.state == saved.manifest["state"], f"{worker.name} is told of another state: {rollback}"
        if saved.job.mode == "sync":
            return
        total = 0
        for shard in rollback.shards:
            plain = self._ledgers(worker, saved, shard).get(worker.identity.incarnation.hex())
            ledger = Ledger() if plain is None else Ledger.from_plain(plain)
            acked = self._acked[worker.name, shard]
            gone = {seq: push for seq, push in acked.items() if seq > ledger.floor and seq not in ledger.results}
            lost = {id(push): push for push in gone.values()}
            for seq in gone:
                del acked[seq]
            told = self._told[worker.name, shard]
            total += len(lost.keys() - told.keys())
            told.update(lost)
            self._training.fell(worker, shard, saved, lost.values())
        assert rollback.lost == total, f"{worker.name} is told that {rollback.lost} pushes are lost: {total} are"
        assert life in self._times or total == 0

    @staticmethod
    def _ledgers(worker: Node, saved: SavedJob, shard: int) -> Mapping[str, Any]:
        """Return what a shard that was loaded from a checkpoint knows; nothing if the checkpoint was cut otherwise."""
        assert isinstance(worker.machine, SessionKernel)
        attached = worker.machine.attached
        assert attached is not None
        same = attached.placement.to_wire() == saved.placement.to_wire()
        found: Mapping[str, Any] = saved.states[shard].get("ledgers", {}) if same else {}
        return found

    def check(self, coordinator: Node) -> None:
        """Note what goes back, and has; assert that all shards of a synchronous job are of one checkpoint."""
        for run in coordinator.machine.runs.values() if isinstance(coordinator.machine, CoordinatorMachine) else ():
            life, fallback = (coordinator.identity.incarnation, run.startup.epoch), run.fallback
            for shard in fallback.shards:
                if self._falling.get((life, shard)) != fallback.path:
                    self._falling[life, shard] = fallback.path
                    self._training.fall(self._simulation, life, [shard], self._saved(fallback.path))
            for key in [key for key in self._falling if key[0] == life and key[1] not in fallback.shards]:
                del self._falling[key]
            if fallback.times != self._times[life]:
                self._times[life] = fallback.times
                if run.mode == "sync":
                    assert run.startup.resumption is not None
                    self._simulation.num_back[life] += 1
                    self._training.went_back(self._simulation, life, self._saved(run.startup.resumption.path))


def _is_of_this(message: Message) -> bool:
    return isinstance(message, (Followed, Recalled)) or (
        isinstance(message, View) and message.change is ChangeKind.REWOUND
    )
