"""A worker's clock and gate: what closes it, what opens it, and what is said of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.tables import for_each
from zmqps.core.job.spec import MAX_COUNT
from zmqps.core.protocol.messages import Proceed
from zmqps.core.protocol.terms import SET
from zmqps.core.worker.operations import Advance, Exchange
from zmqps.core.worker.pace import Gate, Pace, StepExamples
from zmqps.core.worker.rows import RowSource
from zmqps.core.worker.transfer import PullTransfer, PushTransfer, Source, Target


def pace(mode: str = "sync", clock: int = 0) -> Pace:
    pace = Pace()
    pace.attach(mode, clock)
    return pace


def push(pace: Pace, *, whole: bool = True) -> PushTransfer:
    """Begin a push."""
    cargoes: Any = (("a slice",),)
    transfer = PushTransfer(cargoes=cargoes, source=Source(), whole=whole)
    pace.start(transfer)
    pace.validate()
    return transfer


def pushed(pace: Pace, *transfers: PushTransfer) -> None:
    for transfer in transfers:
        pace.pushed(transfer)
        pace.forget(transfer)


def step(pace: Pace, *, version: int, request: int = 1) -> Any:
    """Complete a step of one push; return what was said of it."""
    pushed(pace, push(pace))
    arrive = pace.arriving(request)
    pace.proceed(Proceed(request, version, 1))
    return arrive


def test_in_the_asynchronous_mode_there_is_no_gate() -> None:
    p = pace("async")
    transfer = push(p)
    assert (transfer.step, transfer.attempt, p.gate) == (0, 0, Gate.OPEN)
    pushed(p, transfer)
    pull = PullTransfer(target=Target(), version=3)
    p.start(pull)
    assert pull.version == 3


@for_each("mode", ["sync", "bounded"])
def test_a_push_of_everything_closes_the_gate_and_its_answer_opens_it(mode: str) -> None:
    p = pace(mode)
    transfer = push(p)
    assert p.gate is Gate.CLOSING
    p.pushed(transfer)
    assert p.gate is Gate.COMPLETE
    arrive = p.arriving(7)
    assert (arrive.request, arrive.step, arrive.attempts) == (7, 0, (1,))
    assert p.gate is Gate.ARRIVED
    p.proceed(Proceed(7, 1 if mode == "sync" else 0, 1))
    assert (p.closed, p.clock) == (False, 1)


def test_a_synchronous_read_demands_the_version_of_the_clock() -> None:
    p = pace(clock=4)
    for version in (4, 5):
        pull = PullTransfer(target=Target())
        p.start(pull)
        assert pull.version == version
        later = PullTransfer(target=Target(), version=9)
        p.start(later)
        assert later.version == 9
        step(p, version=version + 1)


@for_each("mode, asked, demanded", [("sync", 3, 3), ("bounded", 0, 0)], ids=["an older one", "bounded"])
def test_a_read_of_an_older_version_demands_that_one_and_a_bounded_one_none(
    mode: str, asked: int, demanded: int
) -> None:
    p = pace(mode, clock=4)
    step(p, version=5 if mode == "sync" else 0)
    pull = PullTransfer(target=Target(), version=asked, exact=mode == "sync")
    p.start(pull)
    assert (p.clock, pull.version) == (5, demanded)


def test_a_step_of_several_pushes_names_them_all() -> None:
    p = pace()
    first, second = push(p, whole=False), push(p, whole=False)
    assert not p.closed
    pushed(p, first, second)
    assert p.close(Advance(0.0))
    assert p.gate is Gate.COMPLETE
    assert p.arriving(1).attempts == (1, 2)


def test_every_push_has_an_attempt_of_its_own_and_only_the_good_ones_are_named() -> None:
    p = pace()
    failed = push(p)
    p.forget(failed)
    assert not p.closed, "the step is not complete, the push may be repeated"
    again = push(p)
    assert again.attempt > failed.attempt
    pushed(p, again)
    assert p.arriving(1).attempts == (again.attempt,)


@for_each("fails", [False, True])
def test_an_earlier_push_that_is_acknowledged_later_belongs_to_the_step_unless_it_fails(fails: bool) -> None:
    p = pace()
    partial, whole = push(p, whole=False), push(p)
    pushed(p, whole)
    assert p.gate is Gate.CLOSING
    if fails:
        p.forget(partial)
    else:
        pushed(p, partial)
    assert p.gate is Gate.COMPLETE
    assert sorted(p.arriving(1).attempts) == [partial.attempt, whole.attempt][fails:]


def test_a_step_begins_with_nothing() -> None:
    p = pace()
    assert not p.brought
    push(p)
    assert p.brought
    p = pace()
    assert step(p, version=1).attempts == (1,)
    assert not p.brought
    assert step(p, version=2).attempts == (2,)


@for_each("mode", ["sync", "bounded"])
def test_who_is_told_of_the_step_it_is_in_keeps_what_it_has_brought_to_it(mode: str) -> None:
    p = pace(mode, clock=3)
    transfer = push(p)
    pushed(p, transfer)
    assert not p.resume(3)
    assert p.arriving(1).attempts == (transfer.attempt,)


def test_who_is_told_of_a_later_step_loses_what_it_has_brought_to_its_own() -> None:
    p = pace("bounded", clock=3)
    pushed(p, push(p))
    assert p.resume(4)
    assert (p.clock, p.arriving(1).attempts) == (4, ())


def test_with_more_gradients_than_workers_the_clock_stays() -> None:
    p = pace(clock=3)
    step(p, version=3)
    assert p.clock == 3
    transfer = push(p)
    assert transfer.step == 3


def test_after_a_wait_that_failed_the_next_one_brings_nothing_new() -> None:
    p = pace()
    pushed(p, push(p))
    p.arriving(1)
    p.failed()
    assert (p.closed, p.gate) == (False, Gate.FAILED)
    again = p.arriving(2)
    assert (again.step, again.attempts) == (0, ())
    assert p.gate is Gate.ARRIVED, "it waits"
    p.failed()
    assert p.gate is Gate.FAILED, "and may do so as often as it must"
    p.arriving(3)
    p.proceed(Proceed(3, 1, 1))
    assert p.gate is Gate.OPEN
    assert step(p, version=2, request=4).step == 1


def test_an_advance_that_was_given_up_opens_the_gate() -> None:
    p = pace()
    push(p, whole=False)
    advance = Advance(0.0)
    p.close(advance)
    assert p.closed
    p.forget(advance)
    assert not p.closed


def test_a_bounded_read_knows_the_slowest_clock_and_its_own() -> None:
    p = pace("bounded", clock=3)
    assert p.reads_at == 3
    step(p, version=2)
    pull = PullTransfer(target=Target())
    p.start(pull)
    assert (p.reads_at, pull.slowest) == (4, 2)
    step(p, version=1)  # a coordinator that has come back may know less
    assert p.slowest == 2
    pushed(p, push(p))
    assert p.reads_at == 6  # the step is over for this worker
    p.arriving(7)
    held = Exchange(0.0, push=PushTransfer(source=Source(), whole=True))
    for operation in (held, Exchange(0.0, pull=pull), Advance(0.0), Exchange(0.0, push=PushTransfer(source=Source()))):
        p.held[operation] = None
    assert p.reads_at == 8


# --- a mean over all workers, and steps that are left out for all ----------------------------------


def arriving(pace: Pace, *closing: Any) -> tuple[list[int], int, int]:
    """End a step; return what is said of it: attempts, examples, and whether it is left out for all."""
    if closing:
        assert pace.close(closing[0])
    arrive = pace.arriving(1)
    pace.proceed(Proceed(1, pace.clock + 1, 1))
    return list(arrive.attempts), arrive.examples, arrive.leaves_out


def test_a_worker_with_nothing_counts_in_a_mean_over_all_and_one_that_skips_does_not() -> None:
    p = Pace()
    p.attach("sync", 0, counts_all=True)
    nothing = PushTransfer(source=Source(), whole=True, examples=8)
    p.start(nothing)
    assert p.gate is Gate.COMPLETE
    assert arriving(p) == ([1], 8, 0), "an attempt of no push, new for each"
    assert arriving(p, Advance()) == ([2], 1, 0)
    assert arriving(p, Advance(skips=True))[0] == []
    assert arriving(p, Advance(examples=0))[0] == [], "another one counts for it"
    assert arriving(p, Advance(examples=24)) == ([3], 24, 0)
    p.resume(9)
    assert p.step.examples.wanted


def test_where_the_mean_is_over_those_that_pushed_a_worker_with_nothing_has_skipped() -> None:
    p = pace()
    p.start(PushTransfer(source=Source(), whole=True, examples=8))
    assert arriving(p)[0] == arriving(p, Advance())[0] == []


def test_one_that_leaves_out_a_step_for_all_says_so_with_what_it_has_of_it() -> None:
    p = pace()
    assert arriving(p, Advance(skips=True, for_all=True)) == ([1], 1, 1)
    pushed(p, push(p, whole=False))
    assert arriving(p, Advance(skips=True, for_all=True)) == ([2], 1, 1)
    bounded = pace("bounded")
    assert arriving(bounded, Advance(skips=True, for_all=True))[::2] == ([], 0), "there it is a plain skip"


# --- a worker's examples in a step ---------------------------------------------------------------


@dataclass
class Piece:
    parameter: int


@dataclass
class Parts:
    extents: list[Piece] = field(default_factory=list)


def batch(examples: int, *parameters: int, terms: Any = (), rows: bool = False) -> PushTransfer:
    """Return a push of some parameters, each on another shard and in two messages; or of rows."""
    cargoes: Any = tuple((Parts([Piece(number)]), Parts([Piece(number)])) for number in parameters)
    source: Any = RowSource(rows=np.zeros((1, 1), np.float32)) if rows else Source()
    return PushTransfer(cargoes=() if rows else cargoes, source=source, examples=examples, terms=terms)


def wanted() -> StepExamples:
    """Return those of a job whose mean is over all workers."""
    counted = StepExamples()
    counted.wanted = True
    return counted


@for_each(
    "pushes, examples",
    [
        ([], 1),
        ([batch(8, 0, 1)], 8),
        ([batch(8, 0), batch(8, 1)], 8),  # parts of one batch
        ([batch(8, 0, 1), batch(4, 0, 1)], 12),  # two batches
        ([batch(8, 0, 1), batch(4, 0)], 12),
        ([batch(3, 0), batch(8)], 8),  # nothing more of the same batch
        ([batch(8, 0), batch(8, rows=True), batch(8, rows=True)], 8),
        ([batch(2, rows=True)], 2),
        ([batch(8, 0), batch(100, 1, terms=(SET,))], 8),
        ([batch(1, 0), batch(MAX_COUNT, 0)], MAX_COUNT),
    ],
)
def test_parts_of_a_batch_count_once_and_batches_add_up(pushes: list[PushTransfer], examples: int) -> None:
    counted = wanted()
    for one in pushes:
        counted.add(one)
    assert counted.so_far == examples
    counted.clear()
    assert counted.so_far == 1, "a step begins anew"


def test_a_push_that_is_alone_in_its_step_is_not_taken_apart() -> None:
    counted = wanted()
    counted.add(PushTransfer(source=Source(), examples=5), alone=True)
    assert counted.so_far == 5
    counted.add(batch(5, 0))
    counted.clear()
    assert counted.so_far == 1


def test_where_no_mean_is_over_all_workers_nothing_is_counted() -> None:
    counted = StepExamples()
    counted.add(batch(5, 0))
    assert counted.so_far == 1
