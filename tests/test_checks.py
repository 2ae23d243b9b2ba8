"""What options may be, and what is said of those that may not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.tables import for_each
from zmqps import checks
from zmqps.errors import ConfigurationError, OptimizerError

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: checks.whole("n", 0, 1), "n must be a whole number at least 1, not 0"),
    (lambda: checks.whole("n", 65, 1, 64), "n must be a whole number from 1 to 64, not 65"),
    (lambda: checks.whole("n", 1 << 21, 16, 1 << 20), "n must be a whole number from 16 to 1048576, not 2097152"),
    (lambda: checks.whole("n", True, 0), "n must be a whole number at least 0, not True"),
    (lambda: checks.whole("n", 1.0), "n must be a whole number, not 1.0"),
    (lambda: checks.whole("n", None, 1), "n must be a whole number at least 1, not None"),
    (lambda: checks.whole("n", "1", 1, optional=True), "n must be a whole number at least 1 or None, not '1'"),
    (lambda: checks.whole("n", 10**5000, 0, 9), "n must be a whole number from 0 to 9, not one of thousands of digits"),
    (lambda: checks.number("x", math.nan), "x must be a finite number, not nan"),
    (lambda: checks.number("x", math.inf, at_least=0), "x must be a finite number at least 0, not inf"),
    (lambda: checks.number("x", 1, above=0, below=1), "x must be a finite number above 0 and below 1, not 1"),
    (lambda: checks.number("x", 0.0, above=0, below=1), "x must be a finite number above 0 and below 1, not 0.0"),
    (lambda: checks.number("x", 2, at_most=1.5), "x must be a finite number at most 1.5, not 2"),
    (lambda: checks.number("x", 1j), "x must be a finite number, not 1j"),
    (lambda: checks.number("x", 10**400), "x must be a finite number, not 10000000"),
    (lambda: checks.seconds("a timeout", 0), "a timeout must be a number of seconds above 0, not 0"),
    (lambda: checks.seconds("a timeout", math.nan), "a timeout must be a number of seconds above 0, not nan"),
    (lambda: checks.seconds("a timeout", "3"), "a timeout must be a number of seconds above 0, not '3'"),
    (lambda: checks.flag("f", 1), "f must be True or False, not 1"),
    (lambda: checks.text("t", "", 9), "t must be a string of 1 to 9 characters, not ''"),
    (lambda: checks.name("a name", "a\n"), "a name must be a printable string of 1 to 200 characters, not 'a\\n'"),
    (lambda: checks.name("a name", 3, 5), "a name must be a printable string of 1 to 5 characters, not 3"),
    (lambda: checks.name("a name", "x" * 6, 5), "a name must be a printable string of 1 to 5 characters, not 'xxxxxx'"),
    (lambda: checks.one_of("mode", "c", ("a", "b")), "mode must be one of a, b, not 'c'"),
    (lambda: checks.one_of("mode", ["a"], ("a", "b")), "mode must be one of a, b, not ['a']"),
    (lambda: checks.mapping("out", [1], "name -> array"), "out must be a mapping of name -> array, not list"),
]


@for_each("call, text", REFUSED)
def test_the_error_says_what_is_allowed_and_what_was_given(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        call()


def test_the_error_is_the_callers_choice_and_never_long() -> None:
    with pytest.raises(OptimizerError, match="not 'xxxx") as caught:
        checks.flag("f", "x" * 10_000, OptimizerError)
    assert len(str(caught.value)) < 200


def test_what_is_allowed_comes_back_in_its_plain_form() -> None:
    assert checks.whole("n", np.int64(3), 1, 3) == 3
    assert type(checks.whole("n", np.int64(3), 1, 3)) is int
    assert checks.whole("n", None, 1, optional=True) is None
    for value in (np.float32(0.5), Fraction(1, 2), 0.5):
        assert checks.number("x", value, at_least=0.5, at_most=0.5) == 0.5
        assert type(checks.number("x", value)) is float
    assert type(checks.number("x", 2)) is float
    assert checks.number("x", 10**400, whole=True) == 10**400
    assert checks.seconds("a timeout", math.inf) == math.inf
    assert checks.flag("f", False) is False
    assert checks.text("t", "a\n", 2) == "a\n"
    assert checks.name("a name", "é 1") == "é 1"
    assert checks.one_of("mode", "b", iter("ab")) == "b"
    assert checks.mapping("out", {"a": 1}, "name -> array") == {"a": 1}


# --- plain data -----------------------------------------------------------------------------------


def test_plain_data_comes_back_as_json_would_have_it() -> None:
    given = {"epoch": np.int64(3), "loss": np.float32(0.5), "best": None, "names": ("a", ["b"]), "on": True, "in": {}}
    found = checks.plain("state", given)
    assert found == {"epoch": 3, "loss": 0.5, "best": None, "names": ["a", ["b"]], "on": True, "in": {}}
    assert [type(found[key]) for key in ("epoch", "loss", "on")] == [int, float, bool]


@for_each(
    "value, text",
    [
        ([1], "state must be a mapping"),
        ({"a": object()}, "what is in state must be"),
        ({"a": math.nan}, "a finite number"),
        ({"a": 1 << 63}, "what is in state must be"),
        ({"a": b"bytes"}, "what is in state must be"),
        ({"a": {1: 2}}, "what is in state must be"),
        ({1: 2}, "a key of state must be a string, not 1"),
        ({"a": [[[[[[[1]]]]]]]}, "what is in state must be"),
        ({"a": "x" * (48 << 10)}, "it may have 49152"),
    ],
)
def test_what_is_not_plain_or_too_large_is_refused(value: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        checks.plain("state", value)
