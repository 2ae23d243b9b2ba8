"""`zmqps.load` gives the arrays anywhere; a damaged checkpoint names the older one that looks whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.checkpoint.saved import Model, job, save
from zmqps.checkpoint.publish import prune
from zmqps.checkpoint.storage import LocalStorage
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter

SPEC = job(Parameter("w", (4, 3), "float32"), Parameter("h", (2,), "bfloat16"))
MODEL = Model.random(SPEC)
PLACEMENT = Placement.balance(KeySpace(SPEC.parameters), 2)


def test_values_come_by_name_and_slots_when_asked_for(tmp_path: Path) -> None:
    save(LocalStorage(), str(tmp_path), MODEL, PLACEMENT)
    found = zmqps.load(tmp_path)
    assert list(found) == ["w", "h"]
    assert all(np.array_equal(found[name], MODEL.array(name)) for name in found)
    found["w"][:] = 0  # its own
    found = zmqps.load(tmp_path, optimizer=True)
    assert list(found)[2:] == ["optimizer.m.w", "optimizer.m.h", "optimizer.v.w", "optimizer.v.h"]
    assert np.array_equal(found["optimizer.v.h"], MODEL.array("h", "v"))


def test_a_damaged_one_names_the_one_before_it(tmp_path: Path) -> None:
    old, new = (save(LocalStorage(), str(tmp_path), MODEL, PLACEMENT, version=version) for version in (1, 2))
    file = Path(new) / "shard-00000-model-00001-of-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    with pytest.raises(
        zmqps.CheckpointCorruptError, match=f"not what was written; {old} looks whole, of version 1"
    ) as caught:
        zmqps.load(tmp_path, optimizer=True)
    assert caught.value.good == old


def test_importing_zmqps_loads_no_checkpoint() -> None:
    program = "import sys, zmqps; print(*(name for name in sys.modules if 'xxhash' in name or 'checkpoint' in name))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_where_the_latest_is_removed_while_it_is_read_the_next_is(tmp_path: Path, monkeypatch: Any) -> None:
    old = save(LocalStorage(), str(tmp_path), MODEL, PLACEMENT, version=1)
    read = LocalStorage.read
    made: list[str] = []

    def read_late(self: LocalStorage, path: str, *where: Any) -> bytes:
        if path.endswith(".safetensors") and not made:
            made.append(save(self, str(tmp_path), MODEL, PLACEMENT, version=2))
            prune(self, str(Path(old).parent), 1, [str(Path(path).parent), made[0]])
        return read(self, path, *where)

    monkeypatch.setattr(LocalStorage, "read", read_late)
    assert np.array_equal(zmqps.load(tmp_path)["w"], MODEL.array("w"))
    made.clear()
    (path,) = Path(old).parent.iterdir()
    with pytest.raises(zmqps.CheckpointNotFoundError, match=r"removed while it was read: .*; read the latest one"):
        zmqps.load(path)


def test_what_is_removed_for_ever_is_given_up(tmp_path: Path, monkeypatch: Any) -> None:
    first = save(LocalStorage(), str(tmp_path), MODEL, PLACEMENT)
    read = LocalStorage.read

    def read_late(self: LocalStorage, path: str, *where: Any) -> bytes:
        if path.endswith(".safetensors"):
            latest = str(Path(path).parent)
            prune(self, str(Path(first).parent), 1, [latest, save(self, str(tmp_path), MODEL, PLACEMENT)])
        return read(self, path, *where)

    monkeypatch.setattr(LocalStorage, "read", read_late)
    with pytest.raises(zmqps.CheckpointNotFoundError, match="removed while it was read"):
        zmqps.load(tmp_path)
