"""The standstill after kill -9 is measured, and is not that of missed heartbeats."""

from __future__ import annotations

import pytest

from bench.cases.standstill import standstill
from zmqps.core.coordinator.options import CoordinatorOptions


@pytest.mark.processes
@pytest.mark.parametrize(
    ("place", "victim", "options"), [("local", "server", ()), ("up", "worker", ()), ("up", "server", ("--replicas=1",))]
)
def test_training_stands_still_for_less_than_missed_heartbeats_take(place, victim, options) -> None:
    assert 0.0 < standstill(place, victim, options) < CoordinatorOptions().heartbeat_timeout / 2
