"""A shard on a device beside the same shard in this host's memory: the same values, versions and errors."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from tests.codecs.cases import FOR_VALUES, LOSSY
from tests.core.machines import assign, errors, peer, sent, ticketed
from tests.core.server.scarcity import copies_of
from tests.core.server.test_machine import Server
from tests.devices import NewDevice, on_every_device
from tests.simulator import AsyncTraining, Faults, Simulation
from tests.simulator.host_device import HostDevice
from tests.tables import for_each
from zmqps.codecs import parse
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.events import COORDINATOR, Action, Received, Returned, Run, Send
from zmqps.core.protocol.messages import Ack, Error, Load, Pull, Push, Values
from zmqps.core.server.builds import Room
from zmqps.core.server.shard import Shard
from zmqps.errors import DeviceMemoryError, NonFiniteGradientError, ProtocolError, from_wire
from zmqps.gpu.device import Device
from zmqps.gpu.staging import INBOUND_SLOTS, DeviceMemory, Streams, device_nbytes
from zmqps.nodes.server import ServerConfig, make_shard
from zmqps.optim import adam, group, sgd

CONFIG = ServerConfig(coordinator="tcp://127.0.0.1:1", kernels="numpy")
PARAMETERS = (
    Parameter("v", (100,), "float32"),
    Parameter("w", (7, 11), "float64"),
    Parameter("frozen", (30,), "float32"),
    Parameter("b", (5,), "float16"),
)
SPEC = sgd(0.1, momentum=0.9, groups=[group("frozen", frozen=True), group("b", learning_rate=0.5)])
COMPENSATE = {"name": "compensate", "lambda": 0.04}


def job(mode: str = "async", **options: Any) -> JobSpec:
    return JobSpec(parameters=PARAMETERS, optimizer=SPEC.to_wire(), mode=mode, **options)


def placement(slice_nbytes: int = 256) -> Placement:
    return Placement.balance(KeySpace(PARAMETERS), 1, slice_nbytes)


class Pair:
    """The same shard on a device and in this host's memory, told the same."""

    def __init__(self, device: Device, spec: JobSpec, slice_nbytes: int = 256) -> None:
        self.exact = isinstance(device, HostDevice)
        self.streams = Streams(device)
        where = placement(slice_nbytes)
        self.host = make_shard(CONFIG, spec, where, 0)
        self.device = make_shard(CONFIG, spec, where, 0, streams=self.streams)
        self.rng = np.random.default_rng(0)
        for state in self.host.slices:
            value = self.random(state.slice.index)
            for shard in self.shards:
                shard.dense.load([(state.slice.index, 0, ())], [value])

    @property
    def shards(self) -> tuple[Shard, Shard]:
        return self.host, self.device

    def random(self, *indices: int) -> Array:
        """Return the bytes of gradients for whole slices."""
        states = [self.host.slices[index] for index in indices]
        arrays = [self.rng.standard_normal(state.slice.size).astype(state.value.dtype) for state in states]
        return np.concatenate([array.view(np.uint8) for array in arrays])

    def push(self, *indices: int, read: int = 0, checked: bool = False, puller: bytes = b"") -> None:
        payload = self.random(*indices)
        parts = [(index, read, ()) for index in indices]
        found = [shard.dense.push(parts, [payload], "worker", checked=checked, puller=puller) for shard in self.shards]
        assert found[0] == found[1]

    def check(self, exact: int | None = None) -> None:
        parts = [(state.slice.index, 0, ()) for state in self.host.slices]
        ours, theirs = (fetch(shard, parts, exact) for shard in self.shards)
        for state, a, b in zip(self.host.slices, ours, theirs, strict=True):
            a, b = a.view(state.value.dtype), b.view(state.value.dtype)
            if self.exact:
                np.testing.assert_array_equal(a, b)
            else:
                np.testing.assert_allclose(a, b, rtol=4e-6, atol=1e-6)
        self.device.validate()


def fetch(shard: Shard, parts: Any, exact: int | None = None) -> list[Array]:
    """Pull; return the bytes of each part."""
    pieces, _, readers = shard.dense.pull(parts, exact)
    out = shard.memory.send(None, pieces, 0, readers)
    if out.after is not None:
        out.after.wait()
    octets = np.concatenate([piece.view(np.uint8) for piece in out.payload])
    ends = np.cumsum([size * dtype.itemsize for size, dtype in shard.dense.sizes(parts)])
    return np.split(octets, ends[:-1])


