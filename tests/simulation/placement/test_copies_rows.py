"""The simulator sees what is wrong with copies of rows: how backups are told, filled, and cut; broken on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.simulation.test_invariants import caught, wrap
from zmqps.core.server.replicas import follower
from zmqps.core.server.replicas.stream import Stream
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables import row_records
from zmqps.core.server.tables.row_records import RowNews
from zmqps.core.server.tables.rows import Rows
from zmqps.core.server.tables.table import RowTable
from zmqps.rows.store import RowStore

pytestmark = pytest.mark.repeats

Patch = pytest.MonkeyPatch
NOTHING = np.empty(0, np.int64)


def test_a_leader_that_tells_its_backups_nothing_of_rows(monkeypatch: Patch) -> None:
    monkeypatch.setattr(RowNews, "tell", lambda self: iter(()))
    monkeypatch.setattr(RowNews, "is_empty", True)
    monkeypatch.setattr(RowNews, "note", lambda self, *pushed: None)
    caught("async-rows-replicas", "may not know soon")


def test_a_step_that_ends_before_backups_are_told_of_its_rows(monkeypatch: Patch) -> None:
    def late(original: Any, self: Stream, shard: Shard) -> None:
        self._tell, kept = lambda: None, self._tell  # type: ignore[method-assign]
        original(self, shard)
        self._tell = kept  # type: ignore[method-assign]

    wrap(monkeypatch, Stream, "end_step", late)
    monkeypatch.setattr(Stream, "has_untold", False)
    caught("sync-rows-replicas", "lacks rows")


def test_a_record_that_says_nothing_of_rows_that_have_gone(monkeypatch: Patch) -> None:
    original = row_records.rows_now

    def without(table: RowTable, rows: Any, gone: Any = (), *others: Any, **options: Any) -> Any:
        return original(table, rows, np.empty(0, np.int64), *others, **options)

    monkeypatch.setattr(row_records, "rows_now", without)
    caught("async-rows-limits-replicas", "has other rows")


def test_a_record_without_the_number_of_the_tables_updates(monkeypatch: Patch) -> None:
    wrap(
        monkeypatch, RowTable, "follow", lambda original, self, kept, gone, version, steps, before: original(
            self, kept, gone, version, self.steps, before
        ),
    )  # fmt: skip
    caught("async-rows-replicas", "has other rows")


def test_a_backup_that_forgets_whose_push_has_changed_rows(monkeypatch: Patch) -> None:
    original = row_records.rows_now
    monkeypatch.setattr(
        row_records,
        "rows_now",
        lambda table, rows, gone=NOTHING, pushed=None, **more: original(table, rows, gone, **more),
    )
    caught("async-rows-replicas", "may not know soon")


def test_a_backup_that_is_filled_with_half_of_the_rows(monkeypatch: Patch) -> None:
    original = follower.filling
    monkeypatch.setattr(follower, "filling", lambda table, *where: original(_Half(table), *where))  # type: ignore[arg-type]
    caught("async-rows-alone-replicas", "has other rows")


class _Half:
    """A table of which only every other row shows."""

    def __init__(self, table: RowTable) -> None:
        self.slice, self.version, self.steps, self.kept = table.slice, table.version, table.steps, table.kept
        self.expired_before, self.store = table.expired_before, _HalfStore(table.store)


class _HalfStore:
    def __init__(self, store: Any) -> None:
        self.end, self.row_nbytes, self.live = store.end, store.row_nbytes, store.live.copy()
        self.live[1::2] = 0


def test_a_server_that_gives_up_its_place_with_gradients_of_rows(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Rows, "stage_nbytes", 0)
    caught("sync-rows-drains", "lacks rows of it", begin=8)


def test_a_cut_that_leaves_rows_behind(monkeypatch: Patch) -> None:
    def lazy(original: Any, table: RowTable, over: Any) -> None:
        original(table, over)
        rows = np.flatnonzero(table.store.live[: table.store.end])
        table.remove(table.store.ids[rows[:1]].copy())

    wrap(monkeypatch, RowTable, "refill", lazy)
    caught("async-rows-scales", "an acknowledged push of rows")


def test_a_cut_that_takes_the_rows_of_other_buckets(monkeypatch: Patch) -> None:
    def all_of_them(original: Any, self: Any, lo: int, hi: int, *others: Any) -> Any:
        return original(self, 0, 1 << 10, *others)

    wrap(monkeypatch, RowStore, "in_buckets", all_of_them)
    caught("async-rows-scales", "which is not theirs")
