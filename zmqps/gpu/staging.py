"""A shard's memory on a device: gradients are staged there, values fetched from there.

Three streams: *inbound* copies slice i+1 to the device while *compute* applies slice i, and *outbound*
copies values back to this host. The host only enqueues. It answers a push at once, because whatever is
asked of the shard later comes after the update in the compute stream; values leave when their copy is
done, for which the driver waits aside (`zmqps.core.protocol.events.Send.after`).

Page-locked memory is bounded: a ring of slots for what comes, and a pool of blocks for what goes. A
ring that is full makes the host wait for the device, a pool that is empty makes values go through
ordinary memory.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zmqps.codecs import Codec
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.arrays import Array, scatter
from zmqps.core.protocol.encoding import CODING, Coding
from zmqps.core.protocol.events import Reader
from zmqps.core.server.builds import described, required_nbytes
from zmqps.core.server.dense.memory import Located, Outgoing, Size
from zmqps.core.server.dense.stale import copies_nbytes
from zmqps.core.server.tables.rows import capacity_nbytes
from zmqps.errors import DeviceError, DeviceMemoryError
from zmqps.gpu.device import Device, Event, Stream
from zmqps.gpu.rows import CHUNK_NBYTES, DeviceRows
from zmqps.rows.initial import Filler

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: Slices on their way to the device: one being copied to the slot, one to the device, one applied, and
#: as many again so that none waits for the scheduler.
INBOUND_SLOTS = 8
#: Page-locked memory for values on their way out, if that is at most this many blocks.
OUTBOUND_NBYTES = 64 << 20
MAX_OUTBOUND_BLOCKS = 64
#: Temporary arrays of a codec or a treatment, in slices.
SCRATCH_SLICES = 16
#: Where a shard has tables, a slot or block has room for the rows of a message: some 4 MiB, on some servers more.
ROWS_NBYTES = 17 << 18
#: Arrays that are staged together begin at a multiple of this, where any dtype may; and there are at most this many.
ALIGNED_NBYTES, MOST_ARRAYS = 64, 8


class Streams:
    """The streams of a server; every thread that touches the shard's arrays enters them first."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.inbound: Stream = device.new_stream()
        self.compute: Stream = device.new_stream()
        self.outbound: Stream = device.new_stream()

    def enter(self) -> None:
        """Let this thread's array expressions run on the device, in the compute stream."""
        self.device.use()
        self.compute.use()


def largest_slice(placement: Placement, index: int) -> int:
    """Return the bytes of the largest slice of a shard."""
    return placement.largest_slice(index) or 1


def staged_nbytes(placement: Placement, index: int) -> int:
    """Return the bytes of the largest piece that is on its way to a device or back."""
    return max(largest_slice(placement, index), ROWS_NBYTES if placement.buckets(index) else 1)


def device_memory(
    streams: Streams,
    placement: Placement,
    index: int,
    num_slots: int,
    job: JobSpec,
    num_workers: int,
    coding: Coding = CODING,
) -> DeviceMemory:
    """Return the memory for a shard of a job.

    Raises
    ------
    DeviceMemoryError
        The device is too small; says how many bytes the shard needs, what for, and how many are free.
    """
    streams.enter()
    check_room(streams.device, placement, index, device_nbytes(placement, index, num_slots, job, max(1, num_workers)))
    return DeviceMemory(streams, staged_nbytes(placement, index), coding=coding)


def device_nbytes(placement: Placement, index: int, num_slots: int, job: JobSpec, num_workers: int) -> dict[str, int]:
    """Return the bytes that a shard of a job takes on a device, by what they are for."""
    staging = staged_nbytes(placement, index) * (INBOUND_SLOTS + SCRATCH_SLICES)
    return {
        **required_nbytes(placement, index, num_slots, job, num_workers),
        **copies_nbytes(placement, index, job, num_workers),
        "rows of tables": capacity_nbytes(placement, index) + CHUNK_NBYTES * len(placement.row_slices[index]),
        "staging": staging,
    }


