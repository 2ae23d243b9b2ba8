"""One plain file, read by the safetensors library."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint.saved import Model, job, jobs, placements, save
from tests.simulator.disk import Disk
from zmqps.checkpoint.export import export
from zmqps.checkpoint.find import open_checkpoint
from zmqps.checkpoint.storage import LocalFile
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.errors import CheckpointStorageError, ConfigurationError

safetensors = pytest.importorskip("safetensors.numpy")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_checkpoint_becomes_one_file(tmp_path: Path, data: st.DataObject) -> None:
    spec = data.draw(jobs())
    model, disk = Model.random(spec), Disk()
    path = save(disk, "/ckpt", model, data.draw(placements(KeySpace(spec.parameters))))
    optimizer = data.draw(st.booleans())
    file = tmp_path / "model.safetensors"
    nbytes = export(open_checkpoint(path, storage=disk), str(file), optimizer=optimizer, replace=True)
    found = safetensors.load_file(file)
    assert len(found) == len(spec.parameters) * (3 if optimizer else 1)
    assert file.stat().st_size == nbytes
    for parameter in spec.parameters:
        assert np.array_equal(found[parameter.name], model.array(parameter.name))
        if optimizer:
            assert np.array_equal(found[f"optimizer.v.{parameter.name}"], model.array(parameter.name, "v"))
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_is_not_replaced_unless_asked_and_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    spec, disk = job(Parameter("w", (4, 3), "float32")), Disk()
    checkpoint = open_checkpoint(
        save(disk, "/ckpt", Model.random(spec), Placement.balance(KeySpace(spec.parameters), 1)), storage=disk
    )
    file = tmp_path / "model.safetensors"
    file.write_text("mine")
    with pytest.raises(ConfigurationError, match="is there already"):
        export(checkpoint, str(file))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalFile, "write_at", full)
    with pytest.raises(CheckpointStorageError, match="the disk is full"):
        export(checkpoint, str(file), replace=True)
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_text() == "mine"