@on_every_device
def test_pushes_of_whole_slices_and_of_some_parameters_change_the_same(new_device: NewDevice) -> None:
    pair = Pair(new_device(), job())
    for _ in range(4):
        for state in pair.host.slices:
            pair.push(state.slice.index)
        pair.push(0, 1, checked=True)
        pair.check()
    state = next(state for state in pair.host.slices if len(state.positions) > 1)
    bounds = [*state.positions, state.slice.size]
    payload = pair.rng.standard_normal(bounds[1] - bounds[0]).astype(state.value.dtype)
    for shard in pair.shards:
        shard.dense.push([(state.slice.index, 0, (bounds[0], bounds[1]))], [payload], "worker")
    pair.check()


@on_every_device
@for_each("retain", [0, 2])
def test_synchronous_steps_change_the_same_and_old_versions_stay(new_device: NewDevice, retain: int) -> None:
    pair = Pair(new_device(), job(mode="sync", retain=retain))
    indices = range(len(pair.host.slices))
    workers = [b"a" * 16, b"b" * 16, b"c" * 16]
    for step in range(4):
        for examples, worker in enumerate(workers, start=1):
            for index in indices:
                payload = pair.random(index)
                for shard in pair.shards:
                    shard.dense.collect([(index, 0, ())], [payload], (worker, 1), step, examples, "worker")
        for shard in pair.shards:
            shard.commit(step, [(worker, (1,)) for worker in workers])
        pair.check()
        for version in range(max(0, step + 1 - retain), step + 1):
            pair.check(version)


@on_every_device
def test_treatments_compute_on_the_device(new_device: NewDevice) -> None:
    pair = Pair(new_device(), job(treatment=COMPENSATE))
    for shard in pair.shards:
        shard.dense.pull([(0, 0, ())], puller=b"worker")
        shard.dense.note_read([(0, 0, ())], b"worker")
    pair.push(0)
    pair.push(0, puller=b"worker")  # one update behind what it was computed from
    pair.check()
    device, host = (copies_of(shard.dense) for shard in (pair.device, pair.host))
    assert device is not None
    assert host is not None
    assert device.nbytes == host.nbytes > 0


@on_every_device
def test_a_gradient_that_is_not_finite_changes_nothing(new_device: NewDevice) -> None:
    pair = Pair(new_device(), job())
    payload = np.full(pair.host.slices[0].slice.size, np.nan, np.float32)
    for shard in pair.shards:
        with pytest.raises(NonFiniteGradientError, match=r"'v'.*pushed by worker"):
            shard.dense.push([(0, 0, ())], [payload], "worker")
    pair.check()


@on_every_device
def test_a_pull_holds_what_was_there_when_it_was_asked_for(new_device: NewDevice) -> None:
    pair = Pair(new_device(), job())
    before = fetch(pair.device, [(0, 0, ())])[0].copy()
    pieces, _, readers = pair.device.dense.pull([(0, 0, ())])
    out = pair.device.memory.send(None, pieces, 0, readers)
    for _ in range(3):
        pair.push(0)
    assert out.after is not None
    out.after.wait()
    assert bytes(out.payload[0]) == before.tobytes()
    pair.check()


@on_every_device
def test_more_pieces_than_slots_reuse_them_in_order(new_device: NewDevice) -> None:
    pair = Pair(new_device(), job(), slice_nbytes=64)
    indices = range(len(pair.host.slices))
    assert len(indices) > INBOUND_SLOTS
    for _ in range(3):
        pair.push(*indices, checked=True)
    pair.check()


class SlowEvent:
    """Done only when somebody has waited for it."""

    def __init__(self, waited: list[int], number: int) -> None:
        self.done = False
        self._waited, self._number = waited, number

    def wait(self) -> None:
        self.done = True
        self._waited.append(self._number)


class SlowStream:
    """A compute stream that is behind by all it was given."""

    def __init__(self) -> None:
        self.recorded = 0
        self.waited: list[int] = []  # which of its events the host has waited for

    def record(self) -> SlowEvent:
        self.recorded += 1
        return SlowEvent(self.waited, self.recorded)

    def wait(self, event: Any) -> None:
        event.wait()

    def use(self) -> None:
        pass


def test_the_host_waits_for_the_oldest_piece_only_when_all_slots_are_full() -> None:
    streams = Streams(HostDevice())
    streams.compute = slow = SlowStream()
    memory = DeviceMemory(streams, 512, inbound_slots=3)
    for number in range(6):
        assert memory.take(np.full(4, number, np.float32)).tolist() == [number] * 4
        assert slow.waited == list(range(1, number - 1)), f"at piece {number}"
    assert memory.counters()["staging_waits"] == 3


