"""The worker's side of taking ranges: what it asks, what it says it has used, how its clock goes on."""

from __future__ import annotations

from dataclasses import replace

from tests.core.machines import failed, job, logged, resolved, sent
from tests.core.worker.test_session import Session
from zmqps.core.job.data import DataSpec
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action
from zmqps.core.worker.operations import Advance
from zmqps.core.worker.questions import RETRY_S
from zmqps.core.worker.ranges import TakeRange
from zmqps.errors import DeadlineError

SPEC = DataSpec(name="data", num_examples=100, range_size=10, passes=2, shuffle_seed=7)


def synchronous() -> Session:
    return Session.attached(replace(job(*"abcd"), mode="sync"))


def test_a_range_is_asked_for_until_it_comes() -> None:
    session = Session.attached()
    take = TakeRange(0.0, data=SPEC, used=(1, 3))
    (asked,) = sent(session.ask(take, timeout=20.0), m.Take)
    assert asked == m.Take(take.request, "data", 100, 10, 2, (7,), (1, 3))
    assert sent(session.wait(RETRY_S, hear=True), m.Take) == [asked]
    found = m.Range(take.request, 1, 4, 40, 50, 0)
    assert resolved(session.get(found)) == [(take, found)]
    assert sent(session.wait(20.0, hear=True), m.Take) == []


def test_a_wait_that_ends_names_who_has_the_ranges_and_withdraws() -> None:
    session = Session.attached()
    take = TakeRange(0.0, data=SPEC)
    session.ask(take, timeout=3.0)
    session.get(m.Waiting(take.request, "worker 1 (w1, h, pid 2) (range 4)"))
    actions = session.wait(3.0, hear=True)
    error = failed(actions, DeadlineError)
    assert (error.operation, error.waiting_for) == ("ranges", "worker 1 (w1, h, pid 2) (range 4)")
    assert [got.request for got in sent(actions, m.Withdraw)] == [take.request]


def test_after_a_wait_the_worker_goes_on_at_the_clock_of_the_others() -> None:
    session = synchronous()
    taken(session, 6)
    assert {got.version for got in sent(session.ask(session.transfer("pull")), m.Pull)} == {6}
    assert {got.step for got in sent(session.ask(session.transfer("push")), m.Push)} == {6}


def test_an_answer_that_did_not_wait_leaves_the_clock_as_it_is() -> None:
    session = synchronous()
    session.machine.transfers.pace.clock = 9
    taken(session, 0)
    assert session.machine.transfers.pace.clock == 9


def push(session: Session, *, whole: bool) -> list[Action]:
    actions = session.ask(session.transfer("push", whole=whole))
    return actions + session.answer(list(actions))


def taken(session: Session, clock: int) -> list[Action]:
    """Let the worker take a range; the answer says what the clock of the others is where it has waited."""
    take = TakeRange(0.0, data=SPEC)
    session.ask(take)
    return session.get(m.Range(take.request, 0, 4, 40, 50, clock))


def test_an_answer_to_an_older_step_does_not_turn_the_clock_back() -> None:
    session = synchronous()
    (arrive,) = sent(push(session, whole=True), m.Arrive)
    taken(session, 6)
    session.get(m.Proceed(arrive.request, 1, 1))
    assert {got.step for got in sent(push(session, whole=True), m.Push)} == {6}


def test_what_is_fetched_by_the_number_of_the_arrival_is_none_of_the_step() -> None:
    session = synchronous()
    (arrive,) = sent(push(session, whole=True), m.Arrive)
    fetch = m.Fetch(arrive.request, 1, session.machine.member.identity.incarnation, 0)
    assert resolved(session.get(fetch)) == []
    assert session.machine.transfers.pace.arrive == arrive, "it waits on"
    session.get(m.Proceed(arrive.request, 1, 1))
    assert {got.step for got in sent(push(session, whole=True), m.Push)} == {1}


def test_gradients_of_a_step_that_went_by_meanwhile_are_dropped_and_counted() -> None:
    session = synchronous()
    assert sent(push(session, whole=False), m.Arrive) == []
    assert "dropped" in logged(taken(session, 6))
    assert session.machine.statistics().dropped == 1
    assert sent(session.ask(Advance(0.0)), m.Arrive) == [], "the step that it was to end is over"
    assert sent(session.ask(Advance(0.0)), m.Arrive) != []
