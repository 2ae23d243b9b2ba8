"""A snapshot of a table has its rows as they were when it was taken, whatever happens to them meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.server.tables.test_row_snapshot_row_changes import RowChanges
from tests.core.server.tables.test_table import DIM, ids, table, touch
from tests.tables import for_each
from zmqps.core.server.tables.row_snapshot import RowSnapshot, RowSnapshots
from zmqps.core.server.tables.table import RowTable
from zmqps.rows.kept import joined, rebased

#: Bytes of so many rows come at a time.
FEW = 4 * (4 * DIM + 13)

NUMBERS = st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True)
CHANGES = st.tuples(st.sampled_from(["push", "put", "remove", "next"]), NUMBERS)


def rows_of(of: RowTable) -> dict[int, tuple[Any, ...]]:
    """Return all that a table keeps of each row, by id."""
    return by_id(of.kept(np.flatnonzero(of.store.live[: of.store.end])))


def by_id(kept: Any) -> dict[int, tuple[Any, ...]]:
    found = zip(kept.ids.tolist(), kept.values.tolist(), kept.stamps.tolist(), strict=True)
    rows = {number: (tuple(values), stamp) for number, values, stamp in found}
    assert len(rows) == kept.ids.size, "a row comes twice"
    return rows


def change(of: RowTable, what: str, numbers: list[int]) -> None:
    if what == "push":
        touch(of, *numbers, by=1.0 + numbers[0])
    elif what == "put":
        of.put(ids(*numbers), np.full((len(numbers), DIM), 100.0 + numbers[0], np.float32))
    elif what == "remove":
        gone = ids(*numbers)
        for told in of.watchers.removed:
            told(gone)
        of.remove(gone)


@given(st.lists(CHANGES, max_size=12), st.lists(CHANGES, max_size=25))
def test_rows_are_as_they_were_when_it_was_taken(before: Any, after: Any) -> None:
    items = table(capacity_nbytes=1 << 16)
    for what, numbers in before:
        change(items, what, numbers)
    then = rows_of(items)
    snapshot = RowSnapshot(items)
    pieces = []
    for what, numbers in after:
        if what == "next":
            pieces.append(snapshot.next(FEW))
        else:
            change(items, what, numbers)
        snapshot.validate()
    while pieces[-1:] != [None]:
        pieces.append(snapshot.next(FEW))
    found = [piece for piece in pieces if piece is not None]
    assert (by_id(joined(found)) if found else {}) == then
    assert items.watchers.changing == []
    assert snapshot.nbytes == 0


@given(st.lists(CHANGES, max_size=12), st.lists(CHANGES, max_size=12), st.lists(CHANGES, max_size=12))
def test_what_has_changed_since_a_save_makes_the_next_one_of_it(first: Any, second: Any, third: Any) -> None:
    items = table(capacity_nbytes=1 << 16)
    changes = RowChanges()
    saved: dict[int, Any] = {}
    for number, some in enumerate((first, second, third), start=1):
        for what, numbers in some:
            change(items, what, numbers)
        since = changes.since(7, number - 1, [items])
        assert (since == [None]) == (number == 1)
        snapshots = RowSnapshots([items], since, first=10)
        changes.note(7, number, number - 1, [items])
        changes.validate()
        later: dict[int, Any] = {}
        while (piece := snapshots.next()) is not None:
            assert piece.number >= 10
            assert piece.table == "items"
            for gone in piece.gone.tolist():
                saved.pop(gone, None)
            later |= by_id(piece.kept)
            snapshots.done(piece.number)
        saved = later if snapshots.state["tables"]["items"]["whole"] else saved | later
        assert saved == rows_of(items)
        assert snapshots.nbytes == 0
    changes.drop(7)
    assert items.watchers.removed == []


def test_only_rows_that_have_changed_are_written_again() -> None:
    items = table()
    touch(items, *range(50))
    changes = RowChanges()
    changes.note(1, 1, 0, [items])
    touch(items, 3, 99)
    [(steps, gone)] = changes.since(1, 1, [items])
    assert steps == 1
    assert gone.size == 0
    touch(items, 4)
    kept = RowSnapshot(items, steps + 1).next()
    assert kept is not None
    assert sorted(kept.ids.tolist()) == [3, 4, 99]


def test_of_a_save_that_is_not_known_or_of_another_life_all_is_written() -> None:
    items, changes = table(), RowChanges()
    changes.note(1, 1, 0, [items])
    assert changes.since(1, 2, [items]) == [None]
    assert changes.since(2, 1, [items]) == [None]
    assert changes.since(1, 1, [table()]) == [None]
    changes.note(1, 2, 0, [items])
    assert changes.since(1, 1, [items]) == [None]
    assert changes.since(1, 2, [items]) != [None]


def test_where_too_much_has_gone_all_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.core.server.tables.row_snapshot.MAX_GONE", 3)
    items, changes = table(), RowChanges()
    touch(items, *range(9))
    changes.note(1, 1, 0, [items])
    change(items, "remove", [1, 2, 3])
    assert changes.since(1, 1, [items]) != [None]
    change(items, "remove", [4])
    assert changes.since(1, 1, [items]) == [None]


@for_each("when", ["while it is trained", "in a turn"])
def test_without_memory_a_snapshot_is_given_up_and_training_goes_on(when: str) -> None:
    items = table()
    touch(items, 1, 2)
    snapshots = RowSnapshots([items])

    def fails(rows: Any) -> Any:
        raise MemoryError("no room")

    items.kept = fails  # type: ignore[method-assign]
    if when == "in a turn":
        with pytest.raises(MemoryError, match="no room"):
            snapshots.next()
    touch(items, 2)
    assert str(snapshots.failed) == "no room"
    assert snapshots.next() is None
    assert items.watchers.changing == []


def test_stamps_elsewhere_keep_the_age_of_rows() -> None:
    stamps = np.array([5, 7, (1 << 32) - 1], np.uint32)
    assert rebased(stamps, 20, 7).tolist() == [18, 20, 12]
    assert rebased(stamps, 2, 7).tolist() == [0, 2, (1 << 32) - 6]
