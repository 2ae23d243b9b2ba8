"""The simulator sees an update on other terms than those of its step: machines are broken on purpose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.test_invariants import caught, wrap
from zmqps.core.coordinator.training.steps import Commits, Numbers
from zmqps.core.server.dense.rules import Kernels
from zmqps.core.server.dense.steps import ShardSteps
from zmqps.core.server.replicas import backup

pytestmark = pytest.mark.repeats

Patch = pytest.MonkeyPatch


def test_a_coordinator_that_takes_the_first_shard_for_the_whole_mean(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Commits, "measured", lambda self, epoch, step, squares: squares if self.measuring else None)
    caught("sync-terms", "is not the sequential reference")


def test_a_server_that_measures_another_mean_than_it_applies(monkeypatch: Patch) -> None:
    def measure(original: Any, steps: ShardSteps, step: int, contributors: Any, *rest: Any) -> Any:
        return original(steps, step, contributors[:1], *rest)

    wrap(monkeypatch, ShardSteps, "measure", measure)
    caught("sync-terms", "is not the sequential reference")


def test_a_backup_that_replays_a_mean_without_its_terms(monkeypatch: Patch) -> None:
    original = backup.replay
    monkeypatch.setattr(backup, "replay", lambda dense, record: original(dense, replace(record, terms=(), versions=())))
    caught("sync-terms-replicas", "differs from uninterrupted training")


def test_a_learning_rate_that_comes_a_step_late(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Numbers, "at", lambda original, self, step: original(self, step - 1))
    caught("sync-terms", "has the optimizer's own numbers")


def test_a_coordinator_that_forgets_the_learning_rate_when_it_has_come_back(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Numbers, "restore", lambda self, kept: None)
    caught("sync-terms-returned", "has the optimizer's own numbers")


def test_a_server_that_takes_the_learning_rate_alone_of_what_is_set(monkeypatch: Patch) -> None:
    def numbers(original: Any, kernels: Kernels, terms: Any) -> tuple[bool, int]:
        of_groups, width = original(kernels, terms)
        return of_groups, min(width, 1)

    wrap(monkeypatch, Kernels, "numbers", numbers)
    caught("sync-terms", "is not the sequential reference")
