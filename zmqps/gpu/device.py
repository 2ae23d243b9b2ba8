"""The door to a GPU: arrays, copies and streams of one device; the only module that imports CuPy.

Everything else computes through a `Device`: it takes the array namespace from `Device.xp` and orders
its copies by `Stream` and `Event`. In tests numpy takes the role of a GPU (`tests/simulator/host_device.py`).

The current device is a matter of the calling thread, as everywhere in CUDA: `Device.use` it in every
thread that touches its arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from zmqps import checks
from zmqps.errors import ConfigurationError, DeviceError, DeviceMemoryError
from zmqps.extras import advice
from zmqps.gpu import kernels

Array = Any  # of the device's namespace


class Event(Protocol):
    """A mark in a stream."""

    @property
    def done(self) -> bool:
        """Whether everything before it is done; once True, always True."""

    def wait(self) -> None:
        """Block the calling thread until it is, without the interpreter lock."""


class Stream(Protocol):
    """Work that the device does in the order it was given; streams run side by side."""

    def record(self) -> Event:
        """Mark all that was given to the stream so far."""

    def wait(self, event: Event) -> None:
        """Let all that is given from now on come after an event of another stream; does not block."""

    def use(self) -> None:
        """Make it the stream of this thread's array expressions."""


class MemoryInfo(NamedTuple):
    """Memory of a device."""

    free_nbytes: int
    total_nbytes: int


