"""numpy in the role of a GPU: what runs on a `zmqps.gpu.device.Device` can be tested without one.

It has a device's interface, a memory that can be made as small as a test needs, and it puts off every
copy until it is waited for, so that a missing wait shows in the result.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from zmqps.errors import DeviceMemoryError
from zmqps.gpu.device import Array, Device, Event, MemoryInfo, Stream

#: DLPack's number for the default stream, where there are no streams at all.
LEGACY_STREAM = 1


class _HostStream:
    """Copies that are done as late as they may."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._num_enqueued = self._num_done = 0  # each counted by itself: another thread may be at one meanwhile
        self._lock, self._enqueues = threading.Lock(), threading.Lock()

    def enqueue(self, work: Callable[[], None]) -> None:
        with self._enqueues:
            self._waiting.append(work)
            self._num_enqueued += 1

    def record(self) -> Event:
        return _HostEvent(self, self._num_enqueued)

    def wait(self, event: Event) -> None:
        # what is enqueued here comes after it, and the simplest way to have that is to do it now
        event.wait()

    def use(self) -> None:
        pass

    def reached(self, number: int) -> bool:
        return self._num_done >= number

    def run_until(self, number: int) -> None:
        with self._lock:
            while self._num_done < number:
                self._waiting.popleft()()
                self._num_done += 1


class _HostEvent:
    __slots__ = ("_number", "_stream")

    def __init__(self, stream: _HostStream, number: int) -> None:
        self._stream = stream
        self._number = number

    @property
    def done(self) -> bool:
        return self._stream.reached(self._number)

    def wait(self) -> None:
        self._stream.run_until(self._number)


class HostDevice(Device):
    """numpy with a device's interface and a device's pitfalls; array expressions are done at once.

    Parameters
    ----------
    total_nbytes : int
        Memory it pretends to have.
    """

    def __init__(self, total_nbytes: int = 1 << 40) -> None:
        self.xp = np
        self.spec, self.name = "host", "numpy in the role of a GPU"
        self._total_nbytes = total_nbytes
        self._used_nbytes = 0
        self._streams: weakref.WeakSet[_HostStream] = weakref.WeakSet()

    def use(self) -> None:
        """There is nothing to make current."""

    def current(self) -> AbstractContextManager[None]:
        """There is but one."""
        return nullcontext()

    def entered(self, stream: Stream) -> AbstractContextManager[None]:
        """Array expressions are done at once, so there is nothing to put in order."""
        return nullcontext()

    def adopt(self, value: Any) -> Array:
        """Return an array over the memory of one that pretends to be on a GPU."""
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(_OnHost(value))
        return np.asarray(_OnHost(value))

    def new_stream(self) -> Stream:
        """Return a stream whose copies wait."""
        stream = _HostStream()
        self._streams.add(stream)
        return stream

    def synchronize(self) -> None:
        """Do all copies."""
        for stream in self._streams:
            stream.record().wait()

    def memory(self) -> MemoryInfo:
        """Return what is left of the memory it pretends to have."""
        return MemoryInfo(self._total_nbytes - self._used_nbytes, self._total_nbytes)

    def empty(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Return an array whose memory counts until it is collected."""
        nbytes = size * np.dtype(dtype).itemsize
        free_nbytes = self.memory().free_nbytes
        if nbytes > free_nbytes:
            raise DeviceMemoryError(device=self.name, needed_nbytes=nbytes, what="one array", free_nbytes=free_nbytes)
        array = np.empty(size, dtype)
        self._used_nbytes += nbytes
        weakref.finalize(array, self._give_back, nbytes)
        return array

    def _give_back(self, nbytes: int) -> None:
        self._used_nbytes -= nbytes

    def pinned(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return ordinary memory."""
        return np.empty(nbytes, np.uint8)

    def copy_in(self, source: np.ndarray[Any, Any], target: Array, stream: Stream) -> None:
        """Put a copy off until it is waited for."""
        self._copy(source, target, stream)

    def copy_out(self, source: Array, target: np.ndarray[Any, Any], stream: Stream) -> None:
        """Put a copy off until it is waited for."""
        self._copy(source, target, stream)

    def address(self, array: Array) -> int:
        """Return where it is in this host's memory."""
        return int(array.ctypes.data)

    def _copy(self, source: np.ndarray[Any, Any], target: np.ndarray[Any, Any], stream: Stream) -> None:
        assert isinstance(stream, _HostStream)
        assert source.nbytes == target.nbytes
        stream.enqueue(lambda: np.copyto(target.view(np.uint8), source.view(np.uint8)))


class _OnHost:
    """An array that says it is on a GPU, and whose memory is this host's."""

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
