"""Messages to members about where the shards of their job are from now on, and what they answer."""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.message import Message, immutable

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U32, U64, Plain, Versions


class ChangeKind(IntEnum):
    """What has changed: a shard has another server; shards go back to a checkpoint; the job has other shards."""

    MOVED, REWOUND, CUT = range(3)


@immutable
class View(Message):
    """Where shards of the job of this ``epoch`` are from now on, because of a ``change``.

    ``placement`` holds the ``servers`` of these ``shards``, a row for each as in `Job`'s placement. Empty: theirs were
    lost, and others take over; members that need them wait. Of a cut it is all of `Job`'s placement, without
    ``shards``, and ends the pause that `Hold` has begun.

    ``restored``, as in `Job`, is the checkpoint that shards went back to; ``lost`` counts the lost steps,
    where steps are one for all. What comes under a lower ``revision``, of the same change of a shard or of shards
    before a cut, is out of date.
    """

    kind: ClassVar[int] = 87
    epoch: U32
    revision: U64
    change: ChangeKind
    shards: Versions
    placement: Plain
    restored: Plain = field(default_factory=dict)
    lost: U64 = 0


@immutable
class Followed(Message):
    """A member goes by the `View` of this ``revision``.

    It uses a shard's new server, and has resent what only it has of the open step; or it went back, and
    ``lost`` of its acknowledged pushes are not in the checkpoint; or it uses the new shards.
    """

    kind: ClassVar[int] = 85
    epoch: U32
    revision: U64
    lost: U64


@immutable
class Recalled(Message):
    """What a copy that was loaded from a checkpoint knows of a worker's pushes: all up to ``floor``, and ``applied``.

    It follows the `Welcome` of each connection.
    """

    kind: ClassVar[int] = 82
    epoch: U32
    floor: U64
    applied: Versions
