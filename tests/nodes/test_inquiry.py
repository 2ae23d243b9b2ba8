"""How long it is waited for what somebody asks of a coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from zmqps.errors import DeadlineError
from zmqps.nodes import inquiry

ADDRESS = "tcp://127.0.0.1:5570"


@pytest.mark.parametrize("saved", ["this", "other", ""])
def test_the_end_of_a_job_waits_until_it_and_those_before_it_are_saved(
    monkeypatch: pytest.MonkeyPatch, saved: str
) -> None:
    asked: list[bytes] = []

    def end(*told: Any) -> str:
        asked.append(told[-1])
        if len(asked) < 3:
            raise DeadlineError(operation="jobs end", seconds=5.0, waiting_for="an answer")
        return "job 'this' has ended"

    def ask_status(*told: Any, **options: Any) -> dict[str, Any]:
        return {
            "jobs": {name: {"checkpoint": {"under_way": {}} if name == saved else {}} for name in ("this", "other")}
        }

    monkeypatch.setattr(inquiry, "_end", end)
    monkeypatch.setattr(inquiry, "ask_status", ask_status)
    if saved:
        assert inquiry.end_job(ADDRESS, "this") == "job 'this' has ended"
        assert len(set(asked)) == 1, "it is the same question"
    else:
        with pytest.raises(DeadlineError):
            inquiry.end_job(ADDRESS, "this")
