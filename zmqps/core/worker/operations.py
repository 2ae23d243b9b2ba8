"""What a worker can be asked to do, and the plan of the messages a transfer takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from zmqps.core.job.data import DataSpec
from zmqps.core.job.keyspace import Placement, Slice
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.treatments import make_treatment
from zmqps.core.worker.views import Views


class Piece(NamedTuple):
    """Elements ``[start, stop)`` of one flattened parameter."""

    parameter: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Cargo:
    """What one transfer moves of one slice."""

    slice: Slice
    ranges: tuple[int, ...]  # as in `zmqps.core.protocol.messages.Part`
    pieces: tuple[Piece, ...]
    dtype: np.dtype[Any]
    nbytes: int

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The ranges as pairs, relative to the slice."""
        return list(pairwise(self.ranges))[::2] if self.ranges else [(0, self.slice.size)]


def plan(placement: Placement, parameters: frozenset[int] | None = None) -> tuple[tuple[Cargo, ...], ...]:
    """Return, for each shard, the cargoes that cover some parameters (None: all)."""
    return tuple(
        tuple(cargo for piece in slices if (cargo := _cargo(placement, piece, parameters)) is not None)
        for slices in placement.slices
    )


def in_order(cargoes: tuple[tuple[Cargo, ...], ...], parameters: Sequence[int]) -> tuple[tuple[Cargo, ...], ...]:
    """Return a plan that moves its parameters in the order in which they are named, as far as slices allow."""
    place = {parameter: i for i, parameter in enumerate(parameters)}

    def first(cargo: Cargo) -> int:
        return min(place[piece.parameter] for piece in cargo.pieces)

    return tuple(tuple(sorted(row, key=first)) for row in cargoes)


def _cargo(placement: Placement, piece: Slice, parameters: frozenset[int] | None) -> Cargo | None:
    wanted = [s for s in piece.segments if parameters is None or s.parameter in parameters]
    if not wanted:
        return None
    ranges: list[int] = []
    if len(wanted) < len(piece.segments):
        for segment in wanted:
            if ranges and ranges[-1] == segment.position:
                ranges[-1] += segment.size
            else:
                ranges += [segment.position, segment.position + segment.size]
    dtype = placement.keyspace.tables[piece.table].dtype
    pieces = tuple(Piece(s.parameter, s.start, s.start + s.size) for s in wanted)
    return Cargo(piece, tuple(ranges), pieces, dtype, sum(s.size for s in wanted) * dtype.itemsize)


@dataclass(slots=True, eq=False)
class Operation:
    """Something the user waits for; ``future`` is the shell's and opaque here."""

    deadline: float
    future: Any = None
    started_at: float = 0.0
    done: bool = False
    waiting_for: str = ""
    child: Transfer | None = None  # a transfer that is a part of this operation

    title = "operation"


@dataclass(slots=True, eq=False)
class Join(Operation):
    """Wait until the coordinator has answered."""

    title = "connect"


@dataclass(slots=True, eq=False)
class Init(Operation):
    """Start the job or join it; ``job`` None: take it as it is. Resolves to an `Attached`."""

    job: JobSpec | None = None
    values: Sequence[Array] = ()  # flat, by parameter
    request: int = 0

    title = "init"


@dataclass(frozen=True, slots=True)
class Attached:
    """The job a worker trains, and where it is."""

    job: JobSpec
    placement: Placement

    def drops(self, staleness: int) -> bool:
        """Whether servers drop gradients this stale."""
        treatment = make_treatment(self.job.treatment)
        return treatment is not None and treatment.drops(staleness)


@dataclass(slots=True, eq=False)
class Advance(Operation):
    """Complete a step that consists of several pushes."""

    title = "advance"


