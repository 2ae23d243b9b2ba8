"""A table whose rows lie on a device beside the same table in this host's memory: the same rows, whatever is done."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.checkpoint.test_rows import Servers, job_of, spec_of
from tests.devices import NewDevice, on_every_device, on_host
from tests.inprocess import InProcessCluster
from tests.modes import MODES
from tests.optim.test_rows import ROW_SPECS
from tests.simulator.disk import Disk
from tests.simulator.host_device import HostDevice
from tests.tables import for_each
from zmqps import initial, optim
from zmqps.checkpoint import open_checkpoint
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import TableSpec
from zmqps.core.server.tables.row_snapshot import RowSnapshot
from zmqps.core.server.tables.rows import make_rows
from zmqps.core.server.tables.table import RowTable
from zmqps.errors import DeviceMemoryError, TableFullError
from zmqps.gpu import rows as device_rows
from zmqps.gpu.device import Device
from zmqps.gpu.rows import DeviceRows
from zmqps.gpu.staging import DeviceMemory, Streams
from zmqps.nodes.server import SPARE_DEVICE_NBYTES, ServerConfig, make_shard, may_grow, row_kernel
from zmqps.rows.initial import Initial
from zmqps.rows.kept import Kept, joined
from zmqps.rows.store import RowStore

CONFIG = ServerConfig(coordinator="tcp://127.0.0.1:1", kernels="numpy")
DIM = 5
#: Of the pieces in which rows travel: so few that most updates take several.
PIECE_NBYTES = 1024


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a chunk have some 32 rows."""
    monkeypatch.setattr(device_rows, "CHUNK_NBYTES", 32 * 4 * DIM)


def memory_of(device: Device, nbytes: int = PIECE_NBYTES) -> DeviceMemory:
    streams = Streams(device)
    streams.enter()
    return DeviceMemory(streams, nbytes)


def table(memory: DeviceMemory | None, spec: Any, available_nbytes: int = 1 << 18, **options: Any) -> RowTable:
    """Return a table on a device, or in this host's memory."""
    options.setdefault("initial", Initial("normal", 0.0, 0.1, 3).to_wire())
    rows = TableSpec(name="items", dim=DIM, optimizer=spec.to_wire(), **options)
    job = JobSpec(parameters=(), optimizer=optim.sgd(1.0).to_wire(), mode="async", tables=(rows,))
    made = make_rows(
        job, Placement.balance(KeySpace.of(job), 1, 4096), 0, lambda one: row_kernel(CONFIG, job, one, memory),
        available_nbytes=available_nbytes, secret=7, store_of=RowStore if memory is None else memory.rows,
    )  # fmt: skip
    assert made is not None
    return made.tables[0]


def all_of(one: RowTable) -> Kept:
    return one.kept(np.flatnonzero(one.store.live[: one.store.end]))


class Pair:
    """The same table on a device and in this host's memory, told the same."""

    def __init__(self, device: Device, spec: Any, **options: Any) -> None:
        self.device = device
        self.memory = memory_of(device)
        self.host, self.there = table(None, spec, **options), table(self.memory, spec, **options)
        self.rng = np.random.default_rng(4)

    @property
    def both(self) -> tuple[RowTable, RowTable]:
        return self.host, self.there

    def ids(self, most: int, size: int) -> np.ndarray:
        return self.rng.permutation(most)[:size].astype(np.int64) - most // 2

    def update(self, ids: np.ndarray, begins: bool = True) -> None:
        grads = self.rng.standard_normal((ids.size, DIM)).astype(np.float32)
        for one in self.both:
            one.update(ids, grads, begins=begins)

    def put(self, ids: np.ndarray) -> None:
        values = self.rng.standard_normal((ids.size, DIM)).astype(np.float32)
        for one in self.both:
            one.put(ids, values)

    def same(self, ours: Any, theirs: Any) -> None:
        if isinstance(self.device, HostDevice):
            np.testing.assert_array_equal(theirs, ours)
        else:
            np.testing.assert_allclose(theirs, ours, rtol=4e-6, atol=1e-6)

    def check(self, *ids: np.ndarray) -> None:
        """Compare all that is kept, and what is read."""
        for one in self.both:
            one.validate()
        for ours, theirs in zip(all_of(self.host).arrays, all_of(self.there).arrays, strict=True):
            self.same(ours, theirs)
        for some in ids:
            self.same(self.host.read(some).reshape(-1), on_host(self.device, self.there.read(some).reshape(-1)))
        assert self.host.counters == self.there.counters
        assert self.host.store.nbytes == self.there.store.nbytes


