"""A copy has the rows of the last change of each id, in the precision that was chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps import initial, optim
from zmqps.client.sparse.tables import table
from zmqps.core.job.tables import TableSpec
from zmqps.errors import ConfigurationError
from zmqps.follow.copies import PRECISIONS, TableCopy

DIM = 5
NONE = np.empty(0, np.int64)
#: The error of an element, as a part of the largest of its row.
ERRORS = {"float32": 0.0, "float16": 2.0**-11, "int8": 0.5 / 127}


def spec(**options: Any) -> TableSpec:
    return table(DIM, optimizer=optim.sgd(1.0), **options).named("items")


def numbers(*ids: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(ids, np.int64)


IDS = st.lists(st.integers(-20, 20), unique=True, max_size=12)


@given(st.sampled_from([*PRECISIONS]), st.lists(st.tuples(IDS, IDS, st.integers(0, 99)), max_size=12))
def test_it_has_what_a_dict_would_have(precision: str, steps: list[tuple[list[int], list[int], int]]) -> None:
    copy = TableCopy(spec(initial=initial.constant(0.5)), precision)
    expected: dict[int, np.ndarray[Any, Any]] = {}
    for gone, ids, seed in steps:
        rows = np.random.default_rng(seed).normal(size=(len(ids), DIM)).astype(np.float32)
        copy.change(numbers(*gone), numbers(*ids), rows)
        for number in gone:
            expected.pop(number, None)
        expected.update(zip(ids, rows, strict=True))
    assert len(copy) == len(expected)
    every = numbers(*range(-21, 22), 3, 3)
    for number, row in zip(every.tolist(), copy.read(every), strict=True):
        there = expected.get(number)
        if there is None:
            assert (row == 0.5).all()
        else:
            assert np.abs(row - there).max() <= ERRORS[precision] * np.abs(there).max() * 1.001
    found, start = [], 0
    while True:
        ids_, rows_, start = copy.rows_from(start, 7)
        found += ids_.tolist()
        assert np.array_equal(rows_, copy.read(ids_))
        if not start:
            break
    assert sorted(found) == sorted(expected)


@for_each("precision", PRECISIONS)
def test_rows_that_are_not_finite_or_too_large_harm_no_other(precision: str) -> None:
    copy = TableCopy(spec(), precision)
    rows = np.array([[np.nan, 1, 0, 0, 0], [np.inf, 1, 0, 0, 0], [1e38, 1, 0, 0, 0], [0] * 5, [1] * 5], np.float32)
    copy.change(NONE, np.arange(5), rows)
    found = copy.read(np.arange(6))
    assert np.array_equal(found[3:], [[0] * 5, [1] * 5, [0] * 5])
    if precision != "float32":
        assert np.isfinite(found[1:]).all()
        assert found[1, 0] > 6e4
    again = TableCopy(spec(), precision)  # what is saved and read again is the same
    again.change(NONE, np.arange(5), copy.read(np.arange(5)))
    assert np.array_equal(again.read(np.arange(6)), found, equal_nan=True)


def test_an_id_that_was_removed_has_what_rows_begin_with() -> None:
    start = spec(initial=initial.normal(1.0))
    copy, untouched = TableCopy(start), TableCopy(start)
    copy.change(NONE, numbers(7), np.zeros((1, DIM), np.float32))
    copy.change(numbers(7, 7, 8), NONE, np.empty((0, DIM), np.float32))
    assert np.array_equal(copy.read(numbers(7, 8)), untouched.read(numbers(7, 8)))
    assert len(copy) == 0


def test_there_is_no_other_precision() -> None:
    with pytest.raises(ConfigurationError, match="rows must be one of float32, float16, int8"):
        TableCopy(spec(), "int4")
