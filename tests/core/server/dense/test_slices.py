"""What is kept of a slice: where its parameters lie, and how far each of them has come."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tests.tables import for_each
from zmqps.core.job.keyspace import Segment, Slice
from zmqps.core.job.spec import Parameter
from zmqps.core.server.dense.aggregate import mean_in_passes
from zmqps.core.server.dense.rules import Kernels
from zmqps.core.server.dense.slices import MANY_SEGMENTS, Pin, SliceState

#: Four parameters side by side; the third is updated by another kernel.
SIZES, KERNELS = [2, 3, 1, 4], [0, 0, 1, 0]
#: The first of them is in a group of its own.
GROUPS = [2, 0, 1, 0]


class Rules:
    """Two kernels that nobody calls."""

    slot_fill = ()
    allocates = False

    def __init__(self, kernel_of: list[int], group_of: list[int]) -> None:
        self._of = kernel_of, group_of

    def kernels(self, names: list[str]) -> Any:
        return [lambda *_: None] * 2, *self._of

    def all_finite(self, g: Any) -> bool:
        return True

    mean = staticmethod(mean_in_passes)


def kernels(kernel_of: list[int], group_of: list[int]) -> Kernels:
    return Kernels(Rules(kernel_of, group_of), [Parameter(str(i), (1,), "float32") for i in range(len(kernel_of))])


def state() -> SliceState:
    starts = np.cumsum([0, *SIZES])
    segments = tuple(Segment(i, 0, int(starts[i]), size) for i, size in enumerate(SIZES))
    piece = Slice(shard=0, index=0, table=0, start=0, stop=sum(SIZES), segments=segments)
    return SliceState(piece, np.zeros(sum(SIZES), np.float32), (), kernels(KERNELS, GROUPS))


@for_each(
    "start, stop, segments",
    [(0, 10, (0, 4)), (0, 2, (0, 1)), (1, 2, (0, 1)), (2, 3, (1, 2)), (1, 6, (0, 3)), (5, 6, (2, 3)), (9, 10, (3, 4))],
)
def test_a_stretch_touches_the_parameters_it_has_elements_of(start: int, stop: int, segments: tuple[int, int]) -> None:
    assert state().segments(start, stop) == segments


def test_neighbours_with_one_kernel_and_as_many_updates_are_one_call() -> None:
    one = state()
    assert one.runs(0, 10) == [(0, 5, 0, 0), (5, 6, 1, 0), (6, 10, 0, 0)]
    assert one.runs(1, 4) == [(1, 4, 0, 0)]
    one.steps[1] = 7
    assert one.runs(1, 10) == [(1, 2, 0, 0), (2, 5, 0, 7), (5, 6, 1, 0), (6, 10, 0, 0)]
    assert one.runs(5, 6) == [(5, 6, 1, 0)]


def test_groups_that_share_a_kernel_are_calls_of_their_own_where_they_differ() -> None:
    shared = kernels(KERNELS, GROUPS)
    first = shared.first_group
    assert state().runs(0, 10, of_groups=True) == [
        (0, 2, first + 2, 0), (2, 5, first, 0), (5, 6, first + 1, 0), (6, 10, first, 0),
    ]  # fmt: skip
    assert [shared.each[first + group] for group in GROUPS] == [shared.each[kernel] for kernel in KERNELS]
    assert shared.numbers([1.0, 2.0, 0.1, 0.2]) == (False, 1), "one for each rule"
    assert shared.numbers([1.0, 3.0, *[0.1] * 6]) == (True, 2), "two for each group"
    assert shared.numbers([1.0, 7.0, *[0.1] * 7]) == (False, 0), "of another optimizer"


@for_each("start, stop", [(a, b) for a in range(10) for b in range(a + 1, 11)])
def test_runs_cover_a_stretch_without_gaps_and_each_element_by_its_kernel(start: int, stop: int) -> None:
    one = state()
    one.steps[:] = [1, 2, 2, 2]
    runs = one.runs(start, stop)
    of_element = [(k, s) for size, k, s in zip(SIZES, KERNELS, one.steps.tolist(), strict=True) for _ in range(size)]
    assert [(k, s) for lo, hi, k, s in runs for _ in range(lo, hi)] == of_element[start:stop]
    assert [lo for lo, *_ in runs] == [start, *(hi for _, hi, _, _ in runs[:-1])]


def test_of_many_parameters_runs_are_the_same_as_of_few() -> None:
    noise = np.random.default_rng(8)
    count = 3 * MANY_SEGMENTS
    segments = tuple(Segment(i, 0, 2 * i, 2) for i in range(count))
    piece = Slice(shard=0, index=0, table=0, start=0, stop=2 * count, segments=segments)
    of = noise.integers(0, 2, count).tolist()
    one = SliceState(piece, np.zeros(2 * count, np.float32), (), kernels(of, of))
    for changes in (0, 1, count):
        one.steps[:] = noise.integers(0, 1 + (changes > 1), count) + (np.arange(count) < count // 2) * changes
        of_element = [(k, s) for k, s in zip(of, one.steps.tolist(), strict=True) for _ in range(2)]
        for start, stop in [(0, 2 * count), (1, 2 * count - 1), (7, 8 + 2 * MANY_SEGMENTS)]:
            runs = one.runs(start, stop)
            assert [(k, s) for lo, hi, k, s in runs for _ in range(lo, hi)] == of_element[start:stop]
            assert all(a[2:] != b[2:] and a[1] == b[0] for a, b in pairwise(runs))


def test_a_version_that_is_kept_is_found_and_any_other_is_the_current_one() -> None:
    one = state()
    old = np.ones(10, np.float32), [Pin()]
    one.history.append((3, old[0], old[1], old[1][0]))  # type: ignore[arg-type]
    one.version = 4
    assert one.at(3) == (3, old[0], old[1])
    for version in (None, 2, 4):
        number, value, readers = one.at(version)
        assert number == 4
        assert value is one.value
        assert readers is one.readers
