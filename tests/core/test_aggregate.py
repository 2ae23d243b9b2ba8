"""Contributions kept apart until the commit."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zmqps.core.aggregate import Stage
from zmqps.core.keyspace import Segment, Slice

PIECE = Slice(0, 0, 0, 0, 6, (Segment(0, 0, 0, 6),))
A, B = (b"a", 1), (b"b", 1)


def whole(mean: list[tuple[int, np.ndarray[Any, Any]]]) -> np.ndarray[Any, Any]:
    ((start, array),) = mean
    assert start == 0
    return array


def test_the_mean_is_over_the_contributors_alone() -> None:
    stage = Stage()
    stage.add(0, A, PIECE, 0, np.full(6, 2.0), 1)
    stage.add(0, B, PIECE, 0, np.full(6, 4.0), 1)
    stage.add(0, (b"c", 1), PIECE, 0, np.full(6, 1e9), 1)
    assert (whole(stage.mean(0, 0, [A, B])) == 3.0).all()
    assert stage.close(0) == {A, B, (b"c", 1)}
    stage.validate()


def test_examples_weigh_the_mean() -> None:
    stage = Stage()
    stage.add(0, A, PIECE, 0, np.full(6, 1.0), 3)
    stage.add(0, B, PIECE, 0, np.full(6, 5.0), 1)
    assert (whole(stage.mean(0, 0, [A, B])) == 2.0).all()


def test_what_a_push_leaves_out_has_no_mean_even_in_a_used_buffer() -> None:
    stage = Stage()
    stage.add(0, A, PIECE, 0, np.full(6, 7.0), 1)
    stage.close(0)
    stage.add(1, A, PIECE, 2, np.full(2, 1.0), 1)
    ((start, mean),) = stage.mean(1, 0, [A])
    assert (start, mean.tolist()) == (2, [1, 1])


def test_workers_with_different_parameters_are_each_divided_by_their_own_examples() -> None:
    stage = Stage()
    first, second = [(b"a", 1), (b"b", 1)], [(b"c", 1), (b"d", 1)]  # two replicas of two stages
    for worker, value in zip(first, (1.0, 3.0), strict=True):
        stage.add(0, worker, PIECE, 0, np.full(2, value), 1)
    for worker, value in zip(second, (10.0, 30.0), strict=True):
        stage.add(0, worker, PIECE, 2, np.full(4, value), 1)
    assert whole(stage.mean(0, 0, [first[0], second[0], first[1], second[1]])).tolist() == [2, 2, 20, 20, 20, 20]


def test_pieces_of_one_push_make_one_whole_in_any_order() -> None:
    stage = Stage()
    for start, stop in ((3, 6), (0, 2), (1, 3)):
        stage.add(0, A, PIECE, start, np.arange(start, stop, dtype=float), 1)
        stage.validate()
    assert whole(stage.mean(0, 0, [A])).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_repeated_attempt_is_not_added_to_the_one_that_failed() -> None:
    stage = Stage()
    stage.add(0, (b"a", 1), PIECE, 0, np.full(3, 1.0), 1)  # failed halfway
    stage.add(0, (b"a", 2), PIECE, 0, np.full(6, 1.0), 1)
    assert (whole(stage.mean(0, 0, [(b"a", 2)])) == 1.0).all()


def test_nothing_comes_of_nothing() -> None:
    assert Stage().mean(0, 0, [A]) == []


RANGES = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=3)


@given(pushes=st.lists(st.tuples(RANGES, st.integers(1, 4)), min_size=1, max_size=4))
def test_each_element_is_the_weighted_mean_of_those_who_pushed_it(pushes: list[Any]) -> None:
    stage = Stage()
    totals, examples = np.zeros(6), np.zeros(6)
    for number, (ranges, weight) in enumerate(pushes):
        covered = np.zeros(6, bool)
        for start, size in ranges:
            stop = min(6, start + size)
            stage.add(0, (bytes([number]), 1), PIECE, start, np.full(stop - start, float(number)), weight)
            covered[start:stop] = True
        totals += covered * number * weight
        examples += covered * weight
    stage.validate()
    found = np.full(6, np.nan)
    for start, mean in stage.mean(0, 0, [(bytes([number]), 1) for number in range(len(pushes))]):
        found[start : start + mean.size] = mean
    expected = np.divide(totals, examples, out=np.full(6, np.nan), where=examples > 0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(order=st.permutations(range(5)), seed=st.integers(0, 99))
def test_the_sum_does_not_depend_on_who_came_first(order: list[int], seed: int) -> None:
    gradients = np.random.default_rng(seed).standard_normal((5, 6)).astype(np.float32)
    names = [(bytes([i]), 1) for i in range(5)]
    means = []
    for arrival in (range(5), order):
        stage = Stage()
        for i in arrival:
            stage.add(0, names[i], PIECE, 0, gradients[i], 1)
        means.append(whole(stage.mean(0, 0, names)))
    assert np.array_equal(means[0], means[1])
