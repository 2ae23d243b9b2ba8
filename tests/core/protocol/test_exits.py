"""How a supervisor ends whose coordinator could not save what was trained."""

from __future__ import annotations

from tests.tables import for_each
from zmqps.core.protocol import exits


@for_each("code", [exits.OK, exits.IDLE, exits.DRAINED, exits.INTERRUPTED, exits.TERMINATED])
def test_a_good_end_is_none_where_a_job_is_not_saved(code: int) -> None:
    assert exits.of_cluster(code, exits.NOT_SAVED) == exits.NOT_SAVED
    assert exits.of_cluster(code, exits.OK) == code
    assert exits.of_cluster(code, None) == code


@for_each("code", [exits.FAILED, exits.USAGE, exits.WORKERS_FAILED, exits.HOST_LOST])
def test_what_failed_before_is_what_is_said(code: int) -> None:
    assert exits.of_cluster(code, exits.NOT_SAVED) == code
