"""One server's part of a job: its slices, and other parts in step with them; no messages, no peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from zmqps.core.job.keyspace import Placement
from zmqps.core.protocol.message import Contributor
from zmqps.core.protocol.messages import Message
from zmqps.core.server.dense.buffers import Beside
from zmqps.core.server.dense.memory import HostMemory, Memory
from zmqps.core.server.dense.part import DensePart
from zmqps.core.server.dense.rules import Rules
from zmqps.core.server.dense.slices import SliceState
from zmqps.core.server.dense.steps import ShardSteps
from zmqps.core.server.parts import AddedPart, Apply, Arrivals, ShardPart
from zmqps.errors import SliceRangeError

V = TypeVar("V")


class ByKind(dict[type[Message], V]):
    """The handlers of a shard for each kind of message."""

    def __missing__(self, kind: type[Message]) -> V:
        raise SliceRangeError(f"this shard has nothing that a {kind.__name__} is about")


class Shard:
    """One server's part of a job."""

    def __init__(
        self,
        placement: Placement,
        index: int,  # of the shard, in its placement
        rules: Rules,
        *,
        reject_nonfinite: bool = True,  # whether gradients with NaN or infinity are refused
        # gradients are kept separately by push until `commit` (`ShardSteps`); otherwise they are applied on arrival
        synchronous: bool = False,
        aggregate: int | None = None,  # synchronous: how many gradients make a step; None: one of every worker
        retain: int = 0,  # synchronous: how many versions before the current one stay readable
        memory: Memory | None = None,  # where values, slots and gradients are stored
        required_nbytes: int = 0,  # the memory admitted for all of them
        # the extra memory for values that are read while they are updated; None: unlimited
        beside: Beside | None = None,
        dense: Callable[..., DensePart] = DensePart,  # makes its slices
        others: Sequence[AddedPart] = (),  # its other parts
    ) -> None:
        self.placement = placement
        self.index = index
        self.required_nbytes = required_nbytes
        self.memory = memory or HostMemory()
        # which of them have their initial values
        self.came = Arrivals(slice_.index for slice_ in placement.slices[index])
        self.dense = dense(
            placement,
            index,
            rules,
            self.came,
            self.memory,
            reject_nonfinite=reject_nonfinite,
            aggregate=(aggregate or 1) if synchronous else None,
            retain=retain,
            beside=beside,
        )
        for part in others:
            part.follow_steps(self.dense.steps)
        self.others = tuple(others)
        # those that are not empty
        self.parts: tuple[ShardPart, ...] = (self.dense, *[part for part in others if part.members])
        self.takes = ByKind[Apply]()  # the handler of each kind of push
        self.part_of = ByKind[ShardPart]()  # the part for each kind of push or pull
        for each in (self.dense, *others):
            self.takes.update(each.takes)
            self.part_of.update(dict.fromkeys((*each.takes, *each.pulls), each))

    @property
    def slices(self) -> Sequence[SliceState]:
        """Its dense slices."""
        return self.dense.slices

    @property
    def steps(self) -> ShardSteps | None:
        """Its synchronous steps; None: it is not synchronous."""
        return self.dense.steps

    @property
    def counters(self) -> Counter[str]:
        """The counts of its slices."""
        return self.dense.counters

    @property
    def is_empty(self) -> bool:
        """Whether it is empty."""
        return not any(part.numbers for part in self.parts)

    @property
    def loaded(self) -> bool:
        """Whether every slice and table has its initial values."""
        return self.came.loaded

    @property
    def version(self) -> int:
        """Synchronous: the number of committed steps."""
        return 0 if self.dense.steps is None else self.dense.steps.version

    @property
    def has_open_step(self) -> bool:
        """Whether gradients, of parameters or of rows, wait for a commit."""
        return any(part.has_open_step for part in self.parts)

    def begin_at(self, version: int) -> None:
        """Continue with a step: the shard was restored, even without a slice."""
        if self.dense.steps is not None:
            self.dense.steps.version = version

    def commit(
        self, step: int, contributors: Sequence[Contributor], terms: Sequence[float] = (), examples: int = 0, *,
        left_out: bool = False,
    ) -> None:  # fmt: skip
        """Apply the mean of a step's gradients; a repeated call continues where it failed."""
        for part in reversed(self.parts):  # new rows are refused most easily
            part.commit(step, contributors, terms, examples, left_out=left_out)
        for part in reversed(self.parts):
            part.close(step, contributors)

    # --- a copy that gets its values from others ---------------------------------------------------

    def follow(self) -> None:
        """Become a copy that gets all its content from others, even if that is only a step."""
        self.came.follow(number for part in self.parts for number in part.numbers)

    def adopted(self, step: int, *numbers: int) -> None:
        """Another copy has sent some slices or tables, after this many steps: become complete if these were all."""
        self.begin_at(step)
        self.came.adopt(*numbers)

    def filled(self) -> None:
        """All have arrived."""
        self.came.adopt(*self.came.missing)

    # --- figures -----------------------------------------------------------------------------------

    def time_with(self, clock: Callable[[], float]) -> None:
        """Measure the time of updates from now on, by a clock in seconds."""
        for part in self.parts:
            for timing in part.timings:
                timing.clock = clock

    @property
    def reserved_nbytes(self) -> int:
        """Memory that was admitted for it, or granted to it since."""
        return self.required_nbytes + sum([part.granted_nbytes for part in self.parts])

    @property
    def untouched_nbytes(self) -> int:
        """Memory that was admitted for it and is not visible in the host's used memory yet."""
        held = sum([part.held_nbytes(loaded=self.came.loaded) for part in self.parts])
        return max(0, self.reserved_nbytes - held)

    def figures(self) -> Mapping[str, Any]:
        """Return counters for the status."""
        timings = [timing for part in self.parts for timing in part.timings]
        found: dict[str, Any] = {**self.memory.counters(), "version": self.version}
        for part in self.parts:
            found |= part.figures()
        found["apply_seconds"] = round(sum([timing.seconds for timing in timings]), 6)
        found["applies"] = sum([timing.num for timing in timings])
        return found

    def forget(self, incarnation: bytes) -> None:
        """A worker has departed."""
        self.dense.forget(incarnation)

    def validate(self) -> None:
        """Assert that slices cover the shard and that steps are consistent."""
        for state, slice_ in zip(self.slices, self.placement.slices[self.index], strict=True):
            assert state.slice is slice_ or state.slice == slice_
        for part in self.parts:
            part.validate(None if self.dense.steps is None else self.version, self.came.missing)
