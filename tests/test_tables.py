"""A test with a table tries each row, and says which have failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.tables import for_each, one_in


class Reported:
    """The fixture of pytest: notes what fails in it, and goes on."""

    def __init__(self) -> None:
        self.rows: list[tuple[str | None, dict[str, Any]]] = []

    @contextmanager
    def test(self, title: str | None, **row: Any) -> Iterator[None]:
        with pytest.raises(AssertionError):
            yield
        self.rows.append((title, row))


def test_every_row_of_all_tables_is_tried_and_those_that_fail_are_named() -> None:
    tried = []

    @for_each("a, b", [(1, 2), pytest.param(3, 4, id="odd")])
    @for_each("c", [5, 6], ids=["five", "six"])
    def test(a: int, b: int, c: int, fixture: str) -> None:
        tried.append((a, b, c, fixture))
        assert a + c != 9

    reported = Reported()
    test(subtests=reported, fixture="f")
    assert tried == [(1, 2, 5, "f"), (1, 2, 6, "f"), (3, 4, 5, "f"), (3, 4, 6, "f")]
    assert reported.rows == [("odd six", {"a": 3, "b": 4, "c": 6})]


def test_of_so_many_rows_one_is_tried_in_each_run() -> None:
    left = [(param.values, [mark.name for mark in param.marks]) for param in one_in(2, ["a", (1, 2), "c"])]
    assert left == [(("a",), []), ((1, 2), ["repeats"]), (("c",), [])]


ROWS = iter([1, 2])


@for_each("row", [1, 2])
def test_pytest_runs_it_with_its_fixtures(row: int, tmp_path: object) -> None:
    assert row == next(ROWS)
    assert tmp_path
