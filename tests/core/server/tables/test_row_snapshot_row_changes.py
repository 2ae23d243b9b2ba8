"""What of tables has changed since a save: see also tests/core/server/tables/test_row_snapshot.py."""

from __future__ import annotations

from collections.abc import Sequence

from tests.core.server.tables.test_table import ids, table, touch
from zmqps.core.protocol.arrays import Array
from zmqps.core.server.tables.row_snapshot import Marks, RowMarks
from zmqps.core.server.tables.table import RowTable


class RowChanges:
    """The marks of shards that have only tables."""

    def __init__(self) -> None:
        self.marks = Marks()
        self.drop, self.validate = self.marks.drop, self.marks.validate

    def note(self, epoch: int, number: int, base: int, tables: Sequence[RowTable]) -> None:
        self.marks.note(epoch, number, base, RowMarks(tables))

    def since(self, epoch: int, base: int, tables: Sequence[RowTable]) -> list[tuple[int, Array] | None]:
        marks = self.marks.base(epoch, base)
        return [None] * len(tables) if marks is None else marks.since(tables)


def test_ids_that_have_made_way_are_told_once_and_in_order() -> None:
    items, changes = table(capacity_nbytes=None), RowChanges()
    changes.note(1, 1, 0, [items])
    for gone in (ids(9, 4), ids(4, -1)):
        for told in items.watchers.removed:
            told(gone)
    [(steps, found)] = changes.since(1, 1, [items])
    assert (steps, found.tolist()) == (0, [-1, 4, 9])


def test_two_saves_are_remembered_the_base_and_the_next() -> None:
    items, changes = table(), RowChanges()
    for number, base in ((1, 0), (2, 1), (3, 1), (4, 3)):
        touch(items, number)
        changes.note(1, number, base, [items])
        changes.validate()
        assert len(items.watchers.removed) == 1 + (base > 0)
    assert changes.since(1, 3, [items])[0][0] == 3  # type: ignore[index]
    assert changes.since(1, 1, [items]) == [None]
    changes.drop(1)
    assert items.watchers.removed == []
