"""Messages that inspect a cluster: its state, whether its nodes answer, and what their threads are doing."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.message import Message, immutable

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U8, U32, U64, Key, Plain, Seconds, Text, Texts
#: Bytes of the stacks of a process, as one line after the other: below `wire.MAX_SHORT_HEADER_NBYTES` with all else.
MAX_STACKS_NBYTES = 60_000

#: How `Examine` names the coordinator itself.
COORDINATOR_NODE = "coordinator"


@immutable
class StatusRequest(Message):
    """Any peer may ask, without joining."""

    kind: ClassVar[int] = 18
    request: U64


@immutable
class Status(Message):
    """The coordinator's view of the cluster; in answer to a `Watch` with figures, events and waits."""

    kind: ClassVar[int] = 19
    request: U64
    status: Plain


@immutable
class Watch(Message):
    """Ask for series, events, and which members steps wait for. Any peer may ask, without joining.

    ``span``: how many seconds to look back; ``points``: the most points of a series; ``every``: the seconds that a
    point covers, 0 for the finest resolution that reaches back so far. ``job`` and ``node`` choose series; empty:
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
class Examine(Message):
    """Ask all members to answer a `Probe`, or the one that ``node`` names what its threads are doing.

    Any peer may ask for the first, without joining. For the second, ``nonce`` and ``guard`` are as in `EndJob`.
    """

    kind: ClassVar[int] = 96
    request: U32
    node: Text = ""
    nonce: Key = b""
    guard: Key = field(default=b"", repr=False)


@immutable
class Examined(Message):
    """Answer to `Examine`, once all have answered or the time is over; ``findings`` has ``seconds`` and ``nodes``.

    Of each node: its identity, ``state`` (``answered``, ``silent``, ``gone``), ``seen_s`` since its last sign of life,
    and if it has answered the round trip ``latency_s`` and ``lag_s``, by which its loop was late. ``stacks`` are the
    lines of the named node. If ``own`` is 1 that is the coordinator, whose process adds them.
    """

    kind: ClassVar[int] = 97
    request: U32
    findings: Plain
    own: U8 = 0


@immutable
class Probe(Message):
    """The coordinator looks whether a member answers; with ``stacks`` 1, what its threads are doing."""

    kind: ClassVar[int] = 98
    number: U64
    stacks: U8


@immutable
class Probed(Message):
    """Answer to `Probe`: by how much the member's loop was late, and its stacks in ``lines``, where they are wanted.

    Both are added by its process; a machine does not know loops and threads.
    """

    kind: ClassVar[int] = 99
    number: U64
    stacks: U8
    lag_s: Seconds = 0.0
    lines: Texts = ()
