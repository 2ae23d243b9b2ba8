"""The simulator sees when large messages are opened too often, or never: a coordinator or a server is broken."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.test_invariants import caught, wrap
from tests.simulator.jobs.large import LargeJobs
from tests.simulator.scenarios import SCENARIOS
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.openings import Opening, Openings
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import Message
from zmqps.core.server.machine import ServerKernel

pytestmark = pytest.mark.repeats

Patch = pytest.MonkeyPatch


def test_large_messages_are_opened_and_some_of_their_senders_die() -> None:
    opened = died = 0
    for name in ("jobs-large-crashes", "jobs-large-restarts"):
        for seed in range(2):
            simulation = SCENARIOS[name].simulation(seed)
            simulation.run()
            assert isinstance(simulation.training, LargeJobs)
            opened += simulation.training.messages.num_opened
            died += simulation.training.messages.num_died
    assert opened >= 8
    assert died >= 2


def test_a_coordinator_that_opens_the_next_message_at_once(monkeypatch: Patch) -> None:
    def hurry(original: Any, self: Openings, now: float) -> None:
        original(self, now)
        self._not_before = now

    wrap(monkeypatch, Openings, "next", hurry)
    caught("jobs-large-crashes", "before others have had their time")


def test_a_coordinator_that_forgets_what_it_has_opened(monkeypatch: Patch) -> None:
    def forget(original: Any, self: CoordinatorMachine, opening: Opening, message: Message, now: float) -> list[Action]:
        self.openings.next(now)
        return []

    wrap(monkeypatch, CoordinatorMachine, "_opened", forget)
    caught("jobs-large-freezes", "the same large message is opened")


def test_a_server_that_forgets_the_large_message_that_it_has_read(monkeypatch: Patch) -> None:
    def forget(original: Any, self: ServerKernel, *opened: Any) -> Any:
        self._read_on()
        return []

    wrap(monkeypatch, ServerKernel, "_opened", forget)
    caught("jobs-large-freezes", "to build their shards")
