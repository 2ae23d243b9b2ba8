"""The simulator sees rows that are lost, counted twice, or not what they must be: machines are broken on purpose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.simulation.test_invariants import Patch, caught, wrap
from zmqps.core.server.dense.part import DensePart
from zmqps.core.server.tables import rows as server_rows
from zmqps.core.server.tables.row_snapshot import RowSnapshot, _Mark
from zmqps.core.server.tables.rows import Rows
from zmqps.core.server.tables.table import RowTable
from zmqps.core.worker.rows import RowParts, RowTarget
from zmqps.errors import TableFullError
from zmqps.rows.hashing import Sketch
from zmqps.rows.store import RowStore

pytestmark = pytest.mark.repeats

REFERENCE = "of the sequential reference"


# --- once, and on the right server ---------------------------------------------------------------


def test_a_ledger_that_forgets_pushes_of_rows(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Rows, "push", lambda original, rows, message, worker, note: original(rows, message, worker))
    caught("async-rows-twisted", "was applied twice")


def test_a_server_that_acknowledges_rows_it_had_no_memory_for(monkeypatch: Patch) -> None:
    def push(original: Any, rows: Rows, message: Any, worker: str, note: Any) -> Any:
        try:
            return original(rows, message, worker, note)
        except MemoryError:
            note(((1,), (0,)))
            return (1,), (0,)

    wrap(monkeypatch, Rows, "push", push)
    caught("async-rows-memory", "an acknowledged push of rows")


def test_a_worker_that_sends_rows_to_the_next_server(monkeypatch: Patch) -> None:
    def part_of_bucket(original: Any, parts: RowParts, num_rows: int) -> Any:
        of_bucket, slices = original(parts, num_rows)
        return np.roll(of_bucket, 40), slices

    wrap(monkeypatch, RowParts, "part_of_bucket", part_of_bucket)
    caught("async-rows-twisted", "which is not theirs")


def test_a_worker_that_takes_the_rows_of_one_message_for_those_of_another(monkeypatch: Patch) -> None:
    def land(original: Any, target: RowTarget, cargoes: Any, *rest: Any) -> None:
        [cargo] = cargoes
        original(target, [replace(cargo, wanted_first=0)], *rest)

    wrap(monkeypatch, RowTarget, "land", land)
    caught("async-rows-twisted", "what worker-")


def test_a_server_that_reads_the_row_beside(monkeypatch: Patch) -> None:
    wrap(monkeypatch, RowTable, "read", lambda original, table, ids: original(table, np.roll(ids, 1)))
    caught("async-rows-twisted", "gradients that no worker pushed")


def test_a_scan_that_leaves_out_a_row(monkeypatch: Patch) -> None:
    def is_there(original: Any, table: RowTable, rows: Any) -> Any:
        found = original(table, rows)
        return found & (np.arange(found.size) > 0)

    wrap(monkeypatch, RowTable, "is_there", is_there)
    caught("async-rows-twisted", "a scan does not find rows")


def test_a_push_that_changes_rows_which_it_does_not_name(monkeypatch: Patch) -> None:
    def update(original: Any, table: RowTable, ids: Any, grads: Any, **options: Any) -> None:
        original(table, ids, grads, **options)
        table.store.values[0] = table.store.values[table.store.end - 1]

    wrap(monkeypatch, RowTable, "update", update)
    caught("async-rows-twisted", "of plain")


# --- steps ---------------------------------------------------------------------------------------


def test_a_commit_that_leaves_out_a_table(monkeypatch: Patch) -> None:
    def update(original: Any, table: RowTable, *rest: Any, **options: Any) -> None:
        if table.spec.name != "users" or table.version != 2:
            original(table, *rest, **options)

    wrap(monkeypatch, RowTable, "update", update)
    caught("sync-rows-twisted", REFERENCE)


def test_a_shard_that_commits_rows_of_other_contributors(monkeypatch: Patch) -> None:
    def commit(original: Any, rows: Rows, step: int, contributors: Any, *rest: Any, **flags: Any) -> None:
        original(rows, step, contributors[:-1] if step == 2 else contributors, *rest, **flags)

    wrap(monkeypatch, Rows, "commit", commit)
    caught("sync-rows-twisted", REFERENCE)


def test_a_mean_over_those_alone_who_have_named_rows_of_a_shard(monkeypatch: Patch) -> None:
    original = server_rows.merged
    monkeypatch.setattr(server_rows, "merged", lambda parts, total, *rest: original(parts, len(parts), *rest))
    caught("sync-rows-twisted", REFERENCE)


def test_a_commit_of_rows_that_begins_anew_when_it_is_repeated(monkeypatch: Patch) -> None:
    def commit(original: Any, rows: Rows, step: int, contributors: Any, *rest: Any, **flags: Any) -> None:
        try:
            original(rows, step, contributors, *rest, **flags)
        except MemoryError:
            for table in rows.tables:
                table.version = step
            rows._updated.clear()
            raise

    wrap(monkeypatch, Rows, "commit", commit)
    caught("sync-rows-memory", REFERENCE, begin=5)


def test_a_server_that_loses_rows_of_a_step(monkeypatch: Patch) -> None:
    def collect(original: Any, rows: Rows, message: Any, who: bytes, *rest: Any) -> Any:
        result = original(rows, message, who, *rest)
        if message.step == 2:
            rows._staged[2].pop((who, message.attempt), None)
        return result

    wrap(monkeypatch, Rows, "collect", collect)
    caught("sync-rows-twisted", "lacks rows of it")


def test_a_server_that_reads_rows_before_their_step_is_over(monkeypatch: Patch) -> None:
    for part in (Rows, DensePart):
        monkeypatch.setattr(part, "is_available", lambda part, message: True)
    caught("sync-rows-twisted", "and has read version")


# --- values that are set -------------------------------------------------------------------------


def test_rows_that_are_set_as_if_they_were_gradients(monkeypatch: Patch) -> None:
    def read(original: Any, rows: Rows, *arguments: Any) -> Any:
        ids, values, _ = original(rows, *arguments)
        return ids, values, False

    wrap(monkeypatch, Rows, "_read", read)
    caught("async-rows-set", "which were set to")
    caught("sync-rows-twisted", REFERENCE)


def test_a_server_that_sets_rows_again_which_were_set_before(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Rows, "push", lambda original, rows, message, worker, note: original(rows, message, worker))
    caught("async-rows-set", "which were set to")


# --- rows that do not stay -----------------------------------------------------------------------


def test_a_full_table_that_applies_what_it_has_room_for(monkeypatch: Patch) -> None:
    def update(original: Any, table: RowTable, ids: Any, grads: Any, **options: Any) -> None:
        try:
            original(table, ids, grads, **options)
        except TableFullError:
            there = table.store.find(ids) >= 0
            original(table, ids[there], grads[there], **options)
            raise

    wrap(monkeypatch, RowTable, "update", update)
    caught("async-rows-full", "have changed, and nothing was applied")


def test_an_eviction_of_a_row_that_is_being_pushed(monkeypatch: Patch) -> None:
    wrap(monkeypatch, RowTable, "_evict", lambda original, table, number, kept: original(table, number, kept[:0]))
    caught("async-rows-evicts", "num_rows <= max(self.room.limit, 0)")


def test_an_eviction_of_the_youngest(monkeypatch: Patch) -> None:
    def evict(original: Any, table: RowTable, *arguments: Any) -> None:
        with monkeypatch.context() as patch:
            wrap(patch, RowStore, "ages", lambda ages, store, *args: -ages(store, *args))
            original(table, *arguments)

    wrap(monkeypatch, RowTable, "_evict", evict)
    caught("async-rows-evicts", "and older ones not")


def test_a_sketch_that_never_admits(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Sketch, "touch", lambda original, sketch, ids: np.ones(ids.size, np.int64))
    caught("async-rows-admits", "is not admitted after")


def test_rows_that_expire_an_update_too_soon(monkeypatch: Patch) -> None:
    def oldest(original: Any, table: RowTable, now: int) -> int | None:
        found = original(table, now)
        return None if found is None else found - 1

    wrap(monkeypatch, RowTable, "_oldest", oldest)
    caught("async-rows-expires", "have expired after")


def test_rows_whose_seconds_are_those_of_an_update_before(monkeypatch: Patch) -> None:
    monkeypatch.setattr(RowTable, "_number", lambda table, begins: table.steps + begins)
    caught("async-rows-lapses", "have expired after", begin=18)


def test_rows_that_expire_by_a_second_message_of_an_update(monkeypatch: Patch) -> None:
    def update(original: Any, table: RowTable, ids: Any, grads: Any, *, begins: bool = True, **more: Any) -> None:
        with monkeypatch.context() as patch:
            back = 0 if begins else 1
            wrap(patch, RowTable, "_rows", lambda rows, own, ids, now: rows(own, ids, now - back))
            original(table, ids, grads, begins=begins, **more)

    wrap(monkeypatch, RowTable, "update", update)
    caught("async-rows-expires", "have expired after", begin=6)


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "text"),
    [("sync-rows-saves", REFERENCE), ("async-rows-saves-twisted", "has pushes of rows in part")],
)
def test_a_snapshot_that_copies_a_row_after_it_has_changed(scenario: str, text: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(RowSnapshot, "_before", lambda snapshot, rows: None)
    monkeypatch.setattr(RowSnapshot, "validate", lambda snapshot: None)
    caught(scenario, text)


@pytest.mark.parametrize(
    ("scenario", "text"),
    [("sync-rows-saves-chained", REFERENCE), ("async-rows-saves-chained", "lacks rows that were acknowledged")],
)
def test_a_save_of_changes_that_leaves_out_the_last_ones(scenario: str, text: str, monkeypatch: Patch) -> None:
    def changed(original: Any, snapshot: RowSnapshot, rows: Any) -> Any:
        found = original(snapshot, rows)
        if snapshot._since is None:
            return found
        return found[snapshot.table.store.ages(found, snapshot.times.steps) > 0]

    wrap(monkeypatch, RowSnapshot, "_changed", changed)
    caught(scenario, text)


def test_a_save_of_changes_that_does_not_tell_which_rows_have_made_way(monkeypatch: Patch) -> None:
    monkeypatch.setattr(_Mark, "_told", lambda mark, ids: None)
    caught("async-rows-limits-saves-chained", "has rows that had made way")


@pytest.mark.parametrize("scenario", ["sync-rows-saves", "sync-rows-falls"])
def test_a_table_that_is_restored_without_slots(scenario: str, monkeypatch: Patch) -> None:
    wrap(monkeypatch, RowTable, "restore", lambda original, table, kept, **options: original(table, kept, slots=False))
    caught(scenario, REFERENCE if scenario.endswith("saves") else "has rows")


def test_a_table_that_goes_back_without_some_rows(monkeypatch: Patch) -> None:
    def restore(original: Any, table: RowTable, kept: Any, **options: Any) -> None:
        original(table, kept.only(np.arange(1, kept.ids.size)), **options)

    wrap(monkeypatch, RowTable, "restore", restore)
    caught("async-rows-falls", "_check_loaded_rows")
