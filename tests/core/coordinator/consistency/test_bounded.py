"""Bounded staleness: nobody reads further ahead of the slowest than allowed."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from zmqps.core.coordinator.consistency import Bounded

A, B, C = b"a", b"b", b"c"


def joined(staleness: int) -> Bounded:
    policy = Bounded(staleness)
    for worker in (A, B):
        policy.join(worker)
    return policy


def granted(policy: Bounded, missing: int = 0) -> set[bytes]:
    decision = policy.decide(missing, 0.0)
    policy.validate()
    assert decision.commitment is None
    return {entry.worker for entry in decision.granted}


def test_a_worker_waits_when_it_would_be_too_far_ahead() -> None:
    policy = joined(2)
    for step in range(2):
        policy.arrive(A, step, (1,), 0.0)
        assert granted(policy) == {A}
    policy.arrive(A, 2, (1,), 0.0)  # at clock 3, the slowest at 0
    assert granted(policy) == set()
    assert list(policy.awaited()) == [B]
    assert "clock 0" in policy.why(0)
    policy.arrive(B, 0, (1,), 0.0)
    assert granted(policy) == {A, B}


def test_who_goes_on_is_told_the_slowest_clock() -> None:
    policy = joined(2)
    for clock in range(3):
        policy.arrive(A, clock, (1,), 0.0)
        told = policy.decide(0, 0.0).granted
        assert [entry.version for entry in told] == [0] * (clock < 2)
    policy.arrive(B, 0, (1,), 0.0)
    assert {entry.worker: entry.version for entry in policy.decide(0, 0.0).granted} == {A: 1, B: 1}


def test_the_clock_of_one_that_skips_its_step_goes_on() -> None:
    policy = joined(1)
    policy.arrive(A, 0, (1,), 0.0)
    policy.decide(0, 0.0)
    policy.arrive(A, 1, (2,), 0.0)
    assert granted(policy) == set()
    policy.arrive(B, 0, (), 0.0)
    assert granted(policy) == {A, B}


def test_a_worker_that_leaves_is_not_waited_for() -> None:
    policy = joined(1)
    for step in range(2):
        policy.arrive(A, step, (1,), 0.0)
        policy.decide(0, 0.0)
    policy.leave(B)
    assert granted(policy) == {A}


def test_a_late_worker_begins_at_the_slowest_clock() -> None:
    policy = Bounded(1)
    policy.join(A)
    for step in range(7):
        policy.arrive(A, step, (1,), 0.0)
        assert granted(policy) == {A}
    assert policy.join(B) == 7


def test_workers_that_have_not_joined_yet_count_as_clock_zero() -> None:
    policy = Bounded(1)
    policy.join(A)
    policy.arrive(A, 0, (1,), 0.0)
    assert granted(policy, missing=1) == {A}
    policy.arrive(A, 1, (1,), 0.0)
    assert granted(policy, missing=1) == set()
    assert granted(policy, missing=0) == {A}


@given(
    bound=st.sampled_from([1, 2, 5]),
    events=st.lists(
        st.tuples(st.sampled_from(["advance"] * 9 + ["leave", "pause", "go on"]), st.sampled_from([A, B, C])),
        max_size=80,
    ),
)
@example(bound=1, events=[("advance", A), ("advance", B)] * 2 + [("leave", A), ("leave", B)])
def test_no_released_worker_is_further_ahead_than_the_bound(bound: int, events: list[tuple[str, bytes]]) -> None:
    policy, waiting, paused = Bounded(bound), set[bytes](), set[bytes]()
    clocks = {worker: policy.join(worker) for worker in (A, B, C)}
    for kind, worker in events:
        if kind == "leave" and len(clocks) > 1 and worker in clocks:
            policy.leave(worker)
            del clocks[worker]
            waiting.discard(worker)
            paused.discard(worker)
        elif kind == "pause" and worker in clocks and worker not in waiting:
            policy.pause(worker)
            paused.add(worker)
        elif kind == "go on" and worker in paused:
            clocks[worker] = policy.join(worker)
            paused.remove(worker)
        elif kind == "advance" and worker in clocks and worker not in waiting | paused:
            policy.arrive(worker, clocks[worker], (1,), 0.0)
            clocks[worker] += 1
            waiting.add(worker)
        for entry in granted(policy):
            waiting.remove(entry)
            assert clocks[entry] - min(clocks[other] for other in clocks if other not in paused) <= bound
        assert not waiting or waiting != set(clocks) - paused, "the slowest worker is never held"


def test_a_job_that_goes_on_from_a_checkpoint_begins_at_its_clock() -> None:
    policy = Bounded(2)
    policy.begin_at(7)
    assert policy.clock == 7
    assert policy.join(b"w" * 16) == 7
    policy.validate()
