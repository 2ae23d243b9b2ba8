"""Which rules get which learning rate when one is set."""

from __future__ import annotations

import pytest

from zmqps.errors import OptimizerError
from zmqps.optim import adamw, custom, group, linear_warmup, rates_of, sgd

NAMES = ["a.w", "a.b", "c.w", "c.b"]


def test_without_groups_there_is_one_rule() -> None:
    assert rates_of(sgd(0.1), NAMES, 0.5) == [0.5]
    assert rates_of(custom("of_somebody_else"), NAMES, 0.5) == [0.5], "its rules need not be known here"


def test_groups_that_have_none_of_their_own_get_the_same_and_others_stay() -> None:
    spec = adamw(
        0.1, groups=[group("*.b", weight_decay=0.0), group("c.*", learning_rate=linear_warmup(0.2, warmup_steps=5))]
    )
    rules, indices = spec.rules(NAMES)
    found = rates_of(spec, NAMES, 0.5)
    assert [found[index] for index in indices] == [0.5, 0.5, None, 0.5]
    assert [rules[index].weight_decay for index in indices] == [0.01, 0.0, 0.01, 0.0]


def test_each_group_may_have_its_own() -> None:
    spec = sgd(0.1, groups=[group("*.b", weight_decay=0.3), group("c.*", learning_rate=0.2)])
    _, indices = spec.rules(NAMES)
    found = rates_of(spec, NAMES, 0.5, [0.6, 0.7])
    assert [found[index] for index in indices] == [0.5, 0.6, 0.7, 0.6]
    assert rates_of(spec, NAMES, 0.5, [None, None]) == rates_of(spec, NAMES, 0.5)


def test_parameters_that_were_the_same_in_init_stay_the_same() -> None:
    spec = sgd(0.1, groups=[group("*.b")])
    assert rates_of(spec, NAMES, 0.5, [0.5]) == [0.5]
    with pytest.raises(OptimizerError, match=r"'a.b' has the same numbers in init as parameters of another group"):
        rates_of(spec, NAMES, 0.5, [0.6])


@pytest.mark.parametrize(
    ("rate", "groups", "says"),
    [(-1.0, (), "learning_rate"), (float("nan"), (), "learning_rate"), ("x", (), "learning_rate"),
     (0.1, (0.1, 0.2), "groups has 2 numbers"),
     (0.1, (float("inf"),), r"groups\[0\]")],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(rate: float, groups: tuple[float, ...], says: str) -> None:
    with pytest.raises(OptimizerError, match=says):
        rates_of(sgd(0.1, groups=[group("*.b")]), NAMES, rate, groups)
