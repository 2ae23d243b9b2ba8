"""Where the values of slices go while somebody reads them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.core.machines import job, make_shard, placement
from zmqps.core.protocol.arrays import Loan
from zmqps.core.server.shard import Shard


class Reading:
    """A message that the transport still writes."""

    done = False


class Lent(Loan):
    """Somebody looks at the values for as long as they like."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False

    @property
    def done(self) -> bool:
        return self.over


def new_shard() -> Shard:
    spec = job("w", size=16)
    shard = make_shard(spec, placement(spec), 0)
    shard.dense.load([(0, 0, ()), (1, 0, ())], [np.zeros(16, np.float32)])
    return shard


def pull(shard: Shard, reader: Any, number: int = 0) -> np.ndarray[Any, Any]:
    ((values,),), _, readers = shard.dense.pull([(number, 0, ())])
    readers[0].append(reader)
    return values


def push(shard: Shard, number: int = 0) -> None:
    shard.dense.push([(number, 0, ())], [-np.ones(8, np.float32)], "w")
    shard.validate()


def places(shard: Shard) -> list[int]:
    return [state.value.__array_interface__["data"][0] for state in shard.slices]


def test_slices_that_are_lent_go_back_and_forth_side_by_side() -> None:
    shard = new_shard()
    home = places(shard)
    for step in range(4):
        lent = [Lent(), Lent()]
        seen = [pull(shard, lent[i], i) for i in range(2)]
        for i in range(2):
            push(shard, i)
        assert [values[0] for values in seen] == [step, step]
        assert (places(shard) == home) == bool(step % 2)
        assert places(shard)[1] - places(shard)[0] == 32
        for one in lent:
            one.over = True
    assert shard.counters["spare_nbytes"] == 64
    assert shard.counters["spare_buffers"] == 0


def test_a_slice_stays_where_it_is_once_nobody_looks_at_it_any_more() -> None:
    shard, lent = new_shard(), Lent()
    pull(shard, lent)
    push(shard)
    lent.over = True
    push(shard)
    here = places(shard)
    for _ in range(3):
        push(shard)
        assert places(shard) == here


def test_with_both_places_lent_a_spare_is_used_once_and_left_as_soon_as_one_is_free() -> None:
    shard, first, second = new_shard(), Lent(), Lent()
    old = pull(shard, first)
    push(shard)
    newer = pull(shard, second)
    for _ in range(3):
        push(shard)
    assert (old[0], newer[0], shard.slices[0].value[0]) == (0, 1, 4)
    assert shard.counters["spare_buffers"] == 1
    first.over = True
    push(shard)
    assert shard.slices[0].value.__array_interface__["data"][0] == old.__array_interface__["data"][0]
    assert (newer[0], shard.slices[0].value[0]) == (1, 5)
    assert shard.counters["spare_nbytes"] == 64 + 32


def test_what_only_the_transport_reads_takes_no_second_arena() -> None:
    shard, reading = new_shard(), Reading()
    values = pull(shard, reading)
    push(shard)
    assert values[0] == 0
    reading.done = True
    push(shard)
    assert shard.slices[0].value[0] == 2
    assert shard.counters["spare_nbytes"] == 32


def test_a_push_of_a_part_keeps_the_rest_in_every_place() -> None:
    spec = job("a", "b", size=4)
    shard = make_shard(spec, placement(spec), 0)
    shard.dense.load([(0, 0, ())], [np.zeros(8, np.float32)])
    lent = [Lent() for _ in range(3)]
    for step in range(3):
        pull(shard, lent[step])
        shard.dense.push([(0, 0, (0, 4))], [-np.ones(4, np.float32)], "w")
    assert shard.slices[0].value.tolist() == [3, 3, 3, 3, 0, 0, 0, 0]
