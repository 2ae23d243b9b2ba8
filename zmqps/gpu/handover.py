"""Arrays on GPUs, handed to a transfer or filled by one, by way of page-locked memory of this host.

A transfer reads and writes memory of the host. From page-locked memory a GPU copies on its own and
at the bus's full speed; from ordinary memory the driver would copy everything once more. All arrays
of a call are copied in one batch: one stream, one wait.

What another library computes is done in its own stream, maybe later. DLPack's producer is given the
stream in which its array will be used, and lets that wait; an array with nothing but the CUDA array
interface says (from version 3 on) which stream to wait for; a CuPy array belongs to the stream that
is current in its thread. `zmqps.gpu.device.Device.adopt` keeps to that.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from zmqps.core.job.spec import BUFFER_DTYPES
from zmqps.core.protocol.arrays import Array
from zmqps.errors import DeviceError, DtypeError
from zmqps.gpu.device import Device, Stream, device_of, open_device

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


#: Page-locked memory that one worker takes at most: the host cannot swap it. Beyond it copies go through
#: ordinary memory, slower but not wrong.
PINNED_NBYTES = 4 << 30
#: Where each array begins in a batch's memory: what a GPU reads at once.
ALIGNMENT = 256
#: A free block is used for as little as half its size; below this for anything.
SMALL_NBYTES = 1 << 20


class Pinned:
    """Page-locked memory, reused once it has no references.

    Locking pages costs more than the copy itself, so a training loop must find the memory of its
    last step. An array of it, also one held by ZeroMQ, keeps the memory.

    Parameters
    ----------
    limit_nbytes
        How much is locked at most, in use or not.
    """

    def __init__(self, limit_nbytes: int = PINNED_NBYTES) -> None:
        self.nbytes = 0
        self._limit_nbytes = limit_nbytes
        self._free: list[Array] = []
        self._lock = threading.RLock()  # the garbage collector may give back while this thread takes

    def take(self, device: Device, nbytes: int) -> Array:
        """Return memory for copies from and to a device; ordinary memory where no more may or can be locked."""
        with self._lock:
            block = self._take_free(nbytes) if nbytes else None
            while block is None and self._free and self.nbytes + nbytes > self._limit_nbytes:
                self.nbytes -= self._free.pop(0).nbytes
            if block is None and nbytes and self.nbytes + nbytes <= self._limit_nbytes:
                try:
                    block = device.pinned(nbytes)
                except DeviceError:
                    return np.empty(nbytes, np.uint8)
                self.nbytes += block.nbytes
        if block is None:
            return np.empty(nbytes, np.uint8)
        # over a memoryview, so that what is made of it refers to this array and not to the block below
        lease: Array = np.frombuffer(memoryview(block), np.uint8, nbytes)  # type: ignore[arg-type]
        weakref.finalize(lease, self._give_back, block).atexit = False
        return lease

    def _take_free(self, nbytes: int) -> Array | None:
        fitting = [b for b in self._free if nbytes <= b.nbytes <= max(2 * nbytes, SMALL_NBYTES)]
        if not fitting:
            return None
        best = min(fitting, key=lambda block: block.nbytes)
        self._free = [block for block in self._free if block is not best]
        return best

    def _give_back(self, block: Array) -> None:
        with self._lock:
            self._free.append(block)


@dataclass(frozen=True, slots=True, eq=False)
class Port:
    """A device, and its streams to this host and from it."""

    device: Device
    outbound: Stream
    inbound: Stream


@dataclass(frozen=True, slots=True, eq=False)
class Remote:
    """An array on a device."""

    port: Port
    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The array's."""
        dtype: np.dtype[Any] = self.array.dtype
        return dtype

    @property
    def contiguous(self) -> bool:
        """Whether its elements are contiguous, in their order."""
        return bool(self.array.flags.c_contiguous)


