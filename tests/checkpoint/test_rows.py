"""Rows of sparse tables on the disk: written by any number of servers, whole or in chains, read by any other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy as safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

import zmqps
from tests.checkpoint.saved import NOW
from tests.core.server.tables.test_row_snapshot_row_changes import RowChanges
from tests.simulator.disk import Disk
from tests.tables import for_each
from zmqps import optim
from zmqps.checkpoint import Manifest, Save, compact, export, export_table, open_checkpoint, read_table, storage_of
from zmqps.checkpoint.manifest import CONSISTENT, FileFact
from zmqps.checkpoint.rows import encoded
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.job.tables import TableSpec
from zmqps.core.server.tables.row_snapshot import RowSnapshots
from zmqps.core.server.tables.rows import Rows, make_rows
from zmqps.errors import CheckpointCorruptError, CheckpointMismatchError, ConfigurationError, UnknownParameterError
from zmqps.nodes.checkpoint_rows import read_tables, slots_of_table
from zmqps.nodes.checkpoints import ShardFiles
from zmqps.optim.rows import kernel_of_table
from zmqps.rows.hashing import buckets_of
from zmqps.rows.initial import Initial

SOURCE = {"version": 9, "optimizer": True, "names": {}}
RULES = {"items": optim.adam(0.1), "words": optim.rowwise_adagrad(0.1)}


def spec_of(name: str, dim: int = 3, **options: Any) -> TableSpec:
    start = Initial("normal", 1.0).to_wire()
    rule = options.pop("rule", RULES.get(name, optim.sgd(0.1)))
    return TableSpec(name=name, dim=dim, optimizer=rule.to_wire(), initial=start, **options)


def job_of(*tables: TableSpec) -> JobSpec:
    return JobSpec(parameters=(), optimizer=optim.sgd(1.0).to_wire(), mode="async", tables=tables)


class Servers:
    """The shards of a job of tables, and what they write and read."""

    def __init__(self, job: JobSpec, number: int) -> None:
        self.job = job
        self.placement = Placement.balance(KeySpace.of(job), number, 4096)
        self.shards: list[Rows] = []
        self.changes = RowChanges()
        for index in range(number):
            rows = make_rows(
                job, self.placement, index, lambda one: kernel_of_table(one.optimizer, one.name, one.dim),
                available_nbytes=1 << 20,
            )  # fmt: skip
            self.shards.append(rows)

    def push(self, ids: Sequence[int], by: float) -> None:
        for number, spec in enumerate(self.job.tables):
            every = np.array(ids, np.int64)
            buckets = buckets_of(every, spec.bucket_seed)
            for rows in self.shards:
                table = rows.tables[number]
                mine = every[(buckets >= table.slice.start) & (buckets < table.slice.stop)]
                weights = (1 + mine[:, None] % 7).astype(np.float32)
                table.update(mine, np.full((mine.size, spec.dim), by, np.float32) * weights)
                table.version += 1

    def save(
        self, storage: Any, base: Manifest | None = None, base_name: str = "", number: int = 1, directory: str = "/run"
    ) -> str:
        save = Save.begin(storage, directory, "job", 9, "me", NOW)
        shards = []
        files = ShardFiles()
        files._storage_of = lambda path: (storage, path)  # type: ignore[method-assign]
        for index, rows in enumerate(self.shards):
            since = self.changes.since(index, number - 1, rows.tables) if base else [None] * len(rows.tables)
            snapshots = RowSnapshots(rows.tables, since)
            self.changes.note(index, number, number - 1, rows.tables)
            writer = files.open(save.directory, self.job.to_wire(), self.placement, index)
            while (piece := snapshots.next()) is not None:
                writer.write(piece)
            facts = writer.close({"ledgers": {}, **snapshots.state})
            assert facts["lowest"] == min(table.version for table in rows.tables)
            shards.append(tuple(FileFact.from_wire(fact) for fact in facts["files"]))
        manifest = Manifest(
            job_name="job", job=self.job, placement=self.placement, version=9, slots=(), shards=tuple(shards),
            created_at=NOW, kind=CONSISTENT, base=None if base is None else (base_name, base.digest),
        )  # fmt: skip
        return save.commit(manifest)

    def restore(self, storage: Any, path: str, **source: Any) -> Servers:
        checkpoint = open_checkpoint(path, storage=storage)
        for rows in self.shards:
            read_tables(checkpoint, rows, {**SOURCE, **source}, synchronous=False)
        return self

    def everything(self, number: int, *, slots: bool = True) -> dict[int, Any]:
        found = {}
        for rows in self.shards:
            table = rows.tables[number]
            table.validate()
            kept = table.kept(np.flatnonzero(table.store.live[: table.store.end]))
            ages = table.store.ages(table.store.find(kept.ids), table.steps)
            arrays = [kept.values, *([*kept.slots, *kept.row_slots] if slots else [])]
            for at, number_ in enumerate(kept.ids.tolist()):
                state = tuple(np.asarray(array[at]).tobytes() for array in arrays)
                count = kept.counts[at] if slots and kept.counts is not None else 0
                found[number_] = (state, int(count), int(ages[at]))
        return found


@for_each("after", [1, 2, 3])
def test_rows_are_read_by_any_number_of_servers(after: int) -> None:
    disk, job = Disk(), job_of(spec_of("items"), spec_of("words", dim=5))
    before = Servers(job, 2)
    for by in range(3):
        before.push(range(-40 * by, 60), 0.5 + by)
    path = before.save(disk)
    restored = Servers(job, after).restore(disk, path)
    for number in range(2):
        assert restored.everything(number) == before.everything(number)
        assert {table.steps for rows in restored.shards for table in [rows.tables[number]]} == {3}
    before.push(range(10), 3.0)
    restored.push(range(10), 3.0)
    assert restored.everything(0) == before.everything(0)


STEPS = st.lists(st.lists(st.integers(-30, 30), min_size=1, max_size=20, unique=True), min_size=1, max_size=4)


@settings(max_examples=20)
@given(st.lists(STEPS, min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 3), st.data())
def test_any_chain_is_read_by_any_servers_and_compacted(saves: Any, first: int, second: int, data: Any) -> None:
    small = {"capacity_nbytes": first * 12 * 50, "when_full": "evict"} if data.draw(st.booleans()) else {}
    expires = {"expire_steps": 4} if data.draw(st.booleans()) else {}
    disk, job = Disk(), job_of(spec_of("items", rule=optim.sgd(0.1), **small), spec_of("words", **expires))
    servers = Servers(job, first)
    base, path = None, ""
    for number, pushes in enumerate(saves, start=1):
        for at, some in enumerate(pushes):
            servers.push(some, 1.0 + at)
        path = servers.save(disk, base, path.rpartition("/")[2], number)
        base = open_checkpoint(path, storage=disk).manifest
    one = open_checkpoint(path, storage=disk)
    list(one.verify())
    short = compact(one, "/run", "them", NOW)
    assert open_checkpoint(short, storage=disk).base is None
    for where in (path, short):
        if small and second != first:
            continue  # what makes way depends on where rows are
        restored = Servers(job, second).restore(disk, where)
        assert restored.everything(0) == servers.everything(0)
        assert restored.everything(1) == alive(servers.everything(1), 4 if expires else None)


def alive(rows: dict[int, Any], expires: int | None) -> dict[int, Any]:
    """Return rows that have not expired."""
    return {number: row for number, row in rows.items() if expires is None or row[2] < expires}


def saved(disk: Disk, **options: Any) -> str:
    servers = Servers(job_of(spec_of("items", **options)), 2)
    servers.push(range(50), 1.0)
    servers.push(range(9), 1.0)
    return servers.save(disk)


def test_without_the_optimizer_rows_have_values_and_a_young_state() -> None:
    disk = Disk()
    path = saved(disk)
    restored = Servers(job_of(spec_of("items", rule=optim.adagrad(0.1))), 1).restore(disk, path, optimizer=False)
    with_all = Servers(job_of(spec_of("items")), 1).restore(disk, path)
    mine, theirs = restored.everything(0, slots=False), with_all.everything(0, slots=False)
    assert mine == theirs
    table = restored.shards[0].tables[0]
    assert not any(slot[: table.store.end].any() for slot in table.store.slots)


def test_a_table_may_have_another_name_in_the_job() -> None:
    disk = Disk()
    path = saved(disk, rule=optim.sgd(0.1))
    job = job_of(spec_of("films", rule=optim.sgd(0.1)))
    restored = Servers(job, 3).restore(disk, path, names={"films": "items"})
    assert len(restored.everything(0)) == 50


@for_each(
    "spec, names, what",
    [
        (spec_of("films"), {}, "no sparse table 'films'"),
        (spec_of("items", dim=4), {}, "3 elements, and the job's 4"),
        (spec_of("items", rule=optim.ftrl(0.1)), {}, "has no"),
    ],
)
def test_what_does_not_fit_is_refused(spec: TableSpec, names: Any, what: str) -> None:
    disk = Disk()
    path = saved(disk)
    with pytest.raises(CheckpointMismatchError, match=what):
        Servers(job_of(spec), 1).restore(disk, path, names=names)


def test_a_checkpoint_says_which_tables_it_has() -> None:
    disk = Disk()
    checkpoint = open_checkpoint(saved(disk), storage=disk)
    with pytest.raises(UnknownParameterError, match="items"):
        checkpoint.table("films")
    assert checkpoint.table("items").slots == slots_of_table(spec_of("items"))


def test_a_byte_that_was_changed_is_found() -> None:
    disk = Disk()
    path = saved(disk)
    [name, *_] = [name for name in disk.names(path) if "-rows-" in name]
    disk.flip(f"{path}/{name}", disk.size(f"{path}/{name}") - 1)
    with pytest.raises(CheckpointCorruptError, match="not what was written"):
        Servers(job_of(spec_of("items")), 1).restore(disk, path)
    with pytest.raises(CheckpointCorruptError, match="not what was written"):
        list(open_checkpoint(path, storage=disk).verify())


def test_a_file_that_is_missing_is_found() -> None:
    disk = Disk()
    path = saved(disk)
    [name, *_] = [name for name in disk.names(path) if "-rows-" in name]
    disk.remove(f"{path}/{name}")
    with pytest.raises(CheckpointCorruptError, match="missing"):
        list(open_checkpoint(path, storage=disk).verify())


def test_plain_safetensors_reads_a_file_of_rows() -> None:
    servers = Servers(job_of(spec_of("items")), 1)
    servers.push(range(5), 1.0)
    table = servers.shards[0].tables[0]
    kept = table.kept(np.arange(5))
    pieces = encoded(table.spec, slots_of_table(table.spec), 2, 7, kept, kept.ids)
    found = safetensors.load(b"".join(array.tobytes() for array in pieces))
    assert np.array_equal(found["items.ids@2.7"], kept.ids)
    assert np.array_equal(found["items.gone@2.7"], kept.ids)
    assert np.array_equal(found["items.values@2.7"], kept.values)
    assert np.array_equal(found["items.optimizer.m@2.7"], kept.slots[0])


def test_all_rows_of_a_checkpoint_are_loaded_and_exported(tmp_path: Path) -> None:
    storage, directory = storage_of(str(tmp_path / "run"))
    servers = Servers(job_of(spec_of("items"), spec_of("words", dim=2)), 2)
    servers.push(range(50), 1.0)
    path = servers.save(storage, directory=directory)
    loaded = zmqps.load(path)
    file = tmp_path / "model.safetensors"
    nbytes = export(open_checkpoint(path), str(file))
    exported = safetensors.load_file(file)
    assert file.stat().st_size == nbytes
    assert sorted(loaded) == sorted(exported) == ["items.ids", "items.values", "words.ids", "words.values"]
    for number, name in enumerate(("items", "words")):
        expected = {row: state[0][0] for row, state in servers.everything(number).items()}
        for found in (loaded, exported):
            rows = zip(found[f"{name}.ids"].tolist(), found[f"{name}.values"], strict=True)
            assert {row: values.tobytes() for row, values in rows} == expected


@pytest.mark.parametrize("suffix", [".safetensors", ".parquet"])
def test_one_table_of_a_chain_is_exported_each_row_once(tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    storage, directory = storage_of(str(tmp_path / "run"))
    servers = Servers(job_of(spec_of("items"), spec_of("words", dim=2)), 2)
    servers.push(range(50), 1.0)
    first = open_checkpoint(servers.save(storage, directory=directory))
    servers.push(range(40, 60), 1.0)
    path = servers.save(storage, first.manifest, first.path.rpartition("/")[2], number=2, directory=directory)
    one, file = open_checkpoint(path), tmp_path / f"words{suffix}"
    assert one.base is not None
    with pytest.raises(ConfigurationError, match="has items, words: say which one with --table"):
        export_table(one, str(file))
    with pytest.raises(UnknownParameterError, match="its sparse tables are items, words"):
        export_table(one, str(file), "w")
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]
    assert export_table(one, str(file), "words") == 60
    expected = {row: state[0][0] for row, state in servers.everything(1).items()}
    found = [
        pair for ids, rows in read_table(file, "words", 2, most=7) for pair in zip(ids.tolist(), rows, strict=True)
    ]
    assert len(found) == 60
    assert {row: values.tobytes() for row, values in found} == expected


def test_the_only_table_of_a_job_needs_no_name(tmp_path: Path) -> None:
    storage, directory = storage_of(str(tmp_path / "run"))
    servers = Servers(job_of(spec_of("items")), 1)
    servers.push(range(5), 1.0)
    one = open_checkpoint(servers.save(storage, directory=directory))
    assert export_table(one, str(tmp_path / "items.safetensors")) == 5  # the only one
    with pytest.raises(ConfigurationError, match="is there already"):
        export_table(one, str(tmp_path / "items.safetensors"))


def test_a_parameter_is_not_named_as_the_rows_of_a_table() -> None:
    parameter = Parameter("items.values", (3,), "float32")
    with pytest.raises(ConfigurationError, match="means the table's rows"):
        JobSpec(parameters=(parameter,), optimizer=optim.sgd(1.0).to_wire(), mode="async", tables=(spec_of("items"),))
