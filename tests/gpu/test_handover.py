"""Arrays on a GPU: taken in their producer's order, copied in a batch, filled in place."""

from __future__ import annotations

import gc
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.devices import NewDevice, on_every_device, on_host
from tests.inprocess import PATIENCE
from tests.producers import CUDA_MANAGED, METAL, InterfaceArray, Tensor
from tests.simulator.host_device import HostDevice
from zmqps.client.requests import Requests
from zmqps.client.tensors import describe
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.worker.operations import Attached
from zmqps.errors import DeviceError, DtypeError, ShapeError
from zmqps.gpu import handover as module
from zmqps.gpu.device import Device
from zmqps.gpu.handover import Handover, Pinned, locate
from zmqps.optim import sgd

pytestmark = pytest.mark.processes


def handover(device: Device | None = None, **options: Any) -> Handover:
    return Handover(lambda _: device or HostDevice(), **options)


def values(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def wait_for_blocks(way: Handover) -> None:
    """Wait until nobody refers to the memory of earlier copies: a thread of pyzmq lets go of what was sent."""
    patience, ends_at = threading.Event(), time.monotonic() + PATIENCE
    while sum(block.nbytes for block in way._pinned._free) < way.pinned_nbytes:
        assert time.monotonic() < ends_at
        patience.wait(0.01)


def requests(way: Handover, **shapes: tuple[int, ...]) -> Requests:
    parameters = tuple(Parameter(name, shape, "float32") for name, shape in shapes.items())
    job = JobSpec(parameters=parameters, optimizer=sgd(1.0).to_wire(), mode="async")
    return Requests(Attached(job, Placement.balance(KeySpace(parameters), 1, 64)), way)


# --- where an array is --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (np.zeros(1), None),
        ([1.0], None),
        (None, None),
        (Tensor([1.0]), "cuda:0"),
        (Tensor([1.0], index=3), "cuda:3"),
        (Tensor([1.0], kind=CUDA_MANAGED), "cuda:0"),
        (Tensor([1.0], kind=METAL), None),
    ],
)
def test_an_array_says_where_it_is(value: Any, place: str | None) -> None:
    assert locate(value) == place


def test_an_array_without_memory_is_nowhere() -> None:
    class Meta:
        def __dlpack_device__(self) -> Any:
            raise ValueError("Unknown device type meta for Dlpack")

    assert locate(Meta()) is None


def test_an_array_on_a_device_of_another_kind_is_refused_by_name() -> None:
    with pytest.raises(DtypeError, match="copy it to host memory first"):
        describe({"w": Tensor([1.0], kind=METAL)}, handover())


def test_without_cupy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    for array in (Tensor([1.0]), InterfaceArray([1.0])):
        with pytest.raises(DeviceError, match=r"pip install .*\[cuda12\]'"):
            describe({"w": array}, Handover())


# --- from a device ------------------------------------------------------------------------------


def test_gradients_are_read_after_what_their_producer_still_computes() -> None:
    w, b = Tensor(values(4, 3)), Tensor(values(5, seed=1))
    transfer = requests(handover(), w=(4, 3), b=(5,)).push({"b": b, "w": w}, 1, None)[0]
    assert w.streams == b.streams == [1]
    for array, expected in zip(transfer.source.arrays, (values(4, 3), values(5, seed=1)), strict=True):
        assert array is not None
        np.testing.assert_array_equal(array, expected.reshape(-1))


def test_arrays_here_and_on_devices_go_together() -> None:
    devices = {"cuda:0": HostDevice(), "cuda:1": HostDevice()}
    way = Handover(devices.__getitem__)
    here = values(2, seed=2)
    mixed = {"a": Tensor(values(3)), "b": here, "c": Tensor(values(4, seed=1), index=1)}
    a, b, c = requests(way, a=(3,), b=(2,), c=(4,)).push(mixed, 1, None)[0].source.arrays
    np.testing.assert_array_equal(a, values(3))
    assert b is not None
    assert np.shares_memory(b, here)
    np.testing.assert_array_equal(c, values(4, seed=1))


def test_an_array_with_nothing_but_the_interface_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "locate", lambda value: "cuda:0")
    parameters, flat = describe({"w": InterfaceArray(values(3, 2).T)}, handover())
    assert parameters == (Parameter("w", (2, 3), "float32"),)
    np.testing.assert_array_equal(flat[0], values(3, 2).T.reshape(-1))


def test_initial_values_keep_their_dtype_until_they_are_sent() -> None:
    parameters, flat = describe({"w": Tensor(values(4, dtype="float16"))}, handover())
    assert parameters[0].dtype == "float16"
    np.testing.assert_array_equal(flat[0], values(4, dtype="float16"))


def test_a_wrong_shape_or_dtype_is_refused_before_anything_is_copied() -> None:
    way = handover()
    asked = requests(way, w=(4,))
    with pytest.raises(ShapeError, match=r"\(5,\)"):
        asked.push({"w": Tensor(values(5))}, 1, None)
    with pytest.raises(DtypeError, match="int64"):
        describe({"w": Tensor(np.arange(3))}, way)
    assert way.pinned_nbytes == 0


@on_every_device
def test_strided_and_empty_arrays_are_copied_as_they_are_seen(new_device: NewDevice) -> None:
    device = new_device()
    way, xp = handover(device), device.xp
    arrays = {"t": xp.arange(12, dtype="f4").reshape(3, 4).T, "e": xp.empty((0, 3), "f4"), "s": xp.array(2.0, "f4")}
    remotes = [module.Remote(way._port("cuda:0"), array) for array in arrays.values()]
    t, e, s = way.fetch(remotes)
    np.testing.assert_array_equal(t, np.arange(12).reshape(3, 4).T.reshape(-1))
    assert e.size == 0
    assert s.tolist() == [2.0]


