"""The table of a job's workers: one phase for each, and what the journal keeps of it."""

from __future__ import annotations

from typing import Any

from zmqps.core.coordinator.training.steps import Trainee, TraineePhase, Trainees

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def trainees() -> Trainees:
    """Return a table in which A waits, B computes, and C was informed of a clock."""
    table = Trainees()
    for rank, who in enumerate((A, B)):
        table.begin(who, rank)
    table[C] = Trainee(rank=2, phase=TraineePhase.INFORMED, clock=7)
    table.wait(A, 9)
    table.validate({A, B, C}, {A, B})
    return table


def test_a_worker_that_is_answered_computes_again_and_is_answered_once() -> None:
    table = trainees()
    assert table[A].phase is TraineePhase.WAITING
    assert (table.answer(A), table.answer(A), table.answer(B)) == (9, None, None)
    assert table[A].phase is TraineePhase.COMPUTING
    table.validate({A, B, C}, {A, B})


def test_a_worker_that_has_gone_is_remembered_until_the_step_is_over() -> None:
    table = trainees()
    assert table.leave(A, remembered=True)
    assert table.leave(B, remembered=False)
    assert not table.leave(C, remembered=True), "it has not trained"
    assert not table.leave(C, remembered=True), "it is not there"
    table.validate(set(), set())
    assert {who: (one.phase, one.rank) for who, one in table.items()} == {A: (TraineePhase.GONE, 0)}
    assert (table.num_training, table.waiting) == (0, {})
    table.forget_gone()
    assert not table


def test_who_begins_counts_once_and_keeps_waiting() -> None:
    table = trainees()
    for who in (A, C, C):
        table.begin(who, 5)
    assert table.num_training == 3
    assert table[A].phase is TraineePhase.WAITING, "it asks again for the job"
    table.validate({A, B, C}, {A, B, C})


def test_what_was_kept_is_what_it_was_but_for_who_waits() -> None:
    table, members = trainees(), dict[bytes, Any].fromkeys((B, C))
    table[B].lag, table[B].counted = 3, (4, (8, 9))
    table.leave(A, remembered=True)
    members[C] = Trainee(rank=2)  # anything with a rank
    again = Trainees()
    again.restore(table.dump(), members)
    again.validate({B, C}, {B})
    assert again.dump() == table.dump()
    assert (again[A].phase, again[B].unheard, again[C].clock) == (TraineePhase.GONE, True, 7)
