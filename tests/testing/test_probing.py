"""What the simulator claims to check where operators look how nodes are: machines are broken on purpose."""

from __future__ import annotations

import pytest

from tests.testing.test_invariants import Patch, caught, wrap
from zmqps.core.coordinator import operators
from zmqps.core.coordinator.probes import Probes
from zmqps.core.node.member import Member
from zmqps.core.protocol.events import Send
from zmqps.core.protocol.messages import Probe, Probed
from zmqps.testing.probing import OperatedTraining
from zmqps.testing.scenarios import SCENARIOS
from zmqps.testing.simulation import Simulation


@pytest.mark.parametrize("name", ["async-probed-everything", "sync-probed-stops"])
def test_operators_are_answered_and_refused_at_all(name: str) -> None:
    answered = refused = 0
    for seed in range(3):
        run = SCENARIOS[name].simulation(seed)
        run.run()
        assert isinstance(run, Simulation)
        assert isinstance(run.training, OperatedTraining)
        assert run.training.operators is not None
        answered += run.training.operators.num_answered
        refused += run.training.operators.num_refused
    assert answered > 5
    assert refused > 0


def test_a_coordinator_that_waits_for_ever_for_those_who_are_silent(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Probes, "next_deadline", lambda self: None)
    monkeypatch.setattr(Probes, "on_deadline", lambda self, now: [])
    caught("sync-probed-stops", "waits for those who do not answer")


def test_a_coordinator_that_takes_any_answer_for_that_to_its_question(monkeypatch: Patch) -> None:
    def any_number(original, self, member, message, now):  # type: ignore[no-untyped-def]
        numbers = list(self._open)
        number = numbers[-1] if numbers else message.number
        return original(self, member, Probed(number, message.stacks, message.lag_s, message.lines), now)

    wrap(monkeypatch, Probes, "probed", any_number)
    caught("sync-probed-stops", "has not answered, or has, and is answered")


def test_a_coordinator_that_shows_anybody_the_threads_of_a_node(monkeypatch: Patch) -> None:
    monkeypatch.setattr(operators, "check_examining", lambda identity, message, holder: None)
    caught("sync-probed-loss", "are shown to anybody")


def test_a_coordinator_that_forgets_servers(monkeypatch: Patch) -> None:
    def only_workers(original, self, peer, message, now):  # type: ignore[no-untyped-def]
        members = {who: member for who, member in self._members.items() if member.role == "worker"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "_members", members)
            return original(self, peer, message, now)

    wrap(monkeypatch, Probes, "examine", only_workers)
    caught("sync-probed-loss", "nobody looked whether")


def test_a_member_that_does_not_answer_while_others_do(monkeypatch: Patch) -> None:
    def silent(original, self, message, now):  # type: ignore[no-untyped-def]
        actions = original(self, message, now)
        if not isinstance(message, Probe) or self.rank:
            return actions
        return [action for action in actions if not (isinstance(action, Send) and isinstance(action.message, Probed))]

    wrap(monkeypatch, Member, "on_message", silent)
    caught("sync-probed-loss", "was asked and says nothing")
