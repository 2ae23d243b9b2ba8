"""Somebody else's arrays on a GPU, through DLPack or the CUDA array interface, in the order of their streams.

What another library computes is done in its own stream, maybe later. DLPack's producer is told the
stream in which its array will be used, and lets that wait; an array with nothing but the CUDA array
interface says (from version 3 on) which stream to wait for; a CuPy array belongs to the stream that
is current in its thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from zmqps.gpu.device import Array, CudaDevice, Device, Stream, open_device

#: DLPack's numbers for the memory of a GPU, and for memory that GPU and processor share page by page.
CUDA, CUDA_MANAGED = 2, 13
#: DLPack's number for the stream everybody has, where there are no streams at all.
LEGACY_STREAM = 1


def locate(value: Any) -> str | None:
    """Return the device that an array's memory is on, as ``cuda:0``; None if it is this host's, or no array.

    Raises
    ------
    DeviceError
        It is on a GPU, and only CuPy can tell which: says what to install.
    """
    if isinstance(value, np.ndarray):
        return None
    if hasattr(value, "__dlpack_device__"):
        try:
            kind, index = value.__dlpack_device__()
        except Exception:  # no memory at all (PyTorch's "meta"), or none that DLPack knows: no array we can use
            return None
        return f"cuda:{int(index)}" if int(kind) in (CUDA, CUDA_MANAGED) else None
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        return None
    device = open_device("cuda:0")
    assert isinstance(device, CudaDevice)
    return f"cuda:{device.cupy.cuda.runtime.pointerGetAttributes(interface['data'][0]).device}"


@contextmanager
def current(device: Device) -> Iterator[None]:
    """Make a device this thread's current one, and the caller's own again afterwards."""
    if not isinstance(device, CudaDevice):
        yield
        return
    with device.cupy.cuda.Device(int(device.spec.removeprefix("cuda:"))):
        yield


@contextmanager
def entered(device: Device, stream: Stream) -> Iterator[None]:
    """Let a stream come after what this thread was computing, and be its current one meanwhile.

    The caller's own device and stream are current again afterwards.
    """
    if not isinstance(device, CudaDevice):
        yield
        return
    cuda = device.cupy.cuda
    ours = stream.stream  # type: ignore[attr-defined]
    with current(device):
        for theirs in (cuda.get_current_stream(), cuda.Stream.null):
            ours.wait_event(theirs.record())
        with ours:
            yield


def adopt(device: Device, value: Any) -> Array:
    """Return an array of the device's namespace over the memory of a foreign one, without a copy.

    It may be used in the stream that was `entered`. What it raises is the other library's choice.
    """
    if isinstance(device, CudaDevice):
        if isinstance(value, device.cupy.ndarray):
            return value
        return device.cupy.from_dlpack(value) if hasattr(value, "__dlpack__") else device.cupy.asarray(value)
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(_OnHost(value))
    return np.asarray(_OnHost(value))


class _OnHost:
    """A foreign array for a `zmqps.gpu.device.HostDevice`, whose memory is this host's."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **_: Any) -> Any:
        return self._value.__dlpack__(stream=LEGACY_STREAM, max_version=max_version)

    @property
    def __array_interface__(self) -> Any:
        interface = self._value.__cuda_array_interface__
        return {key: interface[key] for key in ("shape", "typestr", "data", "strides")} | {"version": 3}
