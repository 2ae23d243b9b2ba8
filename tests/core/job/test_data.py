"""What workers say of a data set before they share it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tables import for_each
from zmqps.core.job.data import DataSpec
from zmqps.errors import ConfigurationError, JobMismatchError

SPEC = DataSpec(name="data", num_examples=10, range_size=4, passes=3, shuffle_seed=5)


@for_each("seed", [None, 0, (1 << 63) - 1])
def test_a_description_arrives_as_it_was_sent_zero_being_a_seed_like_any_other(seed: int | None) -> None:
    spec = replace(SPEC, shuffle_seed=seed)
    message = spec.take(7, (1, 2))
    assert DataSpec.of(message) == spec
    assert (message.request, message.done) == (7, (1, 2))
    assert spec.take(7, None).done == ()


@for_each(
    "change",
    [
        {"name": ""},
        {"num_examples": 0},
        {"range_size": True},
        {"passes": 1 << 48},
        {"shuffle_seed": -1},
        {"shuffle_seed": 1 << 63},
        {"shuffle_seed": 0.0},
    ],
)
def test_a_description_that_makes_no_sense_or_could_not_travel_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        replace(SPEC, **change)  # type: ignore[arg-type]


@for_each("examples, size, ranges", [(10, 4, 3), (8, 4, 2), (1, 4, 1)])
def test_the_last_range_of_a_pass_may_be_smaller(examples: int, size: int, ranges: int) -> None:
    assert replace(SPEC, num_examples=examples, range_size=size).num_ranges == ranges


def test_who_describes_a_data_set_otherwise_is_told_what_and_by_whom_it_was_described() -> None:
    SPEC.check_same(replace(SPEC), "worker 0")
    with pytest.raises(JobMismatchError, match="worker 0") as caught:
        SPEC.check_same(replace(SPEC, range_size=5), "worker 0")
    assert (caught.value.what, caught.value.ours, caught.value.theirs) == (
        "range_size of the data set 'data'",
        "5",
        "4",
    )
