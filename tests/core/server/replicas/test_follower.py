"""A backup that is filled with rows while they change is, in the end, what its leader is; in whatever order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps import optim
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import TableSpec
from zmqps.core.server.replicas.follower import Filling
from zmqps.core.server.replicas.records import Listener, ReplicationRecord
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables import row_records
from zmqps.core.server.tables.row_records import RowNews, read_rows
from zmqps.core.server.tables.rows import Rows, make_rows
from zmqps.optim.rows import kernel_of_table
from zmqps.rows.initial import Initial

DIM = 2
OPTIONS = {
    "plain": {"optimizer": optim.adam(0.1)},
    "expires": {"optimizer": optim.rowwise_adagrad(0.1), "expire_steps": 2},
    "evicts": {"optimizer": optim.sgd(0.1, momentum=0.9), "capacity_nbytes": 400, "when_full": "evict"},
}
IDS = st.sets(st.integers(0, 30), max_size=6)
#: What is pushed to which table; or news are told; or the next piece is read.
DONE = st.lists(
    st.tuples(st.sampled_from(["push", "put"]), st.integers(0, len(OPTIONS) - 1), IDS)
    | st.sampled_from(["tell", "fill", "fill"]),
    max_size=40,
)


def tables() -> Rows:
    specs = tuple(
        TableSpec(
            **{"name": name, "dim": DIM, "initial": Initial("normal", 0.0, 1.0).to_wire(), **options}
            | {"optimizer": cast("Any", options["optimizer"]).to_wire()}
        )
        for name, options in OPTIONS.items()
    )
    job = JobSpec(parameters=(), optimizer=optim.sgd(1.0).to_wire(), mode="async", tables=specs)
    where = Placement.balance(KeySpace.of(job), 1, 4096)
    rows = make_rows(
        job, where, 0, lambda one: kernel_of_table(one.optimizer, one.name, one.dim, "numpy"), available_nbytes=1 << 20
    )
    return rows


def take(rows: Rows, record: ReplicationRecord) -> bool:
    """Do at a backup what it is told; return whether a table is whole by it."""
    [(index, version, _)] = record.message.parts
    table = rows.table(index)
    told = read_rows(table, [np.asarray(buffer).tobytes() for buffer in record.message.payload])
    table.follow(told.kept, told.gone, version, told.steps, told.expired_before)
    table.validate()
    return told.is_last


def state(rows: Rows) -> list[Any]:
    found = []
    for table in rows.tables:
        live = np.flatnonzero(table.store.live[: table.store.end])
        kept = table.kept(live[np.argsort(table.store.ids[live])])
        found.append((table.times, [array.tolist() for array in kept.arrays]))
    return found


@given(before=DONE, done=DONE)
def test_a_backup_has_in_the_end_what_its_leader_has(before: Any, done: Any) -> None:
    leader, backup = tables(), tables()
    rng = np.random.default_rng(0)
    stream: list[ReplicationRecord] = []
    news = RowNews(leader.tables, Listener(stream.append, lambda nbytes: None))
    pieces = Filling(cast("Shard", _Shard(leader)), news.tell)

    def do(what: Any) -> None:
        if what == "tell":
            news.tell()
            assert news.is_empty
        elif what == "fill":
            if not pieces.is_over:
                stream.append(pieces.next())
        else:
            how, number, ids = what
            table, numbers = leader.tables[number], np.array(sorted(ids), np.int64)
            rows = rng.standard_normal((numbers.size, DIM)).astype(np.float32)
            table.update(numbers, rows) if how == "push" else table.put(numbers, rows)
            table.version += 1

    for what in before:
        if what != "fill":
            do(what)
    stream.clear()  # who is yet to be filled is told nothing
    for what in done:
        do(what)
    while not pieces.is_over:
        do("fill")
    do("tell")
    whole = [take(backup, record) for record in stream]
    assert sum(whole) == len(OPTIONS)
    assert state(backup) == state(leader)


@pytest.fixture(autouse=True)
def _small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_records, "PIECE_NBYTES", 100)
        yield


class _Shard:
    """What filling needs of a shard, with no slices."""

    def __init__(self, rows: Rows) -> None:
        self.others, self.slices, self.version = (rows,), (), 0
