"""Plain data in stored form: maps, lists, texts, bytes and numbers."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]

from zmqps.errors import ProtocolError


def pack(data: Any) -> bytes:
    """Return plain data as bytes."""
    packed: bytes = msgpack.packb(data)
    return packed


def unpack(data: bytes) -> Any:
    """Return the unpacked data.

    Raises
    ------
    ProtocolError
        The bytes are of another form, or damaged.
    """
    try:
        return msgpack.unpackb(data, max_ext_len=0)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"these bytes are not plain data: {error!s:.100}") from None
