"""The life of rows: which are admitted, which expire, which make way; with a clock that is made up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tables import for_each
from zmqps import optim
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import TableSpec
from zmqps.core.server.tables.rows import make_rows
from zmqps.core.server.tables.table import RowTable
from zmqps.errors import NonFiniteGradientError, TableFullError
from zmqps.optim.rows import kernel_of_table
from zmqps.rows.initial import Initial

Array = np.ndarray[Any, np.dtype[Any]]

DIM = 2


def table(more: Any = lambda nbytes: True, **options: Any) -> RowTable:
    """Return a table with plain gradient descent, whose rows begin with ones."""
    options = {"optimizer": optim.sgd(1.0).to_wire(), **options}
    spec = TableSpec(name="items", dim=DIM, initial=Initial("constant", 1.0).to_wire(), **options)
    job = JobSpec(parameters=(), optimizer=optim.sgd(1.0).to_wire(), mode="async", tables=(spec,))
    placement = Placement.balance(KeySpace.of(job), 1, 4096)
    kernel = lambda one: kernel_of_table(one.optimizer, one.name, one.dim)  # noqa: E731
    return make_rows(job, placement, 0, kernel, available_nbytes=1 << 20, more=more).tables[0]


def ids(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def touch(of: RowTable, *numbers: int, by: float = 1.0) -> None:
    """Push a gradient of ``by`` for each of some ids."""
    of.update(ids(*numbers), np.full((len(numbers), DIM), by, np.float32))
    of.validate()


def values(of: RowTable, *numbers: int) -> list[float]:
    """Return the first element of the rows of some ids."""
    return of.read(ids(*numbers))[:, 0].tolist()  # type: ignore[no-any-return]


def pass_time(of: RowTable, begin: float, end: float) -> None:
    for now in np.arange(begin, end, 0.1):
        of.tick(now)


def test_only_rows_that_are_named_change_and_reading_makes_none() -> None:
    items = table()
    assert values(items, 7, -7) == [1.0, 1.0]
    assert len(items) == 0
    touch(items, 7, 1 << 62)
    touch(items, 7)
    assert values(items, 7, 1 << 62, 8) == [-1.0, 0.0, 1.0]
    assert (len(items), items.steps, items.counters["new"]) == (2, 2, 2)


def test_a_row_is_admitted_with_its_third_touch() -> None:
    items = table(admit=3)
    touch(items, 1, 2)
    touch(items, 1)
    assert (len(items), values(items, 1, 2), items.counters["waiting"]) == (0, [1.0, 1.0], 3)
    touch(items, 1)
    assert (len(items), values(items, 1, 2)) == (1, [0.0, 1.0])
    touch(items, 1, 2)
    assert values(items, 1, 2) == [-1.0, 1.0]


def test_a_row_without_a_push_for_some_updates_is_as_if_it_had_never_been() -> None:
    items = table(expire_steps=3)
    touch(items, 1)
    touch(items, 2)
    touch(items, 2)
    assert values(items, 1) == [0.0]
    touch(items, 2)
    assert values(items, 1, 2) == [1.0, -2.0]
    touch(items, 1)  # it begins again
    assert values(items, 1) == [0.0]
    touch(items, 3)
    assert len(items) == 3
    for _ in range(4):
        touch(items, 3)
    assert len(items) == 1  # what has expired is freed
    assert items.counters["expired"] == 3


def test_a_row_without_a_push_for_some_seconds_is_as_if_it_had_never_been() -> None:
    items = table(expire_s=10.0)
    items.tick(100.0)
    touch(items, 1)
    items.tick(105.0)
    touch(items, 2)
    items.tick(109.0)
    assert values(items, 1, 2) == [0.0, 0.0]
    pass_time(items, 110.0, 114.9)
    assert values(items, 1, 2) == [1.0, 0.0]
    pass_time(items, 115.0, 115.3)
    assert values(items, 1, 2) == [1.0, 1.0]
    touch(items, 2)
    assert values(items, 2) == [0.0]


def follow(of: RowTable, *numbers: int) -> None:
    """Push as another message of the update before."""
    of.update(ids(*numbers), np.ones((len(numbers), DIM), np.float32), begins=False)
    of.validate()


def test_a_row_does_not_expire_by_two_messages_of_one_update() -> None:
    items = table(expire_steps=3)
    touch(items, 1)
    follow(items, 1)  # of another push, which has begun before
    assert values(items, 1) == [-1.0]
    touch(items, 2)
    follow(items, 1, 2)
    assert values(items, 1, 2) == [-2.0, -1.0]
    assert items.counters["expired"] == 0


def test_a_row_has_missed_nothing_between_two_messages_of_one_update() -> None:
    lazy: dict[str, Any] = {"lazy_decay": True, "optimizer": optim.adamw(0.1, weight_decay=0.5).to_wire()}
    items, apart = table(**lazy), table(**lazy)
    touch(items, 1, by=0.0)
    touch(items, 2)
    follow(items, 2)  # of another push, which has begun before
    touch(apart, 1, by=0.0)
    touch(apart, 2)
    touch(apart, 2)
    assert values(items, 1, 2) == values(apart, 1, 2)


def test_what_comes_late_with_an_update_has_its_seconds() -> None:
    items = table(expire_s=10.0)
    items.tick(100.0)
    touch(items, 1)
    items.tick(101.0)
    items.tick(109.0)
    follow(items, 2)  # a message of the same push that was on its way for long
    items.tick(118.9)
    assert values(items, 2) == [0.0]
    pass_time(items, 118.9, 130.0)
    assert values(items, 1, 2) == [1.0, 1.0]
    follow(items, 2)
    assert values(items, 1, 2) == [1.0, 0.0]


@for_each("idle_s", [5.0, 11.0])
def test_rows_that_are_set_have_their_seconds(idle_s: float) -> None:
    items = table(expire_s=10.0)
    items.tick(100.0)
    now = 100.0 + idle_s
    items.tick(now)  # nobody has pushed anything
    items.put(ids(1), np.full((1, DIM), 7.0, np.float32))
    pass_time(items, now, now + 9.9)
    assert values(items, 1) == [7.0]
    pass_time(items, now + 9.9, now + 11.0)
    assert values(items, 1) == [1.0]


def test_a_full_table_refuses_new_rows_and_trains_those_that_are_there() -> None:
    items = table(capacity_nbytes=10_000)
    most = items.room.limit
    touch(items, *range(most))
    with pytest.raises(TableFullError, match=r"'items' has no room for 2 new rows"):
        touch(items, 0, most, most + 1)
    assert values(items, 0, most) == [0.0, 1.0]
    assert items.counters["refused"] == 2
    touch(items, 0)
    assert values(items, 0) == [-1.0]
    with pytest.raises(TableFullError):
        items.reserve(ids(most), 0)
    assert items.reserve(ids(0, 1), 0) == 0


def test_nothing_makes_way_for_rows_that_never_fit() -> None:
    items = table(capacity_nbytes=4_000, when_full="evict")
    touch(items, 1, 2, 3)
    with pytest.raises(TableFullError):
        touch(items, *range(10, 11 + items.room.limit))
    assert values(items, 1, 2, 3) == [0.0, 0.0, 0.0]
    assert items.counters["evicted"] == 0
    items.validate()


def test_rows_that_were_changed_least_recently_make_way() -> None:
    items = table(capacity_nbytes=4_000, when_full="evict")
    most, gone = items.room.limit, list[int]()
    items.watchers.removed.append(lambda some: gone.extend(some.tolist()))
    touch(items, *range(most))
    for number in range(most // 2):
        touch(items, number)
    touch(items, *range(most, most + 10))
    assert len(items) == most
    assert len(gone) == items.counters["evicted"] == 10
    assert all(number >= most // 2 for number in gone)
    with pytest.raises(TableFullError):
        touch(items, *range(most + 1))


def test_memory_is_asked_for_in_pieces_where_there_is_no_capacity() -> None:
    asked, left = list[int](), [True]

    def more(nbytes: int) -> bool:
        asked.append(nbytes)
        return left[0]

    items = table(more)
    touch(items, *range(1000))
    assert len(asked) == 1
    assert items.room.granted_nbytes == asked[0] >= items.store.nbytes
    left[0] = False
    poor = table(more)
    with pytest.raises(TableFullError):
        touch(poor, 1)
    assert len(poor) == 0


def test_what_was_promised_is_kept_although_the_index_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.core.server.tables.room.GRANT_NBYTES", 1)
    granting = [True]
    items = table(lambda nbytes: granting[0])
    touch(items, *range(505))
    assert items.reserve(ids(*range(505, 516)), 0) == 11
    granting[0] = False  # now nobody has any memory to give
    before = items.store.nbytes
    items.update(ids(*range(505, 515)), np.ones((10, DIM), np.float32), promised=True)
    assert items.store.nbytes > before + 10 * items.store.row_nbytes  # there is a larger index
    with pytest.raises(TableFullError):
        items.put(ids(515), np.ones((1, DIM), np.float32))
    items.put(ids(515), np.ones((1, DIM), np.float32), promised=True)
    assert len(items) == 516


def test_gradients_that_are_not_finite_are_named() -> None:
    items = table()
    grads = np.array([[1.0, 2.0], [np.inf, 0.0], [0.0, np.nan]], np.float32)
    with pytest.raises(NonFiniteGradientError, match=r"'items\[-9\]', 'items\[17\]' pushed by worker 3"):
        items.check_finite(ids(1, -9, 17), grads, "worker 3")
    assert items.counters["nonfinite"] == 1


def test_rows_are_set_past_the_rule() -> None:
    items = table(expire_steps=100)
    touch(items, 1)
    items.put(ids(1, 5), np.array([[3.0, 3.0], [4.0, 4.0]], np.float32))
    assert values(items, 1, 5) == [3.0, 4.0]
    touch(items, 1)
    assert values(items, 1) == [2.0]


def test_rows_expire_by_seconds_also_while_nobody_asks_for_anything() -> None:
    items = table(expire_s=1.0)
    items.tick(10.0)
    touch(items, 5)
    assert values(items, 5) == [0.0]
    assert items.tick(18.0), "the first thing that happens since"
    assert values(items, 5) == [1.0]
    touch(items, 5)
    assert values(items, 5) == [0.0], "it has begun anew"
    items.tick(18.9)
    assert values(items, 5) == [0.0]
    assert items.tick(19.1)
    assert values(items, 5) == [1.0]
