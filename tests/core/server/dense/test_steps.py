"""A shard in the synchronous mode: nothing changes before the commit, and old versions stay as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulator.jobs.training import ReferenceRules
from tests.tables import for_each
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.message import OPEN_STEPS
from zmqps.core.protocol.terms import SET
from zmqps.core.server.dense import aggregate
from zmqps.core.server.ledger import Result
from zmqps.core.server.shard import Shard
from zmqps.errors import LimitError, NonFiniteGradientError, ProtocolError, SliceRangeError, VersionError
from zmqps.optim import sgd

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
SIZE = 4
PARAMETERS = (Parameter("v", (SIZE,), "float32"), Parameter("w", (3,), "float32"), Parameter("x", (1,), "float32"))
BOTH = [(0, 0, ()), (1, 0, ())]  # v in slice 0; w and x in slice 1


def make(optimizer: Any = None, **options: Any) -> Shard:
    """Return a loaded shard of two slices, all zero."""
    placement = Placement.balance(KeySpace(PARAMETERS), 1, 4 * SIZE)
    rules = ReferenceRules(optimizer or sgd(1.0))
    shard = Shard(placement, 0, rules, synchronous=True, **options)
    shard.dense.load(BOTH, [np.zeros(2 * SIZE, "f4")])
    return shard


def collect(
    shard: Shard, g: float, worker: bytes = A, step: int = 0, attempt: int = 1, examples: int = 1, parts: Any = None
) -> Result:
    parts = BOTH if parts is None else parts
    size = sum(size for size, _ in shard.dense.sizes(parts))
    result = shard.dense.collect(parts, [np.full(size, g, "f4")], (worker, attempt), step, examples, "w")
    shard.validate()
    return result


def commit(shard: Shard, *contributors: bytes, step: int = 0, attempts: tuple[int, ...] = (1,)) -> None:
    shard.commit(step, [(worker, attempts) for worker in contributors])
    shard.validate()


def values(shard: Shard, exact: int | None = None) -> list[float]:
    parts, _, _ = shard.dense.pull(BOTH, exact)
    return [float(value) for pieces in parts for piece in pieces for value in piece]


# --- steps --------------------------------------------------------------------------------------


def test_gradients_are_kept_until_the_commit_and_then_applied_once() -> None:
    shard = make()
    assert collect(shard, 2.0, A) == ((0, 0), (0, 0))
    assert collect(shard, 4.0, B) == ((0, 0), (0, 0))
    assert values(shard) == [0.0] * 8
    commit(shard, A, B)
    assert values(shard) == [-3.0] * 8
    assert shard.version == 1
    assert {state.version for state in shard.slices} == {1}
    assert shard.dense.pull(BOTH)[1] == (1, 1)


@pytest.mark.parametrize(("needed", "most"), [(1, 9), (6, 10)])
def test_a_worker_may_bring_as_many_gradients_as_make_a_step_and_some_that_failed(
    needed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregate, "PARTS_NBYTES", 20 * aggregate.PART_NBYTES)
    shard = make(aggregate=needed)
    for attempt in range(most):
        collect(shard, 1.0, A, attempt=attempt)
    assert shard.steps is not None
    before = shard.steps.stage.nbytes
    with pytest.raises(LimitError, match="of a step"):
        collect(shard, 1.0, A, attempt=most)
    assert shard.steps.stage.nbytes == before, "nothing of it is kept"
    collect(shard, 3.0, B)
    commit(shard, A, B)
    assert values(shard) == [-2.0] * 8


def test_only_contributors_count_and_the_rest_is_dropped_and_counted() -> None:
    shard = make()
    for worker, g in ((A, 1.0), (B, 3.0), (C, 1e6)):
        collect(shard, g, worker)
    commit(shard, A, B)
    assert values(shard) == [-2.0] * 8
    assert shard.counters["dropped"] == 1


def test_an_attempt_that_failed_is_not_added_to_its_repetition() -> None:
    shard = make()
    collect(shard, 8.0, attempt=1, parts=BOTH[:1])
    collect(shard, 8.0, attempt=2)
    commit(shard, A, attempts=(2,))
    assert values(shard) == [-8.0] * 8


def test_several_pushes_make_one_step() -> None:
    shard = make()
    collect(shard, 1.0, attempt=1, parts=BOTH[:1])
    collect(shard, 2.0, attempt=2, parts=[(1, 0, (0, 3))])
    commit(shard, A, attempts=(1, 2))
    assert values(shard) == [-1.0] * 4 + [-2.0] * 3 + [0.0]
    assert [state.steps.tolist() for state in shard.slices] == [[1], [1, 0]], "of each parameter that was pushed"


def test_a_step_to_which_nobody_pushed_a_slice_is_a_version_of_it_all_the_same() -> None:
    shard = make(sgd(1.0, momentum=0.9))
    collect(shard, 1.0, parts=BOTH[:1])
    commit(shard, A)
    assert shard.dense.pull(BOTH)[1] == (1, 1)
    assert values(shard) == [-1.0] * 4 + [0.0] * 4
    assert shard.slices[0].steps.tolist() == [1]
    assert shard.slices[1].steps.tolist() == [0, 0], "it is no update"


def test_examples_weigh_the_mean() -> None:
    shard = make()
    collect(shard, 1.0, A, examples=3)
    collect(shard, 5.0, B, examples=1)
    commit(shard, A, B)
    assert values(shard) == [-2.0] * 8


def test_the_next_step_may_begin_before_the_commit_arrives() -> None:
    shard = make()
    collect(shard, 1.0, A)
    collect(shard, 10.0, B, step=1)
    commit(shard, A)
    assert values(shard) == [-1.0] * 8
    commit(shard, B, step=1)
    assert values(shard) == [-11.0] * 8


def test_a_step_beyond_the_next_is_refused() -> None:
    shard = make()
    with pytest.raises(ProtocolError, match=f"a gradient of step {OPEN_STEPS}, but this shard is at 0"):
        collect(shard, 1.0, step=OPEN_STEPS)


def test_a_gradient_of_a_step_that_is_over_is_dropped_counted_and_said_to_be_late() -> None:
    shard = make()
    for step in range(3):
        collect(shard, 1.0, A, step=step)
        commit(shard, A, step=step)
    assert collect(shard, 1e6, B, step=1) == ((3, 3), (2, 2))
    assert shard.counters["late"] == 1
    collect(shard, 1.0, A, step=3)
    commit(shard, A, B, step=3)
    assert values(shard) == [-4.0] * 8


def test_what_is_not_finite_is_refused_before_it_is_kept() -> None:
    shard = make()
    collect(shard, 1.0, A)
    with pytest.raises(NonFiniteGradientError, match="'v', 'w', 'x'"):
        collect(shard, float("nan"), B)
    commit(shard, A, B)
    assert values(shard) == [-1.0] * 8


@for_each(
    "parts, size, error",
    [([(2, 0, ())], 4, SliceRangeError), ([(1, 0, (1, 4))], 3, SliceRangeError), ([(0, 0, ())], 3, ProtocolError)],
)
def test_what_does_not_fit_is_not_kept(parts: Any, size: int, error: type[Exception]) -> None:
    shard = make()
    with pytest.raises(error):
        shard.dense.collect(parts, [np.ones(size, "f4")], (A, 1), 0, 1, "w")
    assert shard.steps is not None
    assert shard.steps.stage.nbytes == 0


@given(
    gradients=st.lists(st.lists(st.floats(-100, 100, width=32), min_size=8, max_size=8), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_the_bits_do_not_depend_on_who_came_first(gradients: list[list[float]], order: Any) -> None:
    workers = [bytes([n]) * 16 for n in range(len(gradients))]
    results = []
    for shuffled in (False, True):
        shard, arrivals = make(), list(zip(workers, gradients, strict=True))
        if shuffled:
            order.shuffle(arrivals)
        for worker, g in arrivals:
            shard.dense.collect(BOTH, [np.array(g, "f4")], (worker, 1), 0, 1, "w")
        commit(shard, *workers)
        results.append(np.array(values(shard), "f4").tobytes())
    assert results[0] == results[1]


def test_buffers_are_used_again() -> None:
    shard = make()
    assert shard.steps is not None
    for step in range(5):
        for worker in (A, B):
            collect(shard, 1.0, worker, step=step)
        commit(shard, A, B, step=step)
        assert shard.steps.stage.nbytes == (2 * 2 + 1) * 4 * SIZE, "two slices of each worker, and one for their sum"


# --- versions -----------------------------------------------------------------------------------


def advance(shard: Shard, steps: int) -> None:
    for _ in range(steps):
        step = shard.version
        collect(shard, 1.0, step=step)
        commit(shard, A, step=step)


def test_a_version_to_come_is_not_available_and_one_that_came_is() -> None:
    shard = make()
    assert not shard.dense.available(BOTH, 1)
    assert not shard.dense.available(BOTH, 1, exact=True)
    advance(shard, 1)
    assert shard.dense.available(BOTH, 1)
    assert shard.dense.available(BOTH, 1, exact=True)
    assert shard.dense.available(BOTH, 0), "a later one will do"
    with pytest.raises(SliceRangeError):
        shard.dense.available([(9, 0, ())], 0)


def test_versions_are_kept_as_long_as_the_job_says() -> None:
    shard = make(retain=2)
    advance(shard, 5)
    for version in (3, 4, 5):
        assert shard.dense.available(BOTH, version, exact=True)
        assert values(shard, exact=version) == [-float(version)] * 8
        assert shard.dense.pull(BOTH, version)[1] == (version, version)
    with pytest.raises(VersionError) as caught:
        shard.dense.available(BOTH, 2, exact=True)
    assert (caught.value.version, caught.value.oldest, caught.value.newest) == (2, 3, 5)


def test_without_retain_only_the_current_version_is_there() -> None:
    shard = make()
    advance(shard, 2)
    with pytest.raises(VersionError) as caught:
        shard.dense.available(BOTH, 1, exact=True)
    assert (caught.value.oldest, caught.value.newest) == (2, 2)


def test_a_version_that_is_read_stays_even_when_it_is_no_longer_kept() -> None:
    class Reader:
        done = False

    shard, reader = make(retain=1), Reader()
    advance(shard, 1)
    parts, _, watchers = shard.dense.pull(BOTH, 1)
    for readers in watchers:
        readers.append(reader)
    before = [piece.tolist() for pieces in parts for piece in pieces]
    advance(shard, 6)
    assert [piece.tolist() for pieces in parts for piece in pieces] == before
    reader.done = True
    spares = shard.counters["spare_buffers"]
    advance(shard, 6)
    assert shard.counters["spare_buffers"] == spares, "its buffer is used again"


def test_a_step_of_a_part_keeps_the_rest_while_older_versions_are_kept() -> None:
    shard = make(retain=2)
    advance(shard, 3)
    collect(shard, 1.0, step=3, parts=[(1, 0, (0, 3))])
    commit(shard, A, step=3)
    assert values(shard) == [-3.0] * 4 + [-4.0] * 3 + [-3.0]
    assert values(shard, exact=3) == [-3.0] * 8


def test_a_slice_that_did_not_change_is_one_buffer_for_several_versions() -> None:
    shard = make(retain=2)
    for step in range(4):
        collect(shard, 1.0, step=step, parts=BOTH[:1])
        commit(shard, A, step=step)
    assert values(shard, exact=2) == [-2.0] * 4 + [0.0] * 4
    collect(shard, 1.0, step=4, parts=BOTH[1:])
    commit(shard, A, step=4)
    assert values(shard, exact=4) == [-4.0] * 4 + [0.0] * 4
    assert values(shard) == [-4.0] * 4 + [-1.0] * 4


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12), st.integers(0, 3))
def test_every_version_that_can_be_read_is_what_it_was(steps: list[tuple[bool, bool]], retain: int) -> None:
    shard = make(retain=retain)
    history: list[list[float]] = [values(shard)]
    for step, pushed in enumerate(steps):
        parts = [part for part, wanted in zip(BOTH, pushed, strict=True) if wanted]
        collect(shard, 1.0 + step, step=step, parts=parts)
        commit(shard, A, step=step)
        history.append(values(shard))
        for version in range(max(0, shard.version - retain), shard.version + 1):
            assert shard.dense.available(BOTH, version, exact=True)
            assert values(shard, exact=version) == history[version]
    mine: list[Array] = [state.value for state in shard.slices]
    assert shard.counters["spare_buffers"] <= (retain + 1) * len(mine)


# --- over whom, and whether at all ----------------------------------------------------------------


def test_a_mean_over_all_contributors_divides_by_their_examples() -> None:
    shard = make()
    collect(shard, 2.0, A, examples=4)
    collect(shard, 6.0, B, examples=4, parts=[(0, 0, ())])
    contributors = [(A, (1,)), (B, (1,)), (C, (9,))]  # C had nothing to push
    assert shard.steps is not None
    norm = shard.steps.measure(0, contributors, 16)
    shard.commit(0, contributors, examples=16)
    assert values(shard) == [-2.0] * 4 + [-0.5] * 4
    assert norm == sum(value**2 for value in values(shard))


def test_of_a_step_that_is_left_out_nothing_is_applied_and_its_version_is_there() -> None:
    shard = make(sgd(1.0, momentum=0.9))
    collect(shard, 2.0)
    shard.dense.collect([(0, 0, ())], [np.full(SIZE, 7.0, "f4")], (A, 2), 0, 1, "w", (SET,))
    before = [state.steps.tolist() for state in shard.slices]
    shard.commit(0, [(A, (1, 2))], left_out=True)
    shard.validate()
    assert values(shard) == [7.0] * 4 + [0.0] * 4, "what was set is set"
    assert (shard.version, {state.version for state in shard.slices}) == (1, {1})
    assert [state.steps.tolist() for state in shard.slices] == before
    assert all(not slot.any() for state in shard.slices for slot in state.slots)
    assert shard.counters["dropped"] == 0
    collect(shard, 1.0, step=1)
    commit(shard, A, step=1)
    assert values(shard) == [6.0] * 4 + [-1.0] * 4
