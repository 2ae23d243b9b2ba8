"""What the simulator claims to check of traces: machines are broken on purpose, and must be caught."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from tests.simulation.test_invariants import Patch, caught, violated, wrap
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.watching.traced import TRACES, Traced
from zmqps.core.coordinator.watching.traces import LOOK_S, Traces
from zmqps.core.node import clock
from zmqps.core.node.tracing import NodeTracing
from zmqps.core.protocol.messages import Fetch, Piece

pytestmark = pytest.mark.repeats


@pytest.mark.parametrize("kind", TRACES)
def test_traces_are_fetched_at_all(kind: str) -> None:
    runs = [SCENARIOS[f"sync-{kind}"].simulation(seed) for seed in range(3)]
    for run in runs:
        run.run()
    assert sum(run.num_fetched for run in runs if isinstance(run, Traced)) >= 3


def test_a_node_that_does_not_end_by_itself(monkeypatch: Patch) -> None:
    def never(original, self, message, now):  # type: ignore[no-untyped-def]
        actions = original(self, message, now)
        self.ends_at += 1e3 if self.state and message.seconds else 0.0
        return actions

    wrap(monkeypatch, NodeTracing, "_watch", never)
    monkeypatch.setattr(NodeTracing, "validate", lambda self: None)
    monkeypatch.setattr(Traces, "_tell", lambda self, member, now: _told_once(self, member, now))
    caught("async-traces", "records longer than it was asked to")


def test_a_coordinator_that_ends_a_trace_when_it_next_looks_who_has_come(monkeypatch: Patch) -> None:
    def late(original, self, now):  # type: ignore[no-untyped-def]
        actions = original(self, now)
        self._look_due = now + LOOK_S
        return actions

    wrap(monkeypatch, Traces, "_look", late)
    caught("async-traces", "coordinator records longer than it was asked to")


def _told_once(traces: Traces, member, now: float):  # type: ignore[no-untyped-def]
    from zmqps.core.protocol.events import Log, Send
    from zmqps.core.protocol.messages import RecordSpans

    traces.nodes[member.incarnation].told_at = now
    left = traces.ends_at - now
    return Send(member.peer, RecordSpans(traces.number, left, 1 << 20)) if left > 0 else Log("debug", "")


def test_a_coordinator_that_passes_a_piece_on_as_that_of_another_place(monkeypatch: Patch) -> None:
    places = count()

    def mixes(original, self, member, piece):  # type: ignore[no-untyped-def]
        changed = piece.data[::-1] if next(places) % 5 == 4 else piece.data
        return original(self, member, replace(piece, data=changed))

    wrap(monkeypatch, Traces, "_pass_on", mixes)
    caught("sync-traces", "was handed what the node that it is of has not recorded")


def test_a_piece_that_is_taken_twice(monkeypatch: Patch) -> None:
    def at_start(original, self, message):  # type: ignore[no-untyped-def]
        assert isinstance(message, Fetch)
        return [
            replace(action, message=replace(action.message, offset=message.offset))
            for action in original(self, replace(message, offset=0))
            if isinstance(action.message, Piece)
        ]

    wrap(monkeypatch, NodeTracing, "_fetch", at_start)
    caught("sync-traces", "was handed what the node that it is of has not recorded")


def test_an_answer_that_is_taken_to_have_come_at_once(monkeypatch: Patch) -> None:
    def early(original, samples):  # type: ignore[no-untyped-def]
        best = min(samples, key=lambda sample: sample.back - sample.sent, default=None)
        return None if best is None else clock.Offset(best.at - best.sent, (best.back - best.sent) / 4)

    wrap(monkeypatch, clock, "estimate", early)
    caught("async-traces", "wrong about a clock")


def test_a_coordinator_that_passes_nothing_on(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Traces, "_pass_on", lambda self, member, piece: [])
    caught("async-traces", "still waits for its trace")


def test_without_these_all_is_well() -> None:
    for seed in range(2):
        assert violated(SCENARIOS["async-traces"].simulation(seed)) == ""
