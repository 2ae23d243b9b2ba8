"""The same work on rows without servers."""

import numpy as np

from bench.ids import RowWork
from bench.rows import OPERATIONS, ROW_OPTIMIZERS, START, OneProcess, OwnTable, fill_table, ids_of, make_table
from tests.tables import for_each

WORK = RowWork(rows=300, dim=4, batch=64, optimizer="adagrad")


def test_ids_of_rows_differ() -> None:
    assert np.unique(ids_of(np.arange(100_000))).size == 100_000


@for_each("optimizer", sorted(ROW_OPTIMIZERS))
def test_numpy_and_the_compiled_table_come_to_the_same_rows(optimizer: str) -> None:
    work = RowWork(rows=300, dim=4, batch=64, optimizer=optimizer)
    numpy, own = OneProcess(work, rule=True), OwnTable(work)
    for operation in OPERATIONS:
        assert len(numpy.steps(operation, 3)) == len(own.steps(operation, 3)) == 3
    for rows in (np.unique(numbers) for numbers in work.batches()):
        found = own.table.read(ids_of(rows))
        assert np.allclose(found, numpy._values[rows], rtol=1e-5)
        assert not np.allclose(found, START)


def test_what_only_moves_bytes_does_so_without_a_rule() -> None:
    moved = OneProcess(WORK, rule=False)
    for operation in OPERATIONS:
        assert len(moved.steps(operation, 2)) == 2


def test_a_table_is_filled_from_where_it_ended() -> None:
    table = make_table(1000, 4, "sgd")
    fill_table(table, 300)
    fill_table(table, 700, 300)
    assert len(table) == 700
    assert (table.read(ids_of(np.arange(700))) == START).all()
