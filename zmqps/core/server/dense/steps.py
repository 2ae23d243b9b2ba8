"""The steps of a shard in the synchronous mode: gradients are kept until the commit, then their mean is applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import Any

from zmqps.core.job.norms import LARGEST, squares
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.message import OPEN_STEPS, Contributor
from zmqps.core.server.dense.aggregate import GRADIENT, Contribution, PushId, Stage, Stretches
from zmqps.core.server.dense.slices import Note, Pin, SliceState, Updates
from zmqps.errors import ProtocolError


class ShardSteps:
    """What a shard does in the synchronous mode."""

    def __init__(
        self,
        slices: Sequence[SliceState],  # the shard's
        updates: Updates,  # how they change
        stage: Stage,  # where gradients wait for their commit
        counters: Counter[str],  # the shard's; ``late`` and ``dropped`` are counted here
        retain: int = 0,  # how many versions before the current one stay readable
    ) -> None:
        self.version = 0  # steps committed
        self.stage = stage
        #: Called with the update of a slice before it is applied, if replicas must repeat it; the function that it
        #: returns is called once the update is applied.
        self.forward: Callable[[SliceState, Stretches, Stretches, Sequence[float]], Note] | None = None
        self._slices = slices
        self._updates = updates
        self._counters = counters
        self._retain = retain

    def staleness(self, step: int) -> int:
        """Return how many commits a gradient of a step is behind; raise `ProtocolError` if the step is not open yet."""
        if step >= self.version + OPEN_STEPS:
            raise ProtocolError(f"a gradient of step {step}, but this shard is at {self.version}")
        return max(0, self.version - step)

    def collect(
        self,
        brought: Sequence[tuple[SliceState, list[tuple[int, int]]]],
        pieces: Sequence[tuple[SliceState, int, Any]],
        push: PushId,
        step: int,
        examples: int,
        note: Note | None = None,
        sort: float = GRADIENT,
        *,
        stays: bool = False,
    ) -> None:
        """Keep gradients for a step, or values to set in it.

        Gradients of a step that is over are dropped and counted (``late``); the coordinator, which
        closed it without them, tells the worker.

        Parameters
        ----------
        brought
            The slices, and which ranges of them the gradients are of.
        pieces
            The gradients: slice, first element, values.
        push
            The push that they are a part of.
        step
            The step they belong to: this shard's version, or the next, if the commit in between is
            still on its way.
        examples
            How often they count in the mean.
        note
            Remembers that it is done, as soon as it is.
        sort
            What they are: gradients, or values (`SET`, `SET_TO_MEAN`).
        stays
            What is in another process's memory stays unchanged there until the step is over.

        Raises
        ------
        LimitError
            The worker has brought more to this step than it may; nothing is kept.
        """
        noted = note or unnoted
        if step < self.version:
            noted()
            self._counters["late"] += 1
            return
        gradients: dict[int, list[Any]] = {state.slice.index: [] for state, _ in brought}
        for state, _, piece in pieces:
            gradients[state.slice.index].append(piece)
        parts = [
            Contribution(state.slice, bounds, gradients[state.slice.index], sort, stays) for state, bounds in brought
        ]
        self.stage.add(step, push, parts, examples, noted)

    def measure(self, step: int, contributors: Sequence[Contributor], examples: int = 0) -> float:
        """Return the sum of the squares of the mean that `commit` would apply, without frozen parameters."""
        assert step == self.version
        total, brought = 0.0, pushes_of(contributors)
        for state in self._slices:
            for start, mean in self.stage.outcome(step, state.slice.index, brought, examples)[0]:
                for lo, hi, kernel, _ in state.runs(start, start + mean.size):
                    if not self._updates.is_frozen(kernel):
                        total += squares(mean[lo - start : hi - start])
        return min(total, LARGEST)

    def commit(
        self, step: int, contributors: Sequence[Contributor], terms: Sequence[float] = (), examples: int = 0, *,
        left_out: bool = False,
    ) -> None:  # fmt: skip
        """Apply the mean of the contributors' gradients of a step, added in their order.

        A contributor that did not push a parameter has no part in that parameter's mean, unless there are
        ``examples``, those of all contributors (`Stage.mean`); what no contributor pushed is not updated, and what one
        has set is that. With ``left_out`` no gradient is applied. What fails leaves the slices that were not done as
        they were: asked again, it continues with those.
        """
        assert step == self.version
        brought = pushes_of(contributors)
        for state in self._slices:
            if state.version == step:  # else it was done before a later slice failed
                means, values = self.stage.outcome(step, state.slice.index, brought, examples, left_out=left_out)
                bounds = [(start, start + gradient.size) for start, gradient in means]
                pieces = [(state, start, array) for start, array in (*means, *values)]
                note = None if self.forward is None else self.forward(state, means, values, terms)
                self.apply(state, bounds, pieces, [array for _, _, array in pieces], note, terms, len(values))

    def end(self, step: int, contributors: Sequence[Contributor]) -> None:
        """A step is committed in all that the shard has: forget what was brought to it."""
        dropped = self.stage.close(step) - set(pushes_of(contributors))
        self.version += 1
        if dropped:
            self._counters["dropped"] += len(dropped)

    @property
    def is_open(self) -> bool:
        """Whether gradients wait for a commit."""
        return self.stage.is_open(self.version)

    def apply(
        self,
        state: SliceState,
        bounds: Sequence[tuple[int, int]],
        pieces: Sequence[tuple[SliceState, int, Any]],
        gradients: Sequence[Array] = (),
        note: Note | None = None,
        terms: Sequence[float] = (),
        num_values: int = 0,
    ) -> None:
        """Apply the mean of a step to a slice.

        Parameters
        ----------
        state
            The slice.
        bounds, pieces
            Which stretches of it, and the mean in pieces; behind those the ``num_values`` pieces that are set.
        gradients
            The pieces as arrays that kernels can read; none: as they came.
        note
            Remembers that it is done.
        terms
            As they travel (`zmqps.core.protocol.terms`).
        """
        steps = state.steps.copy()
        for start, stop in bounds:
            first, last = state.segments(start, stop)
            steps[first:last] += 1
        after = [(state, state.version + 1, steps)]
        before = state.history.copy()
        try:
            self._keep(state)
            self._updates.apply([state] if pieces else [], pieces, gradients, after, note, terms, num_values)
        except BaseException:
            for version in state.history:
                version[3].done = True
            for version in before:
                version[3].done = False
            state.history = before
            raise

    def _keep(self, state: SliceState) -> None:
        """Keep the current version of a slice readable for the next `retain` versions."""
        if self._retain:
            pin = Pin()
            state.history.append((state.version, state.value, state.readers, pin))
            state.readers.append(pin)
            if len(state.history) > self._retain:
                state.history.popleft()[3].done = True

    def validate(self, missing: Container[int] = ()) -> None:
        """Assert the invariants; slices that are ``missing`` have yet to come."""
        for state in self._slices:
            assert len(state.history) <= self._retain
            # those ahead were done before a commit failed, which will be asked for again
            assert state.version - self.version in (0, 1) or state.slice.index in missing
        self.stage.validate()


def pushes_of(contributors: Sequence[Contributor]) -> list[PushId]:
    """Return the pushes of a step's contributors, in their order."""
    return [(incarnation, attempt) for incarnation, attempts in contributors for attempt in attempts]


def unnoted() -> None:
    """Record nothing."""
