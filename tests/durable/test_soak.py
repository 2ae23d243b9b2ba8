"""Short soaks: servers are killed, drained and added again and again, and every value is exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.durable.soak import soak

MODES = ("async", "bounded", "sync")


def mostly_slow(mode: str) -> list[object]:
    """Return all modes: one of them for CI, the others for ``make test-slow``, as each soak keeps two cores busy."""
    return [pytest.param(name, marks=pytest.mark.processes if name == mode else pytest.mark.slow) for name in MODES]


@pytest.mark.parametrize("mode", mostly_slow("bounded"))
def test_servers_that_are_killed_one_after_the_other_cost_nothing(mode: str, tmp_path: Path) -> None:
    out = soak(mode, 0.0, tmp_path, workers=2, least=3)
    assert not out.broken
    assert len(out.faults) == 3


@pytest.mark.parametrize("mode", mostly_slow("async"))
def test_servers_that_go_and_come_cost_nothing(mode: str, tmp_path: Path) -> None:
    out = soak(mode, 0.0, tmp_path, workers=2, faults=("drain", "scale"), least=3)
    assert not out.broken
    assert {fault.name for fault in out.faults} == {"drain", "scale"}


@pytest.mark.parametrize("mode", mostly_slow("sync"))
def test_nodes_that_stand_still_cost_nothing(mode: str, tmp_path: Path) -> None:
    out = soak(mode, 0.0, tmp_path, workers=2, faults=("freeze",), least=4)
    assert not out.broken


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_same_for_minutes(mode: str, tmp_path: Path) -> None:
    out = soak(mode, 2.0, tmp_path, faults=("server", "drain", "scale", "freeze"))
    assert not out.broken