@dataclass(slots=True, eq=False)
class Transfer(Operation):
    """Move arrays to or from the servers.

    Parameters
    ----------
    kind
        ``load``, ``push``, ``pull`` or ``push_pull``.
    cargoes
        What to move, a tuple a shard (`plan`).
    source
        What to send: flat arrays by parameter; any floating dtype, converted slice by slice.
    source_tables
        The flat tables that all of ``source`` lies in, where it does.
    out
        Where to put values: flat writable arrays by parameter, or
    tables
        the flat tables themselves.
    views
        Leave values where they lie if they may stay there; what may not is put into ``out`` or ``tables``.
    in_place
        Servers read ``source_tables`` where they lie, if there are any, and are asked for values that
        stay where they lie: these do not count as bytes in flight, and so many of them make a message.
    atomic
        Send all cargoes of a shard as one message.
    checked
        The source is known to be finite.
    codec, reply_codec
        How gradients, and values, travel.
    encoded, nonfinite
        Gradients that are encoded already, in place of the source: for each cargo the codec and the
        blob. Or the names of those that were found not to be finite; then nothing is sent.
    whole
        A push of all parameters: it completes the worker's step where steps matter.
    examples
        How often the gradients count in a synchronous mean.
    version, exact
        A pull's: at least, or exactly, this version.
    owner
        The operation this transfer is a part of.
    missing
        Of a pull that wants to know when each parameter is there: how many elements of it are not; else None.
    """

    kind: str = "pull"
    cargoes: tuple[tuple[Cargo, ...], ...] = ()
    source: Sequence[Array | None] = ()
    out: Sequence[Array | None] | None = None
    tables: Sequence[Array] | None = None
    source_tables: Sequence[Array] | None = None
    views: Views | None = None
    in_place: int = 0
    atomic: bool = False
    checked: bool = False
    codec: str = "raw"
    reply_codec: str = "raw"
    encoded: Mapping[Cargo, tuple[str, Array]] | None = None
    nonfinite: Sequence[str] = ()
    whole: bool = False
    examples: int = 1
    version: int = 0
    exact: bool = False
    owner: Operation | None = None
    missing: dict[int, int] | None = None
    arrived: list[int] = field(default_factory=list)  # parameters that came to be there, and nobody was told yet
    asked: str = ""  # what the user called it, where that is not its kind
    step: int = 0
    attempt: int = 0
    remaining: int = 0
    staleness: int = 0
    versions: dict[Cargo, int] = field(default_factory=dict)  # read of each slice

    @property
    def title(self) -> str:  # type: ignore[override]
        """How errors call it."""
        return self.asked or self.kind

    @property
    def outermost(self) -> Operation:
        """The operation the user waits for."""
        return self.owner or self

    def landed(self, cargo: Cargo, version: int) -> None:
        """Note that the values of a cargo are where they belong."""
        self.versions[cargo] = version
        if self.missing is not None:
            for piece in cargo.pieces:
                self.missing[piece.parameter] -= piece.stop - piece.start
                if not self.missing[piece.parameter]:
                    self.arrived.append(piece.parameter)

    def outdated(self) -> tuple[Cargo, ...]:
        """Return what was read of an older version than the rest."""
        newest = max(self.versions.values(), default=0)
        return tuple(cargo for cargo, version in self.versions.items() if version < newest)

    def pieces(self, cargo: Cargo) -> list[Array]:
        """Return what to send of a cargo, in the dtype of the wire."""
        if self.source_tables is not None:
            return _of_table(self.source_tables, cargo)
        found = [(self.source[parameter], start, stop) for parameter, start, stop in cargo.pieces]
        with np.errstate(over="ignore"):  # what becomes infinite is refused, or was allowed
            return [a[start:stop].astype(cargo.dtype, copy=False) for a, start, stop in found if a is not None]

    def targets(self, cargo: Cargo) -> list[Array]:
        """Return where the values of a cargo go, in their order on the wire."""
        if self.tables is not None:
            return _of_table(self.tables, cargo)
        assert self.out is not None
        arrays = [(self.out[parameter], start, stop) for parameter, start, stop in cargo.pieces]
        return [array[start:stop] for array, start, stop in arrays if array is not None]


def _of_table(tables: Sequence[Array], cargo: Cargo) -> list[Array]:
    """Return the pieces of flat tables that make a cargo."""
    table, origin = tables[cargo.slice.table], cargo.slice.start
    return [table[origin + start : origin + stop] for start, stop in cargo.bounds]


