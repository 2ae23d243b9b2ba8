"""Slices are written once each, in any order and never from a copy; what is missing or wrong is said."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.saved import job
from zmqps.checkpoint.storage import LocalStorage
from zmqps.checkpoint.writer import ShardWriter
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.errors import ConfigurationError, InternalError

SPEC = job(Parameter("w", (4, 3), "float32"))
PLACEMENT = Placement.balance(KeySpace(SPEC.parameters), 1, 32)
EIGHT = np.zeros(8, "<f4")


def writer(path: Path) -> ShardWriter:
    return ShardWriter(LocalStorage(), str(path), PLACEMENT, 0, ("m",))


def test_a_shard_cannot_be_closed_without_all_its_slices(tmp_path: Path) -> None:
    with writer(tmp_path) as one:
        one.write(0, EIGHT, [EIGHT])
        with pytest.raises(InternalError, match=r"closed without slices \[1\]"):
            one.close()


def test_what_does_not_fit_a_slice_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with writer(tmp_path) as one:
        for value, slots, steps, says in (
            (EIGHT[:4], [EIGHT], None, "slice 0 has 8 elements of float32, not float32 "),
            (EIGHT, [EIGHT.astype("<f8")], None, "not float64"),
            (EIGHT, [], None, "a slice has 1 slots here, not 0"),
            (EIGHT, [EIGHT], [1, 2], "slice 0 has 1 step counts, not 2"),
        ):
            with pytest.raises(ConfigurationError, match=says):
                one.write(0, value, slots, steps=steps)
        one.write(0, EIGHT, [EIGHT])
        one.write(1, EIGHT[:4], [EIGHT[:4]])
        with pytest.raises(ConfigurationError, match="slice 1 of shard 0 has been written already"):
            one.write(1, EIGHT[:4], [EIGHT[:4]])
        assert [fact.name for fact in one.close()] == [
            "shard-00000-model-00001-of-00001.safetensors",
            "shard-00000-state.json",
        ]
        assert one.nbytes == one.layout.nbytes


def test_a_slice_is_not_copied_to_be_written(tmp_path: Path) -> None:
    keyspace = KeySpace((Parameter("w", (1 << 22,), "float32"),))
    placement = Placement.balance(keyspace, 1)
    value = np.ones(1 << 20, "<f4")
    with ShardWriter(LocalStorage(), str(tmp_path), placement, 0, ()) as one:
        tracemalloc.start()
        for slice_ in placement.slices[0]:
            one.write(slice_.index, value, [])
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 1 << 20
        one.close()


def test_the_layout_of_the_save_before_serves_again(tmp_path: Path) -> None:
    facts = []
    layout = None
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with ShardWriter(LocalStorage(), str(tmp_path / name), PLACEMENT, 0, ("m",), layout=layout) as one:
            one.write(0, EIGHT, [EIGHT])
            one.write(1, EIGHT[:4], [EIGHT[:4]])
            facts.append(one.close())
            layout = one.layout
    assert facts[0] == facts[1]


@pytest.mark.parametrize("names", [("a", "optimizer.m.a"), ("__metadata__",)])
def test_a_name_that_stands_for_something_else_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    placement = Placement.balance(KeySpace([Parameter(name, (2,), "float32") for name in names]), 1)
    with pytest.raises(ConfigurationError, match="rename the parameter"):
        ShardWriter(LocalStorage(), str(tmp_path), placement, 0, ("m",))
    assert list(tmp_path.iterdir()) == []
