"""What the simulator claims to check where the number of servers changes: machines are broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.placement.test_rolling import lose
from tests.simulation.test_invariants import Patch, caught, violated, wrap
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.simulation import Simulation
from zmqps.core.coordinator.placement.copies import ReplicaSet
from zmqps.core.coordinator.placement.scales import Scales
from zmqps.core.coordinator.placement.transitions import Recuts
from zmqps.core.coordinator.placement.views import MemberViews, ViewChange
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import (
    ChangeKind,
    Cut,
    Discard,
    Followed,
    Hold,
    Holding,
    Lead,
    Message,
    View,
    Yield,
    Yielded,
)
from zmqps.core.server import extensions, recut
from zmqps.core.server.dense.steps import ShardSteps
from zmqps.core.worker.layout import recuts as worker_recuts
from zmqps.core.worker.transfers import Transfers

pytestmark = pytest.mark.repeats

#: What is lost now and then, and said again.
LOST = (
    ("async-scales", (Hold, Holding, Cut), 0.3),
    ("async-scales-replicas", (Yield, Yielded, Cut), 0.3),
    pytest.param("async-scales", (View, Followed, Discard), 0.7, marks=pytest.mark.repeats),
    pytest.param("async-scales-lost-replicas", (View,), 0.8, marks=pytest.mark.repeats),
)
#: One mode in every run.
MODES = (
    "sync-scales",
    *(
        pytest.param(name, marks=pytest.mark.repeats)
        for name in ("async-scales", "bounded-scales", "async-scales-returned")
    ),
)


@pytest.mark.parametrize(("name", "kinds", "often"), LOST)
def test_what_is_lost_is_said_again(
    name: str, kinds: tuple[type[Message], ...], often: float, monkeypatch: Patch
) -> None:
    lose(monkeypatch, *kinds, often=often)
    for seed in range(5):
        assert violated(SCENARIOS[name].simulation(seed)) == ""


@pytest.mark.parametrize("name", MODES)
def test_the_number_of_servers_changes_at_all(name: str) -> None:
    runs = [SCENARIOS[name].simulation(seed) for seed in range(5)]
    for run in runs:
        run.run()
    assert sum(run._resizing.num_done for run in runs if isinstance(run, Simulation) and run._resizing) >= 3


def test_a_worker_that_says_too_early_that_it_begins_no_push(monkeypatch: Patch) -> None:
    def says(original, self, now):  # type: ignore[no-untyped-def]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "under_way", {})
            return original(self, now)

    wrap(monkeypatch, Transfers, "_say_paused", says)
    caught("async-scales", "a push was applied twice", begin=37)


def test_a_coordinator_that_does_not_wait_for_workers(monkeypatch: Patch) -> None:
    def at_once(original, self, recut, now):  # type: ignore[no-untyped-def]
        recut.awaited.clear()
        return original(self, recut, now)

    wrap(monkeypatch, Recuts, "_hold_again", at_once)
    caught("async-scales", "a push was applied twice", begin=6)


def test_a_shard_that_is_filled_in_part(monkeypatch: Patch) -> None:
    def fills(original, shard, *what):  # type: ignore[no-untyped-def]
        original(shard, *what)
        if shard.slices:
            shard.slices[-1].value[:] = 0

    original = recut.fill
    monkeypatch.setattr(recut, "fill", lambda shard, *what: fills(original, shard, *what))
    caught("async-scales", "an acknowledged push is missing")


def test_shards_that_are_cut_in_the_midst_of_a_step(monkeypatch: Patch) -> None:
    from zmqps.core.coordinator.training.steps import Steps as CoordinatorSteps

    monkeypatch.setattr(ShardSteps, "is_open", False)
    for when in ("is_between", "is_held"):
        monkeypatch.setattr(CoordinatorSteps, when, True)
    caught("sync-scales", "lacks a gradient of it")


def test_members_that_are_not_told_where_the_job_lies(monkeypatch: Patch) -> None:
    def tell(original: Any, views: MemberViews, change: ViewChange, who: Any) -> list[Action]:
        return [] if change.kind is ChangeKind.CUT else original(views, change, who)

    wrap(monkeypatch, MemberViews, "_tell", tell)
    caught("async-scales", "waits although all is well")


def test_a_worker_that_moves_what_was_planned_for_other_shards(monkeypatch: Patch) -> None:
    wrap(monkeypatch, worker_recuts.SessionRecuts, "adapt", lambda original, self, transfer: None)
    caught("async-scales", "zip()")


def test_a_coordinator_that_is_back_and_takes_nothing_back(monkeypatch: Patch) -> None:
    lose(monkeypatch, Lead, Cut, often=0.8)
    wrap(
        monkeypatch,
        Recuts,
        "restore",
        lambda original, self, kept, members: (original(self, kept, members), [])[1],
    )
    caught("async-scales-returned", "waits although all is well")


def test_a_backup_that_is_filled_in_part(monkeypatch: Patch) -> None:
    def fills(original, tenant, *what):  # type: ignore[no-untyped-def]
        original(tenant, *what)
        if tenant.follows and tenant.shard.slices:
            tenant.shard.slices[-1].value[:] = 0

    original = recut.cut
    monkeypatch.setattr(extensions, "cut", lambda tenant, *what: fills(original, tenant, *what))
    caught("async-scales-replicas", "has another slice", begin=1)


def test_backups_that_are_filled_anew_though_they_have_all(monkeypatch: Patch) -> None:
    def rows(original, self, leader):  # type: ignore[no-untyped-def]
        found = original(self, leader)
        return {"rows": [{**row, "number": 5} for row in found["rows"]]} if leader.epoch in self.coming else found

    wrap(monkeypatch, ReplicaSet, "rows_of_backups", rows)
    caught("async-scales-replicas", "waits although all is well")


def test_members_that_hear_of_moves_before_they_know_the_shards(monkeypatch: Patch) -> None:
    lose(monkeypatch, View, often=0.8)
    wrap(monkeypatch, MemberViews, "_may_hear", lambda original, self, who, *kind: sorted(who))
    caught("async-scales-lost-replicas", "a push was applied twice", begin=21)


def test_jobs_that_nobody_cuts(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Scales, "_move", lambda original, self, scaling, run, servers, now: ([], True))
    caught("async-scales", "a job is not cut for them")
