"""Tables in tests: one test goes through all the rows, and each row that fails is reported by its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any

import pytest

Test = Callable[..., None]


def one_in(number: int, rows: Iterable[Any]) -> list[Any]:
    """Return rows for ``pytest.mark.parametrize`` of which every run tries the first of so many, CI the others too.

    A tuple has a value for each of several names.
    """
    values = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [pytest.param(*row, marks=pytest.mark.repeats if at % number else ()) for at, row in enumerate(values)]


def for_each(names: str | tuple[str, ...], rows: Iterable[Any], *, ids: Iterable[str] = ()) -> Callable[[Test], Test]:
    """Let a test try each row of a table that is written as for ``pytest.mark.parametrize``.

    For many rows of one property that take no time and leave nothing behind: they share the fixtures of the test. A row
    that fails is a failing subtest, and the others are tried all the same. Several tables are combined. A test of
    hypothesis cannot have one, as a subtest takes a fixture.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    params = [row if hasattr(row, "marks") else pytest.param(*(row if len(keys) > 1 else [row])) for row in rows]
    titles = list(ids) or [param.id for param in params]
    table = [(title, dict(zip(keys, param.values, strict=True))) for title, param in zip(titles, params, strict=True)]

    def decorate(test: Test) -> Test:
        body, inner = getattr(test, "table", (test, [("", {})]))
        whole = [(f"{title or ''} {more}".strip(), row | other) for title, row in table for more, other in inner]

        @wraps(test)
        def through(subtests: pytest.Subtests, **fixtures: Any) -> None:
            __tracebackhide__ = True
            for title, row in whole:
                try:
                    body(**row, **fixtures)
                except BaseException:
                    with subtests.test(title or None, **row):  # only a failure costs the time of a report
                        raise

        own = Parameter("subtests", Parameter.POSITIONAL_OR_KEYWORD)
        left = [one for name, one in signature(body).parameters.items() if name not in whole[0][1]]
        vars(through).update(table=(body, whole), __signature__=Signature([own, *left]))
        return through

    return decorate
