"""The devices that device tests run on: numpy in the role of a GPU everywhere, a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.optim.written import elementwise
from tests.simulator.host_device import HostDevice
from zmqps.gpu.device import CudaDevice, Device


class WrittenDevice(HostDevice):
    """numpy in the role of a GPU, which also runs what is written for one."""

    compiles = True
    elementwise = staticmethod(elementwise)


on_every_device = pytest.mark.parametrize(
    "new_device",
    [pytest.param(HostDevice, id="numpy"), pytest.param(lambda: CudaDevice(0), id="cupy", marks=pytest.mark.gpu)],
)
on_every_device_and_as_written = pytest.mark.parametrize(
    "new_device",
    [
        pytest.param(HostDevice, id="numpy"),
        pytest.param(WrittenDevice, id="written"),
        pytest.param(lambda: CudaDevice(0), id="cupy", marks=pytest.mark.gpu),
    ],
)
NewDevice = Callable[[], Device]


def on_device(device: Device, array: Any) -> Any:
    """Return a copy of an array on a device."""
    target = device.empty(array.size, array.dtype)
    stream = device.new_stream()
    device.copy_in(np.ascontiguousarray(array), target, stream)
    stream.record().wait()
    return target


def on_host(device: Device, array: Any) -> np.ndarray[Any, Any]:
    """Return a copy of a device's array, once all that was asked of the device is done."""
    target = np.empty(array.size, array.dtype)
    stream = device.new_stream()
    device.synchronize()
    device.copy_out(array, target, stream)
    stream.record().wait()
    return target
