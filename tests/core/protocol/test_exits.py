"""The exit code of a supervisor: for the end of a process, and where the coordinator could not save a job."""

from __future__ import annotations

import signal

from tests.tables import for_each
from zmqps.core.protocol import exits
from zmqps.net.system.signals import UNKNOWN


@for_each("code", [exits.OK, exits.IDLE, exits.DRAINED, exits.INTERRUPTED, exits.TERMINATED])
def test_a_good_end_is_none_where_a_job_is_not_saved(code: int) -> None:
    assert exits.of_cluster(code, exits.NOT_SAVED) == exits.NOT_SAVED
    assert exits.of_cluster(code, exits.OK) == code
    assert exits.of_cluster(code, None) == code


@for_each("code", [exits.FAILED, exits.USAGE, exits.WORKERS_FAILED, exits.HOST_LOST])
def test_what_failed_before_is_what_is_said(code: int) -> None:
    assert exits.of_cluster(code, exits.NOT_SAVED) == code


def test_an_end_by_a_signal_is_a_code_as_shells_have_it_and_an_unknown_one_is_a_failure() -> None:
    assert [exits.of_process(code) for code in (0, 9, 255)] == [0, 9, 255]
    assert exits.of_process(-signal.SIGKILL) == 137
    assert exits.of_process(-signal.SIGTERM) == exits.TERMINATED
    assert exits.of_process(UNKNOWN) == exits.FAILED
