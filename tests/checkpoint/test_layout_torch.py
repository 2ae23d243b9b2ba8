"""`torch.distributed.checkpoint` and plain safetensors read what is written, without zmqps."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.saved import Model, job, jobs, placements, save
from zmqps.checkpoint.storage import LocalStorage
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter

torch = pytest.importorskip("torch")


def loaded(path: str, wanted: dict[str, Any]) -> dict[str, Any]:
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(wanted, storage_reader=HuggingFaceStorageReader(path), no_dist=True)
    return wanted


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_pytorch_loads_any_job_in_any_placement(data: st.DataObject) -> None:
    spec = data.draw(jobs())
    model = Model.random(spec, ("m", "v"))
    with tempfile.TemporaryDirectory() as directory:
        path = save(LocalStorage(), directory, model, data.draw(placements(KeySpace(spec.parameters))))
        expected = {p.name: model.array(p.name) for p in spec.parameters}
        expected |= {f"optimizer.{s}.{p.name}": model.array(p.name, s) for s in model.slots for p in spec.parameters}
        found = loaded(
            path,
            {name: torch.full(a.shape, -1.0, dtype=torch.from_numpy(a.copy()).dtype) for name, a in expected.items()},
        )
        for name, array in expected.items():
            assert np.array_equal(found[name].numpy(), array), name


def test_pytorch_reshards_a_cut_parameter(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    spec = job(Parameter("w", (10, 6), "float32"))
    placement = Placement(KeySpace(spec.parameters), ((0, 24, 45, 60),))
    path = save(LocalStorage(), str(tmp_path), Model.random(spec), placement)
    found = HuggingFaceStorageReader(path).read_metadata().state_dict_metadata["w"]
    assert isinstance(found, TensorStorageMetadata)
    assert found.size == torch.Size((10, 6))
    assert sorted((tuple(c.offsets), tuple(c.sizes)) for c in found.chunks) == [
        ((0, 0), (4, 6)),
        ((4, 0), (3, 6)),
        ((7, 0), (1, 3)),
        ((7, 3), (1, 3)),
        ((8, 0), (2, 6)),
    ]


def test_the_safetensors_library_reads_each_file(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    spec = job(Parameter("w", (10, 6), "float32"), Parameter("d", (3,), "float64"), Parameter("e", (0, 2), "float32"))
    model = Model.random(spec)
    path = save(LocalStorage(), str(tmp_path), model, Placement.balance(KeySpace(spec.parameters), 1))
    [file] = Path(path).glob("*.safetensors")
    found = safetensors.load_file(file)
    assert json.loads((Path(path) / "manifest.json").read_text())["version"] == 7
    assert sorted(found) == sorted([*"wde", *(f"optimizer.{s}.{n}" for s in "mv" for n in "wde")])
    assert np.array_equal(found["optimizer.v.d"], model.array("d", "v"))
