"""What is asked of CuPy to see another library's array in order, on a double that notes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.devices import NewDevice, on_every_device, on_host
from tests.producers import InterfaceArray, Tensor
from zmqps.client.tensors import describe
from zmqps.errors import DeviceError
from zmqps.gpu.device import CudaDevice
from zmqps.gpu.handover import Handover, locate


class CudaError(RuntimeError):
    """As CuPy's runtime and driver raise it."""


class Stream:
    """A stream that notes what it is told."""

    def __init__(self, name: str, noted: list[str]) -> None:
        self._name = name
        self._noted = noted

    def record(self) -> str:
        return f"event of {self._name}"

    def wait_event(self, event: str) -> None:
        self._noted.append(f"{self._name} waits for {event}")

    def __enter__(self) -> Stream:
        self._noted.append(f"enter {self._name}")
        return self

    def __exit__(self, *_: Any) -> None:
        self._noted.append(f"leave {self._name}")


class Cupy:
    """As much of CuPy as seeing an array takes, on a host with two devices."""

    ndarray = type("ndarray", (), {})

    def __init__(self) -> None:
        self.noted: list[str] = []
        runtime = SimpleNamespace(
            CUDARuntimeError=CudaError,
            getDeviceCount=lambda: 2,
            getDeviceProperties=lambda index: {"name": b"double"},
            pointerGetAttributes=lambda pointer: SimpleNamespace(device=1),
        )
        names = iter(("outbound", "inbound"))
        self.cuda: Any = SimpleNamespace(
            runtime=runtime,
            driver=SimpleNamespace(CUDADriverError=CudaError),
            memory=SimpleNamespace(OutOfMemoryError=MemoryError),
            Device=self.device,
            Stream=lambda **_: Stream(next(names), self.noted),
            get_current_stream=lambda: Stream("theirs", self.noted),
        )
        self.cuda.Stream.null = Stream("null", self.noted)

    def device(self, index: int) -> Any:
        @contextmanager
        def current() -> Iterator[None]:
            self.noted.append(f"enter cuda:{index}")
            yield
            self.noted.append(f"leave cuda:{index}")

        manager: Any = current()
        manager.use = lambda: self.noted.append(f"use cuda:{index}")
        return manager

    def from_dlpack(self, value: Any) -> str:
        return f"{type(value).__name__} by DLPack"

    def asarray(self, value: Any) -> str:
        return f"{type(value).__name__} by interface"


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Cupy:
    double = Cupy()
    monkeypatch.setitem(sys.modules, "cupy", double)
    return double


def test_our_stream_comes_after_the_callers_and_the_callers_is_current_again(cupy: Cupy) -> None:
    device = CudaDevice(1)
    stream = device.new_stream()
    cupy.noted.clear()
    with device.entered(stream):
        cupy.noted.append("work")
    assert cupy.noted == [
        "enter cuda:1", "outbound waits for event of theirs", "outbound waits for event of null",
        "enter outbound", "work", "leave outbound", "leave cuda:1",
    ]  # fmt: skip


def test_the_callers_device_stays_its_own(cupy: Cupy) -> None:
    Handover()._port("cuda:1")
    assert cupy.noted == ["enter cuda:1", "use cuda:1", "use cuda:1", "leave cuda:1"]


def test_dlpack_is_preferred_and_cupys_own_arrays_are_taken_as_they_are(cupy: Cupy) -> None:
    device = CudaDevice(0)
    own = cupy.ndarray()
    assert device.adopt(own) is own
    assert device.adopt(Tensor([1.0])) == "Tensor by DLPack"
    assert device.adopt(InterfaceArray([1.0])) == "InterfaceArray by interface"


def test_an_array_with_nothing_but_the_interface_is_where_its_pointer_is(cupy: Cupy) -> None:
    assert locate(InterfaceArray([1.0])) == "cuda:1"


def test_an_array_on_a_device_this_process_does_not_see_is_refused(cupy: Cupy) -> None:
    with pytest.raises(DeviceError, match=r"there is no cuda:5; this process sees cuda:0, cuda:1"):
        describe({"w": Tensor([1.0], index=5)}, Handover())


@on_every_device
def test_arrays_of_the_devices_own_library_come_and_are_filled(new_device: NewDevice) -> None:
    device = new_device()
    device.use()
    array = device.xp.arange(6, dtype="f4").reshape(2, 3)
    value = Tensor(np.arange(6, dtype="f4").reshape(2, 3)) if device.xp is np else array
    way = Handover(lambda _: device)
    found = way.adopt({"w": value}, fill=True)["w"]
    (flat,) = way.fetch([found])
    np.testing.assert_array_equal(flat, np.arange(6))
    (space,) = way.spaces([found])
    space[:] = 7
    way.fill([found], [space])
    np.testing.assert_array_equal(on_host(device, found.array.reshape(-1)), np.full(6, 7))
