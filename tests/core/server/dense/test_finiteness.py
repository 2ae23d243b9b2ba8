"""A gradient that is not finite is refused with the parameters that it is of; shards ask it in test_shard.py."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.core.machines import job, make_shard, placement
from tests.tables import for_each
from zmqps.core.server.dense.finiteness import Finiteness
from zmqps.errors import NonFiniteGradientError

SPEC = job("a", "b", "c", size=4)


@for_each("bad, names", [((1,), "'a'"), ((1, 2), "'a'"), ((3, 4), "'a', 'b'"), ((11,), "'c'")])
def test_it_names_the_parameters_each_once_and_counts(bad: tuple[int, ...], names: str) -> None:
    shard = make_shard(SPEC, placement(SPEC, slice_nbytes=1 << 10), 0)
    counters: Counter[str] = Counter()
    finiteness = Finiteness(SPEC.parameters, lambda g: bool(np.isfinite(g).all()), counters)
    (state,) = shard.slices
    gradient = np.ones(12, np.float32)
    finiteness.check([(state, 0, gradient)], "w")
    assert not counters
    gradient[list(bad)] = np.nan
    pieces = [(state, start, gradient[start : start + 6]) for start in (0, 6)]
    with pytest.raises(NonFiniteGradientError) as caught:
        finiteness.check(pieces, "w")
    assert caught.value.worker == "w"
    assert caught.value.parameters == names
    assert counters == {"nonfinite": 1}
