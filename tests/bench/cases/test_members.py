"""The case that lets a crowd come and go beside a small job."""

from __future__ import annotations

import pytest

from bench.cases.members import COMES_AT_S, COMPUTE_S, TIMEOUT_S, Crowd


@pytest.mark.parametrize("role", ["worker", "observer"])
def test_a_crowd_comes_and_is_lost_while_a_small_job_trains(role: str) -> None:
    crowd = Crowd(12, role)
    crowd.run()
    assert crowd.failed == ""
    gone = crowd._machine.membership.gone
    assert sorted(d.member.hello.name for d in gone if d.how == "lost" and d.member.job == "crowd") == sorted(
        f"crowd-{n}" for n in range(12)
    )
    assert len(crowd.delays) > (crowd.ends_at - COMES_AT_S) / COMPUTE_S / 2
    assert crowd.silent_at + TIMEOUT_S < crowd.ends_at
    assert 0 < crowd.status_s
