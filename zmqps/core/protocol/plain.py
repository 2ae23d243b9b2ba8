"""Plain data: maps, lists, texts, bytes and numbers; in bytes, as they are kept, and with texts that can be shown."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]

from zmqps.errors import ProtocolError, printable


def pack(data: Any) -> bytes:
    """Return plain data in bytes."""
    packed: bytes = msgpack.packb(data)
    return packed


def unpack(data: bytes) -> Any:
    """Return what was packed.

    Raises
    ------
    ProtocolError
        These are other bytes, or they are damaged.
    """
    try:
        return msgpack.unpackb(data, max_ext_len=0)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"these bytes are no plain data: {error!s:.100}") from None


def presented(value: Any) -> Any:
    """Return a status whose texts, many of which others have chosen, can be shown."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): presented(item) for name, item in value.items()}
    return [presented(item) for item in value] if isinstance(value, list) else value
