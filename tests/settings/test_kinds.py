"""What options take: what is refused by name, and what a value is in its plain form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.settings.kinds import (
    Cadence,
    Choice,
    File,
    Kind,
    Names,
    Seconds,
    Sinks,
    Size,
    Switch,
    Text,
    Where,
    Whole,
    cadence,
    nbytes_of,
    size_text,
)


@for_each(
    "text, found",
    [
        ("", (None, None)), ("5min", (300.0, None)), ("90s", (90.0, None)), ("1.5 h", (5400.0, None)),
        ("2sec", (2.0, None)), ("500steps", (None, 500)), ("1 step", (None, 1)), (" 3STEPS ", (None, 3)),
    ],
)  # fmt: skip
def test_a_cadence_is_of_time_or_of_steps(text: str, found: Any) -> None:
    assert cadence("every", text) == found


@for_each("text", ["5", "min", "0steps", "1.5steps", "0s", "-3s", "5 minutes 3", "5days", "nans", "1e3s"])
def test_what_is_none_is_refused_and_says_what_is(text: str) -> None:
    with pytest.raises(ConfigurationError, match="5min, 90s, 2h or 500steps"):
        cadence("every", text)


@for_each(
    "kind, value, plain",
    [
        (Whole(1, 3), 3, 3), (Seconds(at_least=0), 0, 0.0), (Size(), "1MiB", 1 << 20), (Size(), 5, 5),
        (Choice(("a", "b")), "b", "b"), (Switch(), False, False), (Text(), "", ""), (Text(), "x", "x"),
        (File(), "a/b", Path("a/b")), (Where(), Path("runs"), "runs"), (Where(), "s3://b/runs", "s3://b/runs"),
        (Cadence(), "5min", "5min"), (Sinks(), ["jsonl:x"], ("jsonl:x",)), (Names(), {"a": "b"}, {"a": "b"}),
        (Names(), ("a=b", "c=d=e"), {"a": "b", "c": "d=e"}),
    ],
)  # fmt: skip
def test_a_value_is_kept_in_its_plain_form(kind: Kind, value: Any, plain: Any) -> None:
    found = kind.check("x", value)
    assert (found, type(found)) == (plain, type(plain))


@for_each(
    "kind, value",
    [
        (Whole(1, 3), 4), (Whole(1, 3), True), (Whole(1), "2"), (Seconds(at_least=0), -1), (Seconds(above=0), 0),
        (Seconds(), float("nan")), (Seconds(), "5"), (Size(), 0), (Size(), "1 parsec"), (Size(at_most=5), "1kB"),
        (Choice(("a", "b")), "c"), (Switch(), 1), (Switch(), "true"), (Text(3), "long"), (Text(), 5), (File(), 5),
        (File(), "a\0b"), (Where(), ""), (Where(), b"x"), (Cadence(), "soon"), (Cadence(), None), (Sinks(), "jsonl:x"),
        (Sinks(), [5]), (Names(), ["a"]), (Names(), {"a": 5}), (Names(), "a=b"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_the_name_of_the_option(kind: Kind, value: Any) -> None:
    with pytest.raises(ConfigurationError, match="brightness"):
        kind.check("brightness", value)


@for_each(
    "kind, value, placed",
    [
        (File(), Path("keys"), Path.cwd() / "keys"), (Where(), "runs", str(Path.cwd() / "runs")),
        (Where(), "s3://b/runs", "s3://b/runs"), (Text(), "runs", "runs"),
        (Sinks(), ("jsonl:a", "wandb:b"), (f"jsonl:{Path.cwd() / 'a'}", "wandb:b")),
    ],
)  # fmt: skip
def test_a_path_means_the_same_wherever_a_node_is_started(kind: Kind, value: Any, placed: Any) -> None:
    assert kind.placed(value) == placed


@for_each(
    "nbytes, text",
    [(4 << 20, "4MiB"), (5, "5"), (1 << 30, "1GiB"), (1536, "1536"), (3 << 10, "3KiB"), (8 * 10**9, "8GB"), (0, "0")],
)
def test_sizes_are_written_as_they_are_read(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text
    assert nbytes_of(text) == nbytes
