"""The shard against plain numpy: what a push changes, what it must not, and who may still be reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.core.protocol.arrays import Array, gather, scatter
from zmqps.core.server.dense.aggregate import mean_in_passes
from zmqps.core.server.dense.rules import UpdateKernel
from zmqps.core.server.dense.slices import MAX_DONE_READERS
from zmqps.core.server.shard import Shard
from zmqps.errors import NonFiniteGradientError, ProtocolError, SliceRangeError


class Rules:
    """``w -= rate * step * g`` with a slot that sums ``g``: depends on each parameter's own count of updates."""

    slot_fill: tuple[float, ...] = (0.5,)
    allocates = True

    def __init__(self, rates: dict[str, float | None] | None = None) -> None:
        self.rates = rates or {}  # None: frozen

    def kernels(self, names: Sequence[str]) -> tuple[list[UpdateKernel | None], list[int], list[int]]:
        distinct = list(dict.fromkeys(self.rates.get(name, 1.0) for name in names))
        kernel_of = [distinct.index(self.rates.get(name, 1.0)) for name in names]
        return [self.kernel(rate) for rate in distinct], kernel_of, kernel_of

    def kernel(self, rate: float | None) -> UpdateKernel | None:
        def run(w: Array, g: Array, out: Array, slots: tuple[Array, ...], step: int) -> None:
            assert w.dtype == g.dtype == out.dtype == slots[0].dtype
            slots[0][:] += g
            out[:] = w - np.asarray(rate * step, w.dtype) * g

        return None if rate is None else run

    def all_finite(self, g: Array) -> bool:
        return bool(np.isfinite(g).all())

    mean = staticmethod(mean_in_passes)


@dataclass
class Reader:
    """Somebody who reads a buffer until told otherwise."""

    done: bool = False


@dataclass
class Reference:
    """The same model, one parameter at a time."""

    rates: dict[str, float | None]
    values: dict[str, np.ndarray]
    slots: dict[str, np.ndarray] = field(init=False)
    steps: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.slots = {name: np.full_like(value, 0.5) for name, value in self.values.items()}
        self.steps = dict.fromkeys(self.values, 0)

    def push(self, name: str, gradient: np.ndarray) -> None:
        self.steps[name] += 1
        rate = self.rates.get(name, 1.0)
        if rate is not None:
            self.slots[name] += gradient
            self.values[name] = self.values[name] - np.asarray(rate * self.steps[name], gradient.dtype) * gradient


PARAMETERS = [
    Parameter("a", (3,), "float32"),
    Parameter("b", (2, 4), "float64"),
    Parameter("c", (), "float16"),
    Parameter("empty", (0,), "float32"),
    Parameter("d", (7,), "float32"),
    Parameter("e", (5,), "float64"),
]
RATES: dict[str, float | None] = {"c": 0.25, "d": None, "e": 0.5}


def small_placement(slice_nbytes: int = 1 << 20) -> Placement:
    return Placement.balance(KeySpace(PARAMETERS), 1, slice_nbytes)


def initial(placement: Placement) -> dict[str, np.ndarray]:
    return {
        placement.keyspace.parameters[i].name: np.arange(placement.keyspace.parameters[i].size, dtype=table.dtype) + i
        for table in placement.keyspace.tables
        for i in table.parameters
    }


def loaded_shard(placement: Placement, rules: Rules | None = None, **options: bool) -> Shard:
    shard = Shard(placement, 0, rules or Rules(RATES), **options)
    values = initial(placement)
    for slice_ in placement.slices[0]:
        spans = [(placement.keyspace.parameters[s.parameter].name, s.start, s.start + s.size) for s in slice_.segments]
        shard.dense.load([(slice_.index, 0, ())], gather(values[name][start:stop] for name, start, stop in spans))
    assert shard.loaded
    shard.validate()
    return shard


