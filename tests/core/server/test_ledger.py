"""The ledger against a set that never forgets: no push is applied twice, and memory is bounded."""

from __future__ import annotations

import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from zmqps.core.protocol.message import PUSH_WINDOW
from zmqps.core.server import ledger
from zmqps.core.server.ledger import TABLE_NBYTES, Ledger, Past
from zmqps.errors import LedgerError

SMALL_WINDOW = 8


class AnyOrder(RuleBasedStateMachine):
    """Pushes in any order, with gaps and repeats, as an unkind network or peer would send them."""

    def __init__(self) -> None:
        super().__init__()
        self.window, ledger.PUSH_WINDOW = ledger.PUSH_WINDOW, SMALL_WINDOW
        self.ledger = Ledger()
        self.applied: dict[int, tuple] = {}

    def teardown(self) -> None:
        ledger.PUSH_WINDOW = self.window

    @rule(seq=st.integers(0, 40) | st.sampled_from([(1 << 64) - 1, 1 << 40]))
    def push(self, seq: int) -> None:
        try:
            result = self.ledger.look_up(seq)
        except LedgerError:
            assert seq == 0 or seq <= self.ledger.floor, "only what is old is refused"
            return
        if result is None:
            assert seq not in self.applied, "applied twice"
            self.applied[seq] = ((len(self.applied),), (seq,))
            self.ledger.record(seq, self.applied[seq])
        else:
            assert result == self.applied[seq], "a resend gets the first answer"

    @invariant()
    def is_sound(self) -> None:
        self.ledger.validate()
        assert len(self.ledger.results) <= SMALL_WINDOW
        newest = sorted(self.applied)[-SMALL_WINDOW:]
        assert sorted(self.ledger.results) == newest, "exactly the newest are remembered"


class HonestWorker(RuleBasedStateMachine):
    """A worker that keeps to the rule of its window is never refused, whatever is lost or resent."""

    def __init__(self) -> None:
        super().__init__()
        self.window, ledger.PUSH_WINDOW = ledger.PUSH_WINDOW, SMALL_WINDOW
        self.ledger = Ledger()
        self.next_seq = 1
        self.unacknowledged: dict[int, None] = {}
        self.applied: set[int] = set()

    def teardown(self) -> None:
        ledger.PUSH_WINDOW = self.window

    @rule()
    def send(self) -> None:
        oldest = min(self.unacknowledged, default=self.next_seq)
        if self.next_seq - oldest < SMALL_WINDOW:
            self.unacknowledged[self.next_seq] = None
            self.next_seq += 1

    @rule(choice=st.integers(0, SMALL_WINDOW), acknowledged=st.booleans())
    def arrive(self, choice: int, acknowledged: bool) -> None:
        if not self.unacknowledged:
            return
        seq = list(self.unacknowledged)[choice % len(self.unacknowledged)]
        if self.ledger.look_up(seq) is None:
            assert seq not in self.applied
            self.ledger.record(seq, ((), ()))
            self.applied.add(seq)
        if acknowledged:
            del self.unacknowledged[seq]

    @rule(choice=st.integers(0, SMALL_WINDOW))
    def refused_or_given_up(self, choice: int) -> None:
        """A refused push is answered, so its number is never used again and leaves a gap."""
        if self.unacknowledged:
            del self.unacknowledged[list(self.unacknowledged)[choice % len(self.unacknowledged)]]

    @invariant()
    def is_sound(self) -> None:
        self.ledger.validate()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
TestHonestWorker = HonestWorker.TestCase
TestHonestWorker.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)


def test_what_left_the_window_is_refused_and_not_applied() -> None:
    book = Ledger()
    for seq in range(1, PUSH_WINDOW + 2):
        book.record(seq, ((), ()))
    with pytest.raises(LedgerError, match="push 1 is older"):
        book.look_up(1)
    assert book.look_up(2) == ((), ())
    assert len(book.results) == PUSH_WINDOW


def test_a_push_has_its_place_before_it_is_applied() -> None:
    book = Ledger()
    assert book.look_up(1) is None
    assert list(book.results) == [1], "so that it takes no memory to remember it"
    assert book.look_up(1) is None, "it was not applied: it may come again"
    book.record(1, ((4,), (0,)))
    assert book.look_up(1) == ((4,), (0,))


def test_pushes_that_fail_take_no_more_than_the_window() -> None:
    book = Ledger()
    for seq in range(1, 3 * PUSH_WINDOW):
        assert book.look_up(seq) is None
    book.validate()
    assert len(book.results) == PUSH_WINDOW


def test_what_is_below_all_of_a_full_window_is_applied_and_not_remembered() -> None:
    book = Ledger()
    for seq in range(2, PUSH_WINDOW + 2):
        book.record(seq, ((), ()))
    assert book.look_up(1) is None
    book.record(1, ((), ()))
    book.validate()
    with pytest.raises(LedgerError):
        book.look_up(1)
    assert len(book.results) == PUSH_WINDOW


def test_sequence_numbers_start_at_one() -> None:
    with pytest.raises(LedgerError):
        Ledger().look_up(0)


# --- who has gone is never forgotten, however many they are, and memory does not grow ----------------


def who(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_few_are_remembered_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_EXACT", 100)
    past = Past(b"key")
    for number in [*range(100), *range(100)]:
        past.add(who(number))
    assert past._table is None
    assert [number for number in range(200) if who(number) in past] == list(range(100))


def test_of_many_none_is_missed_and_hardly_anybody_else_is_taken_for_one() -> None:
    past = Past(b"key")
    for number in range(20_000):
        past.add(who(number))
    assert all(who(number) in past for number in range(20_000))
    assert sum(who(number) in past for number in range(20_000, 40_000)) <= 2
    assert past._table is not None
    assert sys.getsizeof(past._table) < TABLE_NBYTES + 100
    assert not past._exact


def test_nobody_can_foresee_the_bits_of_an_incarnation() -> None:
    assert Past(b"a")._bits(who(1)) != Past(b"b")._bits(who(1))
