"""Messages about shards that move: the coordinator tells members where one is now."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.immutable import immutable
from zmqps.core.protocol.message import Message

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U32, U64, Plain


@immutable
class Moved(Message):
    """A shard of the job of this ``epoch`` has another server: its row as in `Job`'s placement.

    An empty row: its server was lost, and another one takes over; who needs it waits. Of one shard what comes under a
    lower ``revision`` is out of date.
    """

    kind: ClassVar[int] = 66
    epoch: U32
    shard: U32
    revision: U64
    server: Plain


@immutable
class Followed(Message):
    """A member goes by what `Moved`, `GoBack` or `Recut` of this ``revision`` has said.

    It talks to a shard's new server, and has brought again what it alone has of the open step; or it has gone back, and
    ``lost`` of the pushes that it was told were applied are not in the checkpoint; or it goes by the new shards.
    """

    kind: ClassVar[int] = 85
    epoch: U32
    revision: U64
    lost: U64
