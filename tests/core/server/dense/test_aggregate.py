"""Contributions kept apart until the commit."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.core.job.keyspace import Segment, Slice
from zmqps.core.protocol.arrays import borrow
from zmqps.core.protocol.terms import SET, SET_TO_MEAN
from zmqps.core.server.dense.aggregate import (
    GRADIENT,
    PART_NBYTES,
    PARTS_NBYTES,
    SPARE_GRADIENTS,
    SPARE_STEPS,
    Contribution,
    PushId,
    Stage,
)
from zmqps.errors import LimitError, ProtocolError

SIZE = 6
SLICE = Slice(shard=0, index=0, table=0, start=0, stop=SIZE, segments=(Segment(0, 0, 0, SIZE),))
A, B, C = (b"a", 1), (b"b", 1), (b"c", 1)
Array = np.ndarray[Any, Any]


def make(gradients: int = 1) -> Stage:
    return Stage(8 * SIZE, gradients)


def add(
    stage: Stage,
    push: PushId,
    value: Any,
    *bounds: tuple[int, int],
    step: int = 0,
    examples: int = 1,
    dtype: str = "f8",
    sort: float = GRADIENT,
) -> None:
    """Bring gradients of one value, or of an array's elements, by default of the whole slice."""
    bounds = bounds or ((0, SIZE),)
    values = np.broadcast_to(value, SIZE).astype(dtype)
    stage.add(step, push, [Contribution(SLICE, bounds, [values[lo:hi] for lo, hi in bounds], sort)], examples)
    stage.validate()


def lend(stage: Stage, push: PushId, value: float, *, stays: bool = True) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bring a gradient that lies in another process's memory; return that memory."""
    memory = np.full(SIZE, value).view(np.uint8)
    piece = np.frombuffer(borrow(memory, 0, memory.size, None), "f8")
    stage.add(0, push, [Contribution(SLICE, ((0, SIZE),), [piece], GRADIENT, stays)], 1)
    stage.validate()
    return memory


def mean(stage: Stage, *pushes: PushId, step: int = 0) -> list[float | None]:
    """Return the mean by element; None where there is none."""
    found: list[float | None] = [None] * SIZE
    for start, array in stage.mean(step, 0, pushes):
        found[start : start + array.size] = array.tolist()
    return found


def test_the_mean_is_over_the_contributors_alone() -> None:
    stage = make()
    add(stage, A, 2.0)
    add(stage, B, 4.0)
    add(stage, C, 1e9)
    assert mean(stage, A, B) == [3.0] * SIZE
    assert stage.close(0) == {A, B, C}
    stage.validate()


def test_equal_numbers_of_examples_are_as_good_as_one_each() -> None:
    means = []
    for examples in (1, 32):
        stage = make()
        for contributor, value in ((A, 0.1), (B, 0.2), (C, 0.7)):
            add(stage, contributor, value, examples=examples)
        means.append(mean(stage, A, B, C))
    assert means[0] == means[1]


@for_each("examples", [(1, 1), (1, 3), (1 << 63, 1 << 63), (1, (1 << 64) - 1)])
@for_each("value", [1e30, 3e38])
def test_the_mean_of_finite_gradients_is_finite_also_over_all(value: float, examples: tuple[int, int]) -> None:
    stage = make()
    add(stage, A, value, examples=examples[0], dtype="f4")
    add(stage, B, value, examples=examples[1], dtype="f4")
    assert mean(stage, A, B) == pytest.approx([value] * SIZE, rel=1e-6)
    for total in (max(sum(examples), 4), (1 << 64) - 1):
        [(_, found)] = stage.mean(0, 0, [A, B], total=total)
        assert found.tolist() == pytest.approx([value * (sum(examples) / total)] * SIZE, rel=1e-6)


