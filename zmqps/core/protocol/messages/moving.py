"""Messages about shards that move: the coordinator tells members where one is now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.message import Message

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U32, U64, Plain


@dataclass(frozen=True, slots=True)
class Moved(Message):
    """A shard of the job of this ``epoch`` has another server from ``generation`` on: its row as in `Job`'s placement.

    An empty row: its server was lost, and another one takes over; who needs it waits. ``version`` is what the shard is
    at, where it is a step's; ``lost`` counts the updates that are gone: none, where a backup has taken over.
    """

    kind: ClassVar[int] = 66
    epoch: U32
    shard: U32
    generation: U64
    server: Plain
    version: U64
    lost: U64


@dataclass(frozen=True, slots=True)
class Retargeted(Message):
    """A member talks to a shard's new server, and has brought again what it alone has of the open step."""

    kind: ClassVar[int] = 67
    epoch: U32
    shard: U32
    generation: U64
