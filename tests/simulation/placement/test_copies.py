"""The simulator sees what is wrong with copies of shards and those that take over: machines are broken on purpose."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.simulation.test_invariants import caught, wrap
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.simulation import Simulation
from zmqps.core.coordinator.placement.copies import Replica
from zmqps.core.coordinator.placement.replication import Replication as CopiesOfJob
from zmqps.core.coordinator.placement.shortages import Shortage, Shortages
from zmqps.core.coordinator.training.steps import Steps
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import Error, Lead, Replicate
from zmqps.core.server.ledger import Ledger
from zmqps.core.server.replicas import stream
from zmqps.core.server.replicas.backup import Backup
from zmqps.core.server.replicas.follower import Follower
from zmqps.core.server.replicas.replication import ReplicaStreams
from zmqps.core.server.replicas.stream import Stream, Unconfirmed
from zmqps.core.server.shard import Shard
from zmqps.core.server.tenant import Tenant
from zmqps.core.worker.connections.link import Link
from zmqps.core.worker.layout.moves import ShardMoves
from zmqps.errors import DeposedError

pytestmark = pytest.mark.repeats

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("name", ["bounded-replicas-silent", "sync-replicas-cut"])
def test_servers_are_lost_again_and_again(name: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        simulation = SCENARIOS[name].simulation(seed)
        simulation.run()
        seen["promotions"] += simulation.losses.promotions
        seen["compared"] += simulation.copies.num_compared
        if seen["promotions"] > 4 and seen["compared"] > 80:
            return
    raise AssertionError(f"in all there were {seen}")


def test_a_copy_that_is_given_up_counts_no_more_also_if_the_coordinator_dies_as_it_has_told_the_leader() -> None:
    simulation = SCENARIOS["async-replicas"].simulation(0)
    assert isinstance(simulation, Simulation)
    while (
        not (runs := simulation.coordinator.runs if simulation.num_started == 3 else {}) or not runs["default"].is_whole
    ):
        simulation.step()
    copies = runs["default"].startup.copies
    backup = next(copy for copy in copies if copy.backup)
    leader = copies.leader(backup.shard)
    there = simulation.nodes[backup.server.hello.name]
    assert simulation.is_live(there, backup.epoch)
    copies.remove(backup)
    for hook in simulation.on_send:  # what the leader acknowledges from now on need not be in that copy
        hook(simulation.nodes["coordinator"], leader.server.hello.name, Lead(leader.epoch, 2, {"rows": []}))
    assert not simulation.is_live(there, backup.epoch)


def test_a_leader_that_acknowledges_what_its_backups_lack(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Stream, "is_behind", False)
    caught("async-replicas", "may not know soon")


def test_a_leader_that_confirms_a_step_that_its_backups_lack(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Stream, "is_behind", False)
    caught("sync-replicas", "has confirmed step")


def test_a_leader_that_waits_for_one_of_its_backups(monkeypatch: Patch) -> None:
    def confirmed(self: Stream) -> int:
        return max([f.confirmed(self.position) for f in self.followers.values()], default=self.position)

    monkeypatch.setattr(Stream, "confirmed", property(confirmed))
    caught("async-replicas-two", "may not know soon")


def test_a_deposed_leader_that_goes_on_alone(monkeypatch: Patch) -> None:
    def refused(original: Any, copies: ReplicaStreams, follower: Follower, message: Error, now: float) -> list[Action]:
        tenant = copies._tenant_behind(follower.epoch)
        stream = None if tenant is None else copies.streams.get(tenant.assign.epoch)
        if message.code != DeposedError.code or tenant is None or stream is None:
            return original(copies, follower, message, now)  # type: ignore[no-any-return]
        copies._lose(stream, follower.epoch)
        return copies._released(tenant, stream)

    wrap(monkeypatch, ReplicaStreams, "_refused", refused)
    caught("async-replicas-silent", "may not know soon", begin=3)


def test_a_promoted_copy_that_takes_what_its_old_leader_says(monkeypatch: Patch) -> None:
    def take_over(original: Any, copies: ReplicaStreams, tenant: Tenant, generation: int) -> Action:
        before = copies.backups[tenant.assign.epoch]
        action: Action = original(copies, tenant, generation)
        copies.backups[tenant.assign.epoch], tenant.follows = before, True
        return action

    wrap(monkeypatch, ReplicaStreams, "_take_over", take_over)
    monkeypatch.setattr(Tenant, "check_role", lambda *rest: None)
    caught("bounded-replicas-silent", "a push was applied twice", begin=23)


def test_a_backup_that_does_not_remember_what_its_leader_was_pushed(monkeypatch: Patch) -> None:
    def note(original: Any, backup: Backup, ledger: Ledger, record: Replicate, *rest: Any) -> None:
        original(backup, Ledger(), record, *rest)

    wrap(monkeypatch, Backup, "_note", note)
    caught("async-replicas", "may not know soon")


def test_a_backup_that_is_not_told_what_was_pushed_before_it_came(monkeypatch: Patch) -> None:
    monkeypatch.setattr(stream, "ledgers_of", lambda ledgers: [])
    caught("async-replicas", "has another ledger")


def test_a_backup_that_goes_on_behind_a_record_that_it_lacks(monkeypatch: Patch) -> None:
    def take(original: Any, backup: Backup, shard: Shard, record: Replicate) -> Any:
        backup.number = max(backup.number, record.number - 1)
        return original(backup, shard, record)

    wrap(monkeypatch, Backup, "take", take)
    caught("async-replicas-both", "may not know soon", begin=2)


def test_a_copy_that_is_promoted_before_it_is_whole(monkeypatch: Patch) -> None:
    def ready(original: Any, replication: Any, copy: Replica, loaded: bool) -> Any:
        return original(replication, copy, True)

    def take_over(original: Any, copies: ReplicaStreams, tenant: Tenant, generation: int) -> Action:
        tenant.built().came.loaded = True
        return original(copies, tenant, generation)

    wrap(monkeypatch, CopiesOfJob, "ready", ready)
    wrap(monkeypatch, ReplicaStreams, "_take_over", take_over)
    caught("async-replicas", "an acknowledged push is missing", begin=12)


def test_a_worker_that_numbers_its_pushes_anew_for_a_new_server(monkeypatch: Patch) -> None:
    def retarget(original: Any, link: Link, *rest: Any) -> None:
        original(link, *rest)
        for request in link.in_flight.values():
            if request.seq:
                request.seq, link.next_seq = link.next_seq, link.next_seq + 1

    wrap(monkeypatch, Link, "retarget", retarget)
    caught("async-replicas", "a push was applied twice", begin=8)


def test_a_worker_that_brings_nothing_again_to_a_new_server(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ShardMoves, "_again", lambda moves, *rest: [])
    caught("sync-replicas", "differs from uninterrupted training", begin=1)


def test_a_coordinator_that_commits_before_gradients_are_brought_again(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Steps, "_blocked", False)
    caught("sync-replicas-silent", "lacks a gradient of it", begin=4)


def test_a_coordinator_that_says_a_commit_again_to_a_server_that_has_just_taken_over(monkeypatch: Patch) -> None:
    def move(original: Any, steps: Steps, old: int, heir: Replica, told: Any) -> None:
        original(steps, old, heir, ())
        steps.commits.heirs.clear()

    wrap(monkeypatch, Steps, "move", move)
    caught("sync-replicas", "differs from uninterrupted training", begin=1)


def test_a_leader_that_takes_pushes_without_a_bound(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Unconfirmed, "check", lambda self, nbytes: None)
    caught("async-replicas-memory", "bytes wait for backups")


def test_a_coordinator_that_builds_no_new_backups(monkeypatch: Patch) -> None:
    monkeypatch.setattr(CopiesOfJob, "fill", lambda self, servers, now: [])
    caught("async-replicas", "and all servers are there", begin=5)


def test_a_coordinator_that_says_nothing_again_of_copies(monkeypatch: Patch) -> None:
    monkeypatch.setattr(CopiesOfJob, "on_deadline", lambda self, now: [])
    monkeypatch.setattr(CopiesOfJob, "next_deadline", lambda self: None)
    caught("async-replicas-memory", "waits although all is well", begin=28)


def test_a_coordinator_that_remembers_which_shards_lack_backups(monkeypatch: Patch) -> None:
    def note(original: Any, shortages: Shortages, shard: int, why: str, now: float, **where: bool) -> None:
        shortages._noted.setdefault(shard, Shortage(now, why, **where))

    wrap(monkeypatch, Shortages, "note", note)
    monkeypatch.setattr(Shortages, "__iter__", lambda self: iter(sorted(self._noted.items())))
    monkeypatch.setattr(Shortages, "validate", lambda self: None)
    caught("async-scales-lost-replicas", "and they have all their copies")


def test_a_coordinator_that_keeps_copies_that_nobody_wants_any_more(monkeypatch: Patch) -> None:
    monkeypatch.setattr(CopiesOfJob, "_surplus", lambda self, wanted, heard_since: [])
    caught("async-scales-drains-replicas", "are wanted", begin=127)
