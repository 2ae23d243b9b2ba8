"""The simulator sees values that are set otherwise than they were meant: machines are broken on purpose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.test_invariants import caught, wrap
from zmqps.core.protocol.terms import SET
from zmqps.core.server.dense import aggregate
from zmqps.core.server.dense.aggregate import Stage
from zmqps.core.server.ledger import Ledger, Result
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.replicas import backup
from zmqps.core.worker.layout import moves
from zmqps.core.worker.transfer import PushTransfer

pytestmark = pytest.mark.repeats

Patch = pytest.MonkeyPatch


def test_a_server_that_lets_the_last_of_several_have_its_way(monkeypatch: Patch) -> None:
    def outcome(original: Any, stage: Stage, step: int, index: int, pushes: Any, *rest: Any, **flags: Any) -> Any:
        return original(stage, step, index, list(pushes)[::-1], *rest, **flags)

    wrap(monkeypatch, Stage, "outcome", outcome)
    caught("sync-values", "is not the sequential reference")


def test_a_server_that_trains_what_is_set_in_the_same_step(monkeypatch: Patch) -> None:
    def outcome(original: Any, stage: Stage, step: int, index: int, pushes: Any, *rest: Any, **flags: Any) -> Any:
        return stage.mean(step, index, pushes), original(stage, step, index, pushes, *rest, **flags)[1]

    wrap(monkeypatch, Stage, "outcome", outcome)
    caught("sync-values", "is not the sequential reference")


def test_a_mean_of_values_that_has_gradients_in_it(monkeypatch: Patch) -> None:
    def mean(original: Any, stage: Stage, step: int, index: int, pushes: Any, sort: float = 0.0, total: int = 0) -> Any:
        return original(stage, step, index, pushes, 0.0, total)

    wrap(monkeypatch, Stage, "mean", mean)
    caught("sync-values", "is not the sequential reference")


def test_a_backup_that_takes_values_for_gradients(monkeypatch: Patch) -> None:
    original = backup.replay
    monkeypatch.setattr(backup, "replay", lambda dense, record: original(dense, replace(record, versions=())))
    caught("sync-values-replicas", "differs from uninterrupted training")


def test_a_worker_that_brings_values_as_gradients_to_a_server_that_has_taken_over(monkeypatch: Patch) -> None:
    def like(original: Any, push: PushTransfer, *others: Any) -> PushTransfer:
        again: PushTransfer = original(push, *others)
        again.terms = ()
        return again

    original = moves._like
    monkeypatch.setattr(moves, "_like", lambda *args: like(original, *args))
    caught("sync-values-replicas", "waits although all is well")


def test_a_server_that_sets_again_what_was_set_before(monkeypatch: Patch) -> None:
    def recall(original: Any, ledger: Ledger, seq: int) -> Result | None:
        found: Result | None = original(ledger, seq)
        return None if setting else found

    setting: list[bool] = []

    def push(original: Any, machine: ServerKernel, client: Any, message: Any) -> Any:
        setting[:] = [True] if message.terms and message.terms[0] == SET else []
        return original(machine, client, message)

    wrap(monkeypatch, Ledger, "look_up", recall)
    monkeypatch.setattr(Ledger, "record", lambda self, seq, result: self.results.update({seq: result}))
    wrap(monkeypatch, ServerKernel, "push", push)
    caught("async-values", "which was set to")


def test_a_server_that_counts_one_thing_that_is_set_for_another(monkeypatch: Patch) -> None:
    def push(original: Any, machine: ServerKernel, client: Any, message: Any) -> Any:
        index, version, ranges = message.parts[0]
        if message.terms and not ranges:  # a whole slice, of a buffer
            message = replace(message, parts=[(index ^ 1, version, ()), *message.parts[1:]])
        return original(machine, client, message)

    wrap(monkeypatch, ServerKernel, "push", push)
    caught("async-values", "no worker has set")


def test_what_is_left_beside_stretches_that_are_taken() -> None:
    import numpy as np

    array = np.arange(10)
    left = aggregate._left([(5, array)], [(0, np.zeros(6)), (8, np.zeros(2)), (14, np.zeros(9))])
    assert [(start, part.tolist()) for start, part in left] == [(6, [1, 2]), (10, [5, 6, 7, 8])]
    assert aggregate._left([(5, array)], [(5, np.zeros(10))]) == []
