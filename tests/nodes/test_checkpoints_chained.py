"""Checkpoints of the rows that have changed are those that hold all: made by the same code, and read from files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.saved import OWNER, placements
from tests.checkpoint.test_rows import spec_of
from tests.core.machines import assign
from tests.nodes.test_checkpoints import spec
from tests.simulator.disk import Disk
from tests.simulator.jobs.training import ReferenceRules
from zmqps.checkpoint import open_checkpoint
from zmqps.checkpoint.storage import Storage
from zmqps.core.coordinator.saving.files import Served
from zmqps.core.coordinator.saving.making import Chains
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import NUM_BUCKETS
from zmqps.core.protocol.events import Action, Run
from zmqps.core.protocol.messages import Save, Saved
from zmqps.core.protocol.messages.saving import SaveStage
from zmqps.core.server.saves import Saves
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import make_rows, rows_in
from zmqps.core.server.tenant import Tenant
from zmqps.errors import CheckpointForeignError, CheckpointMismatchError
from zmqps.nodes.checkpoints import CheckpointStore, ShardFiles
from zmqps.nodes.relay import SCHEME
from zmqps.nodes.restoring import restored_from
from zmqps.optim import OptimizerSpec
from zmqps.optim.rows import kernel_of_table
from zmqps.rows.hashing import buckets_of
from zmqps.rows.kept import Kept

pytestmark = pytest.mark.processes

WORKER = b"w" * 16
TABLE = spec_of("items", dim=4)
#: Rows of the table for each parameter: how many there are, and with how many a gradient of it comes.
ROWS, TOUCHED = 300, 20


def job_of(mode: str) -> JobSpec:
    return replace(spec(mode), tables=(TABLE,))


def shard(job: JobSpec, where: Placement, index: int) -> Shard:
    rules = ReferenceRules(OptimizerSpec.from_wire(job.optimizer))
    rows = make_rows(
        job, where, index, lambda one: kernel_of_table(one.optimizer, one.name, one.dim), available_nbytes=1 << 20
    )
    return Shard(where, index, rules, synchronous=job.mode == "sync", others=[rows])


class Files(ShardFiles):
    """Those of servers whose disk is in memory."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def _storage_of(self, path: str) -> tuple[Storage, str]:
        return self._disk, path


