"""The end of jobs that somebody asks for, and how many jobs there can be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.machines import Coordinator, errors, exits_of, hello, job, peer, receivers, sent
from tests.tables import for_each
from zmqps.core.protocol import exits
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.security.guard import proved
from zmqps.errors import IdentityError, JobEndedError, JobError, LimitError, from_wire


def end_job(coordinator: Coordinator, name: str, request: int = 3) -> tuple[str, list]:  # type: ignore[type-arg]
    """Let somebody who has not joined end a job; return what is said, and all that is done."""
    actions = coordinator.take("anybody", m.EndJob(request, name))
    (answer,) = sent(actions, m.JobEnded, peer("anybody")) or sent(actions, m.Error, peer("anybody"))
    assert answer.request == request
    return answer.text, actions


def test_who_is_there_for_a_job_that_is_ended_is_told_and_is_there_no_more() -> None:
    coordinator = Coordinator.trains("s0", "w0", "o0", "w1.b")
    text, actions = end_job(coordinator, "default")
    assert text == "job 'default' has ended"
    assert receivers(actions, m.Error) == [peer("w0"), peer("o0")]
    for message in sent(actions, m.Error):
        error = from_wire(message.code, message.text, message.facts)
        assert isinstance(error, JobEndedError)
        assert (message.request, error.job, error.reason) == (0, "default", "ended by zmqps jobs end")
    assert sent(actions, m.Discard, peer("s0")) == [m.Discard(1)]
    for name in ("w0", "o0"):
        for late in (m.Heartbeat({}), m.Init(9, job().to_wire()), m.Withdraw(9), hello("worker", name)):
            (refused,) = sent(coordinator.take(name, late), m.Error)
            assert (refused.request, refused.code) == (getattr(late, "request", 0), JobEndedError.code)
            assert "ended by zmqps jobs end; connect again" in refused.text
        assert sent(coordinator.take(name, m.Leave("closed")), m.Left) == [m.Left()]
    status = coordinator.machine.status(0.0)
    assert [(g["name"], g["how"]) for g in status["gone"]] == [("w0", "ended"), ("o0", "ended")]
    assert coordinator.run("b").state == "training"
    assert sent(coordinator.take("w1.b", m.Heartbeat({})), m.HeartbeatAck)


def test_the_end_of_one_job_does_not_make_a_cluster_idle_that_trains_another() -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1.b", idle_timeout=60.0)
    end_job(coordinator, "default")
    assert exits_of(coordinator.wait(100.0, "s0", "w1.b")) == []
    end_job(coordinator, "b")
    assert exits_of(coordinator.wait(159.0, "s0")) == []
    assert exits_of(coordinator.wait(165.0, "s0"))[:1] == [exits.IDLE]


def test_a_server_is_asked_to_discard_until_it_has() -> None:
    coordinator = Coordinator.trains("s0", "s1", "w0", servers=2)
    end_job(coordinator, "default")
    coordinator.take("s0", m.Discarded(1))
    coordinator.take("s1", m.Discarded(7))
    coordinator.take("s1", m.Discarded(1))  # that was another's
    assert receivers(coordinator.wait(2.5, "s0", "s1"), m.Discard) == [peer("s1")] * 2
    coordinator.take("s1", m.Discarded(2))
    assert receivers(coordinator.wait(20.0, "s0", "s1"), m.Discard) == []


def test_a_job_that_starts_can_be_ended_and_what_was_built_of_it_is_discarded() -> None:
    coordinator = Coordinator.joined("s0", "w0")
    coordinator.init("w0", job())
    _, actions = end_job(coordinator, "default")
    assert errors(actions, peer("w0")) == [JobEndedError.code]
    assert sent(actions, m.Discard) == [m.Discard(1)]
    assert sent(coordinator.ready("s0", epoch=1), m.Job) == []


def test_an_end_that_is_asked_for_again_is_answered_again_and_an_unknown_name_is_an_error() -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1.b")
    end_job(coordinator, "default")
    coordinator.now += 3.0
    text, actions = end_job(coordinator, "default", request=4)
    assert text == "job 'default' had ended 3 s ago: ended by zmqps jobs end"
    assert len(actions) == 1
    text, actions = end_job(coordinator, "c")
    assert errors(actions) == [JobError.code]
    assert text == "there is no job 'c'; running: 'b'"
    end_job(coordinator, "b")
    assert end_job(coordinator, "c")[0] == "there is no job 'c'; none is running"


def test_the_whole_cluster_can_be_ended_from_outside_by_who_may_end_its_jobs() -> None:
    coordinator, key = Coordinator(), b"the key of ends "
    coordinator.machine.identity = replace(coordinator.machine.identity, end_key=key)
    coordinator.train("s0", "w0")
    nonce = bytes(16)
    for guard in (
        b"",
        proved(b"of another one..", m.EndJob(3, "", nonce)).guard,
        proved(key, m.EndJob(3, "default", nonce)).guard,
    ):
        assert errors(coordinator.take("anybody", m.EndJob(3, "", nonce, guard))) == [IdentityError.code]
    assert coordinator.machine.ending is None
    actions = coordinator.take("anybody", proved(key, m.EndJob(3, "", nonce)))
    assert sent(actions, m.JobEnded, peer("anybody")) == [m.JobEnded(3, "the cluster is ending")]
    assert receivers(actions, m.Shutdown) == [peer("s0"), peer("w0")]
    again = coordinator.take("anybody", proved(key, m.EndJob(3, "", nonce)))
    assert [type(action.message) for action in again] == [m.JobEnded]
    ended = [*coordinator.take("w0", m.Leave("closed")), *coordinator.take("s0", m.Leave("finished"))]
    assert exits_of(ended)[:1] == [exits.OK]


def test_an_end_that_is_asked_for_again_ends_no_job_that_has_begun_since() -> None:
    coordinator = Coordinator.trains("s0", "w0")
    first, _ = end_job(coordinator, "default")
    coordinator.attach("w1", job())
    again, actions = end_job(coordinator, "default")
    assert (again, len(actions)) == (first, 1)
    assert "default" in coordinator.machine.runs
    coordinator.join("w2.never-placed")
    assert end_job(coordinator, "never-placed", request=8)[0] == end_job(coordinator, "never-placed", request=8)[0]


@for_each("reason", ["finished", "closed"])
def test_a_cluster_for_one_job_does_not_end_with_a_worker_that_never_began_one(reason: str) -> None:
    coordinator = Coordinator.joined("s0", "w0", once=True)
    assert exits_of(coordinator.take("w0", m.Leave(reason))) == []
    assert coordinator.machine.ending is None


def test_so_many_jobs_run_at_the_same_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.core.coordinator.jobs.MAX_JOBS", 3)
    coordinator = Coordinator.trains("s0", "w0", "w1.b", "w2.c")
    assert errors(coordinator.join("w3.d")) == [LimitError.code]
    assert coordinator.machine.membership.find(peer("w3.d")) is None
    assert errors(coordinator.join("w4.b")) == [], "a job that runs takes more workers"
    coordinator.take("w2.c", m.Leave("finished"))
    assert errors(coordinator.join("w3.d")) == []
    coordinator.take("w0", m.Leave("closed"))
    assert len(sent(coordinator.attach("w5", job("another")), m.Assign)) == 1, (
        "in the place of an idle one there is room"
    )


def test_of_jobs_that_have_ended_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.core.coordinator.jobs.MAX_ENDED", 2)
    coordinator = Coordinator.trains("s0", "w0", "w1.b", "w2.c")
    for name in ("b", "c", "default"):
        end_job(coordinator, name)
    assert [row["job"] for row in coordinator.machine.status(0.0)["ended"]] == ["c", "default"]


def test_only_who_knows_the_end_key_ends_a_job_of_a_cluster_without_a_job_secret() -> None:
    coordinator, key = Coordinator(), b"the key of ends "
    coordinator.machine.identity = replace(coordinator.machine.identity, end_key=key)
    coordinator.train("s0", "w0")
    nonce = bytes(16)
    for guard in (
        b"",
        key,
        proved(b"of another one..", m.EndJob(3, "default", nonce)).guard,
        proved(key, m.EndJob(3, "another", nonce)).guard,
    ):
        (refused,) = sent(coordinator.take("anybody", m.EndJob(3, "default", nonce, guard)), m.Error)
        assert refused.code == IdentityError.code
        assert "only the coordinator's own user may end jobs" in refused.text
    assert coordinator.run().state == "training"
    (answer,) = sent(coordinator.take("anybody", proved(key, m.EndJob(4, "default", nonce))), m.JobEnded)
    assert answer.text == "job 'default' has ended"
