"""Models in memory that processes share: where parameters lie, how often they count, and their mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.combine import memory
from zmqps.combine.memory import Layout, MappedModels, SharedModel, average, counts_of, runs
from zmqps.core.job.spec import Parameter
from zmqps.errors import ProtocolError
from zmqps.net.lane.arena import Arenas

PARAMETERS = (
    Parameter("w", (40, 5), "float32"),
    Parameter("mean", (7,), "float32", buffer=True),
    Parameter("d", (3,), "float64"),
    Parameter("b", (5,), "float32"),
)


@for_each("buffers, numbers", [(False, [0, 2, 3]), (True, [0, 1, 2, 3])])
def test_what_one_process_writes_another_reads(buffers: bool, numbers: list[int]) -> None:
    layout, arenas = Layout(PARAMETERS, buffers=buffers), Arenas()
    model = SharedModel(layout, arenas)
    assert list(model.flat) == numbers
    for number, array in model.flat.items():
        array[:] = number + np.arange(array.size)
    read = MappedModels(layout, 1).flat("me", model.places)
    for number, array in model.flat.items():
        assert (read[number].dtype, read[number].size) == (array.dtype, PARAMETERS[number].size)
        np.testing.assert_array_equal(read[number], array)
        assert not read[number].flags.writeable


def test_models_that_are_not_used_any_more_are_unmapped() -> None:
    layout, arenas = Layout(PARAMETERS, buffers=False), Arenas()
    models, mapped = [SharedModel(layout, arenas) for _ in range(3)], MappedModels(layout, 2)
    first = [mapped.flat("me", model.places) for model in models]
    assert mapped.flat("me", models[2].places) is first[2]
    assert mapped.flat("me", models[0].places) is not first[0]
    mapped.forget("me")
    assert mapped.flat("me", models[2].places) is not first[2]


def test_memory_that_is_not_there_or_of_another_size_is_refused() -> None:
    layout, arenas = Layout(PARAMETERS, buffers=False), Arenas()
    model = SharedModel(layout, arenas)
    with pytest.raises(ProtocolError, match="a model of 1 tables"):
        MappedModels(layout, 1).flat("me", model.places[:1])
    wrong = [(*place[:3], b"k" * 16) for place in model.places]
    with pytest.raises(ProtocolError, match="cannot be read"):
        MappedModels(layout, 1).flat("me", wrong)
    large = Layout([Parameter("w", (1 << 20,), "float32"), PARAMETERS[2]], buffers=False)
    with pytest.raises(ProtocolError, match="bytes for a table of"):
        MappedModels(large, 1).flat("me", model.places)


@given(st.dictionaries(st.integers(0, 30), st.integers(1, 3)))
def test_counts_are_those_that_runs_were_made_of(counts: dict[int, int]) -> None:
    assert counts_of(runs(counts), range_of(31)) == counts
    assert len(runs(dict.fromkeys(counts, 1))) <= len(counts)


def range_of(number: int) -> dict[int, None]:
    return dict.fromkeys(range(number))


def test_counts_of_what_has_no_gradient_are_refused() -> None:
    with pytest.raises(ProtocolError, match="a gradient of what has none"):
        counts_of([(0, 1 << 60, 1)], {0: None})


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_mean_is_the_sum_over_the_count(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "BLOCK_NBYTES", 64)
    arrays = [np.random.default_rng(n).integers(-50, 50, 100).astype(np.float32) for n in range(number)]
    total = np.empty(100, np.float32)
    average(total, arrays, 8)
    np.testing.assert_array_equal(total, np.sum(arrays, axis=0) / 8)