@on_every_device
@for_each("step_counts", ["rows", "table"])
@for_each("name", ROW_SPECS)
def test_every_rule_does_the_same(name: str, step_counts: str, new_device: NewDevice) -> None:
    pair = Pair(new_device(), ROW_SPECS[name], step_counts=step_counts)
    for step in range(4):
        pair.update(pair.ids(200, 60), begins=step != 2)
        pair.check(pair.ids(300, 90))
    store = pair.there.store
    assert isinstance(store, DeviceRows)
    assert store.end > 2 << store.chunks.shift, "rows lie in several chunks"


@on_every_device
def test_rows_make_up_for_the_decay_they_have_missed(new_device: NewDevice) -> None:
    pair = Pair(new_device(), optim.adamw(0.1, weight_decay=0.5), lazy_decay=True)
    for _ in range(6):
        pair.update(pair.ids(100, 30))
    pair.check(pair.ids(120, 120))


@on_every_device
@for_each(
    "begin",
    [Initial("zeros"), Initial("constant", 0.5), Initial("uniform", -1.0, 1.0, 5), Initial("truncated_normal", 0, 1)],
)
def test_rows_begin_with_the_same(begin: Initial, new_device: NewDevice) -> None:
    pair = Pair(new_device(), optim.sgd(0.1), initial=begin.to_wire())
    nothing = np.empty(0, np.int64)
    pair.check(pair.ids(300, 200), nothing)
    pair.update(nothing)
    pair.update(pair.ids(300, 100))
    pair.check(pair.ids(300, 200), np.repeat(pair.ids(300, 20), 3), nothing)


@on_every_device
def test_rows_are_set_and_removed_and_what_they_leave_is_taken_again(new_device: NewDevice) -> None:
    pair = Pair(new_device(), optim.adagrad(0.1, initial_accumulator_value=0.2))
    for _ in range(5):
        pair.update(pair.ids(200, 50))
        pair.put(pair.ids(200, 40))
        gone = pair.ids(200, 30)
        for one in pair.both:
            one.remove(gone)
        pair.check(pair.ids(200, 100))
    assert pair.there.store.free.size


