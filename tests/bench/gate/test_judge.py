"""What makes a case slower: not one bad round, and not a difference that two clusters of one version have."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.gate.judge import THRESHOLD, judge
from tests.tables import for_each

SECONDS = st.floats(1e-4, 10.0)


@for_each(
    "new, word",
    [
        ([1.2, 1.3, 1.25, 1.2, 1.3], "slower"),
        ([1.2, 1.3, 1.25, 1.2, 0.5], "slower"),  # one round was disturbed, and its quartile holds
        ([1.2, 1.3, 1.25, 0.9, 0.9], "same"),  # as likely noise: two of five say otherwise
        ([1.03, 1.04, 1.04, 1.03, 1.04], "same"),  # all agree, on less than counts
        ([9.0, 1.0, 1.0, 1.0, 1.0], "same"),
        ([0.8, 0.8, 0.7, 0.8, 2.0], "faster"),
        ([0.8, 0.8, 0.7, 2.0, 2.0], "same"),
    ],
)
def test_the_quartiles_of_the_rounds_decide(new: list[float], word: str) -> None:
    assert judge("case", [1.0] * 5, new).word == word


def test_a_threshold_can_be_stricter() -> None:
    new = [1.03, 1.04, 1.04]
    assert judge("case", [1.0] * 3, new, threshold=0.01).word == "slower"
    assert judge("case", [1.0] * 3, new).word == "same"


def test_what_disturbs_both_versions_alike_is_no_change() -> None:
    weather = [1.0, 7.0, 2.0, 0.5, 3.0]
    verdict = judge("case", weather, [1.01 * seconds for seconds in weather])
    assert verdict.word == "same"
    assert verdict.ratio == pytest.approx(1.01)
    assert (verdict.old_s, verdict.new_s) == (2.0, pytest.approx(2.02))


@for_each("old, new", [([1.0, 1.0], [1.0, 1.0]), ([1.0] * 3, [1.0] * 4), ([], [])])
def test_too_few_rounds_or_not_as_many_of_both_are_refused(old: list[float], new: list[float]) -> None:
    with pytest.raises(ValueError, match="case: "):
        judge("case", old, new)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=5, max_size=5))
def test_slower_one_way_is_faster_the_other_way(rounds: list[tuple[float, float]]) -> None:
    """Of five rounds each quartile is one of them, so it is the same the other way round."""
    old, new = [a for a, _ in rounds], [b for _, b in rounds]
    there, back = judge("case", old, new), judge("case", new, old)
    assert there.low <= there.ratio <= there.high
    assume(abs(there.low / (1 + THRESHOLD) - 1) > 1e-9)
    assume(abs(there.high * (1 + THRESHOLD) - 1) > 1e-9)
    assert back.word == {"slower": "faster", "faster": "slower", "same": "same"}[there.word]
