"""What a cache of rows may be, and with which jobs it goes."""

from __future__ import annotations

from typing import Any

import pytest

import zmqps
from tests.tables import for_each
from zmqps import optim, row_cache
from zmqps.client.sparse.cache_options import STALENESS, CacheStatistics, rate_of
from zmqps.client.sparse.tables import table
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import TableSpec
from zmqps.errors import ConfigurationError

SGD = optim.sgd(0.5)
BOUNDED = {"mode": "bounded", "staleness": 3}


def job(
    optimizer: optim.OptimizerSpec = SGD, admit: int = 1, mode: str = "async", **options: Any
) -> tuple[JobSpec, TableSpec]:
    spec = table(2, optimizer=optimizer, admit=admit).named("items")
    return JobSpec(parameters=(), optimizer=optimizer.to_wire(), tables=(spec,), mode=mode, **options), spec


@for_each(
    "mode, wanted, bound",
    [({}, None, STALENESS), ({}, 100, 100), (BOUNDED, None, 3), (BOUNDED, 2, 2), (BOUNDED, 3, 3)],
)
def test_rows_are_read_for_as_long_as_is_said_or_the_job_allows(
    mode: dict[str, Any], wanted: int | None, bound: int
) -> None:
    assert row_cache(10, staleness=wanted).bound(*job(**mode)) == bound


@for_each(
    "options, mode, says",
    [
        ({}, {"mode": "sync"}, "synchronous"),
        ({"staleness": 4}, BOUNDED, r"row_cache\(…, staleness=3\)"),
        ({"defer": True}, BOUNDED, "others count on what was pushed"),
        ({"defer": True}, {"optimizer": optim.adagrad(0.1)}, "'adagrad' makes of a row of 'items'"),
        ({"defer": True}, {"push_codec": "int8"}, "raw gradients"),
        ({"defer": True}, {"admit": 2}, "admit=1"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(options: dict[str, Any], mode: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        row_cache(10, **options).bound(*job(**mode))
    if "defer" in options and "staleness" not in mode:
        assert row_cache(10, read_own=False, **options).bound(*job(**mode)) == STALENESS


def test_only_of_plain_sgd_a_worker_knows_what_a_gradient_does() -> None:
    assert rate_of(*job()) == 0.5
    for optimizer in (
        optim.sgd(0.5, momentum=0.9),
        optim.rowwise_adagrad(0.5),
        optim.sgd(0.5, weight_decay=0.1),
        optim.sgd(0.5, clip_value=1.0),
        optim.sgd(0.5, clip_norm=1.0),
        optim.sgd(optim.exponential_decay(0.5, decay_rate=0.9, transition_steps=5)),
        optim.sgd(0.5, groups=[optim.group("items", frozen=True)]),
    ):
        assert rate_of(*job(optimizer)) is None
    assert rate_of(*job(optim.sgd(0.5, groups=[optim.group("items", learning_rate=0.25)]))) == 0.25


@for_each(
    "wrong",
    [{"rows": -1}, {"rows": 1.5}, {"staleness": 0}, {"staleness": "8"}, {"defer": 1}, {"read_own": None}],
)
def test_wrong_options_are_refused_where_they_are_written(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        row_cache(**{"rows": 10, **wrong})


def test_they_are_public() -> None:
    assert zmqps.CacheStatistics() == CacheStatistics()
    assert isinstance(row_cache(1), zmqps.CacheOptions)
