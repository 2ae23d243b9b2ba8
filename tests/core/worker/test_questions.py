"""What a worker asks the coordinator, and when it asks again."""

from __future__ import annotations

import numpy as np

from tests.core.machines import sent
from zmqps.core.node.timers import Alarm
from zmqps.core.protocol.messages import StatusRequest
from zmqps.core.worker.questions import RETRY_S, SLOWEST_RETRY_S, Questions


def test_what_is_not_answered_is_asked_again_ever_more_rarely() -> None:
    questions, times = Questions(Alarm()), [0.0]
    questions.ask(StatusRequest(1), 0.0)
    while len(times) < 8:
        assert questions.due is not None
        times.append(questions.due)
        assert questions.on_deadline(times[-1] - 0.01) == []
        assert sent(questions.on_deadline(times[-1]), StatusRequest) == [StatusRequest(1)]
    assert np.diff(times).tolist() == [min(RETRY_S * 2**i, SLOWEST_RETRY_S) for i in range(7)]


def test_what_is_answered_is_not_asked_again() -> None:
    questions = Questions(Alarm())
    for number in (1, 2):
        questions.ask(StatusRequest(number), 0.0)
    questions.answered(1)
    assert sent(questions.on_deadline(RETRY_S), StatusRequest) == [StatusRequest(2)]
    questions.answered(2)
    assert questions.due is None


def test_a_new_question_is_asked_again_as_soon_as_a_first_one() -> None:
    questions = Questions(Alarm())
    questions.ask(StatusRequest(1), 0.0)
    questions.on_deadline(RETRY_S)
    questions.answered(1)
    questions.ask(StatusRequest(2), 50.0)
    assert questions.due == 50.0 + RETRY_S


def test_over_a_new_connection_all_is_asked_again_at_once() -> None:
    questions = Questions(Alarm())
    assert questions.again(0.0) == []
    assert questions.due is None
    questions.ask(StatusRequest(1), 0.0)
    questions.on_deadline(RETRY_S)
    assert sent(questions.again(5.0), StatusRequest) == [StatusRequest(1)]
    assert questions.due == 5.0 + RETRY_S


def test_each_has_a_number_of_its_own_and_none_is_zero() -> None:
    questions = Questions(Alarm())
    numbers = [next(questions.numbers) for _ in range(3)]
    assert sorted(set(numbers) - {0}) == numbers