def test_what_is_not_finite_stays_so_where_that_is_allowed() -> None:
    stage = make()
    add(stage, A, [np.inf, np.inf, np.nan, 1, 1, 1])
    add(stage, B, [-np.inf, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(np.array(mean(stage, A, B), float), [np.nan, np.inf, np.nan, 1, 1, 1])


def test_what_a_push_leaves_out_has_no_mean_even_in_a_used_buffer() -> None:
    stage = make()
    add(stage, A, 7.0)
    stage.close(0)
    add(stage, A, 1.0, (2, 4), step=1)
    assert mean(stage, A, step=1) == [None, None, 1.0, 1.0, None, None]


def test_workers_with_different_parameters_are_each_divided_by_their_own_examples() -> None:
    stage = make()
    first, second = [(b"a", 1), (b"b", 1)], [(b"c", 1), (b"d", 1)]  # two replicas of two stages
    for worker, value in zip(first, (1.0, 3.0), strict=True):
        add(stage, worker, value, (0, 2))
    for worker, value in zip(second, (10.0, 30.0), strict=True):
        add(stage, worker, value, (2, 6))
    assert mean(stage, first[0], second[0], first[1], second[1]) == [2, 2, 20, 20, 20, 20]


def test_a_push_brings_a_slice_in_one_message() -> None:
    stage = make()
    add(stage, A, 1.0, (0, 2), (3, 6))
    with pytest.raises(ProtocolError):
        add(stage, A, 9.0, (2, 3))
    assert mean(stage, A) == [1.0, 1.0, None, 1.0, 1.0, 1.0]


def test_a_repeated_attempt_is_not_added_to_the_one_that_failed() -> None:
    stage = make()
    add(stage, (b"a", 1), 1.0, (0, 3))  # failed halfway
    add(stage, (b"a", 2), 1.0)
    assert mean(stage, (b"a", 2)) == [1.0] * SIZE


def test_nothing_comes_of_nothing() -> None:
    assert make().mean(0, 0, [A]) == []


def test_what_one_worker_can_bring_to_a_step_is_bounded_and_others_may_still_bring_theirs() -> None:
    stage = Stage(1 << 20, gradients=2)
    slice_ = Slice(shard=0, index=0, table=0, start=0, stop=1 << 17, segments=())
    gradient = Contribution(slice_, [(0, slice_.size)], [np.zeros(slice_.size)])
    most = 2 + SPARE_GRADIENTS + PARTS_NBYTES // (1 << 20) - 1  # whole ones; the last gives way to what parts cost
    for attempt in range(most):
        stage.add(0, (b"a", attempt), [gradient], 1)
    with pytest.raises(LimitError, match="one worker's gradients of a step"):
        stage.add(0, (b"a", most), [gradient, gradient._replace(slice=replace(slice_, index=1))], 1)
    assert stage.nbytes == most << 20, "nothing of it is kept"
    stage.add(0, (b"b", 1), [gradient], 1)
    stage.add(1, (b"a", most), [gradient], 1)
    assert stage.close(1) >= {(b"a", 0), (b"b", 1), (b"a", most)}
    stage.add(2, (b"a", most), [gradient], 1)
    stage.validate()


def test_the_number_of_tiny_pushes_is_bounded() -> None:
    stage = Stage(0)
    for attempt in range(PARTS_NBYTES // PART_NBYTES):
        stage.add(0, (b"a", attempt), [], 1)
    with pytest.raises(LimitError):
        stage.add(0, (b"a", 0), [Contribution(SLICE, [], [])], 1)


BOUNDS = st.lists(st.integers(0, SIZE), max_size=4, unique=True).map(
    lambda b: tuple(zip(sorted(b)[::2], sorted(b)[1::2], strict=False))
)


@given(pushes=st.lists(st.tuples(BOUNDS, st.integers(1, 4)), min_size=1, max_size=4))
def test_each_element_is_the_weighted_mean_of_those_who_pushed_it(pushes: list[Any]) -> None:
    stage = make()
    totals, examples = np.zeros(SIZE), np.zeros(SIZE)
    for number, (bounds, weight) in enumerate(pushes):
        covered = np.zeros(SIZE, bool)
        for start, stop in bounds:
            covered[start:stop] = True
        if bounds:
            add(stage, (bytes([number]), 1), np.arange(SIZE) + 10.0 * number, *bounds, examples=weight)
        totals += covered * (np.arange(SIZE) + 10.0 * number) * weight
        examples += covered * weight
    found = np.array(mean(stage, *((bytes([number]), 1) for number in range(len(pushes)))), float)
    expected = np.divide(totals, examples, out=np.full(SIZE, np.nan), where=examples > 0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(order=st.permutations(range(5)), seed=st.integers(0, 99))
def test_the_sum_does_not_depend_on_who_came_first(order: list[int], seed: int) -> None:
    gradients = np.random.default_rng(seed).standard_normal((5, SIZE))
    names = [(bytes([i]), 1) for i in range(5)]
    means = []
    for arrival in (range(5), order):
        stage = make()
        for i in arrival:
            add(stage, names[i], gradients[i], dtype="f4")
        means.append(mean(stage, *names))
    assert means[0] == means[1]


def test_buffers_of_those_who_have_gone_are_given_back() -> None:
    stage = make()
    for step in range(3):
        for number in range(20):
            add(stage, (bytes([number]), 1), 1.0, step=step)
        stage.close(step)
    most = stage.nbytes
    assert most == 20 * 8 * SIZE
    for step in range(3, 3 + SPARE_STEPS + 1):
        for push in (A, B):
            add(stage, push, 1.0, step=step)
        assert mean(stage, A, B, step=step) == [1.0] * SIZE
        stage.close(step)
    assert stage.nbytes == (2 + 1) * 8 * SIZE, "one gradient of each that is there, and the mean"


@for_each("examples", [(1, 1), (1, 3)])
def test_a_mean_may_be_asked_for_again(examples: tuple[int, int]) -> None:
    stage = make()
    for push, value, number in zip((A, B), (1.0, 5.0), examples, strict=True):
        add(stage, push, value, examples=number)
    first = mean(stage, A, B)
    assert mean(stage, A, B) == first == [3.0 if examples == (1, 1) else 4.0] * SIZE


BOUNDS = st.sampled_from([((0, SIZE),), ((0, 2),), ((2, SIZE),), ((0, 2), (4, SIZE)), ((2, 4),)])


@given(st.lists(st.tuples(st.sampled_from([GRADIENT, SET, SET_TO_MEAN]), BOUNDS, st.integers(1, 3)), max_size=5))
@example([(GRADIENT, ((0, SIZE),), 1), (SET, ((2, 4),), 1)])
def test_an_element_is_set_by_the_first_who_sets_it_else_to_the_mean_else_it_is_trained(
    brought: list[tuple[float, tuple[tuple[int, int], ...], int]],
) -> None:
    stage, pushes = make(9), [(bytes([number]), 1) for number in range(len(brought))]
    for number, (sort, bounds, examples) in enumerate(brought):
        add(stage, pushes[number], 2.0**number, *bounds, examples=examples, sort=sort)
    means, values = stage.outcome(0, 0, pushes)
    got: list[tuple[str, float] | None] = [None] * SIZE
    for what, stretches in (("trained", means), ("set", values)):
        for start, array in stretches:
            for place, value in enumerate(array.tolist(), start):
                assert got[place] is None, "stretches are disjoint"
                got[place] = what, value
    for place in range(SIZE):
        there = [
            (sort, 2.0**number, examples)
            for number, (sort, bounds, examples) in enumerate(brought)
            if any(lo <= place < hi for lo, hi in bounds)
        ]
        by_sort = {s: [(value, n) for sort, value, n in there if sort == s] for s in (SET, SET_TO_MEAN, GRADIENT)}
        if by_sort[SET]:
            assert got[place] == ("set", by_sort[SET][0][0])
        elif some := by_sort[SET_TO_MEAN] or by_sort[GRADIENT]:
            expected = sum(value * n for value, n in some) / sum(n for _, n in some)
            assert got[place] == ("set" if by_sort[SET_TO_MEAN] else "trained", pytest.approx(expected))
        else:
            assert got[place] is None
    assert stage.close(0) == set(pushes)
    assert not stage._setting


def test_what_stays_in_a_workers_memory_is_read_there() -> None:
    stage = make()
    memory = lend(stage, A, 1.0)
    assert stage.nbytes == 0
    memory.view("f8")[:] = 3.0  # nobody writes there really: it shows where the mean is read
    assert mean(stage, A) == [3.0] * SIZE
    add(stage, B, 5.0)
    assert mean(stage, A, B) == [4.0] * SIZE


def test_what_does_not_stay_there_is_copied() -> None:
    stage = make()
    lend(stage, A, 1.0, stays=False)[:] = 0
    stage.add(0, B, [Contribution(SLICE, ((0, SIZE),), [np.full(SIZE, 2.0)], GRADIENT, True)], 1)  # it came by wire
    assert stage.nbytes == 2 * 8 * SIZE
    assert mean(stage, A, B) == [1.5] * SIZE


def test_a_workers_memory_is_let_go_with_the_step_and_never_written_to() -> None:
    stage = make()
    memory = lend(stage, A, 1.0)
    kept = weakref.ref(memory)
    assert stage.close(0) == {A}
    add(stage, B, 2.0, step=1)
    assert (memory.view("f8") == 1.0).all()
    del memory
    assert kept() is None


# --- a mean over all workers ----------------------------------------------------------------------


def test_a_worker_that_has_not_pushed_an_element_counts_as_zeros_where_the_mean_is_over_all() -> None:
    stage = make()
    add(stage, A, 1.0, examples=4)
    add(stage, B, 3.0, (0, 2), examples=4)
    [(_, found)] = stage.mean(0, 0, [A, B], total=8)
    assert found.tolist() == [2.0, 2.0, 0.5, 0.5, 0.5, 0.5]
    assert mean(stage, A, B) == [2.0, 2.0, 1.0, 1.0, 1.0, 1.0]


@for_each("dtype", ["f4", "f8"])
def test_what_all_have_pushed_has_the_same_bits_whatever_the_mean_is_over(dtype: str) -> None:
    for pushes in ([A], [A, B, C]):
        means = []
        for total in (0, 7 * len(pushes)):
            stage = make()
            for number, push in enumerate(pushes):
                add(stage, push, np.arange(SIZE) / (number + 3), examples=7, dtype=dtype)
            [(_, found)] = stage.mean(0, 0, pushes, total=total)
            means.append(found.tobytes())
        assert means[0] == means[1]


def test_a_gradient_that_is_lent_is_read_in_place_by_one_worker_alone_and_never_written() -> None:
    stage = make()
    memory = lend(stage, A, 8.0)
    [(_, alone)] = stage.mean(0, 0, [A], total=1)
    assert np.shares_memory(alone, memory)
    [(_, found)] = stage.mean(0, 0, [A], total=4)
    assert not np.shares_memory(found, memory)
    assert (found.tolist(), memory.view("f8").tolist()) == ([2.0] * SIZE, [8.0] * SIZE)


PUSHES = st.lists(
    st.tuples(
        st.sampled_from([A, B, C]),
        st.lists(st.integers(0, SIZE), min_size=2, max_size=4, unique=True).map(sorted),
        st.integers(1, 9),
        st.floats(-8, 8, width=32),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda brought: brought[0],
)


@given(pushes=PUSHES, others=st.integers(0, 20), dtype=st.sampled_from(["f4", "f8"]))
def test_the_mean_over_all_is_that_of_ten_lines(pushes: list[Any], others: int, dtype: str) -> None:
    stage = make()
    sums, pushed, total = np.zeros(SIZE), np.zeros(SIZE, bool), others
    for push, bounds, examples, value in pushes:
        pairs = list(zip(bounds[::2], bounds[1::2], strict=False))
        add(stage, push, value, *pairs, examples=examples, dtype=dtype)
        total += examples
        for start, stop in pairs:
            sums[start:stop] += value * examples
            pushed[start:stop] = True
    found = np.zeros(SIZE)
    for start, array in stage.mean(0, 0, [push for push, *_ in pushes], total=total):
        assert pushed[start : start + array.size].all()
        found[start : start + array.size] = array
        pushed[start : start + array.size] = False
    assert not pushed.any()
    np.testing.assert_allclose(found, sums / total, rtol=1e-5, atol=1e-6)


def test_of_a_step_that_is_left_out_only_values_are_set() -> None:
    stage = make()
    add(stage, A, 1.0)
    assert stage.outcome(0, 0, [A], left_out=True) == ([], [])
    add(stage, B, 5.0, (1, 3), sort=SET)
    means, values = stage.outcome(0, 0, [A, B], left_out=True)
    assert means == []
    assert [(start, array.tolist()) for start, array in values] == [(1, [5.0, 5.0])]
