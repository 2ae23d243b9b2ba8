"""Messages with large headers, as a node takes them that one of them must not keep from all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import msgpack  # type: ignore[import-untyped]

from zmqps.core.protocol.message import Message
from zmqps.core.protocol.messages import BY_KIND
from zmqps.core.protocol.wire import HEADER_NBYTES, MAX_SHORT_HEADER_NBYTES, SCHEMAS, decode, kind_of

if TYPE_CHECKING:
    from zmqps.core.protocol.message import Buffer

#: The first bytes of a header: the length of its list, its kind and its request are there.
BEGINNING_NBYTES = 32


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

    def opened(self) -> Message:
        """Return the message; errors are those of `decode`."""
        return decode(self.frames)


def decode_small(frames: Sequence[Buffer]) -> Message:
    """Return the message that ``frames`` hold, a `Large` one undecoded; errors are those of `decode`."""
    header = memoryview(frames[0] if frames else b"")
    cls = BY_KIND.get(kind_of(header)) if header.nbytes > MAX_SHORT_HEADER_NBYTES else None
    if cls is None or header.nbytes > HEADER_NBYTES.get(cls.kind, MAX_SHORT_HEADER_NBYTES):
        return decode(frames)  # which refuses what is too large before it looks at more of it
    return Large(cls, _request(cls, header), tuple(frames))


def _request(cls: type[Message], header: memoryview) -> int:
    """Return the number of a message's request."""
    if SCHEMAS[cls].names[:1] != ("request",):
        return 0
    beginning = msgpack.Unpacker()
    beginning.feed(header[:BEGINNING_NBYTES])
    try:
        beginning.read_array_header()
        beginning.skip()
        request: Any = beginning.unpack()
    except (ValueError, msgpack.UnpackException):
        return 0
    return request if type(request) is int and request > 0 else 0
