"""What of tables has changed since a save: see also tests/core/server/tables/test_row_snapshot.py."""

from __future__ import annotations

from tests.core.server.tables.test_table import ids, table, touch
from zmqps.core.server.tables.row_changes import RowChanges


def test_ids_that_have_made_way_are_told_once_and_in_order() -> None:
    items, changes = table(capacity_nbytes=None), RowChanges()
    changes.note(1, 1, 0, [items])
    for gone in (ids(9, 4), ids(4, -1)):
        for told in items.removed:
            told(gone)
    [(steps, found)] = changes.since(1, 1, [items])
    assert (steps, found.tolist()) == (0, [-1, 4, 9])


def test_two_saves_are_remembered_the_base_and_the_next() -> None:
    items, changes = table(), RowChanges()
    for number, base in ((1, 0), (2, 1), (3, 1), (4, 3)):
        touch(items, number)
        changes.note(1, number, base, [items])
        changes.validate()
        assert len(items.removed) == 1 + (base > 0)
    assert changes.since(1, 3, [items])[0][0] == 3  # type: ignore[index]
    assert changes.since(1, 1, [items]) == [None]
    changes.drop(1)
    assert items.removed == []
