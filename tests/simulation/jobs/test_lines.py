"""The simulator sees a worker that misjudges its wire: machines are broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.test_invariants import caught, wrap
from zmqps.core.protocol.message import WINDOW_NBYTES
from zmqps.core.worker.connections.wire import Wire

pytestmark = pytest.mark.repeats

Patch = pytest.MonkeyPatch


def test_a_worker_that_counts_its_own_pauses(monkeypatch: Patch) -> None:
    def answered(original: Any, wire: Wire, now: float, request: Any, *, is_last: bool) -> None:
        original(wire, now, request, is_last=False)

    wrap(monkeypatch, Wire, "answered", answered)
    monkeypatch.setattr(Wire, "begins", lambda wire, now: setattr(wire, "since", wire.since or now))
    caught("async-line", "of a wire that carries")


def test_a_worker_that_takes_all_the_time_for_the_round_trip(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Wire, "_note", lambda original, wire, seconds: original(wire, seconds / 2))
    caught("async-line", "of a wire that carries")


def test_a_worker_that_sends_as_much_as_it_may_whatever_the_wire_carries(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Wire, "window", lambda wire, nbytes: WINDOW_NBYTES)
    caught("async-line", "keep the wire busy")
