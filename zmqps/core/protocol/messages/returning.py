"""Messages of the coordinator's return: it was gone, is started again from its journal, and its members go on."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.immutable import immutable
from zmqps.core.protocol.message import Message

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U64, Incarnation, Key, Text


@immutable
class Back(Message):
    """The coordinator was away and knows its members from its journal, but not who is behind this connection.

    ``incarnation`` is the coordinator's: who has joined this one says `Hello` again, whoever has joined another one
    has lost it.
    """

    kind: ClassVar[int] = 70
    incarnation: Incarnation


@immutable
class Farewell(Message):
    """`Leave` of a member to a coordinator that is back and does not know the connection: who goes, and why."""

    kind: ClassVar[int] = 71
    incarnation: Incarnation
    secret: Key = field(repr=False)
    reason: Text


@immutable
class Resumed(Message):
    """A worker or observer has asked again all that it waits for, and is at ``clock``."""

    kind: ClassVar[int] = 72
    clock: U64
