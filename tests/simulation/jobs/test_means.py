"""The simulator sees means over other workers than were meant, and steps that are left out by some alone: machines are
broken on purpose.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.test_invariants import caught, wrap
from zmqps.core.coordinator.consistency.base import Decision
from zmqps.core.coordinator.consistency.synchronous import Synchronous
from zmqps.core.coordinator.training import steps
from zmqps.core.protocol.messages import Arrive
from zmqps.core.server.dense.aggregate import Stage
from zmqps.core.server.dense.steps import ShardSteps
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import Rows
from zmqps.core.worker.operations import Advance
from zmqps.core.worker.pace import StepExamples, StepPushes
from zmqps.core.worker.transfer import PushTransfer

pytestmark = pytest.mark.repeats

Patch = pytest.MonkeyPatch
REFERENCE = "is not the sequential reference"


def test_a_server_that_divides_by_those_alone_who_have_pushed(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Stage, "mean", lambda original, stage, *arguments, total=0, **_: original(stage, *arguments))
    caught("sync-workers-partly", REFERENCE)


def test_a_server_that_measures_the_mean_of_those_who_have_pushed_and_applies_that_of_all(monkeypatch: Patch) -> None:
    wrap(monkeypatch, ShardSteps, "measure", lambda original, steps, *arguments: original(steps, *arguments[:2]))
    caught("sync-workers", REFERENCE)


def test_a_server_that_divides_rows_by_those_alone_who_have_pushed(monkeypatch: Patch) -> None:
    def commit(
        original: Any, rows: Rows, step: int, contributors: Any, terms: Any, examples: int, **flags: Any
    ) -> None:
        original(rows, step, contributors, **flags)

    wrap(monkeypatch, Rows, "commit", commit)
    caught("sync-rows-workers", "are not those of the sequential")


def test_a_worker_that_counts_the_parts_of_a_batch_as_batches(monkeypatch: Patch) -> None:
    def add(original: Any, examples: StepExamples, push: PushTransfer, **_: Any) -> None:
        examples._largest += push.examples

    wrap(monkeypatch, StepExamples, "add", add)
    caught("sync-workers", "its workers had")


def test_a_worker_that_counts_what_it_has_skipped(monkeypatch: Patch) -> None:
    def arriving(original: Any, step: StepPushes, *rest: Any, **options: Any) -> Arrive:
        if isinstance(step.closing, Advance):
            step.closing.skips = False
        return original(step, *rest, **options)

    wrap(monkeypatch, StepPushes, "arriving", arriving)
    caught("sync-workers", "left out")


def test_a_coordinator_that_forgets_what_workers_count_as_when_it_is_back(monkeypatch: Patch) -> None:
    def restore(original: Any, policy: Synchronous, kept: Any, now: float) -> None:
        step, dropped, arrivals, left_out = kept
        original(policy, (step, dropped, [[*arrival[:3], 0, arrival[4]] for arrival in arrivals], left_out), now)

    wrap(monkeypatch, Synchronous, "restore", restore)
    caught("sync-workers-returned", "its workers had")


def test_a_step_that_is_applied_although_a_worker_has_left_it_out_for_all(monkeypatch: Patch) -> None:
    def arrive(original: Any, policy: Synchronous, *arguments: Any, leaves_out: bool = False) -> None:
        original(policy, *arguments)

    wrap(monkeypatch, Synchronous, "arrive", arrive)
    caught("sync-voids", "left out for all")


def test_a_server_that_applies_what_is_left_out_for_all(monkeypatch: Patch) -> None:
    def commit(original: Any, shard: Shard, *arguments: Any, left_out: bool = False) -> None:
        original(shard, *arguments, left_out=left_out and shard.index == 0)

    wrap(monkeypatch, Shard, "commit", commit)
    caught("sync-voids", REFERENCE)


def test_a_server_that_applies_rows_that_are_left_out_for_all(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Rows, "commit", lambda original, rows, *arguments, **_: original(rows, *arguments))
    caught("sync-rows-voids", "are not those of the sequential")


def test_a_server_that_does_not_set_values_in_a_step_that_is_left_out(monkeypatch: Patch) -> None:
    def outcome(original: Any, stage: Stage, *arguments: Any, left_out: bool = False) -> Any:
        means, values = original(stage, *arguments, left_out=left_out)
        return means, [] if left_out else values

    wrap(monkeypatch, Stage, "outcome", outcome)
    caught("sync-voids", REFERENCE)


def test_a_step_that_is_left_out_only_until_its_commit_is_said_again(monkeypatch: Patch) -> None:
    original = steps.commit_of
    monkeypatch.setattr(steps, "commit_of", lambda entry: replace(original(entry), left_out=0))
    caught("sync-voids-returned", "was left out for all before", begin=20)


def test_workers_that_are_not_told_that_their_step_was_left_out(monkeypatch: Patch) -> None:
    def decide(original: Any, policy: Synchronous, *arguments: Any) -> Decision:
        decision: Decision = original(policy, *arguments)
        return replace(decision, granted=tuple(replace(grant, left_out=False) for grant in decision.granted))

    wrap(monkeypatch, Synchronous, "decide", decide)
    caught("sync-voids", "a worker is told of step")


def test_a_worker_that_asks_once_more_is_told_that_its_step_was_applied(monkeypatch: Patch) -> None:
    def restore(original: Any, policy: Synchronous, kept: Any, now: float) -> None:
        original(policy, (*kept[:3], None), now)

    wrap(monkeypatch, Synchronous, "restore", restore)
    caught("sync-voids-returned", "a worker is told of step", begin=20)
