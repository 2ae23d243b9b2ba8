"""While a cluster holds a directory, commands publish nothing there; which clusters have written is told apart."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoint.saved import NOW, OWNER, Model, job, owner, save
from tests.simulator.disk import Disk
from tests.tables import for_each
from zmqps.checkpoint.export import compact
from zmqps.checkpoint.find import good_ones, open_checkpoint
from zmqps.checkpoint.owners import LOCK, Claim, check_is_of_one, held
from zmqps.checkpoint.storage import LocalStorage
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.errors import CheckpointNotFoundError, CheckpointStorageError

SPEC = job(Parameter("w", (4, 3), "float32"))
MODEL = Model.random(SPEC)
PLACEMENT = Placement.balance(KeySpace(SPEC.parameters), 2, 16)
HELD = "the cluster 00000001 .* saves its jobs there, and is alive"


def test_a_command_publishes_nothing_where_a_cluster_is_alive(tmp_path: Path) -> None:
    storage = LocalStorage()
    one = open_checkpoint(save(storage, str(tmp_path), MODEL, PLACEMENT, owned_by=OWNER))
    with Claim(storage, str(tmp_path), OWNER, {}):
        with pytest.raises(CheckpointStorageError, match=HELD):
            compact(one, str(tmp_path), "me", NOW)
        with pytest.raises(CheckpointStorageError, match=HELD), held(storage, str(tmp_path)):
            pass
    assert os.listdir(tmp_path / "default") == [one.path.rpartition("/")[2]]
    whole = open_checkpoint(compact(one, str(tmp_path), "me", NOW))
    assert whole.manifest.owner is None
    assert not (tmp_path / LOCK).exists()


def test_a_command_that_publishes_keeps_a_cluster_out_and_makes_the_directory(tmp_path: Path) -> None:
    place = str(tmp_path / "runs")
    claim = Claim(LocalStorage(), place, OWNER, {})
    with held(LocalStorage(), place), pytest.raises(CheckpointStorageError, match="another cluster saves its jobs"):
        claim.__enter__()
    with claim:
        pass


def test_what_is_restored_goes_on_as_the_run_of_its_checkpoint() -> None:
    claim = Claim(Disk(), "/ckpt", OWNER, {"a": owner(9).run})
    assert claim.owner_of("a") == replace(OWNER, run=owner(9).run)
    assert claim.owner_of("b") == OWNER


@for_each(
    "clusters, in_turns",
    [
        ([], False), ([1], False), ([1, 1, 2, 2, 3], False), ([1, None, 1], False), ([1, 2, 1], True),
        ([1, 2, 3, 2], True), ([1, 2, None, 1, 3], True),
    ],
)  # fmt: skip
def test_clusters_that_have_written_in_turns_are_told_from_those_that_followed_each_other(
    clusters: list[int | None], in_turns: bool
) -> None:
    disk = Disk()
    for number in clusters:
        save(disk, "/ckpt", MODEL, PLACEMENT, owned_by=None if number is None else owner(number))
    good = list(good_ones(disk, "/ckpt/default"))
    if in_turns:
        with pytest.raises(CheckpointNotFoundError, match="name the checkpoint to begin from: /ckpt/default/ckpt-"):
            check_is_of_one(good)
    else:
        check_is_of_one(good)
