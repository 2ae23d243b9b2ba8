"""Headers of the messages of every step, decoded and checked by one call of compiled code.

The annotations of a message are its schema, here as in `zmqps.core.protocol.wire`. The checks there are the reference:
they examine what is refused here again, and name the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Raw
from msgspec.msgpack import Decoder, Encoder

from zmqps.core.protocol.message import INCARNATION_NBYTES, MAX_TEXT_CHARS, Part

_U8: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 8) - 1)]
_U32: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
_U64: TypeAlias = Annotated[int, Meta(ge=0)]  # msgpack has no larger ones
_INCARNATION: TypeAlias = Annotated[bytes, Meta(min_length=INCARNATION_NBYTES, max_length=INCARNATION_NBYTES)]

#: Annotation -> the type read instead. Of terms only that there are none, as in most jobs.
TYPES: dict[str, Any] = {
    "U8": _U8,
    "U32": _U32,
    "U64": _U64,
    "Text": Annotated[str, Meta(max_length=MAX_TEXT_CHARS)],
    "Versions": tuple[_U64, ...],
    "Contributors": tuple[tuple[_INCARNATION, tuple[_U64, ...]], ...],
    "Parts": tuple[tuple[_U32, _U64, tuple[_U32, ...]], ...],
    "Terms": tuple[()],
}
#: The bytes of a payload, or the sizes of its frames.
PAYLOAD: Any = bytes | list[_U64]

#: Plain data already packed, as a part of others.
Packed: TypeAlias = Raw
#: Returns the bytes of plain data.
pack = Encoder().encode


def reader(annotations: Iterable[str], has_payload: bool) -> Callable[[memoryview], tuple[Any, ...]]:
    """Return the decoder of the headers of one kind of message: kind and fields.

    ``annotations`` are those of its fields, without the payload. It raises `ValueError` for other input, and leaves the
    order of ranges to `are_ordered`.
    """
    types = [int, *(TYPES[name] for name in annotations), *((PAYLOAD,) if has_payload else ())]
    read: Callable[[memoryview], tuple[Any, ...]] = Decoder(tuple[tuple(types)]).decode  # type: ignore[misc]
    return read


def are_ordered(parts: Sequence[Part]) -> bool:
    """Whether in each part every stop is after its start, and no start before the previous stop."""
    return all(_ascend(ranges) for _, _, ranges in parts)


def _ascend(ranges: tuple[int, ...]) -> bool:
    if len(ranges) % 2 or not all(start < stop for start, stop in zip(ranges[::2], ranges[1::2], strict=True)):
        return False
    return all(stop <= start for stop, start in zip(ranges[1::2], ranges[2::2], strict=False))
