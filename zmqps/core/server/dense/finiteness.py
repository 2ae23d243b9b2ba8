"""Whether gradients are finite, and if not, of which parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from zmqps.core.job.spec import Parameter
from zmqps.core.protocol.arrays import Array
from zmqps.core.server.dense.slices import SliceState
from zmqps.errors import NonFiniteGradientError, listed


class Finiteness:
    """Refuses gradients with NaN or infinity."""

    def __init__(
        self,
        parameters: Sequence[Parameter],  # of the key space; their names are for errors
        all_finite: Callable[[Array], bool],  # whether an array holds neither NaN nor infinity
        counters: Counter[str],  # counts in ``nonfinite`` what was refused
        *,
        rejects: bool = True,  # whether anything must be refused
    ) -> None:
        self.rejects = rejects
        self._parameters = parameters
        self.all_finite = all_finite
        self._counters = counters

    def check(self, pieces: Sequence[tuple[SliceState, int, Array]], worker: str) -> None:
        """Raise `NonFiniteGradientError`, which names the worker and the parameters, unless all pieces are finite."""
        bad = [piece for piece in pieces if not self.all_finite(piece[2])]
        if bad:
            self._counters["nonfinite"] += 1
            names = list(dict.fromkeys(repr(name) for piece in bad for name in self._culprits(*piece)))
            raise NonFiniteGradientError(worker=worker, parameters=listed(names, 5))

    def _culprits(self, state: SliceState, start: int, gradient: Array) -> Iterator[str]:
        for segment in state.slice.segments:
            lo, hi = segment.position - start, segment.position + segment.size - start
            part = gradient[max(0, lo) : max(0, hi)]
            if not np.isfinite(part).all():
                yield self._parameters[segment.parameter].name