# --- to a device --------------------------------------------------------------------------------


def test_values_are_put_into_a_tensor_in_place() -> None:
    way = handover()
    tensor, here = Tensor(values(2, 3)), np.zeros(4, "f4")
    transfer, result = requests(way, w=(2, 3), b=(4,)).pull(None, {"w": tensor, "b": here}, None, None, None)
    assert transfer.target.arrays
    w, b = transfer.target.arrays
    assert w is not None
    assert b is not None
    w[:], b[:] = np.arange(6), 7
    params = result(None)
    assert params["w"] is tensor
    np.testing.assert_array_equal(tensor.memory, np.arange(6).reshape(2, 3))
    assert here.tolist() == [7.0] * 4


@on_every_device
def test_strided_arrays_are_filled_as_they_are_seen(new_device: NewDevice) -> None:
    device = new_device()
    way = handover(device)
    base = device.xp.zeros((3, 4), "f4")
    remotes = [module.Remote(way._port("cuda:0"), array) for array in (base.T, device.xp.zeros(5, "f4"))]
    strided, flat = way.spaces(remotes)
    strided[:], flat[:] = np.arange(12), 1
    way.fill(remotes, [strided, flat])
    np.testing.assert_array_equal(on_host(device, base.reshape(-1)), np.arange(12).reshape(4, 3).T.reshape(-1))
    assert on_host(device, remotes[1].array).tolist() == [1.0] * 5


def test_a_read_only_array_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "locate", lambda value: "cuda:0")
    out = {"w": InterfaceArray(values(4), read_only=True)}
    with pytest.raises(DtypeError, match="read-only"):
        requests(handover(), w=(4,)).pull(None, out, None, None, None)


# --- page-locked memory -------------------------------------------------------------------------


def test_the_next_step_finds_the_memory_of_the_last() -> None:
    way = handover()
    asked = requests(way, w=(1000,))
    addresses = set()
    for step in range(4):
        source = asked.push({"w": Tensor(values(1000, seed=step))}, 1, None)[0].source.arrays[0]
        assert source is not None
        addresses.add(source.ctypes.data)
    assert len(addresses) <= 2
    assert way.pinned_nbytes <= 2 * 4096


def test_memory_that_somebody_refers_to_is_not_used_again() -> None:
    pinned, device = Pinned(), HostDevice()
    first = pinned.take(device, 1000)
    view = memoryview(first[10:20].view(np.uint16))  # as ZeroMQ holds a frame
    address = first.ctypes.data
    del first
    gc.collect()
    assert pinned.take(device, 1000).ctypes.data != address
    del view
    gc.collect()
    assert pinned.nbytes == 2000
    assert address in {block.ctypes.data for block in pinned._free}


def test_no_more_is_locked_than_allowed() -> None:
    pinned, device = Pinned(1500), HostDevice()
    first = pinned.take(device, 1000)
    assert pinned.take(device, 1000).nbytes == 1000  # ordinary memory
    assert pinned.nbytes == 1000
    del first
    gc.collect()
    assert pinned.take(device, 1400).nbytes == 1400  # what nobody uses makes room
    assert pinned.nbytes == 1400


def test_a_host_that_locks_nothing_copies_through_ordinary_memory() -> None:
    class Refusing(HostDevice):
        def pinned(self, nbytes: int) -> Any:
            raise DeviceError(f"cannot lock {nbytes} bytes")

    way = handover(Refusing())
    source = requests(way, w=(8,)).push({"w": Tensor(values(8))}, 1, None)[0].source.arrays[0]
    np.testing.assert_array_equal(source, values(8))
    assert way.pinned_nbytes == 0


# --- a worker -----------------------------------------------------------------------------------


class Failing(HostDevice):
    """Works until it is told to fail."""

    fails = False

    def copy_in(self, source: Any, target: Any, stream: Any) -> None:
        if self.fails:
            raise DeviceError("the GPU has fallen off the bus")
        super().copy_in(source, target, stream)


def test_a_worker_trains_tensors_and_outlives_a_device_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Failing()
    monkeypatch.setattr("zmqps.client.connection.Handover", lambda: handover(device))
    shape = 256, 1000  # a multiple of the alignment, so that nothing but arrays counts below
    with (
        zmqps.LocalCluster(zmqps.Servers(kernels="numpy")) as cluster,
        zmqps.connect(cluster.address) as worker,
    ):
        worker.init({"w": Tensor(values(*shape))}, optimizer=zmqps.optim.sgd(0.5), mode="async")
        out = Tensor(np.zeros(shape, "f4"))
        for step in range(1, 4):
            wait_for_blocks(worker._member.connection.handover)
            params = worker.push_pull({"w": Tensor(values(*shape, seed=step))}, out={"w": out})
            assert params["w"] is out
        expected = values(*shape)
        for step in range(1, 4):
            expected -= np.float32(0.5) * values(*shape, seed=step)
        np.testing.assert_allclose(out.memory, expected, rtol=1e-6)
        assert 1 <= worker.statistics().pinned_bytes / expected.nbytes <= 4
        device.fails = True
        with pytest.raises(DeviceError, match="fallen off the bus"):
            worker.pull(out={"w": out})
        np.testing.assert_allclose(worker.pull()["w"], expected, rtol=1e-6)
