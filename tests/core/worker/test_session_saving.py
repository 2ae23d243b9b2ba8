"""A worker in a checkpoint: it asks for one, pauses for a cut between pushes, and goes on whatever is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.core.machines import failed, job, resolved, sent
from tests.core.worker.test_session import S0, S1, Session, error
from tests.tables import for_each
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import COORDINATOR, Action
from zmqps.core.worker.operations import Advance, Cancelled, Finish, Restored, SavedCheckpoint, SaveJob, StartJob
from zmqps.core.worker.transfers import AGAIN_S, PAUSE_S
from zmqps.errors import CheckpointFailedError, ProtocolError

BOUNDED = replace(job(*"abcd"), mode="bounded", staleness=1)


def holding() -> Session:
    session = Session.attached()
    session.get(m.Hold(3))
    return session


def holdings(actions: list[Action]) -> list[int]:
    return [message.number for message in sent(actions, m.Holding, COORDINATOR)]


def pushes(actions: list[Action]) -> int:
    return len(sent(actions, m.Push))


# --- who asks -----------------------------------------------------------------------------------


def test_it_asks_and_is_told_where_the_checkpoint_is() -> None:
    session = Session.attached()
    save = SaveJob(0.0, consistent=True, state={"epoch": 3})
    (asked,) = sent(session.ask(save), m.Checkpoint)
    assert (asked.job, asked.consistent, asked.state) == ("", 1, {"epoch": 3})
    done = session.get(m.Checkpointed(asked.request, "/c/ckpt-1", 4, 2.5, 100))
    assert resolved(done) == [(save, SavedCheckpoint("/c/ckpt-1", 4, 2.5, 100))]


def test_it_asks_again_by_the_same_number_and_trains_meanwhile() -> None:
    session = Session.attached()
    save = SaveJob(0.0)
    (asked,) = sent(session.ask(save, 60.0), m.Checkpoint)
    assert pushes(session.ask(session.transfer("push"), 60.0)) == 4
    again = sent(session.wait(9.0, hear=True), m.Checkpoint)
    assert again
    assert {message.request for message in again} == {asked.request}


def test_one_that_has_failed_raises_why() -> None:
    session = Session.attached()
    save = SaveJob(0.0)
    session.ask(save)
    value = failed(
        session.get(error(CheckpointFailedError, save.request, job="default", why="disk full")), CheckpointFailedError
    )
    assert "disk full" in str(value)


@for_each(
    "wire, restored",
    [
        ({"path": "/c", "version": 7, "state": {"epoch": 3}}, Restored("/c", 7, {"epoch": 3})),
        ({"path": 3}, None),
        ({"path": "/c", "version": "7", "state": {}}, None),
        ({"path": "/c", "version": 7}, None),
    ],
)
def test_a_job_says_what_it_was_restored_from_or_fails_the_init(
    wire: dict[str, Any], restored: Restored | None
) -> None:
    session = Session.joined()
    init = StartJob(0.0)
    session.ask(init)
    ((_, value),) = resolved(session.get(replace(session.job(init.request), restored=wire)))
    assert value.restored == restored if restored else isinstance(value, ProtocolError)


# --- who pauses ---------------------------------------------------------------------------------


@for_each("spec", [None, BOUNDED])
def test_one_that_does_nothing_holds_at_once_and_begins_nothing_until_it_may(spec: Any) -> None:
    session = Session.attached(spec)
    assert holdings(session.get(m.Hold(3))) == [3]
    for kind in ("push", "pull", "push_pull"):
        assert not sent(session.ask(session.transfer(kind)), m.Push)
    actions = session.get(m.Hold(3, 1))
    assert pushes(actions) == 8
    assert len(sent(actions, m.Pull)) == 4
    assert not holdings(session.wait(1.0))


@for_each("spec", [None, BOUNDED])
def test_pushes_under_way_are_completed_first(spec: Any) -> None:
    session = Session.attached(spec)
    under_way = session.ask(session.transfer("push"))
    assert not holdings(session.get(m.Hold(3)))
    assert not holdings(session.answer(under_way, S0))
    done = session.answer(under_way, S1)
    assert holdings(done) == [3]
    assert len(resolved(done)) == 1


def test_pulls_under_way_are_no_pushes() -> None:
    session = Session.attached()
    session.ask(session.transfer("pull"))
    assert holdings(session.get(m.Hold(3))) == [3]


def test_a_push_that_was_given_up_is_not_waited_for() -> None:
    session = Session.attached()
    session.ask(session.transfer("push"), 1.0)
    session.get(m.Hold(3))
    assert holdings(session.wait(1.5)) == [3]


def test_the_step_before_it_is_told_and_the_next_one_waits_for_both() -> None:
    session = Session.attached(BOUNDED)
    push = session.ask(session.transfer("push", whole=True))
    done = session.answer(push)
    (arrive,) = sent(done, m.Arrive)
    assert holdings(session.get(m.Hold(3))) == [3]
    assert not pushes(session.ask(session.transfer("push", whole=True)))
    assert not pushes(session.get(m.Proceed(arrive.request, 1, 1)))
    assert pushes(session.get(m.Hold(3, 1))) == 4


def test_an_advance_waits_as_well() -> None:
    session = Session.attached(BOUNDED)
    half = session.ask(session.transfer("push", parameters=frozenset({0, 1})))
    session.answer(half)
    session.get(m.Hold(3))
    advance = Advance(0.0)
    assert not resolved(session.ask(advance))
    assert (advance, None) in resolved(session.get(m.Hold(3, 1)))


def test_a_hold_that_comes_again_is_answered_again() -> None:
    session = Session.attached()
    assert holdings(session.get(m.Hold(3))) == [3]
    assert holdings(session.get(m.Hold(3))) == [3]
    assert holdings(session.get(m.Hold(4))) == [4]
    assert not pushes(session.ask(session.transfer("push")) + session.get(m.Hold(3, 1)))
    assert pushes(session.get(m.Hold(4, 1))) == 4


def test_it_says_again_that_it_holds_in_case_that_it_or_the_answer_was_lost() -> None:
    session = holding()
    assert holdings(session.wait(AGAIN_S + 0.1, hear=True)) == [3]
    session.get(m.Hold(3, 1))
    assert not holdings(session.wait(3 * AGAIN_S, hear=True))


def test_it_goes_on_by_itself_if_nobody_says_so() -> None:
    session = holding()
    session.ask(session.transfer("push"), 100.0)
    assert not pushes(session.wait(PAUSE_S - 0.1, hear=True))
    assert pushes(session.wait(PAUSE_S + 0.1, hear=True)) == 4
    assert session.get(m.Hold(3, 1)) == []


def test_it_goes_on_when_the_coordinator_is_lost() -> None:
    session = holding()
    session.ask(session.transfer("push"), 100.0)
    actions = session.wait(11.0)
    assert session.machine.member.lost
    assert pushes(actions) == 4


def test_what_waits_for_it_may_be_cancelled_and_ends_at_its_deadline() -> None:
    session = holding()
    first, second = session.transfer("push"), session.transfer("push")
    session.ask(first, 50.0)
    session.ask(second, 2.0)
    assert resolved(session.handle(Cancelled(first)))[0][0] is first
    assert [operation for operation, _ in resolved(session.wait(3.0, hear=True))] == [second]
    assert not pushes(session.get(m.Hold(3, 1)))


def test_a_worker_that_finishes_while_it_holds_completes_what_waits_and_leaves() -> None:
    assert sent(holding().ask(Finish(0.0)), m.Leave, COORDINATOR), "at once where nothing waits"
    session = holding()
    session.ask(session.transfer("push"), 50.0)
    assert not sent(session.ask(Finish(0.0), 50.0), m.Leave)
    assert sent(session.answer(session.get(m.Hold(3, 1))), m.Leave, COORDINATOR)


def test_a_cluster_that_ends_meanwhile_fails_what_waits() -> None:
    session = holding()
    push = session.transfer("push")
    session.ask(push)
    assert resolved(session.get(m.Shutdown("all jobs are done")))[0][0] is push
