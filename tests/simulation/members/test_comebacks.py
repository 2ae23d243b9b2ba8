"""The simulator sees when a coordinator that comes back does not know what it had decided: it is broken on purpose."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from tests.simulation.test_invariants import caught, wrap
from tests.simulator.members.comebacks import Comebacks
from tests.simulator.scenarios import SCENARIOS
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.placement.replication import Replication
from zmqps.core.coordinator.placement.views import MemberViews
from zmqps.core.coordinator.remembered import dump
from zmqps.core.coordinator.training.data import DataSet, DataSets
from zmqps.core.coordinator.training.steps import Steps
from zmqps.core.node.member import Member
from zmqps.core.protocol.events import COORDINATOR, Action, Send
from zmqps.core.protocol.messages import Lead
from zmqps.core.server.replicas.replication import ReplicaStreams as Copies
from zmqps.core.worker.questions import Questions

pytestmark = pytest.mark.repeats

Patch = pytest.MonkeyPatch


def test_the_coordinator_dies_and_servers_are_lost_meanwhile() -> None:
    returns = promotions = 0
    for seed in range(12):
        simulation = SCENARIOS["async-returned-replicas"].simulation(seed)
        simulation.run()
        returns += simulation.comebacks.times
        promotions += simulation.losses.promotions
        if returns > 12 and promotions > 12:
            return
    raise AssertionError(f"it has returned {returns} times, and {promotions} copies were promoted")


def test_a_coordinator_that_writes_after_it_has_spoken(monkeypatch: Patch) -> None:
    def recorded(self: CoordinatorMachine, actions: list[Action], now: float) -> list[Action]:
        return [*actions, *self.changes.records(lambda what, whose: dump(self, what, whose))]

    monkeypatch.setattr(CoordinatorMachine, "_recorded", recorded)
    caught("sync-returned", "a worker may read version", begin=11)


def test_a_coordinator_that_forgets_who_counted_in_the_last_step(monkeypatch: Patch) -> None:
    restore = Steps.restore

    def forget(self: Steps, kept: Any, *others: Any) -> None:
        restore(self, {**kept, "counted": []}, *others)

    monkeypatch.setattr(Steps, "restore", forget)
    caught("sync-returned", "a worker is told that what counts was dropped", begin=4)


def test_a_coordinator_that_notes_no_change_of_a_data_set(monkeypatch: Patch) -> None:
    silent = property(lambda self: lambda name: None, lambda self, value: None)
    monkeypatch.setattr(DataSets, "_changed", silent, raising=False)
    caught("sync-data-returned", "the journal does not hold what the coordinator knows: data/")


def test_a_coordinator_that_hands_ranges_out_again_when_it_is_back(monkeypatch: Patch) -> None:
    restored = DataSet.restored

    def forget(kept: Any) -> DataSet:
        data = restored(kept)
        data._next, data.num_done, data.taken, data._returned = 0, 0, {}, deque()
        return data

    monkeypatch.setattr(DataSet, "restored", forget)
    monkeypatch.setattr(Comebacks, "check", lambda self, node: None)
    caught("sync-data-returned", "range")


def test_a_coordinator_that_takes_its_members_for_strangers_when_it_is_back(monkeypatch: Patch) -> None:
    start = CoordinatorMachine.start

    def forget(self: CoordinatorMachine, now: float) -> list[Action]:
        actions = start(self, now)
        self.is_back = False
        return actions

    monkeypatch.setattr(CoordinatorMachine, "start", forget)
    caught("async-returned", "the coordinator is taken for another one")


def test_members_that_give_a_coordinator_up_that_comes_back(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Member, "patience", property(lambda self: 1.5))
    caught("sync-returned", "is given up although it comes back")


def test_workers_that_do_not_ask_again_for_what_they_wait_for(monkeypatch: Patch) -> None:
    def again(self: Questions, now: float) -> list[Action]:
        self.held, self.due = False, None
        return []

    monkeypatch.setattr(Questions, "again", again)
    caught("sync-returned", "waits although all is well")


# --- copies of shards ------------------------------------------------------------------------------


def test_a_coordinator_that_writes_a_promotion_after_it_has_sent_it(monkeypatch: Patch) -> None:
    def recorded(self: CoordinatorMachine, actions: list[Action], now: float) -> list[Action]:
        records = self.changes.records(lambda what, whose: dump(self, what, whose))
        leads = [action.message for action in actions if isinstance(action, Send) and isinstance(action.message, Lead)]
        promotes = any("rows" not in lead.backups for lead in leads)
        return [*actions, *records] if promotes else [*records, *actions]

    monkeypatch.setattr(CoordinatorMachine, "_recorded", recorded)
    caught("async-returned-cut", "waits although all is well", begin=37)


def forgotten(patch: Patch, number: int) -> None:
    """Let a coordinator that is back know nothing of one part of what was to become of copies."""

    def forget(original: Any, self: Replication, kept: Any, now: float) -> None:
        original(self, [*kept[:number], [], *kept[number + 1 :]], now)

    wrap(patch, Replication, "restore", forget)
    patch.setattr(Comebacks, "check", lambda self, node: None)


def test_a_coordinator_that_forgets_a_promotion_under_way(monkeypatch: Patch) -> None:
    forgotten(monkeypatch, 0)
    caught("async-returned-replicas", "waits although all is well", begin=4)


def test_a_coordinator_that_forgets_that_a_leader_waits_for_a_lost_backup(monkeypatch: Patch) -> None:
    forgotten(monkeypatch, 1)
    caught("bounded-returned-replicas", "and all servers are there", begin=39)


def test_a_coordinator_that_forgets_that_a_shard_lacks_a_backup(monkeypatch: Patch) -> None:
    forgotten(monkeypatch, 2)
    caught("sync-returned-replicas", "and all servers are there", begin=1)


def test_a_coordinator_that_forgets_who_has_not_followed_a_move(monkeypatch: Patch) -> None:
    monkeypatch.setattr(MemberViews, "restore", lambda self, kept, now: setattr(self, "_revision", kept[0]))
    monkeypatch.setattr(Comebacks, "check", lambda self, node: None)
    caught("async-returned-both", "waits although all is well", begin=65)


def test_a_coordinator_that_forgets_whose_gradients_are_to_be_brought_again(monkeypatch: Patch) -> None:
    def forget(original: Any, self: Steps, kept: Any, *others: Any) -> None:
        original(self, {**kept, "moved": [], "moving": []}, *others)

    wrap(monkeypatch, Steps, "restore", forget)
    caught("sync-returned-replicas", "differs from uninterrupted training", begin=4)


def test_a_server_that_says_a_step_is_over_while_its_backups_lack_it(monkeypatch: Patch) -> None:
    def committed(original: Any, self: Any, tenant: Any, message: Any, now: float) -> list[Action]:
        return [*original(self, tenant, message, now), Send(COORDINATOR, message)]

    wrap(monkeypatch, Copies, "committed", committed)
    caught("sync-returned-replicas", "has confirmed step")
