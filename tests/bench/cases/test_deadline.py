"""The case that asks a coordinator of many jobs when something is due."""

from __future__ import annotations

from bench.cases.deadline import MODES, Jobs, measure
from tests.tables import for_each


@for_each("mode", MODES)
def test_all_jobs_of_the_case_train(mode: str) -> None:
    jobs = Jobs(5, mode)
    assert jobs.num_training == 5
    jobs.machine.validate()
    assert jobs.machine.next_deadline() is not None


def test_a_row_says_how_many_jobs_there_were_and_what_a_heartbeat_takes() -> None:
    row = measure(3, "sync", 10)
    assert (row.case, row.workers, row.extra["jobs"], row.steps) == ("deadline", 3, 3, 10)
    assert row.extra["touched_s"] > 0
    assert row.extra["heartbeat_s"] > 0
