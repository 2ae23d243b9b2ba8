"""What a script logs: what is taken, what is refused, and that whatever is not there any more is counted."""

from __future__ import annotations

import math
import threading
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.core.protocol.message import Entry
from zmqps.core.protocol.messages import Note
from zmqps.core.protocol.messages.notes import MAX_ENTRIES, MAX_ENTRIES_NBYTES, MAX_STEP, MAX_VALUES
from zmqps.core.protocol.wire import MAX_SHORT_HEADER_NBYTES, decode, encode
from zmqps.core.worker.notes import MOST_NAMES, MOST_NEW, Notebook
from zmqps.errors import ConfigurationError


def sent(book: Notebook, now: float = 10.0) -> tuple[int, tuple[Entry, ...]]:
    book.take()
    book.validate()
    return book.send(now)


class Tensor:
    """A number of another library, with and without a shape."""

    def __init__(self, ndim: int) -> None:
        self.ndim = ndim

    def __float__(self) -> float:
        return 2.5


def test_what_is_logged_is_sent_with_its_age() -> None:
    book = Notebook()
    book.add(7.0, {"loss": 0.5, "accuracy": 0.25}, 12)
    book.add(9.0, {"loss": 0.25})
    assert sent(book) == (0, ((3.0, 12, {"loss": 0.5, "accuracy": 0.25}), (1.0, None, {"loss": 0.25})))


@for_each(
    "value, plain",
    [
        (1, 1.0), (True, 1.0), (np.float32(0.5), 0.5), (np.int64(3), 3.0), (np.array(4.0), 4.0), (Fraction(1, 2), 0.5),
        (Tensor(0), 2.5), (math.inf, math.inf),
    ],
)  # fmt: skip
def test_numbers_of_all_kinds_become_floats(value: object, plain: float) -> None:
    book = Notebook()
    book.add(0.0, {"x": value}, np.int32(5))
    _, ((_, step, values),) = sent(book)
    assert (step, values) == (5, {"x": plain})
    assert type(values["x"]) is float
    assert type(step) is int


def test_nan_stays_nan() -> None:
    book = Notebook()
    book.add(0.0, {"loss": math.nan})
    assert math.isnan(sent(book)[1][0][2]["loss"])


@for_each("value", ["1.0", b"1", None, [1.0], np.ones(1), np.ones((2, 2)), 1j, Tensor(1), object(), 10**400])
def test_what_is_no_number_is_refused(value: object) -> None:
    book = Notebook()
    with pytest.raises(ConfigurationError, match="the value 'loss' must be one number"):
        book.add(0.0, {"ok": 1.0, "loss": value})
    assert not book.take(), "nothing of the call is noted"


@for_each("name", ["", "x" * 65, "a\nb", 3, None, b"loss", "\x1b[31m"])
def test_names_that_nobody_can_show_are_refused(name: object) -> None:
    with pytest.raises(ConfigurationError, match="the name of a value"):
        Notebook().add(0.0, {name: 1.0})  # type: ignore[dict-item]


@for_each("step", [-1, 1.5, "3", True, MAX_STEP + 1])
def test_steps_that_are_no_whole_numbers_are_refused(step: object) -> None:
    with pytest.raises(ConfigurationError, match="step must be"):
        Notebook().add(0.0, {"x": 1.0}, step)


@for_each("values", [{}, {str(k): 1.0 for k in range(MAX_VALUES + 1)}])
def test_none_and_too_many_values_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="1 to 64 values"):
        Notebook().add(0.0, values)


@for_each("values", [3.0, [("loss", 1.0)], None])
def test_what_is_no_mapping_is_refused(values: Any) -> None:
    with pytest.raises(ConfigurationError, match="values must be numbers by name"):
        Notebook().add(0.0, values)


def test_the_oldest_make_way_where_nobody_takes_them_and_are_counted() -> None:
    book = Notebook(most_new=4)
    for number in range(10):
        book.add(0.0, {"x": float(number)})
    first, entries = sent(book)
    assert [values["x"] for _, _, values in entries] == [6.0, 7.0, 8.0, 9.0]
    assert (first, book.num_dropped, book.num_logged) == (6, 6, 10)


