"""Whoever takes a trace: a coordinator that has ended meanwhile is given up."""

from __future__ import annotations

from zmqps.core.node.tracing import TraceKey, Tracer
from zmqps.core.protocol.events import COORDINATOR, Exit, Look, Looked, Received, Send
from zmqps.core.protocol.messages import Trace, Tracing
from zmqps.core.protocol.messages.tracing import TraceState
from zmqps.errors import DeadlineError


def test_a_coordinator_that_ends_during_a_trace_is_given_up() -> None:
    tracer = Tracer("tcp://c:1", TraceKey(b"", b"n" * 16), ("", 10.0, 0, 1 << 20), patience=5.0)
    tracer.start(0.0)
    tracer.handle(Received(COORDINATOR, Tracing(1, 7, TraceState.ON, 10.0, {})), 0.1)
    now, actions = 0.1, []
    while not any(isinstance(action, Exit) for action in actions):
        due = tracer.next_deadline()
        assert due is not None
        now = max(now, due)
        actions = tracer.on_deadline(now)
        tracer.validate()
        if any(isinstance(action, Look) for action in actions):
            tracer.handle(Looked(COORDINATOR, "no process listens at that port"), now)
    assert 5.0 <= now < 7.0
    assert isinstance(tracer.error, DeadlineError)
    assert str(tracer.error) == (
        "trace timed out after 5.0 s, waiting for the coordinator at tcp://c:1 to hand out what was recorded "
        "(no process listens at that port)"
    )
    assert tracer.next_deadline() is None


def test_a_coordinator_that_answers_now_and_then_is_waited_for() -> None:
    tracer = Tracer("tcp://c:1", TraceKey(b"", b"n" * 16), ("", 100.0, 0, 1 << 20), patience=5.0)
    actions = tracer.start(0.0)
    for number in range(30):
        asked = [action.message for action in actions if isinstance(action, Send)]
        assert isinstance(asked[-1], Trace)
        tracer.handle(Received(COORDINATOR, Tracing(asked[-1].request, 7, TraceState.ON, 100.0, {})), 4.0 * number)
        actions = tracer.on_deadline(4.0 * number + 0.3)
        assert tracer.error is None