class Handover:
    """The way from and to GPUs, for one worker.

    Parameters
    ----------
    open_device
        Opens one by its name.
    limit_nbytes
        How much memory of this host is page-locked at most.
    """

    def __init__(
        self, open_device: Callable[[str], Device | None] = open_device, limit_nbytes: int = PINNED_NBYTES
    ) -> None:
        self._open_device = open_device
        self._ports: dict[str, Port] = {}
        self._pinned = Pinned(limit_nbytes)

    @property
    def pinned_nbytes(self) -> int:
        """How much memory of this host is page-locked."""
        return self._pinned.nbytes

    def adopt(self, values: Mapping[str, Any], *, fill: bool = False) -> dict[str, Remote]:
        """Return those of some arrays that are on a GPU, for `fetch` or for `fill`.

        Raises
        ------
        DeviceError
            CuPy is missing, or the device.
        DtypeError
            It is not of a floating dtype, or should be filled and is read-only.
        """
        found = [(name, spec) for name, value in values.items() if (spec := locate(value)) is not None]
        remotes: dict[str, Remote] = {}
        for spec, names in groupby(sorted(found, key=lambda pair: pair[1]), key=lambda pair: pair[1]):
            port = self._port(spec)
            with port.device.entered(port.inbound if fill else port.outbound):
                for name, _ in names:
                    remotes[name] = Remote(port, _adopted(port.device, name, values[name], fill))
        return remotes

    def _port(self, spec: str) -> Port:
        if spec not in self._ports:
            device = self._open_device(spec)
            assert device is not None, "a place is never the processor"
            with device.current():
                self._ports[spec] = Port(device, device.new_stream(), device.new_stream())
        return self._ports[spec]

    @contextmanager
    def entered(self, port: Port) -> Iterator[None]:
        """Let this thread's array expressions run in the stream of what leaves the device, after all it asked for."""
        with port.device.entered(port.outbound):
            yield

    def fetch(self, remotes: Sequence[Remote]) -> list[Array]:
        """Return copies on this host, flat; they are done."""
        targets = self.spaces(remotes)
        for port, pairs in _by_port(remotes, targets):
            sources = []  # compacted ones stay until they are copied
            with port.device.entered(port.outbound):
                for remote, target in pairs:
                    if target.size:
                        sources.append(port.device.xp.ascontiguousarray(remote.array).reshape(-1))
                        port.device.copy_out(sources[-1], target, port.outbound)
                port.outbound.record().wait()
        return targets

    def fill(self, remotes: Sequence[Remote], sources: Sequence[Array]) -> None:
        """Put values into arrays; they are there when this returns. The sources are `spaces` of these arrays."""
        for port, pairs in _by_port(remotes, sources):
            xp = port.device.xp
            with port.device.entered(port.inbound):
                buffers = []
                for remote, source in pairs:
                    if not source.size:
                        continue
                    flat = remote.array.reshape(-1) if remote.contiguous else xp.empty(source.size, source.dtype)
                    port.device.copy_in(source, flat, port.inbound)
                    if not remote.contiguous:
                        buffers.append((remote.array, flat))
                if buffers:
                    port.inbound.wait(port.inbound.record())
                for array, flat in buffers:
                    array[...] = flat.reshape(array.shape)
                port.inbound.record().wait()

    def spaces(self, remotes: Sequence[Remote]) -> list[Array]:
        """Return flat arrays on this host, one like each of these."""
        if not remotes:
            return []
        starts = [0]
        for remote in remotes:
            starts.append(starts[-1] + -(-int(remote.array.nbytes) // ALIGNMENT) * ALIGNMENT)
        with remotes[0].port.device.current():
            memory = self._pinned.take(remotes[0].port.device, starts[-1])
        return [
            memory[start : start + int(remote.array.nbytes)].view(remote.array.dtype)
            for remote, start in zip(remotes, starts[:-1], strict=True)
        ]


def _adopted(device: Device, name: str, value: Any, fill: bool) -> Any:
    try:
        array = device.adopt(value)
    except Exception as error:  # whatever the object's own conversion raises: it is not an array we can use
        expected = f"an array that DLPack or the CUDA array interface describes ({error})"
        raise DtypeError(name=name, got=type(value).__name__, expected=expected) from error
    if array.dtype.name not in BUFFER_DTYPES:
        raise DtypeError(name=name, got=array.dtype.name, expected=", ".join(BUFFER_DTYPES))
    if fill and is_read_only(value):
        raise DtypeError(name=name, got="a read-only array", expected="a writable one in out")
    return array


def _by_port(
    remotes: Iterable[Remote], others: Iterable[Array]
) -> Iterator[tuple[Port, Iterator[tuple[Remote, Array]]]]:
    pairs = sorted(zip(remotes, others, strict=True), key=lambda pair: pair[0].port.device.spec)
    for _, group in groupby(pairs, key=lambda pair: pair[0].port.device.spec):
        found = list(group)
        yield found[0][0].port, iter(found)
