"""A worker's examples in a step: its weight where a mean is over all workers."""

from __future__ import annotations

from collections import Counter

from zmqps.core.job.spec import MAX_COUNT
from zmqps.core.protocol.terms import are_values
from zmqps.core.worker.rows import RowSource
from zmqps.core.worker.transfer import PushTransfer


class StepExamples:
    """The examples of the step that a worker is in, from what its pushes say they were computed from.

    Parts of one batch count once, and batches that are pushed one after the other add up. So the step has as many as
    the pushes say of the parameter that most of them are of. Rows of tables are parts of a batch, never more of one.
    """

    def __init__(self) -> None:
        self.wanted = False  # by the job, whose mean is over all workers of a step
        self._largest = 0
        self._of: Counter[int] = Counter()  # by parameter, where there are several pushes

    def add(self, push: PushTransfer, *, alone: bool = False) -> None:
        """A push is with the servers, or brings nothing; ``alone``: it is the step's first and last."""
        if not self.wanted or are_values(push.terms):
            return
        self._largest = max(self._largest, push.examples)
        if not alone and not isinstance(push.source, RowSource):
            brought = {extent.parameter for shard in push.cargoes for cargo in shard for extent in cargo.extents}
            self._of.update(dict.fromkeys(brought, push.examples))

    @property
    def so_far(self) -> int:
        """Those of the step; one in which nothing is said has one."""
        return min(max(1, self._largest, *self._of.values()), MAX_COUNT)

    def clear(self) -> None:
        """The step is over, or was dropped."""
        self._largest = 0
        self._of.clear()
