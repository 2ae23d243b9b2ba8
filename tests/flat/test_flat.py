"""A cluster that many jobs, connections and checkpoints come to and leave holds no more than before."""

from __future__ import annotations

import logging

import pytest

from tests.flat.bounds import BOUNDED, bound_of
from tests.flat.flat import in_directory, table
from tests.pace import allow

#: Each of 20 jobs, 80 connections and 40 checkpoints.
ROUNDS = 5


@pytest.mark.slow
@pytest.mark.timeout(allow(600.0))
@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "no keys"])
def test_a_cluster_holds_no_more_after_many_jobs_connections_and_checkpoints(
    keyed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    out = in_directory(ROUNDS, keyed=keyed)
    assert not out.grown, table(out)
    assert (out.jobs, out.connections, out.checkpoints) == (20 * ROUNDS, 80 * ROUNDS, 40 * ROUNDS)


def test_what_has_a_bound_is_known_by_its_class_and_attribute() -> None:
    assert bound_of("zmqps.core.coordinator.jobs.EndedJobs.by_name") == BOUNDED["jobs.EndedJobs.by_name"]
    assert bound_of("zmqps.core.coordinator.jobs.EndedJobs.by") == 0
    assert bound_of("zmqps.net.extended.Ended") == 0
