"""Jobs that go back to a checkpoint in the wrong way: the simulator must notice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.simulation.test_invariants import Patch, caught, wrap
from zmqps.core.coordinator.consistency.synchronous import Synchronous
from zmqps.core.coordinator.placement.copies import Replica
from zmqps.core.coordinator.placement.fallback import Fallback
from zmqps.core.coordinator.placement.views import MemberViews, ViewChange
from zmqps.core.coordinator.training.data import DataSets
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import ChangeKind
from zmqps.core.server.dense.part import DensePart
from zmqps.core.server.ledger import Ledgers
from zmqps.core.worker.layout.sent import Sent
from zmqps.core.worker.pace import Pace

pytestmark = pytest.mark.repeats


def test_one_shard_that_is_loaded_from_another_checkpoint_than_the_others(monkeypatch: Patch) -> None:
    def assign(original: Any, fallback: Fallback, copies: Iterable[Replica]) -> list[Action]:
        found = list(copies)
        actions = original(fallback, [copy for copy in found if copy.shard != 0])
        going = fallback._going
        target, going.target = going.target, fallback.good[0]
        actions += original(fallback, [copy for copy in found if copy.shard == 0])
        going.target = target
        return actions

    wrap(monkeypatch, Fallback, "_assign", assign)
    caught("sync-falls", "a shard was loaded from", begin=6)


def test_a_server_that_does_not_take_the_ledger_of_the_checkpoint(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Ledgers, "restore", lambda original, self, ledgers: original(self, ledgers and {}))
    caught("async-falls", "pushes are lost", begin=4)


def test_a_server_that_takes_pushes_for_applied_that_came_after_the_checkpoint(monkeypatch: Patch) -> None:
    def recall(original: Any, ledgers: Ledgers, plain: Any) -> None:
        original(ledgers, plain)
        for found in list(ledgers.values())[:1] if plain else []:
            found.results.update({seq: ((1,), (0,)) for seq in range(found.floor + 1, found.floor + 60)})

    wrap(monkeypatch, Ledgers, "restore", recall)
    caught("async-falls", "an acknowledged push is missing")


def test_a_worker_that_does_not_count_what_is_lost(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Sent, "lose", lambda original, self, *known: original(self, *known) and 0)
    caught("bounded-falls", "pushes are lost")


def test_a_worker_that_is_not_told(monkeypatch: Patch) -> None:
    def tell(original: Any, views: MemberViews, change: ViewChange, who: Any) -> list[Action]:
        told: list[Action] = original(views, change, who)
        return told[1:] if change.kind is ChangeKind.REWOUND else told

    wrap(monkeypatch, MemberViews, "_tell", tell)
    caught("async-falls", "waits although all is well", begin=4)


def test_a_shard_that_is_not_quite_what_was_saved(monkeypatch: Patch) -> None:
    def restore(original: Any, shard: DensePart, index: int, value: Any, *rest: Any) -> None:
        original(shard, index, value + (index == 0 and value.any()), *rest)

    wrap(monkeypatch, DensePart, "restore", restore)
    caught("async-falls", ", /default/", begin=12)


def test_steps_that_do_not_go_back(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Synchronous, "go_back", lambda self, clock: None)
    caught("sync-falls", "may read version")


def test_gradients_that_were_brought_before_and_count_after(monkeypatch: Patch) -> None:
    def go_back(original: Any, policy: Synchronous, clock: int) -> None:
        dropped, arrivals = policy.dump()[1:3]
        original(policy, clock)
        policy.restore((clock, dropped, arrivals, None), 0.0)

    wrap(monkeypatch, Synchronous, "go_back", go_back)
    caught("sync-falls", "counts pushes", begin=6)


def test_what_a_worker_says_of_steps_that_are_gone_and_counts(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Fallback, "makes_moot", lambda self, member: False)
    caught("sync-falls-returned", "counts pushes", begin=13)


def test_data_sets_that_stay_where_they_are(monkeypatch: Patch) -> None:
    monkeypatch.setattr(DataSets, "go_back", lambda self, saved: [])
    caught("sync-data-falls", "pass 1 begins before", begin=4)


def test_a_worker_that_stays_at_its_step(monkeypatch: Patch) -> None:
    def go_back(original: Any, pace: Pace, clock: int, **options: Any) -> None:
        before = pace.clock
        original(pace, clock, **options)
        pace.clock = pace.version = before

    wrap(monkeypatch, Pace, "go_back", go_back)
    caught("sync-falls", "waits although all is well")


def test_a_coordinator_that_does_not_write_down_what_it_can_go_back_to(monkeypatch: Patch) -> None:
    def quietly(original: Any, fallback: Fallback, *about: Any) -> Any:
        changed, fallback.changed = fallback.changed, lambda what: None
        try:
            return original(fallback, *about)
        finally:
            fallback.changed = changed

    wrap(monkeypatch, Fallback, "keep", quietly)
    caught("async-falls-returned", "the journal does not hold")