def small_memory(device: Device, blocks: int) -> DeviceMemory:
    streams = Streams(device)
    streams.enter()
    return DeviceMemory(streams, 512, inbound_slots=2, outbound_nbytes=512 * blocks)


@on_every_device
def test_without_a_free_block_values_go_through_ordinary_memory(new_device: NewDevice) -> None:
    memory = small_memory(new_device(), 2)
    array = memory.take(np.arange(64, dtype=np.float32))
    sendings = [memory.send(None, [[array]], 0, []) for _ in range(3)]
    for out in sendings:
        out.after.wait()  # type: ignore[union-attr]
        assert out.payload[0].view(np.float32).tolist() == list(range(64))
    shown = memory.counters()
    assert (shown["pinned_lent"], shown["staging_overflows"]) == (2, 1)
    assert shown["pinned_nbytes"] == 4 * 512


@on_every_device
def test_a_block_is_free_when_the_last_view_of_it_has_gone(new_device: NewDevice) -> None:
    memory = small_memory(new_device(), 2)
    array = memory.take(np.arange(64, dtype=np.float32))
    out = memory.send(None, [[array]], 0, [])
    view = memoryview(out.payload[0]).cast("B")[10:]
    out.after.wait()  # type: ignore[union-attr]
    del out
    gc.collect()
    assert memory.counters()["pinned_lent"] == 1
    del view
    assert memory.counters()["pinned_lent"] == 0


def test_a_device_that_is_too_small_says_what_the_shard_needs() -> None:
    spec, where = job(mode="sync", retain=1), placement()
    required = device_nbytes(where, 0, 1, spec, 3)
    values = 4 * 135 + 8 * 77
    staging = 24 * 256
    assert list(required.values()) == [values, values, values, 3 * values, 0, staging]
    device = HostDevice(sum(required.values()) - 1)
    with pytest.raises(DeviceMemoryError, match=f"values {values:,}, optimizer slots {values:,}, ") as caught:
        make_shard(CONFIG, spec, where, 0, Room(num_workers=3), streams=Streams(device))
    assert caught.value.needed_nbytes == sum(required.values())
    assert caught.value.free_nbytes == sum(required.values()) - 1
    assert device.memory().free_nbytes == caught.value.free_nbytes


def test_a_device_that_is_just_large_enough_trains_without_more() -> None:
    spec, where = job(mode="sync", retain=1), placement()
    device = HostDevice(sum(device_nbytes(where, 0, 1, spec, 1).values()) + 512 * INBOUND_SLOTS)
    pair = Pair(device, spec)
    for step in range(3):
        for index in range(len(pair.host.slices)):
            payload = pair.random(index)
            for shard in pair.shards:
                shard.dense.collect([(index, 0, ())], [payload], (b"a" * 16, 1), step, 1, "worker")
        for shard in pair.shards:
            shard.commit(step, [(b"a" * 16, (1,))])
    pair.check()


# --- codecs -----------------------------------------------------------------------------------------


@on_every_device
@for_each("checked", [True, False])
@for_each("spec", LOSSY)
def test_gradients_in_a_codec_change_the_same(spec: str, checked: bool, new_device: NewDevice) -> None:
    pair, codec = Pair(new_device(), job()), parse(spec)
    for indices in ([0], [1], [0, 1, 2], [len(pair.host.slices) - 1]):
        states = [pair.host.slices[index] for index in indices]
        blobs = [codec.encode(pair.random(s.slice.index).view(s.value.dtype), seed=7) for s in states]
        parts = [(index, 0, ()) for index in indices]
        for shard in pair.shards:
            payload = shard.memory.decode(codec, [np.concatenate(blobs)], shard.dense.sizes(parts), checked=checked)
            shard.dense.push(parts, payload, "worker", checked=checked)
    pair.check()


@on_every_device
def test_a_blob_may_hold_some_parameters_of_a_slice(new_device: NewDevice) -> None:
    pair, codec = Pair(new_device(), job(), slice_nbytes=1 << 20), parse("int8")
    first = pair.host.slices[0]
    ranges = (*first.positions[:2], first.positions[2], first.slice.size)
    parts = [(0, 0, ranges), (1, 0, ())]
    sizes = pair.host.dense.sizes(parts)
    blobs = [codec.encode(pair.rng.standard_normal(size).astype(dtype)) for size, dtype in sizes]
    for shard in pair.shards:
        shard.dense.push(
            parts, shard.memory.decode(codec, blobs, shard.dense.sizes(parts), checked=True), "worker", checked=True
        )
    pair.check()