def state_of(shard: Shard) -> list[tuple]:
    """Return all that a refused request must leave as it was."""
    return [
        (s.value.tobytes(), [slot.tobytes() for slot in s.slots], s.version, s.steps.tolist()) for s in shard.slices
    ]


def values_of(shard: Shard) -> dict[str, np.ndarray]:
    """Return each parameter's values, pulled."""
    placement = shard.placement
    landed = {name: np.empty_like(value) for name, value in initial(placement).items()}
    parts = [(state.slice.index, 0, ()) for state in shard.slices]
    targets = [
        landed[placement.keyspace.parameters[s.parameter].name][s.start : s.start + s.size]
        for state in shard.slices
        for s in state.slice.segments
    ]
    pieces, _, _ = shard.dense.pull(parts)
    payload = [piece for part in pieces for piece in part]
    for run, offset, array in scatter(payload, [(target.size, target.dtype) for target in targets]):
        targets[run][offset : offset + array.size] = array
    return landed


def push_parameters(shard: Shard, gradients: dict[str, np.ndarray], cut: int | None = None) -> list[tuple[int, int]]:
    """Push gradients of some parameters, the payload cut into frames of ``cut`` elements."""
    parts, pieces = [], []
    for state in shard.slices:
        ranges: list[int] = []
        for s in state.slice.segments:
            name = shard.placement.keyspace.parameters[s.parameter].name
            if name in gradients:
                ranges += [s.position, s.position + s.size]
                pieces.append(gradients[name][s.start : s.start + s.size])
        if ranges:
            parts.append((state.slice.index, state.version, tuple(ranges)))
    if cut:
        pieces = [piece[i : i + cut] for piece in pieces for i in range(0, piece.size, cut)]
    return shard.dense.push(parts, pieces, "worker 0")


# --- against the reference ----------------------------------------------------------------------

NAMES = [p.name for p in PARAMETERS]
GRADIENTS = st.dictionaries(st.sampled_from(NAMES), st.integers(-4, 4), min_size=1)


@given(
    st.lists(st.tuples(GRADIENTS, st.sampled_from([None, 1, 2, 5]), st.booleans()), max_size=8),
    st.sampled_from([16, 40, 1 << 20]),
)
def test_pushes_do_what_plain_numpy_does(pushes, slice_nbytes) -> None:  # type: ignore[no-untyped-def]
    placement = small_placement(slice_nbytes)
    shard = loaded_shard(placement)
    reference = Reference(RATES, initial(placement))
    snapshots = []
    for scales, cut, read in pushes:
        gradients = {
            name: np.asarray(scale, reference.values[name].dtype) * (1 + np.arange(reference.values[name].size))
            for name, scale in scales.items()
        }
        gradients = {name: g.astype(reference.values[name].dtype) for name, g in gradients.items()}
        if read:
            pieces, _, watchers = shard.dense.pull([(state.slice.index, 0, ()) for state in shard.slices])
            payload = [piece for part in pieces for piece in part]
            reader = Reader()
            for readers in watchers:
                readers.append(reader)
            snapshots.append((payload, [bytes(buffer) for buffer in payload], reader))
        push_parameters(shard, gradients, cut)
        shard.validate()
        for name, gradient in gradients.items():
            reference.push(name, gradient)
    for name, value in values_of(shard).items():
        np.testing.assert_array_equal(value, reference.values[name], err_msg=name)
    for state in shard.slices:
        for s, steps in zip(state.slice.segments, state.steps, strict=True):
            name = placement.keyspace.parameters[s.parameter].name
            assert steps == reference.steps[name]
            slot = state.slots[0][s.position : s.position + s.size]
            np.testing.assert_array_equal(slot, reference.slots[name][s.start : s.start + s.size])
    for payload, before, _ in snapshots:
        assert [bytes(buffer) for buffer in payload] == before, "nobody wrote to what was still being read"