class Cluster:
    """A job on servers, saved as by a coordinator."""

    def __init__(self, job: JobSpec, where: Placement, full_every: int, keep: int = 2) -> None:
        self.job, self.where = job, where
        self.disk = Disk()
        self.store = CheckpointStore("/ckpt", keep, owner=OWNER)
        self.store._storage = self.disk
        self.chains, self.number = Chains(full_every), 0
        self.saves = Saves(Files(self.disk))
        self.tenants = [self._tenant(index) for index in range(where.num_shards)]
        self.bases: list[int] = []

    def _tenant(self, index: int) -> Tenant:
        tenant = Tenant(assign(self.job, self.where, epoch=index + 1, shard=index))
        tenant.shard = of = shard(self.job, self.where, index)
        rng = np.random.default_rng(index)
        of.dense.load(
            [(s.slice.index, 0, ()) for s in of.slices],
            [rng.standard_normal(s.size).astype(s.value.dtype) for s in of.slices],
        )
        self._touch(of, range(ROWS * len(self.job.parameters)))
        self._touch(of, range(1))  # rows of the last update before a save are written again
        return tenant

    @staticmethod
    def _touch(of: Shard, numbers: Iterable[int]) -> None:
        ids = np.array(list(numbers), np.int64)
        for table in rows_in(of).tables:
            buckets = buckets_of(ids, TABLE.bucket_seed)
            mine = ids[(buckets >= table.slice.start) & (buckets < table.slice.stop)]
            table.update(mine, np.full((mine.size, TABLE.dim), 0.5, np.float32))

    def train(self, parameters: set[int]) -> None:
        """Push gradients of some parameters, and of rows for each: in the synchronous mode, make a step of them."""
        for tenant in self.tenants:
            of, parts, payload = tenant.ready(), [], []
            self._touch(of, (ROWS * parameter + at for parameter in parameters for at in range(TOUCHED)))
            for state in of.slices:
                bounds: list[int] = []
                for segment in state.slice.segments:
                    if segment.parameter in parameters and segment.size:
                        bounds += [segment.position, segment.position + segment.size]
                if bounds:
                    parts.append((state.slice.index, 0, tuple(bounds)))
                    sizes = [stop - start for start, stop in zip(bounds[::2], bounds[1::2], strict=True)]
                    payload += [np.full(size, 0.5, state.value.dtype) for size in sizes]
            if self.job.mode != "sync":
                if parts:
                    of.dense.push(parts, payload, "w")
                continue
            step = of.version
            if parts:
                of.dense.collect(parts, payload, (WORKER, step + 1), step, 1, "w")
            of.commit(step, ((WORKER, (step + 1,)),))

    def save(self, meanwhile: Sequence[set[int]] = (), fails: str = "", whole: bool = False) -> str:
        """Make a checkpoint while training goes on; return its path, or nothing where it has failed."""
        self.number += 1
        shards = {tenant.assign.epoch: tenant.assign.shard for tenant in self.tenants}
        base = None if whole else self.chains.base("default", shards)
        place, work = self.store.begin("default", self.number), list[Run]()
        self.written: dict[int, Mapping[str, Any]] = {}

        def take(actions: list[Action]) -> None:
            work.extend(action for action in actions if isinstance(action, Run))
            for action in actions:
                message = getattr(action, "message", None)
                if isinstance(message, Saved) and message.stage == SaveStage.WRITTEN:
                    self.written[shards[message.epoch]] = message.facts
            self.saves.validate()

        for tenant in self.tenants:
            exact = int(self.job.mode == "sync")
            message = Save(
                tenant.assign.epoch, self.number, exact, tenant.ready().version, place, base.number if base else 0
            )
            take(self.saves.ask(message, tenant, 0.0))
        trained = iter(meanwhile)
        while work:
            run = work.pop(0)
            take(self.saves.returned(run.tag, run.work(), 0.0))
            self.train(next(trained, set())) if meanwhile else None
        if fails:
            for tenant in self.tenants:
                self.saves.end(tenant.assign.epoch, self.number)
            self.store.abandon(place)
            return ""
        path, nbytes, _ = self.store.publish(place, self.manifest(base.path if base else None))
        if not whole:
            self.chains.published("default", self.number, path, shards, nbytes, base)
            self.bases.append(base.number if base else 0)
        return path

    def manifest(self, base: str | None) -> dict[str, Any]:
        return {
            "name": "default", "job": self.job.to_wire(), "placement": self.where.to_wire(), "version": self.number,
            "consistent": True, "state": {}, "data": [], "base": base,
            "shards": [self.written[index] for index in range(self.where.num_shards)],
        }  # fmt: skip

    def now(self) -> Any:
        """Return all that servers have, as a checkpoint is to have it."""
        shards = [tenant.ready() for tenant in self.tenants]
        tables = [table for of in shards for table in rows_in(of).tables]
        return [
            [
                (s.version, s.steps.tolist(), s.value.tobytes(), [slot.tobytes() for slot in s.slots])
                for s in of.slices
            ]
            for of in shards
        ], rows_of(table.kept(np.flatnonzero(table.store.live[: table.store.end])) for table in tables)  # fmt: skip

    def values(self, parameter: int) -> Any:
        """Return what servers have of a parameter."""
        found = np.empty(self.job.parameters[parameter].size, self.job.parameters[parameter].storage_dtype)
        for tenant in self.tenants:
            for state in tenant.ready().slices:
                for s in (s for s in state.slice.segments if s.parameter == parameter):
                    found[s.start : s.start + s.size] = state.value[s.position : s.position + s.size]
        return found

    def saved(self, path: str) -> Any:
        """Return all that a checkpoint has."""
        checkpoint = open_checkpoint(path, storage=self.disk)
        list(checkpoint.verify())
        restorer = checkpoint.onto(self.job.parameters, checkpoint.manifest.slots)
        found = []
        for slices, state in zip(self.where.slices, checkpoint.shards, strict=True):
            of_shard = []
            for slice_, version, steps in zip(slices, state.versions, state.steps, strict=True):
                read = restorer.read(slice_, self.where.keyspace.tables[slice_.table].dtype)
                of_shard.append((version, steps, read.value.tobytes(), [slot.tobytes() for slot in read.slots]))
            found.append(of_shard)
        files = checkpoint.table(TABLE.name)
        return found, rows_of(kept for index in files.shards_of(0, NUM_BUCKETS) for kept in files.read(index))


def rows_of(pieces: Iterable[Kept]) -> dict[int, Any]:
    """Return values and slots of rows, by id."""
    return {
        number: (kept.values[at].tobytes(), *(slot[at].tobytes() for slot in kept.slots), int(kept.stamps[at]))
        for kept in pieces
        for at, number in enumerate(kept.ids.tolist())
    }