def check_room(device: Device, placement: Placement, index: int, required: Mapping[str, int]) -> None:
    """Raise `DeviceMemoryError` unless a device has the memory for a shard; says what takes how much."""
    needed, free = sum(required.values()), device.memory().free_nbytes
    if needed > free:
        what = described(placement, index, required)
        raise DeviceMemoryError(device=device.name, what=what, needed_nbytes=needed, free_nbytes=free)


class _Slot:
    """A place for one piece on its way to the device."""

    __slots__ = ("array", "free", "pinned")

    def __init__(self, array: Any, pinned: Array) -> None:
        self.array = array
        self.pinned = pinned
        self.free: Event | None = None  # done once the kernels that read it are


class _Blocks:
    """Page-locked blocks for values on their way out.

    A block is lent as an array and free again when nothing refers to that any more, neither the message
    nor the transport that may still be reading it.
    """

    def __init__(self, pinned: Array, nbytes: int) -> None:
        self.nbytes = nbytes
        self.num_blocks = pinned.nbytes // nbytes
        self._pinned = pinned
        self._free = deque(range(self.num_blocks))

    @property
    def num_lent(self) -> int:
        return self.num_blocks - len(self._free)

    def lend(self, nbytes: int) -> Array | None:
        """Return an array of bytes, None if it is too large or no block is free."""
        if nbytes > self.nbytes or not self._free:
            return None
        number = self._free.popleft()
        # numpy's views refer to the owner of the memory, whichever view they are made from; so give it one a loan
        owner: Any = (ctypes.c_uint8 * nbytes).from_address(self._pinned.ctypes.data + number * self.nbytes)
        weakref.finalize(owner, self._give_back, self._pinned, number).atexit = False
        octets: Array = np.frombuffer(owner, np.uint8)
        return octets

    def _give_back(self, pinned: Array, number: int) -> None:
        self._free.append(number)


class _Read:
    """A copy out of an array. A caller that asks whether it is done will write there, and is ordered behind it."""

    __slots__ = ("_compute", "_event")

    def __init__(self, event: Event, compute: Stream) -> None:
        self._event: Event | None = event
        self._compute = compute

    @property
    def done(self) -> bool:
        if self._event is not None:
            self._compute.wait(self._event)
            self._event = None
        return True


class _Copied:
    """Values on their way to this host; keeps what is read on the device until they are here."""

    __slots__ = ("_event", "_kept")

    def __init__(self, event: Event, kept: Sequence[Any]) -> None:
        self._event = event
        self._kept = kept

    def wait(self) -> None:
        self._event.wait()
        self._kept = ()


class _Blob:
    """A part of a push in a codec, checked but not decoded."""

    __slots__ = ("codec", "dtype", "octets", "size")

    def __init__(self, codec: Codec, octets: Array, size: int, dtype: np.dtype[Any]) -> None:
        self.codec = codec
        self.octets = octets
        self.size = size
        self.dtype = dtype


class _Stretch:
    """A stretch of a part that is still a blob; a piece (`Memory`) like any other."""

    __slots__ = ("blob", "dtype", "size", "start")

    def __init__(self, blob: _Blob, start: int, size: int) -> None:
        self.blob = blob
        self.start = start
        self.size = size
        self.dtype = blob.dtype

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


class _There:
    """A piece that is on the device already, and stays there while it is referred to."""

    __slots__ = ("array", "dtype", "nbytes", "size")

    def __init__(self, array: Any) -> None:
        self.array = array
        self.size, self.nbytes, self.dtype = array.size, array.nbytes, array.dtype


