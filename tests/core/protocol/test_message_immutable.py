"""Messages, events and actions are compared, hashed and shown by what they hold; mypy lets nobody change them."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import get_args

from tests.tables import for_each
from zmqps.core.protocol import events
from zmqps.core.protocol.events import Action, Log, NetworkEvent, Returned, Stop
from zmqps.core.protocol.message import Immutable
from zmqps.core.protocol.messages import BY_KIND, EndJob, Left, Push, Waiting

KINDS = [*BY_KIND.values(), *get_args(NetworkEvent), *get_args(Action), Returned, Stop]


@for_each("cls", KINDS)
def test_all_that_goes_through_a_machine_is_immutable(cls: type[Immutable]) -> None:
    assert issubclass(cls, Immutable)
    assert "_compared" in vars(cls), "made by @immutable, so that mypy forbids a change"
    assert not hasattr(cls, "__dict__") or "__dict__" not in dir(cls)


def test_they_are_equal_if_they_are_of_one_class_and_hold_the_same() -> None:
    assert Waiting(1, "a") == Waiting(1, "a") != Waiting(1, "b")
    assert Waiting(1, "a") != events.Connect(b"1", "a")
    assert Left() == Left()
    assert len({Waiting(1, "a"), Waiting(1, "a"), Left(), Left()}) == 2
    assert Log("info", "a", job="b") == Log("info", "a", job="c"), "of a line only the text counts"
    assert replace(Waiting(1, "a"), text="b") == Waiting(1, "b")
    for made in (Waiting(1, "a"), Left()):
        assert pickle.loads(pickle.dumps(made)) == copy.copy(made) == made


def test_neither_secrets_nor_payloads_are_shown() -> None:
    assert repr(EndJob(1, "a", b"n" * 16, b"g" * 16)) == f"EndJob(request=1, job='a', nonce={b'n' * 16!r})"
    assert "payload" not in repr(Push(1, 2, 3, 4, 5, 6, 1, 1, "raw", "raw", (), (), (b"12345678",)))
