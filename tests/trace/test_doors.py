"""Doors: nothing is in the way until somebody records, and afterwards."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from zmqps.codecs import bf16
from zmqps.core.protocol.encoding import CODING
from zmqps.trace.doors import Doors


class Sink:
    def __init__(self) -> None:
        self.names: list[str] = []

    def span(self, name: str, role: str, begin: int, end: int, kind: str = "X", **facts: Any) -> None:
        assert begin <= end
        self.names.append(f"{role} {name}")


class Owner:
    def __init__(self) -> None:
        self.call = len


def test_it_holds_what_it_held_until_somebody_records_and_afterwards() -> None:
    doors, owner, sink = Doors(), Owner(), Sink()
    doors.add(owner, "call", doors.function("check", "worker"))
    assert owner.call is len
    doors.start(sink)
    assert owner.call is not len
    assert doors.within(sink, owner.call, [1, 2]) == 2
    doors.stop(sink)
    assert owner.call is len
    assert sink.names == ["worker check"]


def test_one_that_comes_while_somebody_records_is_open_at_once() -> None:
    doors, sink = Doors(), Sink()
    doors.start(sink)
    coding = doors.coding(CODING)
    blobs = doors.within(sink, coding.compress, bf16(), [])
    assert blobs == []
    doors.stop(sink)
    assert coding.compress is CODING.compress
    assert sink.names == ["codec encode"]


def test_of_two_machines_in_a_process_each_has_its_own() -> None:
    doors, owner, one, other = Doors(), Owner(), Sink(), Sink()
    doors.add(owner, "call", doors.function("check", "worker"))
    doors.start(one)
    doors.start(other)
    doors.within(one, owner.call, [])
    owner.call([])  # in nobody's machine
    doors.stop(one)
    doors.within(other, lambda: doors.within(other, owner.call, []))
    doors.stop(other)
    assert (one.names, other.names) == (["worker check"], ["worker check"])
    assert owner.call is len


def test_what_raises_is_noted_and_raises() -> None:
    doors, owner, sink = Doors(), Owner(), Sink()
    doors.add(owner, "call", doors.function("check", "worker"))
    doors.start(sink)
    with pytest.raises(TypeError):
        doors.within(sink, owner.call, None)
    doors.stop(sink)
    assert sink.names == ["worker check"]


def test_a_door_keeps_nobody_alive() -> None:
    doors, sink = Doors(), Sink()
    doors.start(sink)
    for _ in range(100):
        doors.add(Owner(), "call", doors.function("check", "worker"))
    gc.collect()
    doors.add(Owner(), "call", doors.function("check", "worker"))
    assert len(doors._doors) <= 2
    doors.stop(sink)
