"""Jobs that are over, and the answers to who ended one: a few of each are remembered."""

from __future__ import annotations

import pytest

from tests.core.machines import peer
from tests.tables import for_each
from zmqps.core.coordinator import jobs as module
from zmqps.core.coordinator.jobs import EndedJobs
from zmqps.core.protocol.messages import EndJob, JobEnded


def test_the_last_job_of_a_name_is_remembered_and_described() -> None:
    ended = EndedJobs()
    assert (ended.how("a"), ended.describe("a", 9.0), ended.status(9.0)) == ("", "", [])
    ended.add("a", "finished", 1, 1.0)
    ended.add("b", "lost", 2, 2.0)
    ended.add("a", "ended", 3, 3.25)
    assert (ended.how("a"), ended.how("b"), ended.how("c")) == ("ended", "lost", "")
    assert ended.describe("a", 9.0) == "job 'a' had ended 6 s ago: ended"
    assert ended.status(4.0) == [{"job": "b", "how": "lost", "ago_s": 2.0}, {"job": "a", "how": "ended", "ago_s": 0.75}]


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENDED", 3)
    ended = EndedJobs()
    for number, name in enumerate("abcab"):
        ended.add(name, name, number, float(number))
    ended.add("d", "d", 5, 5.0)
    assert [row["job"] for row in ended.status(5.0)] == ["a", "b", "d"], "one that began again counts anew"
    for request in range(5):
        ended.answer(peer("p"), EndJob(request, "a"), "done")
    found = [ended.answered(peer("p"), EndJob(request, "a")) for request in range(5)]
    assert [answer is not None for answer in found] == [False, False, True, True, True]


def test_the_same_request_gets_the_same_answer_over_any_connection() -> None:
    ended = EndedJobs()
    asked = EndJob(1, "a", b"n" * 16)
    assert ended.answered(peer("p"), asked) is None
    answer = ended.answer(peer("p"), asked, "it has ended")
    assert answer == JobEnded(1, "it has ended")
    for connection in ("p", "q"):
        assert ended.answered(peer(connection), asked) is answer


@for_each("other", [EndJob(2, "a", b"n" * 16), EndJob(1, "b", b"n" * 16), EndJob(1, "a", b"m" * 16), EndJob(1, "a")])
def test_another_request_is_not_taken_for_it(other: EndJob) -> None:
    ended = EndedJobs()
    ended.answer(peer("p"), EndJob(1, "a", b"n" * 16), "it has ended")
    assert ended.answered(peer("p"), other) is None


def test_a_request_without_a_nonce_is_known_by_its_connection() -> None:
    ended = EndedJobs()
    answer = ended.answer(peer("p"), EndJob(1, "a"), "it has ended")
    assert ended.answered(peer("p"), EndJob(1, "a")) is answer
    assert ended.answered(peer("q"), EndJob(1, "a")) is None
