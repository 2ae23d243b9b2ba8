"""Messages with large headers, as a node takes them that one of them must not keep from all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.message import Message, immutable
from zmqps.core.protocol.messages import BY_KIND, Assign, Init
from zmqps.core.protocol.typed import pack
from zmqps.core.protocol.wire import (
    HEADER_NBYTES,
    MAX_DATA_HEADER_NBYTES,
    MAX_SHORT_HEADER_NBYTES,
    SCHEMAS,
    decode,
    kind_of,
)

if TYPE_CHECKING:
    from zmqps.core.protocol.message import Buffer

#: Bytes from which on a header is large, where what is made of it takes longer still than to decode it.
LARGE_NBYTES = dict.fromkeys((Init.kind, Assign.kind), 16 << 10)
#: In msgpack: the first byte of a list whose length follows, the first that is not a number by itself, and the
#: bytes of unsigned integers by the one before them.
LIST_OF_MANY, SMALLEST_NAMED = 0xDC, 0x80
WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


@immutable
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


def decode_but_assign(
    frames: Sequence[Buffer], data_nbytes: Callable[[], int] = lambda: MAX_DATA_HEADER_NBYTES
) -> Message:
    """Return the message that ``frames`` hold, a large `Assign` undecoded; see `decode`."""
    header = memoryview(frames[0] if frames else b"")
    if header.nbytes > LARGE_NBYTES[Assign.kind] and kind_of(header) == Assign.kind:
        return decode_small(frames)
    return decode(frames, data_nbytes)


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
