"""A worker in a checkpoint: it asks for one, pauses for a cut between pushes, and goes on whatever is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.machines import job, resolved, sent
from tests.core.worker.test_session import S0, S1, WELCOME, Session, error
from zmqps.core.protocol.events import COORDINATOR, Action
from zmqps.core.protocol.messages import Checkpoint as CheckpointMessage
from zmqps.core.protocol.messages import Checkpointed, GoOn, Hold, Holding, Leave, Proceed, Pull, Push, Shutdown
from zmqps.core.worker.operations import Advance, Cancelled, Finish, Restored, SavedCheckpoint, SaveJob, StartJob
from zmqps.core.worker.transfers import AGAIN_S, PAUSE_S
from zmqps.errors import CheckpointFailedError, ProtocolError

SSP = replace(job(*"abcd"), staleness=1)


def attached(spec: Any = None) -> Session:
    session = Session(spec)
    session.attach()
    return session


def holdings(actions: list[Action]) -> list[int]:
    return [message.number for message in sent(actions, Holding, COORDINATOR)]


def pushes(actions: list[Action]) -> int:
    return len(sent(actions, Push))


# --- who asks -----------------------------------------------------------------------------------


def test_it_asks_and_is_told_where_the_checkpoint_is() -> None:
    session = attached()
    save = SaveJob(0.0, consistent=True, state={"epoch": 3})
    (asked,) = sent(session.ask(save), CheckpointMessage)
    assert (asked.job, asked.consistent, asked.state) == ("", 1, {"epoch": 3})
    done = session.get(Checkpointed(asked.request, "/c/ckpt-1", 4, 2.5, 100))
    assert resolved(done) == [(save, SavedCheckpoint("/c/ckpt-1", 4, 2.5, 100))]


def test_it_asks_again_by_the_same_number_and_trains_meanwhile() -> None:
    session = attached()
    save = SaveJob(0.0)
    (asked,) = sent(session.ask(save, 60.0), CheckpointMessage)
    assert pushes(session.ask(session.transfer("push"), 60.0)) == 4
    again = sent(session.wait(9.0, hear=True), CheckpointMessage)
    assert again
    assert {message.request for message in again} == {asked.request}


def test_one_that_has_failed_raises_why() -> None:
    session = attached()
    save = SaveJob(0.0)
    session.ask(save)
    ((_, value),) = resolved(session.get(error(CheckpointFailedError, save.request, job="default", why="disk full")))
    assert isinstance(value, CheckpointFailedError)
    assert "disk full" in str(value)


def test_a_job_says_what_it_was_restored_from() -> None:
    session = Session()
    session.get(WELCOME)
    init = StartJob(0.0)
    session.ask(init)
    told = replace(session.job(init.request), restored={"path": "/c", "version": 7, "state": {"epoch": 3}})
    ((_, value),) = resolved(session.get(told))
    assert value.restored == Restored("/c", 7, {"epoch": 3})


@pytest.mark.parametrize(
    "wire", [{"path": 3}, {"path": "/c", "version": "7", "state": {}}, {"path": "/c", "version": 7}]
)
def test_what_says_something_else_of_it_fails_the_init(wire: dict[str, Any]) -> None:
    session = Session()
    session.get(WELCOME)
    init = StartJob(0.0)
    session.ask(init)
    ((_, value),) = resolved(session.get(replace(session.job(init.request), restored=wire)))
    assert isinstance(value, ProtocolError)


# --- who pauses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [None, SSP])
def test_one_that_does_nothing_holds_at_once_and_begins_nothing_until_it_may(spec: Any) -> None:
    session = attached(spec)
    assert holdings(session.get(Hold(3))) == [3]
    for kind in ("push", "pull", "push_pull"):
        assert not sent(session.ask(session.transfer(kind)), Push)
    actions = session.get(GoOn(3))
    assert pushes(actions) == 8
    assert len(sent(actions, Pull)) == 4
    assert not holdings(session.wait(1.0))


@pytest.mark.parametrize("spec", [None, SSP])
def test_pushes_under_way_are_completed_first(spec: Any) -> None:
    session = attached(spec)
    under_way = session.ask(session.transfer("push"))
    assert not holdings(session.get(Hold(3)))
    assert not holdings(session.answer(under_way, S0))
    done = session.answer(under_way, S1)
    assert holdings(done) == [3]
    assert len(resolved(done)) == 1


def test_pulls_under_way_are_no_pushes() -> None:
    session = attached()
    session.ask(session.transfer("pull"))
    assert holdings(session.get(Hold(3))) == [3]


def test_a_push_that_was_given_up_is_not_waited_for() -> None:
    session = attached()
    session.ask(session.transfer("push"), 1.0)
    session.get(Hold(3))
    assert holdings(session.wait(1.5)) == [3]


def test_the_step_before_it_is_told_and_the_next_one_waits_for_both() -> None:
    session = attached(SSP)
    push = session.ask(session.transfer("push", whole=True))
    done = session.answer(push, S0) + session.answer(push, S1)
    (arrive,) = [action.message for action in done if getattr(action, "message", None).__class__.__name__ == "Arrive"]
    assert holdings(session.get(Hold(3))) == [3]
    assert not pushes(session.ask(session.transfer("push", whole=True)))
    assert not pushes(session.get(Proceed(arrive.request, 1, 1)))
    assert pushes(session.get(GoOn(3))) == 4


def test_an_advance_waits_as_well() -> None:
    session = attached(SSP)
    half = session.ask(session.transfer("push", parameters=frozenset({0, 1})))
    session.answer(half, S0)
    session.answer(half, S1)
    session.get(Hold(3))
    advance = Advance(0.0)
    assert not resolved(session.ask(advance))
    assert (advance, None) in resolved(session.get(GoOn(3)))


def test_a_hold_that_comes_again_is_answered_again() -> None:
    session = attached()
    assert holdings(session.get(Hold(3))) == [3]
    assert holdings(session.get(Hold(3))) == [3]
    assert holdings(session.get(Hold(4))) == [4]
    assert not pushes(session.ask(session.transfer("push")) + session.get(GoOn(3)))
    assert pushes(session.get(GoOn(4))) == 4


def test_it_says_again_that_it_holds_in_case_that_it_or_the_answer_was_lost() -> None:
    session = attached()
    session.get(Hold(3))
    said = holdings(session.wait(AGAIN_S + 0.1, hear=True))
    assert said == [3]
    session.get(GoOn(3))
    assert not holdings(session.wait(3 * AGAIN_S, hear=True))


def test_it_goes_on_by_itself_if_nobody_says_so() -> None:
    session = attached()
    session.get(Hold(3))
    push = session.transfer("push")
    session.ask(push, 100.0)
    assert not pushes(session.wait(PAUSE_S - 0.1, hear=True))
    assert pushes(session.wait(PAUSE_S + 0.1, hear=True)) == 4
    assert session.get(GoOn(3)) == []


def test_it_goes_on_when_the_coordinator_is_lost() -> None:
    session = attached()
    session.get(Hold(3))
    session.ask(session.transfer("push"), 100.0)
    actions = session.wait(11.0)
    assert session.machine.member.lost
    assert pushes(actions) == 4


def test_what_waits_for_it_may_be_cancelled_and_ends_at_its_deadline() -> None:
    session = attached()
    session.get(Hold(3))
    first, second = session.transfer("push"), session.transfer("push")
    session.ask(first, 50.0)
    session.ask(second, 2.0)
    assert resolved(session.handle(Cancelled(first)))[0][0] is first
    assert [operation for operation, _ in resolved(session.wait(3.0, hear=True))] == [second]
    assert not pushes(session.get(GoOn(3)))


def test_a_worker_that_finishes_while_it_holds_completes_what_waits_and_leaves() -> None:
    session = attached()
    session.get(Hold(3))
    session.ask(session.transfer("push"), 50.0)
    assert not sent(session.ask(Finish(0.0), 50.0), Leave)
    actions = session.get(GoOn(3))
    done = session.answer(actions, S0) + session.answer(actions, S1)
    assert sent(done, Leave, COORDINATOR)


def test_one_with_nothing_to_do_leaves_at_once() -> None:
    session = attached()
    session.get(Hold(3))
    assert sent(session.ask(Finish(0.0)), Leave, COORDINATOR)


def test_a_cluster_that_ends_meanwhile_fails_what_waits() -> None:
    session = attached()
    session.get(Hold(3))
    push = session.transfer("push")
    session.ask(push)
    assert resolved(session.get(Shutdown("all jobs are done")))[0][0] is push