@dataclass(slots=True, eq=False)
class Enter(Operation):
    """Enter a barrier."""

    barrier: str = ""
    request: int = 0

    @property
    def title(self) -> str:  # type: ignore[override]
        """How errors call it."""
        return f"barrier {self.barrier!r}"


@dataclass(slots=True, eq=False)
class Take(Operation):
    """Take a range of a data set, and say which one was used. Resolves to a `zmqps.core.protocol.messages.Range`."""

    data: DataSpec | None = None
    used: tuple[int, int] | None = None
    request: int = 0

    title = "shards"


@dataclass(slots=True, eq=False)
class AskStatus(Operation):
    """Ask the coordinator for the status."""

    request: int = 0

    title = "status"


@dataclass(slots=True, eq=False)
class Finish(Operation):
    """Complete the transfers under way, then say goodbye; ``reason`` is finished or closed."""

    reason: str = "finished"

    title = "finish"


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The user does not wait for an operation any more; also what that resolves to, if it can be withdrawn.

    A pull can; a push as long as nothing of it has left. What others know of takes its course: a
    barrier that was entered, a range that was asked for, a step that is complete.
    """

    operation: Operation


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a worker has done so far; frozen, a copy.

    Attributes
    ----------
    pushes, pulls
        Operations completed; a push_pull counts as both.
    bytes_sent, bytes_received
        Payload bytes, resent ones included.
    in_flight_bytes
        Payload bytes sent or asked for and not yet answered, at this moment.
    retries
        Requests sent again because no answer came.
    nonfinite
        Pushes refused because of NaN or infinity.
    dropped
        Synchronous: steps whose gradients came after the step was over. Otherwise: pushes of which
        a slice was too stale for the job's treatment.
    clock
        Steps completed (bounded), or the step the next gradients belong to (synchronous).
    staleness_mean, staleness_max, staleness_last
        Updates that others (and earlier pushes of this worker) had made to what a push changed,
        between this worker's pull and the push's arrival; of a push the largest over its slices.
    staleness_histogram
        Staleness -> number of pushes.
    mode
        The mode in force.
    pinned_bytes
        Memory of this host that is page-locked for arrays on GPUs, in use or kept for the next.
    shared_bytes
        Memory of this worker that servers on its host may read in place (``gradient_buffers``).
    borrowed_bytes
        Memory of servers on this host that they keep as it is, because arrays of this worker are
        views of it (``copy=False``).
    """

    pushes: int = 0
    pulls: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    in_flight_bytes: int = 0
    retries: int = 0
    nonfinite: int = 0
    dropped: int = 0
    clock: int = 0
    staleness_mean: float = 0.0
    staleness_max: int = 0
    staleness_last: int = 0
    staleness_histogram: Mapping[int, int] = field(default_factory=dict)
    mode: str = ""
    pinned_bytes: int = 0
    shared_bytes: int = 0
    borrowed_bytes: int = 0


class Tally:
    """Counts what becomes `Statistics`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.staleness: Counter[int] = Counter()
        self.staleness_last = 0

    def completed(self, transfer: Transfer) -> None:
        """A transfer was completed."""
        if transfer.kind in ("pull", "push_pull"):
            self.counts["pulls"] += 1
        if transfer.kind in ("push", "push_pull"):
            self.counts["pushes"] += 1
            self.staleness[transfer.staleness] += 1
            self.staleness_last = transfer.staleness

    def dropped(self) -> None:
        """A step was over before our gradients were complete, or they were too stale."""
        self.counts["dropped"] += 1

    def refused(self) -> None:
        """A push was refused because of NaN or infinity."""
        self.counts["nonfinite"] += 1

    def statistics(self, in_flight_bytes: int, mode: str, clock: int = 0) -> Statistics:
        """Return a frozen copy."""
        total = sum(staleness * n for staleness, n in self.staleness.items())
        return Statistics(
            **self.counts,
            in_flight_bytes=in_flight_bytes,
            clock=clock,
            staleness_mean=total / max(1, self.counts["pushes"]),
            staleness_max=max(self.staleness, default=0),
            staleness_last=self.staleness_last,
            staleness_histogram=dict(sorted(self.staleness.items())),
            mode=mode,
        )
