"""A description of a job is kept once, and who asks for it again and again does not hold up the others."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tests.core.machines import Coordinator, job, peer, receivers, sent
from zmqps.core.coordinator.members import telling
from zmqps.core.coordinator.members.membership import MAX_ANSWERED
from zmqps.core.coordinator.members.telling import BURST_S, FIRST_SHARE, REPEAT_S, cost
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import Assign, Init, Job, Leave, Withdraw

LARGE = job(*[f"layer.{i}" for i in range(1000)], size=1)


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the job take as long to tell as one of 10,000 parameters, which takes long to make."""
    monkeypatch.setattr(telling, "PARAMETER_S", 10 * telling.PARAMETER_S)


def trained(*names: str) -> Coordinator:
    """Return a coordinator with a job of many parameters that these train and look at."""
    coordinator = Coordinator.joined("s0", "w0")
    coordinator.init("w0", LARGE)
    coordinator.ready("s0")
    coordinator.join(*names)
    return coordinator


def later(coordinator: Coordinator, seconds: float) -> list[tuple[float, Action]]:
    """Let time pass; return what is done meanwhile, and when."""
    done, end = list[tuple[float, Action]](), coordinator.now + seconds
    while (due := coordinator.machine.next_deadline()) is not None and due <= end:
        coordinator.now = max(coordinator.now, due)
        done += [(coordinator.now, action) for action in coordinator.machine.on_deadline(coordinator.now)]
        coordinator.machine.validate()
    coordinator.now = end
    return done


def test_all_that_is_remembered_of_a_job_shares_its_description() -> None:
    coordinator = trained("w1", "o1")
    coordinator.init("w1", LARGE)
    for request in range(1, 4):
        coordinator.init("o1", None, request)
    found = [coordinator.machine.membership.find(peer(name)) for name in ("w0", "w1", "o1")]
    said = [answer for member in found if member for answer in member.answers.by_request.values()]
    answers = [answer for answer in said if isinstance(answer, Job)]
    assert len(answers) == 5
    assert len({id(answer.job) for answer in answers}) == 1
    assert len({id(answer.placement["cuts"]) for answer in answers}) == 1
    assert len({id(answer.placement["servers"]) for answer in answers}) == 3, "each member has tickets of its own"


def test_what_is_remembered_of_a_member_is_small_however_often_it_asks() -> None:
    coordinator = trained("o1")
    coordinator.init("o1", None, 1)
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for request in range(2, 202):
            coordinator.init("o1", None, request)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 1000 * MAX_ANSWERED, "the description alone has 300,000 bytes of objects"


def test_workers_that_name_the_job_are_told_at_once_however_many() -> None:
    names = [f"w{i}" for i in range(1, 17)]
    coordinator = trained(*names)
    assert [len(sent(coordinator.init(name, LARGE), Job)) for name in names] == [1] * len(names)


def test_who_asks_again_and_again_is_told_now_and_then_and_others_meanwhile() -> None:
    coordinator = trained("o1", "o2", "w1")
    told = [len(sent(coordinator.init("o1", None, request), Job)) for request in range(1, 101)]
    assert told[0] == 1, "the first time at once"
    assert sum(told) <= 4
    assert sent(coordinator.init("o2", None), Job), "whom the others have not kept from it"
    assert sent(coordinator.init("w1", LARGE), Job)
    answers = [action for _, action in later(coordinator, 1.0)]
    assert 5 <= len(sent(answers, Job, peer("o1"))) <= 11, "0.1 s apart"
    answers = [action for _, action in later(coordinator, 30.0)]
    assert len(sent(answers, Job, peer("o1"))) <= MAX_ANSWERED, "the newest that are remembered; then nothing is left"


def test_a_lost_answer_is_said_again_the_same() -> None:
    coordinator = trained("o1")
    (first,) = sent(coordinator.init("o1", None, 7), Job)
    (again,) = sent(coordinator.init("o1", None, 7), Job)
    assert again is first
    for _ in range(20):
        coordinator.init("o1", None, 7)
    answers = [action for _, action in later(coordinator, 5.0)]
    assert sent(answers, Job) == [first], "asked often while it waits for its turn, it is told once"


def test_many_who_do_not_name_the_job_leave_half_of_the_time_to_the_others() -> None:
    names = [f"o{i}" for i in range(50)]
    coordinator = trained(*names)
    at_once = [message for name in names for message in sent(coordinator.init(name, None), Job)]
    one = cost(at_once[0])
    assert len(at_once) == 1 + int(BURST_S / (FIRST_SHARE * one))
    begun, done = coordinator.now, later(coordinator, 5.0)
    told = [when for when, action in done if sent([action], Job)]
    assert len(told) == 50 - len(at_once)
    assert told[-1] - begun == pytest.approx(50 * FIRST_SHARE * one - BURST_S, abs=2 * FIRST_SHARE * one)
    assert {to for _, action in done for to in receivers([action], Job)} <= {peer(name) for name in names}


def test_who_has_gone_while_it_waited_its_turn_is_told_nothing() -> None:
    names = [f"o{i}" for i in range(50)]
    coordinator = trained(*names)
    waiting = [name for name in names if not sent(coordinator.init(name, None), Job)]
    for name in waiting[1:]:
        coordinator.take(name, Leave("closed"))
    answers = [action for _, action in later(coordinator, 5.0)]
    assert receivers(answers, Job) == [peer(waiting[0])]


def test_who_repeats_what_it_waits_for_makes_others_hear_of_it_now_and_then_only() -> None:
    coordinator = Coordinator.joined("s0", "s1", "w0", servers=2)
    assert sent(coordinator.init("w0", LARGE), Assign)
    repeated = [len(sent(coordinator.init("w0", LARGE), Assign)) for _ in range(20)]
    assert repeated == [2, 2, 2, *[0] * 17]
    coordinator.now += REPEAT_S
    assert len(sent(coordinator.init("w0", LARGE), Assign)) == 2
    coordinator.take("w0", Withdraw(1))
    assert sent(coordinator.take("w0", Init(2, LARGE.to_wire())), Assign), "another one is another one"
