"""How often ids were touched."""

import numpy as np
import pytest

from zmqps.errors import ProtocolError
from zmqps.rows.hashing import Sketch


def test_touches_are_never_counted_too_low_and_seldom_too_high():
    sketch, rng = Sketch(1 << 14), np.random.default_rng(0)
    truth: dict[int, int] = {}
    wrong = 0
    for _ in range(60):
        ids = np.unique(rng.integers(0, 4000, 200))
        for number, seen in zip(ids.tolist(), sketch.touch(ids).tolist(), strict=True):
            truth[number] = truth.get(number, 0) + 1
            assert seen >= truth[number]
            wrong += seen > truth[number]
    assert wrong < 0.02 * sum(truth.values())


def test_counters_stop_at_255():
    sketch = Sketch(16)
    ids = np.array([3])
    for _ in range(300):
        last = sketch.touch(ids)
    assert last.tolist() == [255]


def test_two_are_merged():
    one, other = Sketch(64), Sketch(64)
    ids = np.array([1, 2])
    for _ in range(3):
        other.touch(ids)
    one.touch(ids)
    one.merge(other.array)
    assert one.touch(ids).tolist() == [4, 4]
    with pytest.raises(ProtocolError, match="merged"):
        one.merge(Sketch(32).array)
