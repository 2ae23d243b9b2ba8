"""The synchronous barrier: who contributes to a step, who is told what, and nobody waits for the dead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.core.coordinator.consistency import Commitment, Decision, Grant, Synchronous
from zmqps.core.coordinator.consistency.synchronous import FLOOR_S, WARM_UP, ArrivalClock
from zmqps.core.job.spec import MAX_COUNT

A, B, C = b"a", b"b", b"c"


def make(*workers: bytes, aggregate: int | None = None, on_straggler: str = "wait") -> Synchronous:
    policy = Synchronous(aggregate, on_straggler)
    for worker in workers:
        assert policy.join(worker) == 0
    return policy


def arrive(policy: Synchronous, worker: bytes, step: int, *, attempt: int = 1, now: float = 0.0) -> Decision:
    policy.arrive(worker, step, (attempt,), now)
    return decide(policy, now=now)


def decide(policy: Synchronous, *, missing: int = 0, now: float = 0.0) -> Decision:
    decision = policy.decide(missing, now)
    policy.validate()
    return decision


def committed(decision: Decision) -> Commitment:
    assert decision.commitment is not None
    return decision.commitment


def contributors(decision: Decision) -> set[bytes]:
    return {worker for worker, _ in committed(decision).contributors}


def test_a_step_is_committed_when_every_live_worker_has_arrived() -> None:
    policy = make(A, B)
    assert arrive(policy, A, 0) == Decision()
    assert list(policy.awaited()) == [B]
    decision = arrive(policy, B, 0)
    assert contributors(decision) == {A, B}
    assert {(r.worker, r.version, r.counted) for r in decision.granted} == {(A, 1, True), (B, 1, True)}
    assert policy.clock == 1


def test_a_worker_that_dies_before_it_arrived_is_left_out() -> None:
    policy = make(A, B)
    arrive(policy, A, 0)
    policy.leave(B)
    assert contributors(decide(policy)) == {A}


def test_a_worker_that_dies_after_it_arrived_still_contributes() -> None:
    policy = make(A, B, C)
    arrive(policy, A, 0)
    policy.leave(A)
    arrive(policy, B, 0)
    decision = arrive(policy, C, 0)
    assert contributors(decision) == {A, B, C}
    assert {r.worker for r in decision.granted} == {B, C}


def test_the_first_steps_wait_for_workers_that_are_expected() -> None:
    policy = make(A)
    policy.arrive(A, 0, (1,), 0.0)
    assert decide(policy, missing=1) == Decision()
    assert "and waits for all" in policy.why(1)
    assert contributors(decide(policy, missing=0)) == {A}


def test_with_a_backup_worker_the_last_gradient_is_dropped_and_its_worker_told() -> None:
    policy = make(A, B, C, aggregate=2)
    arrive(policy, A, 0)
    assert contributors(arrive(policy, B, 0)) == {A, B}
    late = arrive(policy, C, 0)
    assert late.commitment is None
    assert [(r.worker, r.version, r.counted) for r in late.granted] == [(C, 1, False)]
    assert policy.dropped == 1


def test_with_more_gradients_than_workers_some_bring_several() -> None:
    policy = make(A, B, aggregate=3)
    first = arrive(policy, A, 0, attempt=1)
    assert [(r.worker, r.version) for r in first.granted] == [(A, 0)]  # one more is needed than B can bring
    assert arrive(policy, A, 0, attempt=2) == Decision()
    decision = arrive(policy, B, 0)
    assert {(w, attempts) for w, attempts in committed(decision).contributors} == {(A, (1, 2)), (B, (1,))}


def test_backup_workers_that_die_do_not_stop_the_rest() -> None:
    policy = make(A, B, C, aggregate=2)
    policy.leave(B)
    policy.leave(C)
    assert [r.version for r in arrive(policy, A, 0, attempt=1).granted] == [0]
    assert contributors(arrive(policy, A, 0, attempt=2)) == {A}


def warmed_up(on_straggler: str) -> Synchronous:
    policy = make(A, B, on_straggler=on_straggler)
    for step in range(WARM_UP):
        arrive(policy, A, step, now=10.0 * step)
        arrive(policy, B, step, now=10.0 * step + 0.1)
    return policy


def test_patience_follows_the_arrivals_seen() -> None:
    clock = ArrivalClock()
    assert clock.patience is None
    for _ in range(50):
        clock.observe(10.0, late=False)
    assert clock.patience == pytest.approx(10.0, rel=0.05)
    clock.observe(10.0, late=True)
    assert clock.patience == pytest.approx(20.0, rel=0.05)


def test_a_late_worker_is_left_behind_when_the_policy_consents() -> None:
    policy = warmed_up("continue")
    assert arrive(policy, A, WARM_UP, now=100.0).commitment is None
    due = policy.next_deadline()
    assert due == pytest.approx(100.0 + FLOOR_S)
    assert contributors(decide(policy, now=due)) == {A}
    late = arrive(policy, B, WARM_UP, now=due + 1.0)
    assert [(r.worker, r.counted) for r in late.granted] == [(B, False)]


def test_a_late_worker_fails_those_who_wait_when_the_policy_says_so() -> None:
    policy = warmed_up("fail")
    arrive(policy, A, WARM_UP, now=100.0)
    due = policy.next_deadline()
    assert due is not None
    decision = decide(policy, now=due)
    assert (decision.failed, decision.awaited) == ((A,), (B,))
    assert policy.next_deadline() is None
    policy.arrive(A, WARM_UP, (), due + 1.0)  # it waits once more, for what it brought before
    decision = arrive(policy, B, WARM_UP, now=due + 1.0)
    assert {w: attempts for w, attempts in committed(decision).contributors} == {A: (1,), B: (1,)}


def test_who_may_bring_another_gradient_to_the_step_is_told_once_and_then_awaited() -> None:
    policy = make(A, aggregate=3)
    for attempt in (1, 2):
        assert [entry.worker for entry in arrive(policy, A, 0, attempt=attempt).granted] == [A]
        assert decide(policy) == Decision(), "it has been told"
    assert list(policy.awaited()) == []
    decision = arrive(policy, A, 0, attempt=3)
    assert committed(decision).contributors == ((A, (1, 2, 3)),)


# --- steps that somebody skips ------------------------------------------------------------------


def test_one_that_skips_the_step_holds_up_nobody_and_has_no_part_in_it() -> None:
    policy = make(A, B)
    policy.arrive(A, 0, (), 0.0)
    assert decide(policy) == Decision()
    assert "has the gradients of 0 workers, 1 live worker is awaited" in policy.why(0)
    decision = arrive(policy, B, 0)
    assert contributors(decision) == {B}
    assert {(r.worker, r.version, r.counted) for r in decision.granted} == {(A, 1, True), (B, 1, True)}


def test_a_step_that_all_skip_is_over_with_nothing_in_it() -> None:
    policy = make(A, B)
    policy.arrive(A, 0, (), 0.0)
    policy.arrive(B, 0, (), 0.0)
    assert contributors(decide(policy)) == set()
    assert policy.clock == 1


def test_one_that_has_skipped_the_step_and_leaves_ends_none() -> None:
    policy = make(A, B)
    policy.arrive(A, 0, (), 0.0)
    policy.leave(A)
    policy.leave(B)
    assert decide(policy) == Decision()
    assert policy.join(C) == 0


def test_one_that_skips_brings_another_gradient_where_the_step_needs_one() -> None:
    policy = make(A, B, aggregate=2)
    policy.arrive(A, 0, (), 0.0)
    assert [(r.worker, r.version) for r in decide(policy).granted] == [(A, 0)]
    arrive(policy, A, 0, attempt=2)
    assert contributors(arrive(policy, B, 0)) == {A, B}


def test_backup_workers_go_on_without_those_that_skip() -> None:
    policy = make(A, B, C, aggregate=2)
    policy.arrive(A, 0, (), 0.0)
    assert decide(policy) == Decision()
    arrive(policy, B, 0)
    decision = arrive(policy, C, 0)
    assert contributors(decision) == {B, C}
    assert {r.worker for r in decision.granted} == {A, B, C}


def test_nobody_is_late_for_a_step_to_which_nothing_was_brought() -> None:
    policy = warmed_up("continue")
    policy.arrive(A, WARM_UP, (), 100.0)
    assert policy.next_deadline() is None
    assert decide(policy, now=1e9) == Decision()


# --- those who are late -------------------------------------------------------------------------


def test_without_a_policy_for_stragglers_nobody_is_late() -> None:
    policy = warmed_up("wait")
    assert policy.status()["patience_s"] is None
    arrive(policy, A, WARM_UP, now=100.0)
    assert policy.next_deadline() is None
    assert decide(policy, now=1e9) == Decision()


@given(
    aggregate=st.none() | st.integers(1, 6),
    events=st.lists(st.tuples(st.sampled_from("advance skip leave join".split()), st.integers(0, 4)), max_size=120),
)
def test_steps_are_committed_in_order_and_nobody_is_held_for_ever(
    aggregate: int | None, events: list[tuple[str, int]]
) -> None:
    policy = Synchronous(aggregate)
    clocks: dict[bytes, int] = {}
    waiting: set[bytes] = set()
    committed, attempt, seen = 0, 0, set()
    for kind, number in events:
        worker = bytes([number])
        if kind == "join" and worker not in clocks:
            clocks[worker] = policy.join(worker)
            assert clocks[worker] == committed
        elif kind == "leave" and worker in clocks:
            policy.leave(worker)
            del clocks[worker]
            waiting.discard(worker)
        elif kind in ("advance", "skip") and worker in clocks and worker not in waiting:
            attempt += 1
            policy.arrive(worker, clocks[worker], (attempt,) if kind == "advance" else (), 0.0)
            waiting.add(worker)
        decision = decide(policy)
        if decision.commitment is not None:
            assert decision.commitment.step == committed
            committed += 1
            brought = [a for _, attempts in decision.commitment.contributors for a in attempts]
            assert not seen & set(brought), "a gradient counts once"
            assert len(set(brought)) == len(brought) >= (aggregate or 0)
            seen |= set(brought)
        for entry in decision.granted:
            waiting.discard(entry.worker)
            if entry.worker in clocks:
                clocks[entry.worker] = entry.version
        assert not clocks or waiting != set(clocks), "somebody can always go on"


def test_a_job_that_goes_on_from_a_checkpoint_begins_at_its_clock() -> None:
    policy = Synchronous()
    policy.begin_at(7)
    assert policy.clock == 7
    assert policy.join(b"w" * 16) == 7
    policy.validate()


def test_what_was_brought_before_the_coordinator_came_back_can_be_taken_back() -> None:
    before = make(A, B, C)
    arrive(before, A, 0, attempt=1)
    arrive(before, B, 0, attempt=2)
    policy = make(A, B, C)
    policy.restore(before.dump(), now=1.0)
    policy.validate()
    for worker in (A, B):  # they have gone, and their gradients with a server
        policy.retract(worker)
        policy.leave(worker)
    policy.leave(C)
    assert decide(policy) == Decision(), "a step without a gradient is not complete"
    policy.join(C)
    assert contributors(arrive(policy, C, 0, attempt=3)) == {C}


def test_a_worker_that_has_brought_two_gradients_counts_twice_when_the_coordinator_is_back() -> None:
    before = make(A, aggregate=3)
    arrive(before, A, 0, attempt=1)
    arrive(before, A, 0, attempt=2)
    policy = make(A, aggregate=3)
    policy.restore(before.dump(), now=1.0)
    assert contributors(arrive(policy, A, 0, attempt=3)) == {A}


# --- over whom the mean is, and whether it is applied ---------------------------------------------


def test_a_step_counts_the_examples_of_its_contributors_each_batch_once() -> None:
    policy = make(A, B, C, aggregate=4)
    policy.arrive(A, 0, (1,), 0.0, 8)
    policy.arrive(A, 0, (1,), 0.0, 8)  # sent again
    policy.arrive(B, 0, (1,), 0.0, 2)
    policy.arrive(C, 0, (), 0.0, 5)  # it skips
    assert {grant.worker for grant in decide(policy).granted} <= {A, B, C}
    policy.arrive(A, 0, (2,), 0.0, 4)
    policy.arrive(C, 0, (3,), 0.0, (1 << 63) - 20)
    commitment = committed(decide(policy))
    assert commitment.examples == (1 << 63) - 20 + 14
    assert not commitment.left_out


def test_more_examples_than_a_message_can_say_are_the_most_it_can() -> None:
    policy = make(A, B)
    for worker in (A, B):
        policy.arrive(worker, 0, (1,), 0.0, MAX_COUNT)
    commitment = committed(decide(policy))
    assert commitment.examples == MAX_COUNT


def test_a_step_that_one_leaves_out_for_all_is_left_out_and_everybody_is_told() -> None:
    policy = make(A, B)
    policy.arrive(A, 0, (1,), 0.0, leaves_out=True)
    assert decide(policy) == Decision(), "the others end it as any step"
    policy.leave(A)  # what it has said completely counts
    policy.join(C)
    arrive(policy, B, 0)
    decision = arrive(policy, C, 0)
    assert committed(decision).left_out
    assert {(grant.worker, grant.left_out) for grant in decision.granted} == {(B, True), (C, True)}
    policy.arrive(B, 0, (), 0.0)  # its answer was lost
    assert [grant.left_out for grant in decide(policy).granted] == [True]
    arrive(policy, B, 1)
    decision = arrive(policy, C, 1)
    assert not committed(decision).left_out
    assert not any(grant.left_out for grant in decision.granted)


def test_a_step_that_was_committed_before_is_not_left_out() -> None:
    policy = make(A, B, C, aggregate=2)
    arrive(policy, A, 0)
    committed(arrive(policy, B, 0))
    policy.arrive(C, 0, (1,), 0.0, leaves_out=True)
    assert decide(policy) == Decision((Grant(C, 1, False),))
    arrive(policy, A, 1)
    decision = arrive(policy, B, 1)
    assert not committed(decision).left_out


def test_a_coordinator_that_is_back_knows_who_left_out_what_and_as_how_many_each_counts() -> None:
    policy = make(A, B)
    policy.arrive(A, 0, (1,), 0.0, leaves_out=True)
    arrive(policy, B, 0)
    policy.arrive(B, 1, (2,), 0.0, 6, leaves_out=True)
    again = make(A, B)
    again.restore(policy.dump(), 0.0)
    again.validate()
    again.arrive(A, 0, (), 0.0)
    assert [grant.left_out for grant in decide(again).granted] == [True]
    again.arrive(B, 1, (2,), 0.0, 6, leaves_out=True)
    again.arrive(A, 1, (2,), 0.0, 3)
    commitment = committed(decide(again))
    assert (commitment.examples, commitment.left_out) == (9, True)


def test_there_is_something_to_decide_only_once_somebody_has_arrived() -> None:
    policy = make(A, B)
    assert not policy.pending
    policy.arrive(A, 0, (1,), 0.0)
    assert policy.pending
    decide(policy)
    assert policy.pending, "the step is open"
    arrive(policy, B, 0)
    assert not policy.pending, "the next one has not begun"
    policy.arrive(A, 0, (2,), 0.0)
    assert policy.pending, "it came too late, and is to be told so"
    decide(policy)
    assert not policy.pending
