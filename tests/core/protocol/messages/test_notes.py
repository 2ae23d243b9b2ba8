"""What a peer may say that its script has logged."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import pytest

from tests.tables import for_each
from zmqps.core.protocol.messages import Note
from zmqps.core.protocol.messages.notes import MAX_ENTRIES, MAX_STEP, MAX_VALUE_NAME_CHARS, MAX_VALUES
from zmqps.core.protocol.wire import MAX_SHORT_HEADER_NBYTES, decode, encode
from zmqps.errors import LimitError, ProtocolError

ENTRY: list[Any] = [0.5, 7, {"loss": 0.25}]


def read(*entries: Any) -> Any:
    return decode([msgpack.packb([Note.kind, 3, list(entries)])])


def test_an_entry_is_an_age_a_step_and_values() -> None:
    assert read(ENTRY, [1, None, {"a": 1.0, "b": 2.0}]) == Note(
        3, ((0.5, 7, {"loss": 0.25}), (1.0, None, {"a": 1.0, "b": 2.0}))
    )


def test_nan_and_infinities_travel() -> None:
    _, _, values = decode(encode(Note(0, ((0.0, None, {"a": math.nan, "b": math.inf, "c": -math.inf}),)))).entries[0]
    assert math.isnan(values["a"])
    assert (values["b"], values["c"]) == (math.inf, -math.inf)


@for_each(
    "entry",
    [
        [], [0.5, 7], [*ENTRY, 1], 3, "x", {}, ["0.5", 7, {"a": 1.0}], [-1.0, 7, {"a": 1.0}], [math.nan, 7, {"a": 1.0}],
        [math.inf, 7, {"a": 1.0}], [True, 7, {"a": 1.0}], [0.5, -1, {"a": 1.0}], [0.5, MAX_STEP + 1, {"a": 1.0}],
        [0.5, 7.0, {"a": 1.0}], [0.5, True, {"a": 1.0}], [0.5, 7, {}], [0.5, 7, []], [0.5, 7, {"a": 1}],
        [0.5, 7, {"a": None}], [0.5, 7, {"a": "1"}], [0.5, 7, {"": 1.0}], [0.5, 7, {"a\n": 1.0}], [0.5, 7, {3: 1.0}],
        [0.5, 7, {"x" * (MAX_VALUE_NAME_CHARS + 1): 1.0}],
    ],
)  # fmt: skip
def test_anything_else_is_refused(entry: Any) -> None:
    with pytest.raises(ProtocolError):
        read(entry)


def test_what_is_no_list_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode([msgpack.packb([Note.kind, 3, {"loss": 1.0}])])


def test_too_many_entries_values_and_bytes_are_refused() -> None:
    with pytest.raises(LimitError):
        read(*[[0.5, None, {"a": 1.0}]] * (MAX_ENTRIES + 1))
    with pytest.raises(LimitError):
        read([0.5, None, {str(k): 1.0 for k in range(MAX_VALUES + 1)}])
    values = {f"{k:060}": 1.0 for k in range(MAX_VALUES)}
    with pytest.raises(LimitError, match="size of the header"):
        read(*[[0.5, None, values]] * (MAX_SHORT_HEADER_NBYTES // 4000))