@on_every_device
@for_each("blob", [b"", b"\1" * 20, b"\x80" * 500, b"\1" * 500])
@for_each("spec", ["bf16", "int8"])
def test_a_bad_blob_is_refused_before_anything_changes(spec: str, blob: bytes, new_device: NewDevice) -> None:
    pair = Pair(new_device(), job())
    for shard in pair.shards:
        with pytest.raises(ProtocolError):
            shard.memory.decode(parse(spec), [blob], shard.dense.sizes([(0, 0, ())]), checked=True)
    pair.check()


@on_every_device
@for_each("spec", [spec for spec in FOR_VALUES if spec in LOSSY and parse(spec).portable])
def test_values_in_a_codec_are_the_same_bytes(spec: str, new_device: NewDevice) -> None:
    pair, codec = Pair(new_device(), job()), parse(spec)
    parts = [(index, 0, ()) for index in range(len(pair.host.slices))]
    found = []
    for shard in pair.shards:
        pieces, _, readers = shard.dense.pull(parts)
        out = shard.memory.send(codec, pieces, 5, readers)
        if out.after is not None:
            out.after.wait()
        found.append([piece.tobytes() for piece in out.payload])
    assert found[0] == found[1]


class Counting(HostDevice):
    """Counts what crosses the bus."""

    def __init__(self) -> None:
        super().__init__()
        self.inbound_nbytes = self.outbound_nbytes = 0

    def copy_in(self, source: Array, target: Array, stream: Any) -> None:
        self.inbound_nbytes += source.nbytes
        super().copy_in(source, target, stream)

    def copy_out(self, source: Array, target: Array, stream: Any) -> None:
        self.outbound_nbytes += target.nbytes
        super().copy_out(source, target, stream)


@for_each("spec", ["bf16", "int8:block=32", "topk:fraction=0.1"])
def test_the_smaller_form_crosses_the_bus(spec: str) -> None:
    pair, codec = Pair(device := Counting(), job()), parse(spec)
    state, before = pair.host.slices[0], device.inbound_nbytes
    blob = codec.encode(pair.random(0).view(state.value.dtype))
    for shard in pair.shards:
        payload = shard.memory.decode(codec, [blob], shard.dense.sizes([(0, 0, ())]), checked=True)
        shard.dense.push([(0, 0, ())], payload, "worker", checked=True)
    assert device.inbound_nbytes - before == blob.nbytes < state.value.nbytes
    pair.check()
    if not codec.error_feedback:
        before = device.outbound_nbytes
        pieces, _, readers = pair.device.dense.pull([(0, 0, ())])
        out = pair.device.memory.send(codec, pieces, 0, readers)
        assert out.after is not None
        assert device.outbound_nbytes - before == out.payload[0].nbytes == blob.nbytes


# --- through the server's machine ----------------------------------------------------------------


