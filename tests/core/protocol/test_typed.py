"""Headers of every step are read as `wire` reads all others, only faster."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.strategies import almost, comparable, messages, mutated
from tests.tables import for_each
from zmqps.core.protocol import wire
from zmqps.core.protocol.messages import (
    Ack,
    Arrive,
    Commit,
    Committed,
    Load,
    Message,
    Proceed,
    Pull,
    Push,
    PushRows,
    Values,
)
from zmqps.core.protocol.wire import IN_EVERY_STEP, decode, encode
from zmqps.errors import ProtocolError


def read(frames: list[Any]) -> object:
    """Return what a message says, or the text of the error."""
    try:
        return comparable(decode(frames))
    except ProtocolError as error:
        return str(error)


def slowly(frames: list[Any]) -> object:
    """The same by the checks of `wire` alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_OFTEN", {})
        return read(frames)


@given(messages(*IN_EVERY_STEP))
@settings(max_examples=50)
def test_what_is_read_is_what_the_checks_return(message: Message) -> None:
    frames = encode(message)
    assert read(frames) == slowly(frames) == comparable(message)


@given(st.one_of(mutated(IN_EVERY_STEP), almost()))
@settings(max_examples=80)
def test_what_is_refused_is_refused_in_the_same_words(frames: list[bytes]) -> None:
    assert read(list(frames)) == slowly(list(frames))


@for_each(
    "message",
    [
        Push(1, 2, 3, 4, 5, 6, 1, 1, "raw", "raw", (), ((0, 7, ()), (3, 8, (0, 4, 4, 9))), (b"12345678",)),
        PushRows(1, 2, 3, 4, 5, 6, 1, 1, "raw", "raw", (), 0, 2, 7, 1, 0, (b"12345678",)),
        Pull(1, 2, 3, 0, "raw", ((0, 7, ()),)),
        Load(1, 2, ((0, 0, ()),), (b"1234",)),
        Ack(1, (2, 3), (0, 0)),
        Values(1, "raw", (2,), (0,), (b"1234",)),
        Arrive(1, 2, (3, 4), 5, 0),
        Commit(1, 2, ((b"a" * 16, (3,)), (b"b" * 16, (4, 5)))),
        Committed(1, 2),
        Proceed(1, 2, 1),
    ],
)
def test_messages_of_a_step_need_no_second_look(message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_unpack", lambda header: pytest.fail("it was read by the checks"))
    assert comparable(decode(encode(message))) == comparable(message)
