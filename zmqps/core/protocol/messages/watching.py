"""Messages of those who watch a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.immutable import immutable
from zmqps.core.protocol.message import Message

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U32, U64, Plain, Seconds, Text


@immutable
class Watch(Message):
    """Anybody who may ask for the status may ask for this, without joining.

    ``span``: how many seconds to look back; ``points``: of each series at most so many; ``every``: only of those that
    stand for so many seconds each, 0 for the finest that reach back so far. ``job`` and ``node`` choose series; empty:
    all.
    """

    kind: ClassVar[int] = 90
    request: U64
    span: Seconds
    points: U32
    every: Seconds = 0.0
    job: Text = ""
    node: Text = ""


@immutable
class Watched(Message):
    """What there is to see: the status, series, events, and for whom steps wait."""

    kind: ClassVar[int] = 91
    request: U64
    view: Plain
