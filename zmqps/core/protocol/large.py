"""Messages with large headers, as a node takes them that one of them must not keep from all others."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import msgpack  # type: ignore[import-untyped]

from zmqps.core.protocol.message import Message
from zmqps.core.protocol.messages import BY_KIND, Assign, Init
from zmqps.core.protocol.typed import Packed, pack
from zmqps.core.protocol.wire import (
    CHECKS,
    HEADER_NBYTES,
    MAX_DATA_HEADER_NBYTES,
    MAX_SHORT_HEADER_NBYTES,
    SCHEMAS,
    decode,
    kind_of,
)
from zmqps.errors import ProtocolError

if TYPE_CHECKING:
    from zmqps.core.protocol.message import Buffer

#: Bytes from which on a header is large, where what is made of it takes longer still than to decode it.
LARGE_NBYTES = {kind: 16 << 10 for kind in (Init.kind, Assign.kind)}
#: Where the job of an `Assign` is in its header.
JOB_AT = 1 + SCHEMAS[Assign].names.index("job")
EMPTY_MAP = b"\x80"
#: In msgpack: the first byte of a list whose length stands behind it, the first that is no number by itself, and the
#: bytes of unsigned integers by the one before them.
LIST_OF_MANY, SMALLEST_NAMED = 0xDC, 0x80
WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


@dataclass(frozen=True, slots=True)
class Large(Message):
    """A message that is not decoded yet, for that takes longer than others may wait; it travels as what it is."""

    kind: ClassVar[int] = 0
    cls: type[Message]
    request: int  # 0: it has none
    frames: Sequence[Buffer]

    @property
    def nbytes(self) -> int:
        """Size of its header."""
        return memoryview(self.frames[0]).nbytes

    def is_init_of(self, raw: bytes) -> bool:
        """Whether this is an `Init` whose job is packed so."""
        if self.cls is not Init:
            return False
        header, beginning = memoryview(self.frames[0]), pack([Init.kind, self.request, None])[:-1]
        start = len(beginning)
        same_size = header.nbytes == start + len(raw)
        return same_size and bytes(header[:start]) == beginning and bytes(header[start:]) == raw

    def opened(self) -> Message:
        """Return the message; errors are those of `decode`."""
        return decode(self.frames)


def decode_small(frames: Sequence[Buffer]) -> Message:
    """Return the message that ``frames`` hold, a `Large` one undecoded; errors are those of `decode`."""
    header = memoryview(frames[0] if frames else b"")
    kind = kind_of(header)
    cls = BY_KIND.get(kind) if header.nbytes > LARGE_NBYTES.get(kind, MAX_SHORT_HEADER_NBYTES) else None
    if cls is None or header.nbytes > HEADER_NBYTES.get(cls.kind, MAX_SHORT_HEADER_NBYTES):
        return decode(frames)  # which refuses what is too large before it looks at more of it
    return Large(cls, _request(cls, header), tuple(frames))


def _request(cls: type[Message], header: memoryview) -> int:
    """Return the number of a message's request, which comes behind its kind."""
    if SCHEMAS[cls].names[:1] != ("request",):
        return 0
    at = 4 if header[0] == LIST_OF_MANY else 2
    first = header[at]
    if first < SMALLEST_NAMED:
        return first
    width = WIDTHS.get(first, 0)
    return int.from_bytes(header[at + 1 : at + 1 + width], "big")


# --- of a server --------------------------------------------------------------------------------


class Unread(dict[str, Any]):
    """The map of a job that nobody has read yet, as it travels.

    Attributes
    ----------
    raw
        Its bytes.
    """

    __slots__ = ("raw",)
    raw: Packed

    @classmethod
    def of(cls, packed: bytes) -> Unread:
        """Return the map that is packed so."""
        found = cls()
        found.raw = Packed(packed)
        return found

    def read(self) -> dict[str, Any]:
        """Return the map, item by item: whoever calls this in a thread of its own lets others run in between.

        Raises
        ------
        ProtocolError
            It is none.
        """
        try:
            unpacker = _unpacker(bytes(self.raw))
            found: dict[str, Any] = {}
            for _ in range(unpacker.read_map_header()):
                name = unpacker.unpack()
                found[name] = list(_items(unpacker)) if name == "parameters" else unpacker.unpack()
        except UNPACK_ERRORS as error:
            raise ProtocolError(f"this is no job: {error!s:.100}") from None
        CHECKS["Plain"](found)
        return found


UNPACK_ERRORS = (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException)


def _unpacker(data: Buffer) -> Any:
    unpacker = msgpack.Unpacker(max_ext_len=0, max_buffer_size=0)
    unpacker.feed(data)
    return unpacker


def _items(unpacker: Any) -> Iterator[Any]:
    for _ in range(unpacker.read_array_header()):
        yield unpacker.unpack()


def read(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the map of a job, read if it is not yet."""
    return job.read() if isinstance(job, Unread) else job


@contextmanager
def uncollected() -> Iterator[None]:
    """Let nothing look for circles among what is made here: it would stop all threads, and finds none."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def decode_unread(frames: Sequence[Buffer], data_nbytes: Callable[[], int] = lambda: MAX_DATA_HEADER_NBYTES) -> Message:
    """Return the message that ``frames`` hold, a large `Assign` with its job `Unread`; see `decode`."""
    header = memoryview(frames[0] if frames else b"")
    if header.nbytes <= LARGE_NBYTES[Assign.kind] or kind_of(header) != Assign.kind:
        return decode(frames, data_nbytes)
    if header.nbytes > HEADER_NBYTES[Assign.kind]:
        return decode(frames)  # which refuses it
    try:
        unpacker = _unpacker(header)
        for _ in range(min(unpacker.read_array_header(), JOB_AT)):
            unpacker.skip()
        start = unpacker.tell()
        unpacker.skip()
        stop = unpacker.tell()
    except UNPACK_ERRORS:
        return decode(frames)  # which says what is wrong with it
    assign = decode([b"".join((header[:start], EMPTY_MAP, header[stop:])), *frames[1:]])
    assert isinstance(assign, Assign)
    return replace(assign, job=Unread.of(bytes(header[start:stop])))
