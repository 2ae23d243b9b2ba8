"""Where nothing can be renamed, the manifest is what publishes; on fsspec's memory in the role of an object store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.checkpoint.saved import NOW, Model, job, save
from zmqps.checkpoint.find import good_ones, open_checkpoint
from zmqps.checkpoint.publish import ABANDONED_AFTER_S, Save, clean, prune
from zmqps.checkpoint.remote import FsspecStorage, storage_of
from zmqps.checkpoint.storage import LocalStorage
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.errors import CheckpointForeignError, ConfigurationError

fsspec = pytest.importorskip("fsspec")
SPEC = job(Parameter("w", (4, 3), "float32"), Parameter("b", (3,), "float64"))
MODEL = Model.random(SPEC)
PLACEMENT = Placement.balance(KeySpace(SPEC.parameters), 2, 16)


@pytest.fixture
def store() -> Iterator[FsspecStorage]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield FsspecStorage(system)
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def test_a_checkpoint_is_written_and_read_by_its_address(store: FsspecStorage) -> None:
    for version in (1, 2):
        path = save(store, "/bucket/run", MODEL, PLACEMENT, version=version)
    assert path == "/bucket/run/default/ckpt-000000000002-0002"
    found = zmqps.load("memory://bucket/run", optimizer=True)
    assert np.array_equal(found["w"], MODEL.array("w"))
    assert np.array_equal(found["optimizer.v.b"], MODEL.array("b", "v"))
    checkpoint = open_checkpoint("memory://bucket/run")
    assert sum(checkpoint.verify()) == checkpoint.manifest.nbytes
    assert prune(store, "/bucket/run/default", 1, [one.path for one in good_ones(store, "/bucket/run/default")]) != []
    assert store.names("/bucket/run/default") == ["ckpt-000000000002-0002"]
    assert not [name for name in store.names(path) if name.endswith(".owner")]


def test_without_a_manifest_it_is_no_checkpoint_and_the_next_save_removes_it(store: FsspecStorage) -> None:
    good = save(store, "/bucket/run", MODEL, PLACEMENT, version=1)
    dead = Save.begin(store, "/bucket/run", "default", 2, "me", NOW)
    with pytest.raises(CheckpointForeignError, match="it was never finished"):
        open_checkpoint(dead.directory, storage=store)
    assert open_checkpoint("/bucket/run", storage=store).path == good
    assert clean(store, "/bucket/run/default", "them", NOW) == []
    save(store, "/bucket/run", MODEL, PLACEMENT, version=3)
    assert dead.directory.rpartition("/")[2] not in store.names("/bucket/run/default")


def test_what_another_left_is_removed_when_it_is_old(store: FsspecStorage) -> None:
    dead = Save.begin(store, "/bucket/run", "default", 2, "them", NOW)
    later = store.modified_at(f"{dead.directory}/them.owner") + ABANDONED_AFTER_S
    assert clean(store, "/bucket/run/default", "me", later - 60) == []
    assert clean(store, "/bucket/run/default", "me", later + 60) == [dead.directory]


def test_a_path_is_local_and_an_address_names_its_file_system() -> None:
    assert isinstance(storage_of("/data/run")[0], LocalStorage)
    storage, path = storage_of("memory://bucket/run")
    assert isinstance(storage, FsspecStorage)
    assert path == "/bucket/run"
    with pytest.raises(ConfigurationError, match="nowhere://x cannot be used"):
        storage_of("nowhere://x")


def test_without_fsspec_it_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigurationError, match=r"pip install .*\[fsspec\]'"):
        storage_of("s3://bucket")