@given(st.integers(1, 4), st.integers(0, 3))
@settings(max_examples=20)
def test_every_shard_of_a_placement_holds_its_part(num_shards, seed) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.integers(1, 40_000, 6)]
    keyspace = KeySpace([Parameter(f"p{i}", (size,), "float32") for i, size in enumerate(sizes)])
    placement = Placement.balance(keyspace, num_shards, 1 << 14)
    table = rng.standard_normal(keyspace.tables[0].size).astype(np.float32)
    gradient = rng.standard_normal(table.size).astype(np.float32)
    for index, slices in enumerate(placement.slices):
        shard = Shard(placement, index, Rules())
        for slice_ in slices:
            shard.dense.load([(slice_.index, 0, ())], [table[slice_.start : slice_.stop]])
        assert shard.loaded
        shard.dense.push([(p.index, 0, ()) for p in slices], [gradient[p.start : p.stop] for p in slices], "w")
        shard.validate()
        for slice_, state in zip(slices, shard.slices, strict=True):
            np.testing.assert_array_equal(state.value, (table - gradient)[slice_.start : slice_.stop])


# --- versions -----------------------------------------------------------------------------------


def one_slice(rates: dict[str, float | None] | None = None, **options: bool) -> Shard:
    """Return a shard with one slice: ``a`` of three and ``b`` of two elements, all zero."""
    keyspace = KeySpace([Parameter("a", (3,), "float32"), Parameter("b", (2,), "float32")])
    shard = Shard(Placement.balance(keyspace, 1), 0, Rules(rates), **options)
    shard.dense.load([(0, 0, ())], [np.zeros(5, "<f4")])
    return shard


def ones(n: int) -> np.ndarray:
    return np.ones(n, "<f4")


def test_staleness_counts_the_updates_since_the_worker_read() -> None:
    shard = one_slice()
    assert shard.dense.push([(0, 0, ())], [ones(5)], "w") == ((1,), (0,))
    assert shard.dense.push([(0, 0, ())], [ones(5)], "w") == ((2,), (1,))
    assert shard.dense.push([(0, 2, (0, 3))], [ones(3)], "w") == ((3,), (0,))
    assert shard.dense.push([(0, 99, ())], [ones(5)], "w") == ((4,), (0,)), "a version of the future is no staleness"
    assert shard.dense.pull([(0, 0, ())])[1] == (4,)


def test_a_push_of_some_parameters_is_no_step_of_the_others() -> None:
    shard = one_slice()
    shard.dense.push([(0, 0, (0, 3))], [ones(3)], "w")  # a: step 1
    shard.dense.push([(0, 0, ())], [ones(5)], "w")  # a: step 2, b: step 1
    assert values_of(shard)["a"].tolist() == [-3.0] * 3
    assert values_of(shard)["b"].tolist() == [-1.0] * 2


def test_a_frozen_parameter_stays_and_the_others_move() -> None:
    shard = one_slice({"a": None})
    reader = Reader()
    shard.dense.pull([(0, 0, ())])[2][0].append(reader)
    shard.dense.push([(0, 0, ())], [ones(5)], "w")
    assert values_of(shard)["a"].tolist() == [0.0] * 3
    assert values_of(shard)["b"].tolist() == [-1.0] * 2


# --- readers ------------------------------------------------------------------------------------


def test_a_buffer_that_is_read_is_left_alone_and_taken_back_afterwards() -> None:
    shard = one_slice()
    first = shard.slices[0].value
    reader = Reader()
    shard.dense.pull([(0, 0, ())])[2][0].append(reader)
    shard.dense.push([(0, 0, (0, 3))], [ones(3)], "w")
    second = shard.slices[0].value
    assert not np.shares_memory(first, second)
    assert first.tolist() == [0.0] * 5
    assert second.tolist() == [-1.0, -1.0, -1.0, 0.0, 0.0], "what the push left out was copied"
    shard.dense.push([(0, 0, ())], [ones(5)], "w")
    assert shard.slices[0].value is second, "nobody reads it: updated in place"
    reader.done = True
    shard.dense.pull([(0, 0, ())])[2][0].append(Reader())
    shard.dense.push([(0, 0, ())], [ones(5)], "w")
    assert shard.slices[0].value is first, "a spare that nobody reads is used before memory is asked for"
    assert shard.counters["spare_buffers"] == 1


