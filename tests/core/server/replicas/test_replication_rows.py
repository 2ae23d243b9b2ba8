"""Copies of a shard with tables: what the leader has said it has, its backups have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.core.machines import identity, peer
from tests.core.machines import make_shard as make_dense
from tests.core.server.copies import LEADER, Copies
from tests.simulator.jobs.training import row_rule
from tests.tables import for_each
from zmqps import optim
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Received
from zmqps.core.protocol.messages.replication import ROWS
from zmqps.core.protocol.terms import SET
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables import row_records
from zmqps.core.server.tables.rows import make_rows, rows_in
from zmqps.core.server.tables.table import RowTable
from zmqps.errors import ServerMemoryError, ShardBrokenError, from_wire
from zmqps.rows.initial import Initial

DIM = 2
BACKUP = 2
B = "b", BACKUP
WHO = identity("worker", "w").incarnation


def table(name: str = "items", **options: Any) -> TableSpec:
    return TableSpec(
        name=name, dim=DIM, optimizer=optim.sgd(1.0).to_wire(), initial=Initial("zeros").to_wire(), **options
    )


def make_shard(spec: JobSpec, where: Placement, index: int, room: Any = None) -> Shard:
    rows = make_rows(spec, where, index, lambda one: row_rule(spec, one), available_nbytes=1 << 20)
    return make_dense(spec, where, index, rows=rows)


def trained(*tables: TableSpec, params: bool = True, mode: str = "async", **options: Any) -> Copies:
    """Return copies of a shard, the backup filled, which a worker has joined."""
    parameters = (Parameter("w", (8,), "float32"),) if params else ()
    optimizer = optim.sgd(1.0).to_wire()
    spec = JobSpec(parameters=parameters, optimizer=optimizer, tables=tables or (table(),), mode=mode, **options)
    copies = Copies(spec, make=make_shard)
    copies.begin(B, load=params)
    copies.join("w")
    copies.settle()
    return copies


def push_rows(seq: int, *ids: int, by: float = 1.0, index: int = 1, wanted: tuple[int, ...] = (), **over: Any) -> Any:
    numbers, grads = np.array([*ids, *wanted], np.int64), np.full((len(ids), DIM), by, np.float32)
    fields = {
        "request": 100 + seq, "seq": seq, "epoch": LEADER, "step": 0, "attempt": 0, "examples": 1, "begins": 1,
        "reply": int(bool(wanted)), "checked": 0, "codec": "raw", "reply_codec": "raw", "terms": (), "index": index,
        "version": 0, "count": len(ids), "wanted": len(wanted), "payload": (numbers, grads),
    }  # fmt: skip
    return m.PushRows(**{**fields, **over})


def table_of(copies: Copies, name: str = "p", epoch: int = LEADER, number: int = 0) -> RowTable:
    return rows_in(copies.nodes[name].shard(epoch)).tables[number]


def fails(*_: Any, **options: Any) -> Any:
    raise MemoryError


def test_a_push_of_rows_is_answered_when_the_backup_has_it() -> None:
    copies = trained()
    copies.push("w", push_rows(1, 5, -7))
    assert copies.answered("w") == []
    assert table_of(copies).read(np.array([5]))[0, 0] == -1.0
    copies.settle()
    assert copies.answered("w") == [101]
    assert copies.is_copied(*B)
    copies.push("w", push_rows(1, 5, -7))  # again: it is known here and there
    copies.settle()
    assert copies.is_copied(*B)


def test_rows_that_are_asked_for_with_a_push_are_those_after_it() -> None:
    copies = trained()
    copies.push("w", push_rows(1, 5, wanted=(5, 6)))
    copies.push("w", push_rows(2, 5, wanted=(5,)))
    copies.settle()
    first, second = copies.answers("w")
    assert isinstance(first, m.Values)
    assert isinstance(second, m.Values)
    assert np.concatenate([np.frombuffer(b, np.float32) for b in first.payload]).size == 2 * DIM
    assert np.frombuffer(second.payload[0], np.float32).tolist() == [-2.0] * DIM


def test_a_backup_is_filled_while_rows_are_pushed() -> None:
    copies = trained(table(), table("users", expire_steps=3))
    many = tuple(range(300))
    copies.push("w", push_rows(1, *many))
    copies.push("w", push_rows(2, *many, index=2))
    copies.retarget(B, ("c", 3), generation=2)
    copies.assign_backup("c", 3)
    for seq in range(3, 12):
        copies.push("w", push_rows(seq, *range(seq, 40 * seq), index=1 + seq % 2))
        for wire in copies.busy[:2]:
            copies.deliver(wire)
    copies.wait(30.0)
    assert copies.nodes["c"].state(3) == copies.nodes["b"].state(BACKUP) == copies.nodes["p"].state(LEADER)
    assert copies.nodes["c"].shard(3).loaded
    assert table_of(copies, number=1).counters["expired"]


def test_rows_that_make_way_are_gone_at_the_backup_too() -> None:
    row_nbytes = table_of(trained()).store.row_nbytes
    copies = trained(table(capacity_nbytes=8 * row_nbytes, when_full="evict"))
    for seq in range(1, 9):
        copies.push("w", push_rows(seq, *range(3 * seq, 3 * seq + 4)))
    copies.settle()
    assert table_of(copies).counters["evicted"]
    assert copies.is_copied(*B)


def test_a_step_of_the_synchronous_mode_is_at_the_backup_when_it_is_over() -> None:
    copies = trained(table(), table("users"), mode="sync")
    copies.push("w", push_rows(1, 5, 6, step=0, attempt=1))
    copies.push("w", push_rows(2, 7, step=0, attempt=2, index=2))
    copies.settle()
    assert not len(table_of(copies))
    copies.order("p", m.Commit(LEADER, 0, ((WHO, (1, 2)),)))
    assert copies.committed == []
    copies.settle()
    assert copies.committed == [0]
    assert copies.is_copied(*B)
    copies.order("p", m.Commit(LEADER, 1, ()))  # nobody has pushed
    copies.settle()
    assert copies.is_copied(*B)
    assert table_of(copies, "b", BACKUP).version == 2


def test_a_promoted_copy_does_not_apply_a_step_again_that_it_has_of_one_table() -> None:
    """The old leader was lost after the first table's record, before that of the second."""
    copies = trained(table(), table("users"), params=False, mode="sync")
    pushes = [push_rows(1, 5, step=0, attempt=1, index=0), push_rows(2, 7, step=0, attempt=2, index=1)]
    for push in pushes:
        copies.push("w", push)
    copies.order("p", m.Commit(LEADER, 0, ((WHO, (1, 2)),)))
    copies.deliver(("p", "b"))
    copies.cut("p", "b")
    copies.promote(*B)
    copies.join("w", "b", BACKUP)
    for push in pushes:
        copies.push("w", replace(push, epoch=BACKUP), "b")
    copies.order("b", m.Commit(BACKUP, 0, ((WHO, (1, 2)),)))
    for number, id_ in enumerate((5, 7)):
        assert table_of(copies, "b", BACKUP, number).read(np.array([id_]))[0, 0] == -1.0


