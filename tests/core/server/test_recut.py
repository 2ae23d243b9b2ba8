"""A shard that is filled with what others have of it: values, slots, counts, versions, and older versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.recut import parents, pieces_of
from zmqps.core.job.spec import Parameter
from zmqps.core.server.recut import cut, fill
from zmqps.core.server.shard import Shard
from zmqps.errors import ProtocolError
from zmqps.optim import adam
from zmqps.testing.training import ReferenceRules

KEYSPACE = KeySpace([Parameter("w", (700, 60), "float32"), Parameter("b", (5,), "float32")])


def shards(placement: Placement, **options: bool) -> list[Shard]:
    spec = adam(learning_rate=0.1)
    return [Shard(placement, index, ReferenceRules(spec), **options) for index in range(placement.num_shards)]


def numbered(placement: Placement, **options: bool) -> list[Shard]:
    """Return shards in which each element is its own number, and a slot the same, negated."""
    made = shards(placement, **options)
    for shard in made:
        for state in shard.slices:
            state.value[:] = np.arange(state.slice.start, state.slice.stop)
            for slot in state.slots:
                slot[:] = -state.value
            state.version, state.steps[:] = 4, 3
        shard.begin_at(4)
        shard.filled()
    return made


@given(st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=16, deadline=None)
def test_shards_go_to_pieces_and_together_again_with_all_they_have(few: int, many: int) -> None:
    before, after = (Placement.balance(KEYSPACE, number, 1 << 14) for number in (few, many))
    there, placement = numbered(before), before
    for following in (pieces_of(before, after), after):
        made = shards(following)
        for shard in made:
            fill(shard, [there[number] for number in parents(placement, following, shard.index)])
            assert shard.loaded
            shard.validate()
            for state in shard.slices:
                numbers = np.arange(state.slice.start, state.slice.stop)
                assert (state.value == numbers).all()
                assert all((slot == -numbers).all() for slot in state.slots)
                assert state.version == 4
                assert (state.steps == 3).all()
        there, placement = made, following


def test_a_primary_that_may_change_yet_is_no_source() -> None:
    placement = Placement.balance(KEYSPACE, 1, 1 << 14)
    (whole,), (parent,) = shards(placement), numbered(placement)
    there = SimpleNamespace(backup=None, yielding=False, assign=SimpleNamespace(shard=0), ready=lambda: parent)
    copy: Any = SimpleNamespace(built=lambda: whole)
    with pytest.raises(ProtocolError, match="has not yielded"):
        cut(copy, [cast("Any", there)], 4)
    there.yielding = True
    cut(copy, [cast("Any", there)], 4)
    assert whole.loaded


def test_what_is_missing_is_said() -> None:
    one, two = Placement.balance(KEYSPACE, 1, 1 << 14), Placement.balance(KEYSPACE, 2, 1 << 14)
    (whole,) = shards(one)
    with pytest.raises(ProtocolError, match="elements are wanted"):
        fill(whole, numbered(two)[:1])


def test_shards_of_different_steps_are_not_put_together() -> None:
    one, two = Placement.balance(KEYSPACE, 1, 1 << 14), Placement.balance(KEYSPACE, 2, 1 << 14)
    (whole,) = shards(one, synchronous=True)
    there = numbered(two, synchronous=True)
    there[1].begin_at(5)
    with pytest.raises(ProtocolError, match="of versions"):
        fill(whole, there)


def test_a_shard_without_a_slice_is_at_the_step_of_the_others() -> None:
    small = KeySpace([Parameter("b", (5,), "float32")])
    placement = Placement.balance(small, 2, 1 << 14)
    (empty,) = [shard for shard in shards(placement, synchronous=True) if not shard.slices]
    empty.follow()
    assert not empty.loaded, "it is yet to be told which that is"
    cut(cast("Any", SimpleNamespace(built=lambda: empty)), [], 4)
    assert empty.loaded
    assert empty.version == 4