PARAMETERS = st.sets(st.integers(0, 2))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_restored_from_a_chain_it_is_what_it_was_at_that_moment(data: st.DataObject) -> None:
    job = job_of(data.draw(st.sampled_from(["async", "sync"])))
    where = data.draw(placements(KeySpace.of(job)))
    cluster = Cluster(job, where, data.draw(st.integers(2, 5)))
    path, expected = cluster.save(), cluster.now()
    for _ in range(data.draw(st.integers(1, 7))):
        for parameters in data.draw(st.lists(PARAMETERS, max_size=2)):
            cluster.train(parameters)
        before = cluster.now()
        meanwhile = data.draw(st.lists(PARAMETERS, max_size=3))
        if made := cluster.save(meanwhile, data.draw(st.sampled_from(["", "", "it fails"]))):
            path, expected = made, before
        assert cluster.saved(path) == expected
    last = cluster.now()
    assert cluster.saved(cluster.save()) == last == cluster.saved(cluster.save(whole=True))
    kept = [name for name in cluster.disk.names("/ckpt/default") if name.startswith("ckpt-")]
    assert all(open_checkpoint(f"/ckpt/default/{name}", storage=cluster.disk) for name in kept)


JOB = job_of("sync")
WHERE = Placement.balance(KeySpace.of(JOB), 2, 32)


def test_rows_that_a_step_did_not_touch_are_not_written_again() -> None:
    cluster = Cluster(JOB, WHERE, 4)
    sizes = []
    for _ in range(5):
        path = cluster.save()
        sizes.append(open_checkpoint(path, storage=cluster.disk).manifest.nbytes)
        cluster.train({1})
    assert cluster.bases == [0, 1, 2, 3, 0]
    assert 4 * max(sizes[1:4]) < sizes[0]


def test_what_is_kept_keeps_what_it_builds_upon() -> None:
    cluster = Cluster(JOB, WHERE, 4, keep=1)
    kept = []
    for _ in range(6):
        cluster.save()
        cluster.train({2})
        kept.append(len(cluster.disk.names("/ckpt/default")))
    assert kept == [1, 2, 3, 4, 1, 2]


def test_what_builds_upon_something_that_has_gone_is_not_published() -> None:
    cluster = Cluster(JOB, WHERE, 4)
    first = cluster.save()
    cluster.disk.remove(f"{first}/manifest.json")
    with pytest.raises(CheckpointForeignError, match="never finished"):
        cluster.save()


def test_what_builds_upon_another_placement_is_not_published() -> None:
    cluster = Cluster(JOB, WHERE, 4)
    cluster.save()
    cluster.where = Placement(WHERE.keyspace, ((0, 9, 36), *WHERE.cuts[1:]), 32)
    with pytest.raises(CheckpointMismatchError, match="its shards are cut otherwise"):
        cluster.save()


def test_servers_read_by_way_of_the_coordinator_what_a_restored_one_builds_upon(tmp_path: Path) -> None:
    cluster = Cluster(JOB, WHERE, 4)
    cluster.store = CheckpointStore(str(tmp_path), 3, owner=OWNER)
    cluster.saves = Saves(ShardFiles())
    first = cluster.save()
    cluster.train({1})
    last = cluster.save()
    one = open_checkpoint(last)
    assert restored_from(last, one) == [last, last, first]
    assert restored_from(str(tmp_path), one) == [str(tmp_path), last, first]
    read = restored_from(last, one)
    store = CheckpointStore(str(tmp_path / "elsewhere"), 3, "coordinator", read, owner=OWNER)
    assert store.read_at(last) == SCHEME + last
    for path in (first, last):
        assert isinstance(store.serve("size", f"{path}/manifest.json", 0, 0, ()), Served)
    with pytest.raises(PermissionError):
        store.serve("size", f"{tmp_path}/default/other", 0, 0, ())


def test_an_object_store_keeps_chains_as_well() -> None:
    pytest.importorskip("fsspec")
    cluster = Cluster(JOB, WHERE, 3, keep=1)
    cluster.store = CheckpointStore("memory://chained", 1, owner=OWNER)
    cluster.saves = Saves(ShardFiles())
    lengths = []
    for number in range(5):
        path = cluster.save()
        one = open_checkpoint(path)
        for name, parameter in enumerate(JOB.parameters):
            assert one.array(parameter.name).tobytes() == cluster.values(name).tobytes()
        after = shard(JOB, WHERE, 0)
        ShardFiles().read(after, JOB, {"path": path, "version": number, "optimizer": True, "names": {}})
        assert [s.value.tobytes() for s in after.slices] == [
            s.value.tobytes() for s in cluster.tenants[0].ready().slices
        ]
        lengths.append(len(restored_from(path, one)) - 1)
        cluster.train({1})
    assert lengths == [1, 2, 3, 1, 2]
    assert len([entry for entry in one.storage.names(one.path.rpartition("/")[0]) if entry.startswith("ckpt")]) == 2