def test_a_server_with_gradients_of_rows_keeps_its_place() -> None:
    copies = trained(mode="sync")
    copies.push("w", push_rows(1, 5, step=0, attempt=1))
    copies.order("p", m.Yield(LEADER, 1))
    assert [yielded.busy for yielded in copies.told("p", m.Yielded)] == [1]


def test_what_cannot_be_told_for_want_of_memory_is_told_before_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = trained()
    whole = row_records.rows_now
    monkeypatch.setattr(row_records, "rows_now", fails)
    copies.push("w", push_rows(1, 5))
    copies.push("w", push_rows(2, 6))  # nothing more is applied meanwhile
    copies.push("w", push_rows(1, 5))
    copies.settle()
    assert copies.refused("w") == [ServerMemoryError.code] * 3
    assert not copies.is_copied(*B)
    monkeypatch.setattr(row_records, "rows_now", whole)
    copies.push("w", push_rows(1, 5))
    copies.push("w", push_rows(2, 6))
    copies.settle()
    assert [type(answer) for answer in copies.answers("w")[3:]] == [m.Ack, m.Ack]
    assert copies.is_copied(*B)
    assert table_of(copies).read(np.array([5]))[0, 0] == -1.0


def test_a_backup_without_memory_for_rows_says_so_and_the_coordinator_hears_it() -> None:
    copies = trained()
    behind = table_of(copies, "b", BACKUP)
    behind.room.more = lambda nbytes: False
    behind.room.granted_nbytes = 0
    copies.push("w", push_rows(1, *range(1000)))
    copies.settle()
    [told] = copies.told("b", m.Error)
    assert told.request == BACKUP
    error = from_wire(told.code, told.text, told.facts)
    assert isinstance(error, ShardBrokenError)
    assert "'items' has no room" in str(error)
    copies.retarget()  # the coordinator takes another server, or none
    copies.settle()
    assert copies.answered("w") == [101]