@on_every_device
def test_rows_make_way_for_others(new_device: NewDevice) -> None:
    pair = Pair(new_device(), optim.rowwise_adagrad(0.1), capacity_nbytes=6000, when_full="evict")
    store = pair.there.store
    assert isinstance(store, DeviceRows)
    taken = store.chunks.nbytes
    for _ in range(8):
        pair.update(pair.ids(1000, pair.host.room.limit // 2))
        pair.check(pair.ids(1000, 100))
    assert pair.there.counters["evicted"] > 0
    assert store.chunks.nbytes == taken >= pair.there.room.limit * 4 * (DIM + 1), (
        "a capacity is there from the beginning"
    )


@on_every_device
def test_rows_expire_and_are_admitted(new_device: NewDevice) -> None:
    pair = Pair(new_device(), optim.adam(0.01), expire_steps=3, admit=2)
    for _ in range(15):
        pair.update(pair.ids(80, 30))
        pair.check(pair.ids(100, 100))
    assert pair.there.counters["expired"] > 0
    assert pair.there.counters["waiting"] > 0


@on_every_device
@for_each("name", ["adam", "rowwise_adagrad", "sgd"])
def test_a_snapshot_has_rows_as_they_were_and_they_go_on_elsewhere(name: str, new_device: NewDevice) -> None:
    pair = Pair(new_device(), ROW_SPECS[name])
    for _ in range(3):
        pair.update(pair.ids(150, 60))
    then = all_of(pair.there)
    snapshots, pieces = [RowSnapshot(one) for one in pair.both], ([], [])
    for found, snapshot in zip(pieces, snapshots, strict=True):
        found.append(snapshot.next(500))
    pair.update(pair.ids(150, 100))
    for found, snapshot in zip(pieces, snapshots, strict=True):
        while (kept := snapshot.next(500)) is not None:
            found.append(kept)
    ours, theirs = map(joined, pieces)
    for a, b in zip(ours.arrays, theirs.arrays, strict=True):
        pair.same(a, b)
    assert all(np.array_equal(a[np.argsort(theirs.ids)], b[np.argsort(then.ids)]) for a, b in [(theirs.ids, then.ids)])
    other = Pair(pair.device, ROW_SPECS[name])
    for one in other.both:
        one.steps = 3
        one.restore(theirs)
    other.check(other.ids(150, 100))
    other.update(other.ids(150, 60))
    other.check(other.ids(150, 100))
    values = Pair(pair.device, ROW_SPECS[name])
    for one in values.both:
        one.restore(theirs, slots=False)
    values.update(values.ids(150, 60))
    values.check(values.ids(150, 100))


@on_every_device
def test_an_equation_that_cannot_be_written_runs_one_operation_after_another(
    new_device: NewDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zmqps.optim.row_fused.can_write", lambda rule: False)
    for name in ("adam", "rowwise_adagrad with options", "adam by row norm"):
        pair = Pair(new_device(), ROW_SPECS[name])
        for _ in range(3):
            pair.update(pair.ids(150, 60))
        pair.check(pair.ids(200, 90))


def test_a_device_without_memory_for_one_more_chunk_changes_nothing() -> None:
    device = HostDevice()
    memory = memory_of(device)
    items = table(memory, optim.sgd(1.0))
    items.update(np.arange(20), np.ones((20, DIM), np.float32))
    before = all_of(items)
    device._total_nbytes = device._used_nbytes
    with pytest.raises(DeviceMemoryError):
        items.update(np.arange(10, 200), np.ones((190, DIM), np.float32))
    items.validate()
    device._total_nbytes += 1 << 20
    after = all_of(items)
    assert all(np.array_equal(a, b) for a, b in zip(before.arrays, after.arrays, strict=True))
    items.update(np.arange(10, 200), np.ones((190, DIM), np.float32))
    assert len(items) == 200


def test_a_capacity_for_which_a_device_is_too_small_is_refused() -> None:
    memory = memory_of(HostDevice(PIECE_NBYTES * 8 + 20_000))
    with pytest.raises(DeviceMemoryError):
        table(memory, optim.sgd(1.0), capacity_nbytes=1 << 20)


def test_a_shard_whose_tables_do_not_fit_is_refused_before_it_is_built() -> None:
    job = job_of(spec_of("items", capacity_nbytes=1 << 30))
    where = Placement.balance(KeySpace.of(job), 1, 4096)
    with pytest.raises(DeviceMemoryError, match=r"rows of tables 1,090,519,040, staging"):
        make_shard(CONFIG, job, where, 0, streams=Streams(HostDevice(1 << 29)))


def test_a_table_without_a_capacity_grows_while_the_device_has_memory() -> None:
    assert may_grow(CONFIG, 0, 1 << 20, HostDevice(1 << 30))
    assert not may_grow(CONFIG, 0, 1 << 20, HostDevice(SPARE_DEVICE_NBYTES))
    limited = replace(CONFIG, memory=1 << 20)
    assert not may_grow(limited, 0, 2 << 20, HostDevice(1 << 30))


def test_a_table_without_a_capacity_ends_where_its_memory_does() -> None:
    items = table(memory_of(HostDevice()), optim.sgd(1.0), available_nbytes=4_000)
    with pytest.raises(TableFullError):
        items.update(np.arange(200), np.ones((200, DIM), np.float32))
    assert len(items) == 0


def test_a_small_table_takes_less_than_a_chunk() -> None:
    memory = memory_of(HostDevice())
    store = memory.rows(DIM, table(None, optim.sgd(1.0)).store._filler, reserve_rows=3)
    store.insert(np.arange(3))
    assert store.chunks.nbytes == 4 * 4 * DIM


# --- in checkpoints --------------------------------------------------------------------------------


def servers_on(monkeypatch: pytest.MonkeyPatch, device: Device | None, *arguments: Any) -> Servers:
    """Return servers whose tables are on a device, as those of the tests of checkpoints."""
    memory = None if device is None else memory_of(device)

    def make(job: JobSpec, placement: Placement, index: int, _: Any, **options: Any) -> Any:
        store_of = RowStore if memory is None else memory.rows
        return make_rows(
            job, placement, index, partial(row_kernel, CONFIG, job, there=memory), store_of=store_of, **options
        )

    monkeypatch.setattr("tests.checkpoint.test_rows.make_rows", make)
    return Servers(*arguments)


@on_every_device
@pytest.mark.parametrize("into", ["device", "host"])
def test_a_checkpoint_of_a_device_is_restored_anywhere(
    into: str, new_device: NewDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, disk = new_device(), Disk()
    job = job_of(spec_of("items"), spec_of("words", dim=DIM, expire_steps=5))
    before = servers_on(monkeypatch, device, job, 2)
    for by in range(3):
        before.push(range(-40 * by, 60), 0.5 + by)
    path = before.save(disk)
    base = open_checkpoint(path, storage=disk).manifest
    before.push(range(30, 90), 1.0)
    chained = before.save(disk, base, path.rpartition("/")[2], 2)
    after = servers_on(monkeypatch, device if into == "device" else None, job, 3).restore(disk, chained)
    for number in range(2):
        assert after.everything(number) == before.everything(number)
    for servers in (before, after):
        servers.push(range(10), 3.0)
    if into == "device" or isinstance(device, HostDevice):  # a GPU's last bit may differ
        assert after.everything(0) == before.everything(0)


# --- on servers ------------------------------------------------------------------------------------


def trained(mode: str, device: Device | None = None) -> dict[str, np.ndarray]:
    """Train tables on two servers; return all that was read."""
    rng, found = np.random.default_rng(0), dict[str, np.ndarray]()
    tables = {
        "items": zmqps.table(DIM, optimizer=optim.adam(0.05), initial=initial.normal(0.1, seed=3)),
        "words": zmqps.table(
            3, optimizer=optim.rowwise_adagrad(0.1, clip_norm=1.0), capacity_nbytes=100_000, initial=initial.constant(1)
        ),
    }
    options: dict[str, Any] = {"servers": 2, "workers": 1, "slice_size": 16 << 10, "once": True}
    with InProcessCluster(device=device, **options) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init({"w": np.zeros(9, np.float32)}, optimizer=optim.sgd(0.1), tables=tables, **MODES[mode])
        items, words = worker.table("items"), worker.table("words")
        words.load(np.arange(40), rng.standard_normal((40, 3)).astype(np.float32))
        for step in range(4):
            ids = rng.integers(-50, 50, (6, 7))
            for name, table in (("items", items), ("words", words)):
                found[f"{name} {step}"] = rows = table.pull(ids)
                table.push(ids, 0.1 * rows + rng.standard_normal(rows.shape).astype(np.float32))
            worker.push({"w": np.full(9, float(step), np.float32)})
        for codec in ("raw", "bf16", "int8"):
            found[codec] = items.pull(np.arange(-60, 60), codec=codec)
        found["full"] = items.rows(np.arange(-60, 60))
        for name, table in (("items", items), ("words", words)):
            seen = [(ids, rows) for ids, rows in table]
            ids, rows = (np.concatenate(some) for some in zip(*seen, strict=True))
            found[f"all {name}"] = rows[np.argsort(ids)]
            found[f"ids {name}"] = np.sort(ids)
        worker.finish()
    return found


@on_every_device
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_job_trains_as_on_processors(mode: str, new_device: NewDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rows, "CHUNK_NBYTES", 4 << 20)  # a device has more memory here than elsewhere
    expected = trained(mode)
    device = new_device()
    found = trained(mode, device)
    assert expected.keys() == found.keys()
    for name, rows in expected.items():
        if isinstance(device, HostDevice):
            np.testing.assert_array_equal(found[name], rows, err_msg=name)
        else:
            np.testing.assert_allclose(found[name], rows, rtol=2e-2 if name == "int8" else 1e-5, atol=1e-5)
