"""What is read is what was written, under any placement; what is not is refused."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint.saved import Model, job, jobs, placements, save
from zmqps.checkpoint.find import open_checkpoint
from zmqps.checkpoint.storage import LocalStorage
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.errors import CheckpointMismatchError, UnknownParameterError


@given(st.data())
def test_any_placement_is_read_back_under_any_other(data: st.DataObject) -> None:
    spec = data.draw(jobs())
    keyspace = KeySpace(spec.parameters)
    old, new = data.draw(placements(keyspace)), data.draw(placements(keyspace))
    slots = data.draw(st.sampled_from([(), ("u",), ("m", "v")]))
    model = Model.random(spec, slots)
    with tempfile.TemporaryDirectory() as directory:
        path = save(LocalStorage(), directory, model, old, order=data.draw(st.permutations(range(5))))
        checkpoint = open_checkpoint(path)
        assert sum(checkpoint.verify()) == checkpoint.manifest.nbytes
        restorer = checkpoint.onto(spec.parameters, slots)
        for slices in new.slices:
            for slice_ in slices:
                found = restorer.read(slice_, keyspace.tables[slice_.table].dtype)
                for array, whole in zip((found.value, *found.slots), model.tables[slice_.table], strict=True):
                    assert array.tobytes() == whole[slice_.start : slice_.stop].tobytes()
                assert found.steps == [segment.parameter + 1 for segment in slice_.segments]
        for name, array in checkpoint.arrays(optimizer=True).items():
            slot, _, parameter = name.removeprefix("optimizer.").partition(".")
            expected = model.array(parameter, slot) if name.startswith("optimizer.") else model.array(name)
            assert (array.shape, array.tobytes()) == (expected.shape, expected.tobytes())
        assert [shard.state["shard"] for shard in checkpoint.shards] == list(range(old.num_shards))


def test_parameters_may_have_another_order_and_other_names(tmp_path) -> None:  # type: ignore[no-untyped-def]
    spec = job(Parameter("a", (3, 4), "float32"), Parameter("b", (5,), "float32"))
    model = Model.random(spec)
    path = save(LocalStorage(), str(tmp_path), model, Placement.balance(KeySpace(spec.parameters), 2))
    theirs = (Parameter("b", (5,), "float16"), Parameter("new", (3, 4), "float32"))
    new = Placement.balance(KeySpace(theirs), 1)
    restorer = open_checkpoint(path).onto(theirs, ("v",), {"new": "a"})
    [slice_] = new.slices[0]
    found = restorer.read(slice_, np.dtype("<f4"))
    assert found.value.tobytes() == model.array("b").tobytes() + model.array("a").tobytes()
    assert found.slots[0].tobytes() == model.array("b", "v").tobytes() + model.array("a", "v").tobytes()
    assert found.steps == [2, 1]


@pytest.mark.parametrize(
    ("parameters", "slots", "says"),
    [
        ([Parameter("c", (2,), "float32")], (), "no parameter 'c'"),
        ([Parameter("a", (4, 3), "float32")], (), r"'a' is float32 \(3, 4\), and the job's is float32 \(4, 3\)"),
        ([Parameter("a", (3, 4), "float64")], (), "float64"),
        ([Parameter("a", (3, 4), "float32")], ("u",), "optimizer 'adam' has no u; restore with the same"),
    ],
)
def test_another_model_or_optimizer_is_refused(tmp_path, parameters, slots, says) -> None:  # type: ignore[no-untyped-def]
    spec = job(Parameter("a", (3, 4), "float32"), Parameter("b", (5,), "float32"))
    path = save(LocalStorage(), str(tmp_path), Model.random(spec), Placement.balance(KeySpace(spec.parameters), 2))
    with pytest.raises(CheckpointMismatchError, match=says):
        open_checkpoint(path).onto(parameters, slots)


def test_an_array_that_is_not_there_is_named(tmp_path) -> None:  # type: ignore[no-untyped-def]
    spec = job(Parameter("a", (3, 4), "float32"))
    path = save(LocalStorage(), str(tmp_path), Model.random(spec), Placement.balance(KeySpace(spec.parameters), 1))
    with pytest.raises(UnknownParameterError, match="'b'; the checkpoint has 'a'"):
        open_checkpoint(path).array("b")
    with pytest.raises(UnknownParameterError, match=r"'optimizer.u.a'; its slots are m, v"):
        open_checkpoint(path).array("a", "u")


def test_a_version_is_the_lowest_and_a_step_count_the_highest_of_what_a_slice_is_made_of(tmp_path) -> None:  # type: ignore[no-untyped-def]
    spec = job(Parameter("a", (8,), "float32"))
    keyspace = KeySpace(spec.parameters)
    path = save(LocalStorage(), str(tmp_path), Model.random(spec), Placement.balance(keyspace, 1, 8), version=10)
    [[slice_]] = Placement.balance(keyspace, 1).slices
    found = open_checkpoint(path).onto(spec.parameters, ()).read(slice_, np.dtype("<f4"))
    assert (found.version, found.steps) == (10, [1])
