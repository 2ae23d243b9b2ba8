"""The base of all messages, and the types that annotate their fields.

The annotations are the schema: `zmqps.core.protocol.wire` has a check for each of these types, found by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from zmqps.core.protocol.immutable import Immutable

if TYPE_CHECKING:
    from zmqps.core.protocol.fields import Contributor, Entry, Part

    U8: TypeAlias = int
    U32: TypeAlias = int
    U64: TypeAlias = int
    Text: TypeAlias = str
    Seconds: TypeAlias = float
    Incarnation: TypeAlias = bytes
    Key: TypeAlias = bytes  # 16 of them, or none: a secret, or a proof of knowing one
    Plain: TypeAlias = Mapping[str, Any]  # nested maps, lists, strings, numbers: of a job or a status
    Facts: TypeAlias = Mapping[str, str | int | float | bool | None]
    Texts: TypeAlias = Sequence[str]
    Versions: TypeAlias = Sequence[int]
    Parts: TypeAlias = Sequence[Part]
    Contributors: TypeAlias = Sequence[Contributor]
    Entries: TypeAlias = Sequence[Entry]
    Terms: TypeAlias = Sequence[float]  # of an update: `zmqps.core.protocol.terms`
    Blob: TypeAlias = bytes  # such as of a trace: up to `MAX_BLOB_NBYTES` of them, inside the header
    Buffer: TypeAlias = Any  # bytes, memoryview, ndarray: C-contiguous, with the buffer protocol
    Payload: TypeAlias = Sequence[Buffer]


class Message(Immutable):
    """Base of all messages."""

    __slots__ = ()
    kind: ClassVar[int]
