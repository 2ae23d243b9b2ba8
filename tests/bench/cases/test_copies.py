"""What copies cost, and what scaling does: that it is measured at all, and checked."""

from __future__ import annotations

import pytest

from bench.cases import copies, refill, resizing
from bench.setup import Setup

pytestmark = pytest.mark.processes


def test_steps_with_backups_take_turns_with_steps_without() -> None:
    setup = Setup(model="64KB", servers=2, workers=1, transport="tcp", optimizer="sgd", steps=3)
    row = copies.measure(setup, "async", 1)
    assert row.extra["checked"]
    assert row.median_s > 0
    assert row.limit_s is not None


def test_steps_are_measured_while_servers_come_and_go() -> None:
    row = resizing.measure("rescale", "64KB", "sgd", "tcp", "async", 1)
    assert row.extra["rescale_s"] > 0
    assert row.median_s > 0


def test_steps_while_backups_are_filled() -> None:
    row = refill.measure("32MB", "sgd", "tcp", "async", 1)
    assert row.extra["refill_s"] > 0
    assert row.extra["steps"] > 0
