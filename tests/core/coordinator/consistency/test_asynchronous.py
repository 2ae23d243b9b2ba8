"""Asynchronous training: nobody waits for anybody."""

from __future__ import annotations

from zmqps.core.coordinator.consistency import Asynchronous, Decision


def test_whoever_arrives_goes_on_at_once_however_far_ahead_it_is() -> None:
    policy = Asynchronous()
    for worker in (b"a", b"b"):
        assert policy.join(worker) == 0
    for step in range(5):
        policy.arrive(b"a", step, (step + 1,), 0.0)
        decision = policy.decide(0, 0.0)
        assert [(entry.worker, entry.counted) for entry in decision.granted] == [(b"a", True)]
        assert decision.commitment is None
    assert policy.decide(0, 0.0) == Decision()
    assert policy.join(b"c") == 0, "a late worker begins like all others"


def test_a_job_that_goes_on_from_a_checkpoint_begins_at_its_clock() -> None:
    policy = Asynchronous()
    policy.begin_at(7)
    assert policy.clock == 0
    assert policy.join(b"w" * 16) == 0
    policy.validate()
