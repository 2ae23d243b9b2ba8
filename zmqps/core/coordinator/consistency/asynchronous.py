"""Asynchronous: no worker waits for another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zmqps.core.coordinator.consistency.base import Decision, Grant, Policy


class Asynchronous(Policy):
    """Every worker proceeds at once; ``mode="async"``.

    Updates are applied on arrival, so a worker that arrives has nothing to wait for (Dean et al., Large Scale
    Distributed Deep Networks, 2012). Our workers send no `Arrive` in this mode; other implementations may.
    """

    mode = "async"

    def __init__(self) -> None:
        self._arrived: list[bytes] = []

    def begin_at(self, clock: int) -> None:
        """There is no clock."""

    def join(self, worker: bytes) -> int:
        return 0

    @property
    def clock(self) -> int:
        return 0

    def pause(self, worker: bytes) -> None:
        """A worker waits for something else."""

    def leave(self, worker: bytes) -> None:
        """A worker has stopped training."""

    def arrive(
        self, worker: bytes, step: int, attempts: tuple[int, ...], now: float, examples: int = 1, *,
        leaves_out: bool = False,
    ) -> None:  # fmt: skip
        self._arrived.append(worker)

    def decide(self, missing: int, now: float) -> Decision:
        granted = tuple(Grant(worker, 0, True) for worker in self._arrived)
        self._arrived.clear()
        return Decision(granted)

    def dump(self) -> list[Any]:
        return []

    def restore(self, kept: Sequence[Any], now: float) -> None:
        """There is nothing to restore."""

    def validate(self) -> None:
        """There is no state between events."""
        assert not self._arrived
