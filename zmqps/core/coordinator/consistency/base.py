"""What the coordinator asks of a consistency policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Grant:
    """A worker may go on; it reads version ``version`` or a later one."""

    worker: bytes
    version: int
    counted: bool  # whether the gradients it arrived with are part of the parameters
    left_out: bool = False  # whether nobody's are, of the step that it arrived at


@dataclass(frozen=True, slots=True)
class Commitment:
    """A step is complete: ``contributors`` are (worker, its pushes), ``examples`` their weight together.

    With ``left_out`` one of them has said that nobody's gradient is to be applied.
    """

    step: int
    contributors: tuple[tuple[bytes, tuple[int, ...]], ...]
    examples: int = 0
    left_out: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from an event."""

    granted: tuple[Grant, ...] = ()
    commitment: Commitment | None = None
    failed: tuple[bytes, ...] = ()  # workers whose wait ends with an error: the straggler policy is "fail"
    awaited: tuple[bytes, ...] = ()  # whom these have waited for


@dataclass(slots=True)
class Arrival:
    """What a worker has brought to the current step."""

    attempts: tuple[int, ...] = ()  # none: it has skipped it
    count: int = 0  # gradients
    examples: int = 0  # the worker's weight in a mean over all workers
    leaves_out: bool = False  # nobody's gradient of the step is to be applied


class Policy(ABC):
    """Decides who may go on.

    ``missing`` is how many workers are expected and have not yet joined for the first time.
    """

    #: async, ssp or sync, as logs and the status show it. Where it is sync steps are committed, and arrivals journaled:
    #: a policy of common steps has that mode.
    mode: str
    #: False: nobody has arrived, so that `decide` would decide nothing, and there is no deadline.
    pending = True

    @abstractmethod
    def begin_at(self, clock: int) -> None:
        """The job goes on from a checkpoint: nobody has joined yet."""

    def go_back(self, clock: int) -> None:  # noqa: B027 (clocks of their own stay where they are)
        """All shards are at an earlier clock: what was brought since is gone, and who trains goes on from there."""

    @abstractmethod
    def join(self, worker: bytes) -> int:
        """A worker begins to train, or goes on after a pause; return the clock it begins with."""

    @property
    @abstractmethod
    def clock(self) -> int:
        """The clock that a worker would begin with."""

    @abstractmethod
    def pause(self, worker: bytes) -> None:
        """A worker waits for something else: nobody waits for it until it joins again."""

    @abstractmethod
    def leave(self, worker: bytes) -> None:
        """A worker trains no more. What it has brought completely stays brought."""

    @abstractmethod
    def arrive(
        self, worker: bytes, step: int, attempts: tuple[int, ...], now: float, examples: int = 1, *,
        leaves_out: bool = False,
    ) -> None:  # fmt: skip
        """A worker has completed its step and all shards have its pushes; none: it skips it, or waits once more."""

    @abstractmethod
    def decide(self, missing: int, now: float) -> Decision:
        """Return who may go on now; called after every event, and when the deadline is due."""

    def arrived(self) -> AbstractSet[bytes]:
        """Return whose gradients are brought to a step that is not committed."""
        return frozenset()

    def retract(self, worker: bytes) -> None:  # noqa: B027 (there is nothing to do where no step is committed)
        """What a worker has brought to the step is lost, and it cannot bring it again."""

    @abstractmethod
    def dump(self) -> list[Any]:
        """Return what a coordinator keeps that may be away, as plain data."""

    @abstractmethod
    def restore(self, kept: Sequence[Any], now: float) -> None:
        """Be what was kept, once those who train have joined; who waits asks again."""

    def catch_up(self, worker: bytes, clock: int) -> None:  # noqa: B027  (most keep no clock of a worker)
        """A worker says where it is, for what was kept of it may be old."""

    def awaited(self) -> Iterable[bytes]:
        """Return the workers that the others wait for."""
        return ()

    def why(self, missing: int) -> str:
        """Say in words what is needed before anybody who waits may go on."""
        return ""

    def next_deadline(self) -> float | None:
        """Return when `decide` wants to be called even if nothing happens."""
        return None

    def status(self) -> dict[str, object]:
        return {}

    @abstractmethod
    def validate(self) -> None:
        """Assert the invariants."""
