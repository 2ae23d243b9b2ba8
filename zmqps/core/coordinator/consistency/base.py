"""What the coordinator requires of a consistency policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Grant:
    """A worker may proceed; it reads version ``version`` or a later one."""

    worker: bytes
    version: int
    counted: bool  # whether its gradients are part of the parameters
    left_out: bool = False  # whether no gradient of its step was applied


@dataclass(frozen=True, slots=True)
class Commitment:
    """A step is complete: ``contributors`` are (worker, its pushes), ``examples`` their total weight.

    With ``left_out`` one of them has voided it: no gradient is applied.
    """

    step: int
    contributors: tuple[tuple[bytes, tuple[int, ...]], ...]
    examples: int
    left_out: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """The decisions after an event."""

    granted: tuple[Grant, ...] = ()
    commitment: Commitment | None = None
    failed: tuple[bytes, ...] = ()  # workers whose wait ends with an error: the straggler policy is "fail"
    awaited: tuple[bytes, ...] = ()  # which workers these have waited for


@dataclass(slots=True)
class Arrival:
    """A worker's contribution to the current step."""

    attempts: tuple[int, ...] = ()  # none: it has skipped the step
    count: int = 0  # gradients
    examples: int = 0  # the worker's weight in a mean over all workers
    leaves_out: bool = False  # no gradient of the step may be applied


class Policy(ABC):
    """Decides which workers may proceed.

    ``missing`` is the number of expected workers that have not yet joined for the first time.
    """

    #: async, bounded or sync, as in logs and the status. In sync mode steps are committed, and arrivals journaled: a
    #: policy of common steps has that mode.
    mode: str
    #: False: no worker has arrived, so `decide` would decide nothing, and there is no deadline.
    pending = True

    @abstractmethod
    def begin_at(self, clock: int) -> None:
        """The job continues from a checkpoint: no worker has joined yet."""

    def go_back(self, clock: int) -> None:  # noqa: B027 (separate clocks do not change)
        """All shards are at an earlier clock: later contributions are lost, and training continues from there."""

    @abstractmethod
    def join(self, worker: bytes) -> int:
        """A worker begins to train, or continues after a pause; return the clock it begins with."""

    @property
    @abstractmethod
    def clock(self) -> int:
        """The clock that a worker would begin with."""

    @abstractmethod
    def pause(self, worker: bytes) -> None:
        """A worker waits for something else: no step waits for it until it joins again."""

    @abstractmethod
    def leave(self, worker: bytes) -> None:
        """A worker has stopped training. Its complete contributions stay."""

    @abstractmethod
    def arrive(
        self, worker: bytes, step: int, attempts: tuple[int, ...], now: float, examples: int = 1, *,
        leaves_out: bool = False,
    ) -> None:  # fmt: skip
        """A worker has completed its step and all shards have its pushes; none: it skips it, or waits again."""

    @abstractmethod
    def decide(self, missing: int, now: float) -> Decision:
        """Return the workers that may proceed now; called after every event, and at the deadline."""

    def arrived(self) -> AbstractSet[bytes]:
        """Return the workers that have contributed to the uncommitted step."""
        return frozenset()

    def retract(self, worker: bytes) -> None:  # noqa: B027 (nothing to do if steps are not committed)
        """A worker's contribution to the step is lost, and it cannot resend it."""

    @abstractmethod
    def dump(self) -> list[Any]:
        """Return the journaled state, as plain data."""

    @abstractmethod
    def restore(self, kept: Sequence[Any], now: float) -> None:
        """Restore the journaled state, once the training workers have joined; waiting ones ask again."""

    def catch_up(self, worker: bytes, clock: int) -> None:  # noqa: B027  (most have no clock for a worker)
        """A worker reports its position, because the journaled one may be old."""

    def awaited(self) -> Iterable[bytes]:
        """Return the workers that the others wait for."""
        return ()

    def why(self, missing: int) -> str:
        """Return in words what is needed before waiting workers may proceed."""
        return ""

    def next_deadline(self) -> float | None:
        """Return when to call `decide` even without an event."""
        return None

    def status(self) -> dict[str, object]:
        return {}

    @abstractmethod
    def validate(self) -> None:
        """Assert the invariants."""
