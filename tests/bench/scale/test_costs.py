"""Costs of messages: what is measured, and what is concluded from it."""

from __future__ import annotations

import pytest

from bench.scale.costs import FEW, LARGE_NBYTES, MANY, SMALL_NBYTES, Cost, by_size, by_size_and_workers, spend
from tests.tables import for_each


def test_what_grows_with_size_and_workers_is_told_apart() -> None:
    def took(nbytes: int, workers: int) -> float:
        return 1.0 + 2.0 * workers + nbytes * (3.0 + 4.0 * workers)

    sized = [by_size(took(SMALL_NBYTES, workers), took(LARGE_NBYTES, workers)) for workers in (FEW, MANY)]
    cost = by_size_and_workers(*sized)
    assert cost.of(1 << 20, workers=100) == pytest.approx(took(1 << 20, 100), rel=1e-3)
    assert cost.a_worker == pytest.approx(2.0, rel=0.02)


def test_several_messages_carry_the_bytes_together() -> None:
    assert Cost(fixed=1.0, a_byte=0.5).of(10.0, messages=3) == 8.0


def test_a_cost_is_never_negative_however_it_was_measured() -> None:
    assert by_size(2.0, 1.0) == Cost(fixed=2.0, a_byte=0.0)
    assert by_size_and_workers(Cost(fixed=2.0), Cost(fixed=1.0)) == Cost(fixed=2.0)


@for_each(
    "mode, kinds",
    [
        ("async", {("worker", "begin"), ("server", "Push"), ("worker", "Values")}),
        (
            "sync",
            {("worker", "begin"), ("server", "Push"), ("server", "Commit"), ("server", "Pull"), ("worker", "Values")},
        ),
    ],
)
def test_every_kind_of_message_has_its_cost(mode: str, kinds: set[tuple[str, str]]) -> None:
    spent = spend(2, SMALL_NBYTES, mode)
    assert set(spent) >= kinds
    assert all(seconds > 0 for seconds in spent.values())
