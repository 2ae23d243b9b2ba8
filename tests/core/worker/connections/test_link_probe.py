"""When a silent server is asked what it has, and what its answer says."""

from __future__ import annotations

from zmqps.core.worker.connections.link import MAX_OUT, PROBE_S, SLOWEST_PROBE_S, SilenceProbe


def test_an_answer_says_how_much_was_sent_before_its_question_and_only_once() -> None:
    probe = SilenceProbe()
    probe.num_sent = 3
    probe.ask(0.0, number=7)
    probe.num_sent = 5
    probe.ask(1.0, number=9)
    assert [probe.answered(number) for number in (9, 8, 7, 9, 7)] == [5, 0, 3, 0, 0]


def test_as_many_questions_are_remembered_as_can_be_on_their_way() -> None:
    probe = SilenceProbe()
    probe.num_sent = 1
    for number in range(MAX_OUT + 1):
        probe.ask(0.0, number)
    assert [probe.answered(number) for number in (0, 1, MAX_OUT)] == [0, 1, 1]


def test_questions_are_asked_ever_more_rarely() -> None:
    probe, dues = SilenceProbe(), []
    for _ in range(5):
        probe.ask(10.0, number=1)
        assert probe.due is not None
        dues.append(probe.due - 10.0)
    assert dues == [min(PROBE_S * 2**i, SLOWEST_PROBE_S) for i in range(1, 6)]
