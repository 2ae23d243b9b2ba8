"""The operations of a worker."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages import Checkpoint, Enter, Init, Message, SetRates, StatusRequest
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.worker.transfer import AnyTransfer, PullTransfer, PushTransfer
from zmqps.errors import ProtocolError, printable


@dataclass(slots=True, eq=False, kw_only=True)
class Operation:
    """An operation that the user waits for; ``deadline`` and ``future`` belong to the shell, the latter opaquely."""

    deadline: float = field(default=0.0, kw_only=False)
    future: Any = None
    started_at: float = 0.0
    done: bool = False
    waiting_for: str = ""
    transfer: AnyTransfer | None = None  # in progress for it

    title = "operation"


@dataclass(slots=True, eq=False, kw_only=True)
class Join(Operation):
    """Wait until the coordinator has answered."""

    title = "connect"


@dataclass(slots=True, eq=False, kw_only=True)
class Question(Operation):
    """A request that only the coordinator can answer; ``request`` is its number."""

    request: int = 0

    @abstractmethod
    def message(self, step: int) -> Message:
        """Return the request; ``step``: of the next push."""


@dataclass(slots=True, eq=False, kw_only=True)
class StartJob(Question):
    """Start the job or join it; ``job`` None: any job. Resolves to an `Attached`."""

    job: JobSpec | None = None
    values: Sequence[Array] = ()  # flat, by parameter
    loads: bool = False  # this worker was asked to upload them

    title = "init"

    def message(self, step: int) -> Message:
        """Return the request."""
        return Init(self.request, self.job.to_wire() if self.job else {})


@dataclass(frozen=True, slots=True)
class Restored:
    """The checkpoint that a job has started from.

    Attributes
    ----------
    path : str
        Its path at the servers.
    version : int
        The clock that it continued from: steps, or the slowest worker's clock.
    state : mapping
        The state saved with it: ``worker.checkpoint(state=…)``.
    """

    path: str
    version: int
    state: Mapping[str, Any]

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Restored | None:
        """Return the checkpoint in a `Job`; None: a worker has uploaded the initial values.

        Raises
        ------
        ProtocolError
            It is malformed.
        """
        if not wire:
            return None
        path, version, state = wire.get("path"), wire.get("version"), wire.get("state")
        if not isinstance(path, str) or not isinstance(version, int) or not isinstance(state, dict):
            raise ProtocolError("a job that was restored has a path, a version and a state")
        return cls(printable(path), version, state)


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A completed checkpoint.

    Attributes
    ----------
    path : str
        Of its directory, as the coordinator names it.
    version : int
        Its clock: steps, or the slowest worker's clock; asynchronous: the fewest updates of a slice.
    seconds : float
        How long it took.
    nbytes : int
        Bytes of its files.
    """

    path: str
    version: int
    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Attached:
    """The job a worker trains, and its placement."""

    job: JobSpec
    placement: Placement
    restored: Restored | None = None
    epoch: int = 0  # of the job
    dtypes: tuple[np.dtype[Any], ...] = field(init=False)  # the wire dtypes of gradients, by parameter

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtypes", tuple(parameter.storage_dtype for parameter in self.job.parameters))


@dataclass(slots=True, eq=False, kw_only=True)
class Advance(Operation):
    """End a step, whatever was pushed in it.

    With ``skips`` its pushes are left out; with ``for_all`` no worker's gradient of the step is applied, either.
    ``examples`` is this worker's weight in a mean over all workers; None: that of its pushes.
    """

    skips: bool = False
    for_all: bool = False
    examples: int | None = None

    @property
    def title(self) -> str:  # type: ignore[override]
        """Its name in errors."""
        return "skip" if self.skips else "advance"


@dataclass(slots=True, eq=False, kw_only=True)
class Exchange(Operation):
    """Exchange arrays with the servers: a push, a pull, or both.

    A push with a pull is a push_pull. In asynchronous mode that is one round trip: the push is answered with values,
    which go to the pull's target. In the others the pull follows when the step is over; in synchronous mode it may be
    sent with the arrival (`zmqps.core.worker.early`), and counts only with the answer to that.
    """

    push: PushTransfer | None = None
    pull: PullTransfer | None = None

    @property
    def awaits_values(self) -> bool:
        """Whether only the pull remains to be done."""
        return self.pull is not None and (self.push is None or self.push.done)

    @property
    def title(self) -> str:  # type: ignore[override]
        """Its name in errors."""
        return "pull" if self.push is None else "push" if self.pull is None else "push_pull"


@dataclass(slots=True, eq=False, kw_only=True)
class EnterBarrier(Question):
    """Enter a barrier."""

    barrier: str = ""

    @property
    def title(self) -> str:  # type: ignore[override]
        """Its name in errors."""
        return f"barrier {self.barrier!r}"

    def message(self, step: int) -> Message:
        """Return the request."""
        return Enter(self.request, self.barrier)


@dataclass(slots=True, eq=False, kw_only=True)
class SetNumbers(Question):
    """Set numbers of the optimizer, in wire form; resolves to whether they are in force."""

    rates: Sequence[float] = ()

    title = "set_hyperparameters"

    def message(self, step: int) -> Message:
        """Return the request."""
        return SetRates(self.request, step, (1.0, *self.rates))


@dataclass(slots=True, eq=False, kw_only=True)
class AskStatus(Question):
    """Ask the coordinator for the status."""

    title = "status"

    def message(self, step: int) -> Message:
        """Return the request."""
        return StatusRequest(self.request)


@dataclass(slots=True, eq=False, kw_only=True)
class SaveJob(Question):
    """Ask for a checkpoint of the job. Resolves to a `SavedCheckpoint`."""

    consistent: bool = False
    state: Mapping[str, Any] = field(default_factory=dict)

    title = "checkpoint"

    def message(self, step: int) -> Message:
        """Return the request."""
        return Checkpoint(self.request, "", int(self.consistent), self.state)


@dataclass(slots=True, eq=False, kw_only=True)
class Finish(Operation):
    """Complete the pending transfers, then say goodbye; ``reason`` is finished or closed."""

    reason: DepartureCause = DepartureCause.FINISHED

    title = "finish"


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The user gave up waiting for an operation; also the result if it could be withdrawn.

    A pull can; a push as long as no part of it was sent. Operations that others know of continue: a barrier that was
    entered, a range that was requested, a step that is complete.
    """

    operation: Operation