class Device(ABC):
    """One accelerator; made by `open_device`.

    Attributes
    ----------
    spec : str
        As `parse` returns it: ``cuda:0``.
    name : str
        For people: ``cuda:0 (NVIDIA H100)``.
    xp : module
        The namespace of its arrays, with numpy's functions.
    """

    spec: str
    name: str
    xp: Any

    @abstractmethod
    def use(self) -> None:
        """Make it the calling thread's current device."""

    @abstractmethod
    def current(self) -> AbstractContextManager[None]:
        """Make it this thread's current device, and the caller's own again afterwards."""

    @abstractmethod
    def entered(self, stream: Stream) -> AbstractContextManager[None]:
        """Let a stream come after what this thread was computing, and be its current one meanwhile.

        The caller's own device and stream are current again afterwards.
        """

    @abstractmethod
    def adopt(self, value: Any) -> Array:
        """Return an array of the device's namespace over the memory of a foreign one, without a copy.

        It may be used in the stream that was `entered`. What it raises is the other library's choice.
        """

    @abstractmethod
    def new_stream(self) -> Stream:
        """Return a separate stream, which waits for no other."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block until all that was asked of it, in every stream, is done."""

    @abstractmethod
    def memory(self) -> MemoryInfo:
        """Return its memory: what an allocation could still get, and all of it."""

    @abstractmethod
    def empty(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Return a new array of one dimension, uninitialised.

        Raises
        ------
        DeviceMemoryError
            There is no room.
        """

    @abstractmethod
    def pinned(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return page-locked memory of this host, which the device copies from and to on its own.

        Raises
        ------
        DeviceError
            The host refuses to lock so much.
        """

    @abstractmethod
    def copy_in(self, source: np.ndarray[Any, Any], target: Array, stream: Stream) -> None:
        """Enqueue a copy to the device; the source must stay as it is until an event recorded after it is done.

        Both are contiguous and of one size in bytes. From memory that is not `pinned` the copy may
        block until it is done.
        """

    @abstractmethod
    def copy_out(self, source: Array, target: np.ndarray[Any, Any], stream: Stream) -> None:
        """Enqueue a copy to this host; the target holds it once an event recorded after it is done."""

    @abstractmethod
    def address(self, array: Array) -> int:
        """Return where an array begins in the device's memory, as kernels know it."""

    #: Whether `elementwise` makes kernels here.
    compiles: bool = False

    def elementwise(self, name: str, inputs: str, outputs: str, body: str, preamble: str) -> Callable[..., None]:
        """Return a kernel of CUDA C that runs over arrays of one size.

        Parameters
        ----------
        name
            Of the function, a C identifier.
        inputs, outputs
            ``"float32 w, float32 g, float32 rate"``: dtypes and names. An input may be a number. An output
            is read and written in place. What is ``raw`` is not an element but the array, of any size.
        body
            What is done for one element, whose index is ``i``. Where all arrays are raw, the kernel is called with
            ``size=``: how many there are.
        preamble
            Functions that it calls.
        """
        raise NotImplementedError


def parse(text: str) -> str:
    """Return a device's name in its full form: ``cpu``, ``auto`` or ``cuda:N``; ``cuda`` is the first of them.

    Raises
    ------
    ConfigurationError
        It is not one of these.
    """
    kind, colon, number = text.partition(":") if isinstance(text, str) else ("", "", "")
    if kind in ("cpu", "auto") and not colon:
        return kind
    if kind == "cuda" and not colon:
        return "cuda:0"
    if kind == "cuda" and number.isascii() and number.isdigit() and len(number) <= 3:
        return f"cuda:{int(number)}"
    raise ConfigurationError(
        f"{checks.shown(text):.60} is not a device; write cpu, cuda, cuda:1 or auto (a GPU if one works)"
    )


def open_device(text: str) -> Device | None:
    """Return a device; None for the processor, whose memory needs none of this.

    Parameters
    ----------
    text
        As `parse` takes it. ``auto`` is the first GPU if it can be computed on, else the processor.

    Raises
    ------
    ConfigurationError
        The text does not name a device.
    DeviceError
        CuPy is missing, or the device; says what to install or to name instead.
    """
    spec = parse(text)
    if spec == "cpu":
        return None
    if spec != "auto":
        return CudaDevice(int(spec.removeprefix("cuda:")))
    try:
        device = CudaDevice(0)
        device.try_out()
    except DeviceError:
        return None
    return device


def device_of(pointer: int) -> str:
    """Return the device whose memory an address is in, as ``cuda:0``.

    Raises
    ------
    DeviceError
        Only CuPy can tell, and it is missing: says what to install.
    """
    device = CudaDevice(0)
    return f"cuda:{device.cupy.cuda.runtime.pointerGetAttributes(pointer).device}"


# --- CuPy -------------------------------------------------------------------------------------


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        install = f"install it: {advice('cuda12')}, or with cuda13 in its place where nvidia-smi shows CUDA 13"
        raise DeviceError(f"a GPU needs CuPy, which cannot be imported ({error}); {install}") from error
    return cupy


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn what CuPy raises into ours."""
    cupy = _cupy()
    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise DeviceError(f"{what}: {error}") from error
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        raise DeviceError(f"{what}: {error}") from error


class _CudaEvent:
    """A CUDA event; waiting for it puts the thread to sleep rather than to spin."""

    __slots__ = ("_device", "_done", "event")

    def __init__(self, device: CudaDevice) -> None:
        self.event = device.cupy.cuda.Event(block=True, disable_timing=True)
        self._device = device
        self._done = False

    @property
    def done(self) -> bool:
        self._done = self._done or bool(self.event.done)
        return self._done

    def wait(self) -> None:
        if not self._done:
            with _translated(f"{self._device.name} failed"):
                self._device.use()
                self.event.synchronize()
            self._done = True


class _CudaStream:
    """A CUDA stream that does not wait for the default one."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self.stream = device.cupy.cuda.Stream(non_blocking=True)

    def record(self) -> Event:
        event = _CudaEvent(self._device)
        self.stream.record(event.event)
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent)
        self.stream.wait_event(event.event)

    def use(self) -> None:
        self.stream.use()