@on_every_device
def test_arrays_that_are_staged_together_and_fetched_are_as_they_were(new_device: NewDevice) -> None:
    device = new_device()
    streams = Streams(device)
    streams.enter()
    memory = DeviceMemory(streams, 4096)
    arrays = [np.arange(3, dtype=np.uint8), np.linspace(0, 1, 7, dtype=np.float32), np.arange(5), np.empty(0)]
    for number in range(2 * INBOUND_SLOTS):  # each slot comes twice
        some = [array + number for array in arrays]
        there = memory.staged(some)
        for a, b in zip(some, memory.fetched([array.copy() for array in there]), strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype


@on_every_device
def test_what_is_on_this_host_is_sent_beside_what_is_on_the_device(new_device: NewDevice) -> None:
    device = new_device()
    streams = Streams(device)
    streams.enter()
    memory = DeviceMemory(streams, 4096)
    ids, values = np.arange(9), np.linspace(0, 1, 12, dtype=np.float32)
    [there] = memory.staged([values])
    out = memory.send(None, [[ids.view(np.uint8), there.copy().view(np.uint8)]], 0, [[]])
    assert out.after is not None
    out.after.wait()
    assert out.payload[0].tobytes() == ids.tobytes() + values.tobytes()


class DeviceServer(Server):
    """A server whose shard is on a device; `take` also does what the driver does."""

    def __init__(self, device: Device) -> None:
        self.streams = Streams(device)
        self.streams.enter()
        super().__init__(lambda *job: make_shard(CONFIG, *job, streams=self.streams))

    def take(self, name: str | bytes, message: Any) -> list[Action]:
        sender = name if isinstance(name, bytes) else peer(name)
        return self.done(self.handle(Received(sender, message)))

    def done(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            if isinstance(action, Send) and action.after is not None:
                action.after.wait()
        runs = [action for action in actions if isinstance(action, Run)]
        results = []
        for run in runs:
            try:
                results.append(Returned(run.tag, run.work()))
            except Exception as error:
                results.append(Returned(run.tag, error))
        return [*actions, *(action for event in results for action in self.done(self.handle(event)))]


@on_every_device
def test_a_worker_trains_on_a_server_with_a_device(new_device: NewDevice) -> None:
    spec = JobSpec(parameters=(Parameter("v", (1024,), "float32"),), optimizer=adam(0.1).to_wire(), mode="async")
    where = Placement.balance(KeySpace(spec.parameters), 1, 4096)
    server = DeviceServer(new_device())
    server.take(COORDINATOR, assign(spec, where))
    server.take("w", ticketed("worker", "w", loads=True))
    values = np.linspace(-1, 1, 1024, dtype=np.float32)
    server.take("w", Load(1, 1, [(0, 0, ())], [values]))
    host = make_shard(CONFIG, spec, where, 0)
    host.dense.load([(0, 0, ())], [values])
    for number in range(3):
        gradient = np.full(1024, number + 0.5, np.float32)
        host.dense.push([(0, 0, ())], [gradient], "w")
        answer = server.take("w", push(number, [gradient], reply=number == 2))
        assert errors(answer) == []
    assert sent(answer, Ack) == []
    (reply,) = sent(answer, Values)
    np.testing.assert_allclose(np.frombuffer(reply.payload[0], np.float32), fetch(host, [(0, 0, ())])[0].view("f4"))
    for codec in ("bf16", "int8"):
        (reply,) = sent(server.take("w", Pull(9, 1, 0, 0, codec, [(0, 0, ())])), Values)
        assert reply.codec.startswith(codec)
    shown = server.machine.counters()
    assert shown["device"] == server.streams.device.name
    assert shown["pinned_nbytes"] > 0


def push(number: int, payload: Any, *, reply: bool = False, codec: str = "raw") -> Push:
    return Push(number + 1, number + 1, 1, 0, 0, 1, int(reply), 1, codec, "raw", (), [(0, 0, ())], payload)


def test_a_device_that_is_too_small_is_told_to_who_starts_the_job() -> None:
    server = DeviceServer(HostDevice(5_000))
    (answer,) = sent(server.take(COORDINATOR, assign(job(), placement())), Error)
    error = from_wire(answer.code, answer.text, answer.facts)
    assert isinstance(error, DeviceMemoryError)
    assert error.free_nbytes == 5_000
    assert error.needed_nbytes > 5_000
    assert "start more servers" in str(error)


class OnDevices(AsyncTraining):
    """Training whose servers keep their shards on devices."""

    def shard(self, job: JobSpec, placement: Placement, index: int, room: Room) -> Shard:
        return make_shard(CONFIG, job, placement, index, room, streams=Streams(HostDevice()))


@for_each("seed", range(6))
def test_whatever_the_network_does_no_push_is_lost_or_counts_twice(seed: int) -> None:
    faults = Faults(delay=0.005, loss=0.002, duplication=0.05, reordering=0.05)
    training = OnDevices(steps=4, parameters=4, size=32, lives=6)
    report = Simulation(seed, servers=2, workers=2, faults=faults, training=training).run()
    assert report.outcomes.get("push", 0) + report.outcomes.get("push_pull", 0) > 0


class TooSmall(OnDevices):
    """Servers with less memory than a shard needs."""

    def shard(self, job: JobSpec, placement: Placement, index: int, room: Room) -> Shard:
        return make_shard(CONFIG, job, placement, index, room, streams=Streams(HostDevice(1_000)))


def test_every_worker_that_starts_the_job_is_told_that_the_device_is_too_small() -> None:
    training = TooSmall(steps=2, parameters=4, size=32, lives=1)
    report = Simulation(0, servers=2, workers=2, faults=Faults(), training=training).run()
    assert report.outcomes == {"connect": 2, "DeviceMemoryError": 2}
