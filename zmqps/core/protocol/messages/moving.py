"""Messages to members about where the shards of their job are from now on, and what they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.immutable import immutable
from zmqps.core.protocol.message import Message

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U32, U64, Plain, Versions


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
class Recut(Message):
    """The job of this ``epoch`` lies in other shards from now on: ``placement`` is as in `Job`.

    It ends the pause that `Hold` has begun. What comes under a lower ``revision`` is out of date.
    """

    kind: ClassVar[int] = 84
    epoch: U32
    revision: U64
    placement: Plain


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


@immutable
class GoBack(Message):
    """These shards of the job of this ``epoch`` go back to a checkpoint: where its members find them from now on.

    ``servers`` holds ``rows``, one for each of ``shards``, as in `Job`'s placement. Empty: their servers were lost, and
    others are to load them; who needs them waits. ``version`` is the checkpoint's clock, ``lost`` counts the steps that
    are gone, where steps are one for all. ``restored`` is as in `Job`. What comes under a lower ``revision`` is out of
    date.
    """

    kind: ClassVar[int] = 80
    epoch: U32
    revision: U64
    shards: Versions
    servers: Plain
    version: U64
    lost: U64
    restored: Plain


@immutable
class Recalled(Message):
    """What a copy that was loaded from a checkpoint knows of a worker's pushes: all up to ``floor``, and ``applied``.

    It follows the `Welcome` of each connection.
    """

    kind: ClassVar[int] = 82
    epoch: U32
    floor: U64
    applied: Versions
