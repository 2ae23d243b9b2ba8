"""How another clock differs, from questions and answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zmqps.core.node.clock import WINDOW, ClockSample, Samples, estimate

WAYS = st.floats(1e-6, 2.0)


def test_nothing_is_known_before_the_first_answer() -> None:
    assert estimate([]) is None
    assert Samples().offset is None


def test_the_quickest_answer_is_believed() -> None:
    slow, quick = ClockSample(0.0, 107.0, 10.0), ClockSample(20.0, 125.1, 20.2)
    offset = estimate([slow, quick])
    assert offset is not None
    assert abs(offset.offset_s - 105.0) < 1e-9
    assert abs(offset.error_s - 0.1) < 1e-9


@given(st.lists(st.tuples(st.floats(0, 1e6), WAYS, WAYS), min_size=1, max_size=20), st.floats(-1e6, 1e6))
def test_it_is_never_wrong_by_more_than_it_says(asked: list[tuple[float, float, float]], ahead: float) -> None:
    samples = [ClockSample(sent, sent + there + ahead, sent + there + back) for sent, there, back in asked]
    found = estimate(samples)
    assert found is not None
    assert abs(found.offset_s - ahead) <= found.error_s + 1e-8
    assert found.error_s <= min((there + back) / 2 for _, there, back in asked) + 1e-8


def test_an_answer_from_before_its_question_says_nothing() -> None:
    samples = Samples()
    samples.add(5.0, 1.0, 4.0)
    assert samples.offset is None


def test_answers_from_before_one_of_the_clocks_stood_still_are_forgotten() -> None:
    samples = Samples()
    samples.add(0.0, 50.0, 0.001)
    samples.add(1.0, 51.1, 1.2)
    assert samples.offset == estimate([ClockSample(0.0, 50.0, 0.001)])
    samples.add(2.0, 60.0, 2.2)
    assert samples.offset == estimate([ClockSample(2.0, 60.0, 2.2)])


def test_old_answers_are_forgotten_for_clocks_drift() -> None:
    samples = Samples()
    samples.add(0.0, 50.0, 0.0)  # the quickest of all
    for number in range(1, WINDOW + 1):
        samples.add(float(number), number + 60.5, number + 1.0)
    assert samples.offset is not None
    assert samples.offset.offset_s == 60.0
