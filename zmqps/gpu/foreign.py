"""Where a foreign array is, as DLPack or the CUDA array interface says.

What another library computes is done in its own stream, maybe later. DLPack's producer is given the
stream in which its array will be used, and lets that wait; an array with nothing but the CUDA array
interface says (from version 3 on) which stream to wait for; a CuPy array belongs to the stream that
is current in its thread. `zmqps.gpu.device.Device.adopt` keeps to that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zmqps.gpu.device import device_of

#: DLPack's numbers for the memory of a GPU, and for memory that GPU and processor share page by page.
CUDA, CUDA_MANAGED = 2, 13


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
        except Exception:  # no memory at all (PyTorch's "meta"), or none that DLPack knows: not an array we can use
            return None
        return f"cuda:{int(index)}" if int(kind) in (CUDA, CUDA_MANAGED) else None
    interface = getattr(value, "__cuda_array_interface__", None)
    return None if interface is None else device_of(interface["data"][0])


def is_read_only(value: Any) -> bool:
    """Whether an array on a device says that it must not be written to; DLPack has no word for it."""
    interface = getattr(value, "__cuda_array_interface__", None)
    return interface is not None and bool(interface["data"][1])