@for_each(
    "payload, why",
    [
        ((), "begins with"),
        ((np.zeros(3, "<u8"),), "begins with"),
        ((np.array([1 << 40, 0, 0, 0, 0], "<u8"),), "other bytes"),
        ((np.array([0, 1, 0, 0, 0], "<u8"),), "other bytes"),
    ],
)
def test_what_is_no_record_of_rows_breaks_the_copy_and_nothing_else(payload: Any, why: str) -> None:
    copies = trained()
    record = m.Replicate(
        BACKUP, copies.nodes["b"].machine.replication.backups[BACKUP].number + 1, ROWS, bytes(16), 0, 0, "raw",
        (), (), (), ((1, 0, ()),), payload,
    )  # fmt: skip
    copies.handle("b", Received(peer("p"), record))
    assert any(why in text for text in copies.nodes["b"].logged)


def test_a_pull_of_rows_waits_for_the_answers_to_its_own_pushes() -> None:
    copies = trained()
    copies.push("w", push_rows(1, 5))
    wants: m.Message = m.PullRows(500, LEADER, 0, "raw", 1, 1, (np.array([5], np.int64),))
    copies.from_worker("p", "w", wants)
    assert copies.answered("w") == []
    copies.settle()
    assert copies.answered("w") == [101, 500]


def test_a_backup_without_places_for_rows_is_given_up() -> None:
    copies = trained()
    behind = table_of(copies, "b", BACKUP)
    behind.store.ids = behind.store.ids[:50]  # its host had less to spare
    for seq in range(1, 4):
        copies.push("w", push_rows(seq, *range(30 * seq, 30 * seq + 30)))
    copies.settle()
    assert len(behind) == 30
    assert [got.request for got in copies.told("b", m.Error)] == [BACKUP]


def test_gradients_of_a_step_are_not_applied_again_where_what_is_set_in_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies = trained(mode="sync")
    copies.push("w", push_rows(1, 5, step=0, attempt=1))
    copies.push("w", push_rows(2, 6, by=9.0, step=0, attempt=2, terms=(SET,)))
    table = table_of(copies)

    def fails_once(*args: Any, **options: Any) -> None:
        monkeypatch.undo()
        raise MemoryError

    monkeypatch.setattr(RowTable, "put", fails_once)
    copies.order("p", m.Commit(LEADER, 0, ((WHO, (1, 2)),)))
    assert copies.committed == []
    copies.order("p", m.Commit(LEADER, 0, ((WHO, (1, 2)),)))
    copies.settle()
    assert copies.committed == [0]
    assert table.read(np.array([5, 6]))[:, 0].tolist() == [-1.0, 9.0]
    assert copies.is_copied(*B)


def test_an_update_that_is_done_has_not_failed_because_rows_cannot_be_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = trained(table(expire_steps=2))
    monkeypatch.setattr(RowTable, "_sweep", fails)
    copies.push("w", push_rows(1, 5))
    copies.settle()
    assert copies.answered("w") == [101]
    assert table_of(copies).read(np.array([5]))[0, 0] == -1.0