def test_spare_buffers_are_as_many_as_versions_that_are_read_at_once() -> None:
    shard = one_slice()
    readers = [Reader() for _ in range(5)]
    for reader in readers:
        shard.dense.pull([(0, 0, ())])[2][0].append(reader)
        shard.dense.push([(0, 0, ())], [ones(5)], "w")
    for reader in readers:
        reader.done = True
    for _ in range(20):
        reader = Reader()
        shard.dense.pull([(0, 0, ())])[2][0].append(reader)
        shard.dense.push([(0, 0, ())], [ones(5)], "w")
        reader.done = True
    assert shard.counters["spare_buffers"] == 5


def test_many_pulls_without_a_push_leave_no_heap_of_readers() -> None:
    shard = one_slice()
    waiting = Reader()
    shard.dense.pull([(0, 0, ())])[2][0].append(waiting)
    for _ in range(10 * MAX_DONE_READERS):
        shard.dense.pull([(0, 0, ())])[2][0].append(Reader(done=True))
    assert len(shard.slices[0].readers) <= MAX_DONE_READERS + 1
    assert waiting in shard.slices[0].readers


# --- what is refused changes nothing ------------------------------------------------------------


@for_each("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_refused_and_names_its_parameter(bad) -> None:  # type: ignore[no-untyped-def]
    shard = loaded_shard(small_placement(40))
    before = state_of(shard)
    gradients = {name: np.ones_like(value) for name, value in initial(shard.placement).items()}
    gradients["b"][5] = bad
    with pytest.raises(NonFiniteGradientError) as caught:
        push_parameters(shard, gradients, cut=2)
    assert (caught.value.worker, caught.value.parameters) == ("worker 0", "'b'")
    assert state_of(shard) == before
    assert shard.counters["nonfinite"] == 1


def test_of_a_push_of_some_parameters_only_the_bad_one_is_named() -> None:
    keyspace = KeySpace([Parameter(name, (size,), "float32") for name, size in (("a", 4), ("b", 4), ("c", 16))])
    shard = Shard(Placement.balance(keyspace, 1), 0, Rules())
    gradient = ones(16)
    gradient[2] = np.nan
    with pytest.raises(NonFiniteGradientError) as caught:
        shard.dense.push([(0, 0, (8, 24))], [gradient], "w")
    assert caught.value.parameters == "'c'"


def test_of_many_bad_parameters_the_first_five_are_named() -> None:
    keyspace = KeySpace([Parameter(f"p{i}", (1,), "float32") for i in range(8)])
    shard = Shard(Placement.balance(keyspace, 1), 0, Rules())
    with pytest.raises(NonFiniteGradientError, match="'p4' and 3 more"):
        shard.dense.push([(0, 0, ())], [np.full(8, np.nan, "<f4")], "w")


def test_gradients_that_are_not_finite_can_be_allowed() -> None:
    shard = one_slice(reject_nonfinite=False)
    shard.dense.push([(0, 0, ())], [np.full(5, np.inf, "<f4")], "w")
    assert values_of(shard)["a"].tolist() == [-np.inf] * 3


BAD_PARTS = {
    "no such slice": ([(1, 0, ())], 5, SliceRangeError),
    "a slice twice": ([(0, 0, (0, 3)), (0, 0, (3, 5))], 5, SliceRangeError),
    "a range that starts inside a parameter": ([(0, 0, (1, 3))], 2, SliceRangeError),
    "a range that ends inside a parameter": ([(0, 0, (0, 4))], 4, SliceRangeError),
    "a range beyond the slice": ([(0, 0, (3, 8))], 5, SliceRangeError),
    "a payload too short": ([(0, 0, ())], 4, ProtocolError),
    "a payload too long": ([(0, 0, ())], 6, ProtocolError),
    "no payload": ([(0, 0, ())], 0, ProtocolError),
    "a payload for nothing": ([], 5, ProtocolError),
}


@for_each("parts, size, error", BAD_PARTS.values(), ids=BAD_PARTS)
def test_a_request_that_does_not_fit_is_refused(parts, size, error) -> None:  # type: ignore[no-untyped-def]
    shard = one_slice()
    shard.dense.push([(0, 0, ())], [ones(5)], "w")
    before = state_of(shard)
    with pytest.raises(ProtocolError) as caught:
        shard.dense.push(parts, [ones(size)], "w")
    assert type(caught.value) is error
    if error is SliceRangeError:
        with pytest.raises(SliceRangeError):
            shard.dense.pull(parts)
    assert state_of(shard) == before
    shard.validate()


def test_a_frame_that_ends_inside_an_element_is_refused() -> None:
    shard = one_slice()
    before = state_of(shard)
    data = memoryview(ones(5).tobytes())
    with pytest.raises(ProtocolError, match="inside an element"):
        shard.dense.push([(0, 0, ())], [data[:6], data[6:]], "w")
    assert state_of(shard) == before


def test_one_bad_part_refuses_the_good_ones_too() -> None:
    shard = loaded_shard(small_placement(16))
    before = state_of(shard)
    sizes = [state.slice.size for state in shard.slices]
    gradients = [np.ones(size, state.value.dtype) for size, state in zip(sizes, shard.slices, strict=True)]
    gradients[-1][-1] = np.nan
    with pytest.raises(NonFiniteGradientError):
        shard.dense.push([(i, 0, ()) for i in range(len(sizes))], gradients, "w")
    assert state_of(shard) == before


# --- loading ------------------------------------------------------------------------------------


def test_a_shard_is_loaded_once_all_its_slices_are() -> None:
    keyspace = KeySpace([Parameter("a", (8,), "float32")])
    shard = Shard(Placement.balance(keyspace, 1, 16), 0, Rules())
    assert not shard.loaded
    shard.dense.load([(1, 0, ())], [ones(4)])
    shard.dense.load([(1, 0, ())], [2 * ones(4)])
    assert not shard.loaded
    shard.dense.load([(0, 0, ())], [ones(4)])
    assert shard.loaded
    assert np.concatenate([state.value for state in shard.slices]).tolist() == [1.0] * 4 + [2.0] * 4


def test_values_that_come_after_loading_are_ignored() -> None:
    shard = one_slice()
    shard.dense.push([(0, 0, ())], [ones(5)], "w")
    before = state_of(shard)
    shard.dense.load([(0, 0, ())], [9 * ones(5)])
    assert state_of(shard) == before


@for_each(
    "parts, size, error",
    [([(0, 0, (0, 3))], 3, SliceRangeError), ([(0, 0, ())], 3, ProtocolError), ([(7, 0, ())], 5, SliceRangeError)],
)
def test_initial_values_that_do_not_fit_are_refused(parts, size, error) -> None:  # type: ignore[no-untyped-def]
    keyspace = KeySpace([Parameter("a", (3,), "float32"), Parameter("b", (2,), "float32")])
    shard = Shard(Placement.balance(keyspace, 1), 0, Rules())
    with pytest.raises(error):
        shard.dense.load(parts, [ones(size)])
    assert not shard.loaded


def test_a_shard_of_nothing_is_loaded() -> None:
    placement = Placement.balance(KeySpace([Parameter("a", (1,), "float32")]), 2)
    shards = [Shard(placement, index, Rules()) for index in range(2)]
    assert sorted(shard.loaded for shard in shards) == [False, True]
    assert sum(shard.dense.arena_nbytes for shard in shards) == 8, "one value and one slot"
