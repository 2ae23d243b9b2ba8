"""Where a shard's arrays live, and how payloads get there and back.

In the memory of this host a payload is read where it arrived and values are sent from where they
are, so there is nothing to do. A device has its own memory: gradients are copied there before a
kernel reads them, values back before they are sent. A shard only says when it needs which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from zmqps.codecs import Codec
from zmqps.core.protocol.arrays import Array, gather, scatter
from zmqps.core.protocol.encoding import CODING, Coding
from zmqps.core.protocol.events import Pending, Reader
from zmqps.rows.initial import Filler
from zmqps.rows.store import RowStore

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: Elements and dtype.
Size = tuple[int, np.dtype[Any]]


#: Bytes of unused memory released at once: each megabyte stops the server for 0.1 ms.
GIVE_BACK_NBYTES = 64 << 20
#: Bytes of new memory that are written to at once.
FILL_NBYTES = 4 << 20

#: A piece and where it belongs.
Located = tuple[Any, int, Any]


class Outgoing(NamedTuple):
    """Values on their way out.

    ``readers`` as in `Send`; ``after``: what must be awaited before the payload may be read.
    """

    payload: Sequence[Array]
    readers: Sequence[list[Reader]]
    after: Pending | None


class Memory(Protocol):
    """What a shard asks of the memory its arrays are in.

    A *piece* is a stretch of a gradient as it came. It has ``size``, ``nbytes`` and ``dtype``; anything
    else about it is known to `decode`, `scatter` and `take` alone.
    """

    def empty(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Return a new array of one dimension, uninitialised."""

    def values(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Return one for values, which other processes may read."""

    def rows(self, dim: int, filler: Filler, **options: Any) -> RowStore:
        """Return an empty store of rows; parameters are those of `RowStore`."""

    def fill(self, array: Array, value: float) -> None:
        """Let all elements of a new array be a number, so that its memory is there."""

    def given_back(self, nbytes: int) -> None:
        """That many bytes of arrays are freed."""

    def decode(self, codec: Codec, payload: Sequence[Buffer], sizes: Iterable[Size], *, checked: bool) -> Sequence[Any]:
        """Return what `scatter` takes instead of a payload in a codec, one item a part.

        ``checked``: only `take` will read the pieces. Raises `ProtocolError` as
        `zmqps.core.protocol.encoding.decompress` does; what it returns can be taken without error.
        """

    def scatter(self, payload: Sequence[Any], runs: Iterable[Size]) -> Iterable[tuple[int, int, Any]]:
        """Return ``(run, offset, piece)`` as `zmqps.core.protocol.arrays.scatter` does."""

    def secure(self, pieces: Sequence[Located]) -> Sequence[Located]:
        """Return pieces that `take` needs no memory for, so that of several the last cannot fail after the first."""

    def take(self, piece: Any) -> Array:
        """Return a piece as an array that kernels can read, until the next is taken."""

    def send(
        self, codec: Codec | None, parts: Sequence[Sequence[Array]], seed: int, readers: Sequence[list[Reader]]
    ) -> Outgoing:
        """Return a payload of the arrays of each part, as they are at this moment.

        ``readers``: a list for each part, of its slice; a reader appended to it keeps the part's arrays as they are.
        """

    def readable(self, array: Array) -> Array:
        """Return an array that is not being written to as this host can read it, without a copy if it is here."""

    def copied(self, array: Array) -> Array:
        """Return a copy of an array on this host, whatever is written to it later."""

    def counters(self) -> Mapping[str, Any]:
        """Return what to show in the status."""


class HostMemory:
    """The memory of this host."""

    def __init__(
        self,
        # allocates arrays for values, such as memory that other processes read: ``values(size, dtype)``
        values: Callable[[int, np.dtype[Any]], Array] = np.empty,
        coding: Coding = CODING,  # the door to the codecs
        given_back: Callable[[int], None] = lambda nbytes: None,  # receives how many bytes were freed
        # yields what it is given, and may rest before the next: where memory is made ready while others need the host
        paced: Callable[[Iterable[Array]], Iterable[Array]] = iter,
    ) -> None:
        self._paced = paced
        self._values = values
        self._coding = coding
        self._given_back = given_back

    def empty(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Return a new array."""
        return np.empty(size, dtype)

    def values(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Return a new array for values."""
        return self._values(size, dtype)

    def rows(self, dim: int, filler: Filler, **options: Any) -> RowStore:
        """Return a store of rows."""
        return RowStore(dim, filler, **options)

    def fill(self, array: Array, value: float) -> None:
        """Write to all of its pages, which are not there before, part by part."""
        size = FILL_NBYTES // array.itemsize
        for part in self._paced(array[start : start + size] for start in range(0, len(array), size)):
            part.fill(value)

    def given_back(self, nbytes: int) -> None:
        """Tell the process, whose allocator may keep what is freed."""
        self._given_back(nbytes)

    def decode(self, codec: Codec, payload: Sequence[Buffer], sizes: Iterable[Size], *, checked: bool) -> Sequence[Any]:
        """Return the decoded arrays."""
        return self._coding.decompress(codec, payload, sizes)

    def scatter(self, payload: Sequence[Any], runs: Iterable[Size]) -> Iterable[tuple[int, int, Any]]:
        """Return pieces that alias the payload."""
        runs = list(runs)
        if len(payload) == 1 and len(runs) == 1:  # as of most messages
            [(size, dtype)], nbytes = runs, memoryview(payload[0]).nbytes
            if nbytes == size * dtype.itemsize and (piece := np.frombuffer(payload[0], dtype)).flags.aligned:
                return [(0, 0, piece)]
        return scatter(payload, runs)

    def secure(self, pieces: Sequence[Located]) -> Sequence[Located]:
        """Return the pieces: they need no memory."""
        return pieces

    take = staticmethod(np.asarray)  # and are arrays as they are

    def send(
        self, codec: Codec | None, parts: Sequence[Sequence[Array]], seed: int, readers: Sequence[list[Reader]]
    ) -> Outgoing:
        """Return the arrays themselves; encoded they are a copy, which has no other readers."""
        if codec is None:
            if len(parts) == 1 and len(parts[0]) == 1 and parts[0][0].nbytes:  # as in most messages
                return Outgoing(parts[0], readers, None)
            payload = gather([array for pieces in parts for array in pieces])
            owners = {id(a): watchers for pieces, watchers in zip(parts, readers, strict=True) for a in pieces}
            # a slice that was copied to a buffer with others has no readers
            return Outgoing(payload, [owners.get(id(buffer), []) for buffer in payload], None)
        return Outgoing(self._coding.compress(codec, parts, seed=seed), [], None)

    def readable(self, array: Array) -> Array:
        """Return the array."""
        return array

    def copied(self, array: Array) -> Array:
        """Return a copy."""
        return array.copy()

    def counters(self) -> Mapping[str, Any]:
        """Return what device it is."""
        return {"device": "cpu"}
