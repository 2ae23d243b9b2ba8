"""What nodes have counted becomes series: whose they are, what counts as 0, and no more than the labels say."""

from __future__ import annotations

from typing import Any

from tests.web.samples import of_job, of_worker, small
from zmqps.core.node.measured import Counted, Known, Measurements
from zmqps.web.metrics import families


def series(measured: Measurements, metric: str) -> dict[tuple[str, ...], Any]:
    found = {family.figure.metric: family for family in families(measured)}
    if metric not in found:
        return {}
    return {tuple(f"{name}={value}" for name, value in key): v for key, v in found[metric].series.items()}


def test_a_server_counts_by_job_and_a_worker_for_its_own() -> None:
    assert series(small(), "zmqps_pushes_total") == {
        ("job=a", "rank=0", "role=worker"): 3,
        ("job=a", "rank=1", "role=worker"): 3,
        ("job=a", "rank=0", "role=server"): 6,
    }


def test_what_processes_use_is_told_of_all_but_not_by_job() -> None:
    found = series(small(), "zmqps_cpu_seconds_total")
    assert found[("role=coordinator",)] == 0.5
    assert found[("rank=0", "role=server")] == 2.0


def test_a_counter_that_never_went_up_is_0_so_that_its_first_increase_is_one() -> None:
    assert series(small(), "zmqps_nonfinite_gradients_total")[("job=a", "rank=0", "role=server")] == 0
    assert series(small(), "zmqps_replication_lag_bytes") == {}, "a gauge of what is not there is no 0"


def test_a_node_that_has_said_nothing_yet_has_no_series() -> None:
    silent = Counted(scope="worker", role="worker", rank=0, job="a", counters="{}")
    assert families(Measurements([silent])) == []


def test_tables_are_told_apart_and_those_beyond_the_first_are_one_without_a_name() -> None:
    counters = {"rows": 10, "rows.users": 4, "rows.items": 3, "row_nbytes": 80, "row_nbytes.users": 80}
    measured = Measurements([of_job(**counters)])
    assert series(measured, "zmqps_table_rows") == {
        ("job=a", "rank=0", "role=server", "table=users"): 4,
        ("job=a", "rank=0", "role=server", "table=items"): 3,
        ("job=a", "rank=0", "role=server"): 3,
    }
    assert series(measured, "zmqps_table_bytes") == {("job=a", "rank=0", "role=server", "table=users"): 80}
    assert series(Measurements([of_job()]), "zmqps_table_rows") == {}, "without tables"


def test_what_a_member_says_wrongly_is_no_series() -> None:
    lies = {"in_flight_nbytes": "many", "clock": True, "step_seconds": [1.0, -1], "rss_nbytes": None}
    found = {family.figure.metric for family in families(Measurements([of_worker(**lies)]))}
    assert found.isdisjoint({"zmqps_in_flight_bytes", "zmqps_clock_steps", "zmqps_step_seconds"})
    assert "zmqps_pushes_total" in found


def test_two_lives_of_one_rank_are_one_series() -> None:
    measured = Measurements([of_worker(0, pushes=1), of_worker(0, pushes=2)], [Known("steps", 1), Known("steps", 2)])
    assert series(measured, "zmqps_pushes_total") == {("job=a", "rank=0", "role=worker"): 1}
    assert series(measured, "zmqps_steps") == {(): 1}