class CudaDevice(Device):
    """A GPU.

    Parameters
    ----------
    index : int
        Its number, from 0, among those that ``CUDA_VISIBLE_DEVICES`` leaves.
    """

    compiles = True

    def __init__(self, index: int) -> None:
        self.cupy = self.xp = cupy = _cupy()
        self._runtime = cupy.cuda.runtime
        self._index = index
        self.spec = self.name = f"cuda:{index}"
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(
                f"there is no {self.spec}: {error}; nvidia-smi shows whether this host has a GPU, and a driver as "
                "new as CuPy needs"
            ) from error
        if index >= count:
            names = ", ".join(f"cuda:{i}" for i in range(count)) or "none"
            raise DeviceError(f"there is no {self.spec}; this process sees {names} (CUDA_VISIBLE_DEVICES limits that)")
        self._device = cupy.cuda.Device(index)
        with _translated(f"{self.spec} cannot be used"):
            model = cupy.cuda.runtime.getDeviceProperties(index)["name"]
        self.name = f"{self.spec} ({model.decode() if isinstance(model, bytes) else model})"

    def try_out(self) -> None:
        """Compute something on it; raise `DeviceError` where that fails (a library is missing, the GPU is taken)."""
        self.use()
        try:
            works = int((self.xp.arange(3) + 1).sum()) == 6
        except Exception as error:  # of the driver, of the compiler, of a library that cannot be loaded
            raise DeviceError(f"{self.name} does not compute: {error}") from error
        if not works:
            raise DeviceError(f"{self.name} computes something wrong")

    def use(self) -> None:
        self._device.use()

    @contextmanager
    def current(self) -> Iterator[None]:
        with self.cupy.cuda.Device(self._index):
            yield

    @contextmanager
    def entered(self, stream: Stream) -> Iterator[None]:
        assert isinstance(stream, _CudaStream)
        cuda, ours = self.cupy.cuda, stream.stream
        with self.current():
            for theirs in (cuda.get_current_stream(), cuda.Stream.null):
                ours.wait_event(theirs.record())
            with ours:
                yield

    def adopt(self, value: Any) -> Array:
        if isinstance(value, self.cupy.ndarray):
            return value
        return self.cupy.from_dlpack(value) if hasattr(value, "__dlpack__") else self.cupy.asarray(value)

    def new_stream(self) -> Stream:
        with _translated(f"{self.name} gives no stream"):
            self.use()
            return _CudaStream(self)

    def synchronize(self) -> None:
        with _translated(f"{self.name} failed"):
            self._device.synchronize()

    def memory(self) -> MemoryInfo:
        with _translated(f"{self.name} does not say how much memory it has"):
            self.use()  # the pool is that of the current device
            free, total = self._device.mem_info
        return MemoryInfo(int(free) + int(self.cupy.get_default_memory_pool().free_bytes()), int(total))

    def empty(self, size: int, dtype: np.dtype[Any]) -> Array:
        try:
            return self.cupy.empty(size, dtype)
        except self.cupy.cuda.memory.OutOfMemoryError:
            nbytes = size * np.dtype(dtype).itemsize
            raise DeviceMemoryError(
                device=self.name, needed_nbytes=nbytes, what="one array", free_nbytes=self.memory().free_nbytes
            ) from None

    def pinned(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        try:
            memory = self.cupy.cuda.alloc_pinned_memory(max(1, nbytes))
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(f"{self.name}: cannot lock {nbytes:,} bytes of this host's memory: {error}") from error
        return np.frombuffer(memory, np.uint8, nbytes)

    def copy_in(self, source: np.ndarray[Any, Any], target: Array, stream: Stream) -> None:
        assert isinstance(stream, _CudaStream)
        self._copy(target.data.ptr, source.ctypes.data, source.nbytes, self._runtime.memcpyHostToDevice, stream)

    def copy_out(self, source: Array, target: np.ndarray[Any, Any], stream: Stream) -> None:
        assert isinstance(stream, _CudaStream)
        self._copy(target.ctypes.data, source.data.ptr, target.nbytes, self._runtime.memcpyDeviceToHost, stream)

    def address(self, array: Array) -> int:
        return int(array.data.ptr)

    def _copy(self, target: int, source: int, nbytes: int, kind: int, stream: _CudaStream) -> None:
        try:
            self._runtime.memcpyAsync(target, source, nbytes, kind, stream.stream.ptr)
        except self._runtime.CUDARuntimeError as error:
            raise self.failure(error) from error

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """What is raised by a GPU that fails."""
        return self._runtime.CUDARuntimeError, self.cupy.cuda.driver.CUDADriverError

    def failure(self, error: Exception) -> DeviceError:
        """Return the error of a GPU that has failed."""
        return DeviceError(f"{self.name} failed: {error}; what it holds is lost, start its server again")

    def elementwise(self, name: str, inputs: str, outputs: str, body: str, preamble: str) -> Callable[..., None]:
        return kernels.Kernel(self, name, inputs, outputs, body, preamble)

    def compiled(self, name: str, source: str) -> Callable[..., None]:
        """Return a function of CUDA C; it is called with a grid, a block of threads, and what it takes.

        It is not compiled the way CuPy compiles its own: that adds ``-ftz=true`` to whatever is asked for, so float32
        below 2**-126 would count as zero.
        """
        # products and sums are rounded each for itself, as numpy and numba do: the same bits on every device
        cuda, options = self.cupy.cuda, ("--fmad=false",)
        binary, _ = cuda.compiler.compile_using_nvrtc(source, options, filename=f"{name}.cu")
        module = cuda.Module()
        module.load(binary)
        function: Callable[..., None] = module.get_function(name)
        return function
