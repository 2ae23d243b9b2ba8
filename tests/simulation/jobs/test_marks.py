"""What the simulator expects of rows that make way: those that have gone stay away, those that have yet to come may."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from tests.simulator.jobs.marks import CAPACITY_ROWS, MarkedRows
from tests.simulator.jobs.tables import IDS
from zmqps.core.server.tables.room import RowRoom
from zmqps.core.server.tables.table import RowTable

LIFE = (b"c" * 16, 0)
WORKERS, ROW, WHO, MARK = 3, 0, 2, 256


class Full:
    """A table that has no room for another row."""

    def __init__(self, rows: MarkedRows) -> None:
        self.spec = rows.specs[0]
        self.room = RowRoom(CAPACITY_ROWS, lambda nbytes: True)

    def __len__(self) -> int:
        return CAPACITY_ROWS


class Looks:
    """Looks at a table of one shard, again and again, as if after each event."""

    def __init__(self) -> None:
        self.rows = MarkedRows(WORKERS, ["evicts"])
        self._seen = self.none()

    @staticmethod
    def none() -> Any:
        return np.zeros((IDS.size, WORKERS), np.int64)

    def one(self) -> Any:
        marks = self.none()
        marks[ROW, WHO] = MARK
        return marks

    def attempted(self) -> None:
        self.rows._attempted[LIFE][0, ROW, WHO] |= MARK

    def acknowledged(self) -> None:
        self.rows._applied[LIFE][0, ROW, WHO] |= MARK

    def see(self, marks: Any, *, is_new: bool = False) -> None:
        gone, self._seen = self._seen & ~marks, marks
        everywhere = np.ones(IDS.size, bool)
        table = cast(RowTable, Full(self.rows))
        self.rows._leave(LIFE, 0, table, everywhere, marks, gone, is_new=is_new)

    @property
    def is_due(self) -> bool:
        return bool(self.rows._due(LIFE, 0).any())


def test_a_push_that_was_under_way_when_shards_were_cut_anew_may_come_to_a_full_table() -> None:
    looks = Looks()
    looks.attempted()
    looks.see(looks.none(), is_new=True)
    looks.see(looks.one())
    assert not looks.is_due  # nobody was told
    looks.acknowledged()
    assert looks.is_due


def test_a_push_that_was_under_way_need_not_come_where_its_row_had_made_way() -> None:
    looks = Looks()
    looks.attempted()
    looks.see(looks.none(), is_new=True)
    looks.acknowledged()
    assert not looks.is_due


def test_what_was_acknowledged_and_found_no_room_does_not_come_back() -> None:
    looks = Looks()
    looks.attempted()
    looks.acknowledged()
    looks.see(looks.none(), is_new=True)
    with pytest.raises(AssertionError, match="have come back"):
        looks.see(looks.one())


def test_what_has_come_and_made_way_does_not_come_back() -> None:
    looks = Looks()
    looks.attempted()
    looks.see(looks.none(), is_new=True)
    looks.see(looks.one())
    looks.see(looks.none())
    with pytest.raises(AssertionError, match="have come back"):
        looks.see(looks.one())
