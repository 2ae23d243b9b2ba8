"""The devices that device tests run on: numpy in the role of a GPU everywhere, a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.simulator.host_device import HostDevice
from zmqps.gpu.device import CudaDevice, Device
from zmqps.optim import Rule, make_kernel
from zmqps.optim.kernels import Backend, Kernel

on_every_device = pytest.mark.parametrize(
    "new_device",
    [pytest.param(HostDevice, id="numpy"), pytest.param(lambda: CudaDevice(0), id="cupy", marks=pytest.mark.gpu)],
)
on_every_backend = pytest.mark.parametrize(
    ("backend", "new_device"),
    [
        pytest.param("numpy", HostDevice, id="numpy"),
        pytest.param("numba", HostDevice, id="numba"),
        pytest.param("device", lambda: CudaDevice(0), id="cupy", marks=pytest.mark.gpu),
    ],
)
NewDevice = Callable[[], Device]


def kernel_on(device: Device, rule: Rule, backend: Backend = "device") -> Kernel:
    """Return the kernel that applies a rule to arrays of a device, as a server makes it."""
    return make_kernel(rule, backend, device.xp, device.elementwise if device.compiles else None)


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