class DeviceMemory:
    """The memory of a device (`zmqps.core.server.dense.memory.Memory`).

    Parameters
    ----------
    streams
        The server's; the calling thread has entered them, here and in every method.
    slice_nbytes
        Of the largest slice: no piece is larger.
    inbound_slots
        Pieces that may be on their way to the device.
    outbound_nbytes
        Page-locked memory for values on their way out.
    coding
        The door to the codecs.

    Raises
    ------
    DeviceError, DeviceMemoryError
        There is no room on the device, or this host refuses to lock so much.
    """

    def __init__(
        self,
        streams: Streams,
        slice_nbytes: int,
        *,
        inbound_slots: int = INBOUND_SLOTS,
        outbound_nbytes: int = OUTBOUND_NBYTES,
        coding: Coding = CODING,
    ) -> None:
        self.device = device = streams.device
        self._streams = streams
        self._coding = coding
        self._counts: Counter[str] = Counter()
        nbytes = -(-slice_nbytes // 512) * 512  # so that every slot begins where any dtype may
        num_blocks = max(1, min(MAX_OUTBOUND_BLOCKS, outbound_nbytes // nbytes))
        self._pinned_nbytes = nbytes * (inbound_slots + num_blocks)
        inbound, outbound = device.pinned(nbytes * inbound_slots), device.pinned(nbytes * num_blocks)
        bounds = [slice(i * nbytes, (i + 1) * nbytes) for i in range(inbound_slots)]
        staged = device.empty(nbytes * inbound_slots, np.dtype(np.uint8))
        self._slots = deque(_Slot(staged[part], inbound[part]) for part in bounds)
        self._blocks = _Blocks(outbound, nbytes)
        self._last: _Slot | None = None
        self._decoded: tuple[_Blob, Any] | None = None

    def empty(self, size: int, dtype: np.dtype[Any]) -> Any:
        """Return a new array on the device."""
        return self.device.empty(size, dtype)

    def values(self, size: int, dtype: np.dtype[Any]) -> Any:
        """Return a new array on the device."""
        return self.device.empty(size, dtype)

    def fill(self, array: Any, value: float) -> None:
        """Let all elements of an array be a number."""
        array.fill(value)

    def given_back(self, nbytes: int) -> None:
        """The device's pool keeps it for the next array, and counts it as free."""

    # --- what comes -----------------------------------------------------------------------------

    def decode(self, codec: Codec, payload: Sequence[Buffer], sizes: Iterable[Size], *, checked: bool) -> Sequence[Any]:
        """Return blobs, which are decoded on the device so that the smaller form crosses the bus.

        What is read before it is taken is decoded on this host, and so is what cannot be
        judged without decoding it, or is larger than the values themselves.
        """
        sizes = list(sizes)
        fits = all(codec.encoded_nbytes(size, dtype) <= self._blocks.nbytes for size, dtype in sizes)
        if not (checked and fits and codec.portable and codec.checkable):
            return self._coding.decompress(codec, payload, sizes)

        def read(view: Any, size: int, dtype: np.dtype[Any]) -> tuple[_Blob, int]:
            octets = codec.check_blob(view, size, dtype)
            return _Blob(codec, octets, size, dtype), octets.nbytes

        return self._coding.decompress(codec, payload, sizes, read)

    def scatter(self, payload: Sequence[Any], runs: Iterable[Size]) -> Iterator[tuple[int, int, Any]]:
        """Yield pieces on this host, which alias the payload, or stretches of blobs."""
        if not payload or not isinstance(payload[0], _Blob):
            yield from scatter(payload, runs)
            return
        blobs = iter(payload)
        blob, position = next(blobs), 0
        for run, (size, _) in enumerate(runs):
            offset = 0
            while offset < size:
                while position == blob.size:
                    blob, position = next(blobs), 0
                count = min(size - offset, blob.size - position)
                yield run, offset, _Stretch(blob, position, count)
                offset, position = offset + count, position + count

    def secure(self, pieces: Sequence[Located]) -> Sequence[Located]:
        """Decode blobs; pieces on this host need only a slot, which is there."""
        return [(owner, at, _There(self.take(p)) if isinstance(p, _Stretch) else p) for owner, at, p in pieces]

    def take(self, piece: Any) -> Any:
        """Copy a piece to the device; return it as it will be for what is enqueued from now on.

        The piece itself is free when this returns.
        """
        if isinstance(piece, _There):
            return piece.array
        if not isinstance(piece, _Stretch):
            return self._stage(piece)
        blob = piece.blob
        if self._decoded is None or self._decoded[0] is not blob:
            octets = self._stage(blob.octets)
            self._decoded = blob, blob.codec.decode_in(self.device.xp, octets, blob.size, blob.dtype)
        return self._decoded[1][piece.start : piece.start + piece.size]

    def _stage(self, array: Array) -> Any:
        return self.staged([array])[0]

    def staged(self, arrays: Sequence[Array]) -> list[Any]:
        """Copy arrays to one slot; return each, flat, as it will be for what is enqueued until the next call.

        They fit where `staged_rows` says so, and are free when this returns.
        """
        compute, inbound = self._streams.compute, self._streams.inbound
        if self._last is not None:
            self._last.free = compute.record()  # all that reads it has been enqueued
        self._last = slot = self._slots.popleft()
        self._slots.append(slot)
        if slot.free is not None and not slot.free.done:
            self._counts["staging_waits"] += 1
            slot.free.wait()
        targets: list[Any] = []
        start = stop = 0
        for array in arrays:
            stop = start + array.nbytes
            np.copyto(slot.pinned[start:stop].view(array.dtype), array.reshape(-1))
            targets.append(slot.array[start:stop].view(array.dtype))
            start = -(-stop // ALIGNED_NBYTES) * ALIGNED_NBYTES
        self.device.copy_in(slot.pinned[:stop], slot.array[:stop], inbound)
        compute.wait(inbound.record())
        return targets

    def staged_rows(self, nbytes: int) -> int:
        """Return how many rows of that many bytes each, in all arrays, can be `staged` together."""
        return max(1, (self._blocks.nbytes - ALIGNED_NBYTES * MOST_ARRAYS) // max(1, nbytes))

    def rows(self, dim: int, filler: Filler, **options: Any) -> DeviceRows:
        """Return a store of rows whose values and slots are on the device."""
        return DeviceRows(self, dim, filler, **options)

    # --- what goes ------------------------------------------------------------------------------

    def send(
        self, codec: Codec | None, parts: Sequence[Sequence[Any]], seed: int, readers: Sequence[list[Reader]]
    ) -> Outgoing:
        """Enqueue the copies of all parts to this host, one buffer a part; in a codec, once they are encoded there."""
        compute, outbound = self._streams.compute, self._streams.outbound
        if codec is not None:
            parts = [[blob] for blob in self._coding.compress(codec, parts, seed=seed, xp=self.device.xp)]
        outbound.wait(compute.record())
        payload = [self._fetch(pieces) for pieces in parts]
        event = outbound.record()
        if codec is not None:
            return Outgoing(payload, (), _Copied(event, parts))
        for slice_readers in readers:
            slice_readers.append(_Read(event, compute))
        return Outgoing(payload, (), _Copied(event, parts))  # gathered rows have no other user

    def copied(self, array: Any) -> Array:
        """Return an array's values on this host, once all that was enqueued before has written them."""
        outbound = self._streams.outbound
        outbound.wait(self._streams.compute.record())
        buffer = self._fetch([array])
        outbound.record().wait()
        return buffer.view(array.dtype)

    readable = copied

    def fetched(self, arrays: Sequence[Any]) -> list[Array]:
        """Return arrays as they are once all that was enqueued before has written them, in ordinary memory."""
        outbound = self._streams.outbound
        outbound.wait(self._streams.compute.record())
        found = [np.empty(array.shape, array.dtype) for array in arrays]
        for array, target in zip(arrays, found, strict=True):
            if array.size:
                self.device.copy_out(array, target, outbound)
        outbound.record().wait()
        return found

    def _fetch(self, pieces: Sequence[Any]) -> Array:
        nbytes = sum(piece.nbytes for piece in pieces)
        buffer = self._blocks.lend(nbytes)
        if buffer is None:
            self._counts["staging_overflows"] += 1
            buffer = np.empty(nbytes, np.uint8)
        position = 0
        for piece in pieces:
            target = buffer[position : position + piece.nbytes]
            if not isinstance(piece, self.device.xp.ndarray):  # ids of rows, which are here
                target[:] = piece.view(np.uint8)
            elif piece.size:
                self.device.copy_out(piece, target, self._streams.outbound)
            position += piece.nbytes
        return buffer

    def counters(self) -> Mapping[str, Any]:
        """Return what the status shows: the device, its free memory, and what is locked of this host's."""
        try:
            free = {"device_free_nbytes": self.device.memory().free_nbytes}
        except DeviceError:  # it has failed: requests get that error, and a server that counts continues to answer them
            free = {}
        return {
            "device": self.device.name,
            **free,
            "pinned_nbytes": self._pinned_nbytes,
            "pinned_lent": self._blocks.num_lent,
            **self._counts,
        }