def test_the_oldest_make_way_where_their_bytes_are_too_many_but_not_those_on_their_way() -> None:
    book = Notebook(most_nbytes=200)
    book.add(0.0, {"x": 0.0})
    sent(book)
    for number in range(1, 10):
        book.add(0.0, {"x": float(number)})
    book.take()
    book.validate()
    assert book.send(0.0)[0] == 0
    book.confirm(1)
    first, entries = book.send(0.0)
    assert [values["x"] for _, _, values in entries] == [float(number) for number in range(first, 10)]
    assert book.num_dropped == first - 1 > 0


def test_a_message_never_has_more_than_its_limits() -> None:
    book = Notebook(most_nbytes=1 << 30)
    for number in range(MOST_NEW):
        book.add(0.0, {f"{'ü' * 60}{k}": float(number) for k in range(MAX_VALUES if number % 2 else 1)})
    book.take()
    taken = 0
    while book:
        first, entries = book.send(1.0)
        assert first == taken
        assert 0 < len(entries) <= MAX_ENTRIES
        (frame,) = encode(Note(first, entries))
        assert len(frame) <= MAX_ENTRIES_NBYTES + 32 <= MAX_SHORT_HEADER_NBYTES
        assert decode([frame]) == Note(first, entries)
        taken += len(entries)
        book.confirm(taken)
        book.validate()
    assert taken == MOST_NEW


def test_what_is_sent_again_is_the_same() -> None:
    book = Notebook()
    book.add(0.0, {"x": 1.0})
    assert sent(book)[0] == 0
    book.add(0.0, {"x": 2.0})
    _, entries = sent(book)
    assert [values["x"] for _, _, values in entries] == [1.0]


def test_another_life_begins_with_what_was_never_sent_and_counts_the_rest_as_lost() -> None:
    book = Notebook()
    for number in range(3):
        book.add(0.0, {"x": float(number)})
    sent(book)
    book.add(0.0, {"x": 3.0})
    book.take()
    book.begin()
    assert book.num_dropped == 3
    first, ((_, _, values),) = sent(book)
    assert (first, values) == (0, {"x": 3.0})
    book.confirm(1)
    book.validate()
    assert not book
    assert book.num_logged == 4


def test_names_that_are_made_up_forever_are_not_kept() -> None:
    book = Notebook()
    for number in range(3 * MOST_NAMES):
        book.add(0.0, {f"loss {number}": 1.0})
    assert len(book._names) <= MOST_NAMES


def test_threads_that_log_at_the_same_time_lose_nothing_uncounted() -> None:
    book, start = Notebook(most_new=50), threading.Barrier(5)

    def script() -> None:
        start.wait(10)
        for number in range(400):
            book.add(0.0, {"x": float(number)})

    threads = [threading.Thread(target=script) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait(10)
    num_sent = 0
    while any(thread.is_alive() for thread in threads):
        book.take()
        num_sent += len(book)
        book.confirm(book.num_logged)
    for thread in threads:
        thread.join(10)
    book.take()
    num_sent += len(book)
    book.validate()
    assert num_sent + book.num_dropped == book.num_logged == 1600


@given(st.lists(st.sampled_from(["add", "take", "send", "confirm", "again", "begin"]), max_size=60))
def test_in_any_order_each_call_is_confirmed_once_or_dropped(does: list[str]) -> None:
    book = Notebook(most_new=3, most_nbytes=220)
    num_added, upto, confirmed, life = 0, 0, list[float](), 0
    out: tuple[int, tuple[Entry, ...]] | None = None
    for what in does:
        if what == "add":
            book.add(0.0, {"x": float(num_added)})
            num_added += 1
        elif what == "take":
            book.take()
        elif what in ("send", "again") and book:
            out = book.send(1.0)
        elif what == "confirm" and out is not None:
            first, entries = out
            assert first >= upto, "what was confirmed is not sent again"
            upto, out = first + len(entries), None
            confirmed += [values["x"] for _, _, values in entries]
            book.confirm(upto)
        elif what == "begin":
            book.begin()
            upto, out, life = 0, None, life + 1
        book.validate()
    book.take()
    assert confirmed == sorted(set(confirmed))
    assert book.num_logged == num_added
    assert len(confirmed) + book.num_dropped + len(book) == num_added
