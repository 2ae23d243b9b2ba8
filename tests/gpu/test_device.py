"""The door to a GPU: names, what is said when there is none, copies in the order of streams."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.devices import NewDevice, on_device, on_every_device, on_host
from tests.simulator.host_device import HostDevice
from tests.tables import for_each
from zmqps import LocalCluster, Servers
from zmqps.errors import ConfigurationError, DeviceError, DeviceMemoryError
from zmqps.gpu.device import MemoryInfo, open_device, parse
from zmqps.gpu.staging import DeviceMemory, Streams
from zmqps.nodes import server


@for_each(
    "text, spec",
    [("cpu", "cpu"), ("auto", "auto"), ("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:07", "cuda:7")],
)
def test_a_device_has_one_full_name(text: str, spec: str) -> None:
    assert parse(text) == spec


@for_each("text", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1000", "cuda:²", "cpu:0", None, 1])
def test_what_is_no_device_is_refused_with_what_is_one(text: Any) -> None:
    with pytest.raises(ConfigurationError, match="write cpu, cuda, cuda:1 or auto"):
        parse(text)


def test_the_processor_is_no_device() -> None:
    assert open_device("cpu") is None


def test_without_cupy_it_says_what_to_install_and_auto_takes_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"pip install .*\[cuda12\]'"):
        open_device("cuda")
    assert open_device("auto") is None


def test_a_server_without_its_device_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match="a GPU needs CuPy"):
        server.run(server.ServerConfig(coordinator="tcp://127.0.0.1:1", device="cuda"))


def test_a_cluster_refuses_what_is_no_device() -> None:
    with pytest.raises(ConfigurationError, match="'gpu' is not a device"):
        LocalCluster(Servers(device="gpu"))


class CUDARuntimeError(RuntimeError):
    """As CuPy's."""


class NoDriver:
    """CuPy on a host without a GPU, or with too few."""

    def __init__(self, count: int) -> None:
        runtime = SimpleNamespace(CUDARuntimeError=CUDARuntimeError, getDeviceCount=self.get_device_count)
        self.cuda = SimpleNamespace(runtime=runtime)
        self._count = count

    def get_device_count(self) -> int:
        if not self._count:
            raise CUDARuntimeError("cudaErrorInsufficientDriver: too old")
        return self._count


@pytest.mark.parametrize(
    ("count", "text", "said"),
    [(0, "cuda:0", "nvidia-smi"), (2, "cuda:2", r"this process sees cuda:0, cuda:1 \(CUDA_VISIBLE_DEVICES")],
)
def test_a_device_that_is_not_there_is_named(count: int, text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", NoDriver(count))
    with pytest.raises(DeviceError, match=f"there is no {text}.*{said}"):
        open_device(text)


def test_auto_takes_the_processor_where_the_driver_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", NoDriver(0))
    assert open_device("auto") is None


class Failing(NoDriver):
    """CuPy on a GPU that has fallen off the bus."""

    ndarray = np.ndarray

    def __init__(self) -> None:
        super().__init__(1)
        driver = SimpleNamespace(CUDADriverError=type("CUDADriverError", (RuntimeError,), {}))
        memory = SimpleNamespace(OutOfMemoryError=type("OutOfMemoryError", (MemoryError,), {}))
        self.cuda.driver, self.cuda.memory = driver, memory
        self.cuda.Device = lambda index: SimpleNamespace(use=lambda: None, synchronize=self.fail)
        self.cuda.Stream = lambda **options: SimpleNamespace(ptr=0, record=lambda event: None)
        self.cuda.Event = lambda **options: SimpleNamespace(done=False, synchronize=self.fail)
        runtime = self.cuda.runtime
        runtime.getDeviceProperties = lambda index: {"name": b"H100"}
        runtime.memcpyAsync, runtime.memcpyHostToDevice, runtime.memcpyDeviceToHost = self.fail, 1, 2
        self.cuda.compiler = SimpleNamespace(compile_using_nvrtc=lambda *arguments, **options: (b"", None))
        self.cuda.Module = lambda: SimpleNamespace(load=lambda binary: None, get_function=lambda name: self.fail)

    def fail(self, *arguments: Any) -> None:
        raise CUDARuntimeError("cudaErrorUnknown")


def test_a_gpu_that_fails_is_named_in_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", Failing())
    device = open_device("cuda:0")
    assert device is not None
    assert device.name == "cuda:0 (H100)"
    stream, array, floats = device.new_stream(), np.zeros(4, np.uint8), np.zeros(4, np.float32)
    there = SimpleNamespace(data=SimpleNamespace(ptr=0))
    for fails in (
        lambda: device.copy_in(array, there, stream),
        lambda: device.copy_out(there, array, stream),
        lambda: device.elementwise("f", "float32 x", "float32 y", "y = x;", "")(floats, floats),
        lambda: stream.record().wait(),
        device.synchronize,
    ):
        with pytest.raises(DeviceError, match=r"cuda:0 \(H100\) failed: cudaErrorUnknown"):
            fails()


def test_a_gpu_that_has_failed_is_counted_without_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed() -> MemoryInfo:
        raise DeviceError("cuda:0 does not say how much memory it has")

    device = HostDevice()
    memory = DeviceMemory(Streams(device), 4096)
    expected = dict(memory.counters())
    del expected["device_free_nbytes"]
    monkeypatch.setattr(device, "memory", failed)
    assert memory.counters() == expected


@on_every_device
def test_what_is_copied_in_comes_out(new_device: NewDevice) -> None:
    device = new_device()
    device.use()
    array = np.random.default_rng(1).standard_normal(1000)
    assert np.array_equal(on_host(device, on_device(device, array) * 2), array * 2)


@on_every_device
def test_an_expression_sees_the_copies_its_stream_waits_for(new_device: NewDevice) -> None:
    device = new_device()
    device.use()
    inbound, compute = device.new_stream(), device.new_stream()
    compute.use()
    staged = device.pinned(400).view(np.float32)
    target = device.empty(100, staged.dtype)
    for number in range(5):
        staged[:] = number
        device.copy_in(staged, target, inbound)
        copied = inbound.record()
        compute.wait(copied)
        assert float((target + 1).sum()) == 100 * (number + 1)
        assert copied.done


@on_every_device
def test_pinned_memory_is_as_long_as_asked(new_device: NewDevice) -> None:
    device = new_device()
    device.use()
    assert [device.pinned(nbytes).nbytes for nbytes in (0, 1, 4097)] == [0, 1, 4097]


@on_every_device
def test_memory_says_what_is_free(new_device: NewDevice) -> None:
    device = new_device()
    device.use()
    before = device.memory()
    array = device.empty(1 << 20, np.dtype(np.float32))
    assert device.memory().free_nbytes <= before.free_nbytes - array.nbytes
    assert device.memory().total_nbytes == before.total_nbytes


@on_every_device
def test_too_large_an_array_says_how_large_and_what_is_free(new_device: NewDevice) -> None:
    device = new_device()
    device.use()
    with pytest.raises(DeviceMemoryError, match=r"4,398,046,511,104 bytes") as caught:
        device.empty(1 << 40, np.dtype(np.float32))
    assert caught.value.needed_nbytes == 4 << 40
    assert caught.value.free_nbytes <= device.memory().total_nbytes


def test_the_double_puts_copies_off_until_somebody_waits() -> None:
    device = HostDevice()
    stream = device.new_stream()
    source, target = np.ones(4, np.float32), np.zeros(4, np.float32)
    before = stream.record()
    device.copy_in(source, target, stream)
    after = stream.record()
    assert before.done
    assert not after.done
    assert not target.any()
    after.wait()
    assert after.done
    assert target.all()


def test_a_mark_that_is_set_while_another_thread_copies_counts_that_copy() -> None:
    stream: Any = HostDevice().new_stream()
    marks = []
    stream.enqueue(lambda: marks.append(stream.record()))  # as another thread may, in the middle of this
    first = stream.record()
    stream.enqueue(lambda: marks.append(None))
    first.wait()
    assert not marks[0].done
    marks[0].wait()
    assert marks[1:] == [None]


def test_the_double_has_its_memory_back_when_an_array_is_gone() -> None:
    device = HostDevice(1000)
    array = device.empty(250, np.dtype(np.float32))
    part = array[:10]
    del array
    with pytest.raises(DeviceMemoryError):
        device.empty(1, np.dtype(np.uint8))
    del part
    gc.collect()
    assert device.empty(1000, np.dtype(np.uint8)).size == 1000
