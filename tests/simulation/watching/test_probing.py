"""What the simulator claims to check where operators look how nodes are: machines are broken on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest

from tests.simulation.test_invariants import Patch, caught, wrap
from tests.simulator import network
from tests.simulator.engine import Node
from tests.simulator.members import comebacks
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.simulation import Simulation
from tests.simulator.watching import probing
from tests.simulator.watching.probing import OperatedTraining, ProbedAsync
from zmqps.core.coordinator.consistency.synchronous import Synchronous
from zmqps.core.coordinator.kernel import machine
from zmqps.core.coordinator.training.steps import Delays
from zmqps.core.coordinator.watching.probes import Probes
from zmqps.core.coordinator.watching.watching import Watching
from zmqps.core.node.member import Member
from zmqps.core.protocol.events import Send
from zmqps.core.protocol.messages import Examine, Examined, Message, Probe, Probed


def test_those_who_watch_are_told_who_is_waited_for_and_who_is_slow() -> None:
    waits = slowest = 0
    for seed in range(6):
        run = SCENARIOS["sync-probed-loss"].simulation(seed)
        run.run()
        assert isinstance(run.training, OperatedTraining)
        assert run.training.operators is not None
        waits += run.training.operators.watchers.num_waits
        slowest += run.training.operators.watchers.num_slowest
    assert waits > 5
    assert slowest > 0


@pytest.mark.repeats
def test_a_coordinator_that_says_to_wait_for_those_who_have_come(monkeypatch: Patch) -> None:
    monkeypatch.setattr(
        Synchronous, "awaited", lambda self: [who for who, one in self._workers.items() if one.presence == "trains"]
    )
    caught("sync-probed-loss", "has come, and is said to be waited for")


@pytest.mark.repeats
def test_a_coordinator_that_calls_slow_who_has_gone(monkeypatch: Patch) -> None:
    def slowest(self: Delays, members: object) -> Mapping[str, object]:
        return original(self, {member.incarnation: member for member, *_ in self._recent})

    original = Delays.slowest
    monkeypatch.setattr(Delays, "slowest", slowest)
    caught("sync-probed-everything", "which has gone, is said to be slow", begin=22)


@pytest.mark.repeats
def test_a_coordinator_that_tells_more_of_what_happened_than_was_asked_for(monkeypatch: Patch) -> None:
    def all_of_it(original, self, asked, *others):  # type: ignore[no-untyped-def]
        return original(self, replace(asked, span=1e9), *others)

    wrap(monkeypatch, Watching, "view", all_of_it)
    caught("sync-probed-loss", "more is told than was asked for")


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


@pytest.mark.repeats
def test_a_coordinator_that_is_back_counts_examinations_anew(monkeypatch: Patch) -> None:
    monkeypatch.setattr(comebacks, "DEATHS", (0, 0))
    for name, value in {"FIRST_S": 1e6, "RATE": 1e-9, "NAMES_ONE": 0.0, "WATCH": 0.0}.items():
        monkeypatch.setattr(probing, name, value)  # all are examined, and only when this test asks
    run = Simulation(1, training=ProbedAsync(steps=6, parameters=4, size=32, compute_s=0.8), journaled=True)
    assert isinstance(run.training, OperatedTraining)
    operators = run.training.operators
    assert operators is not None
    asked_again: list[float] = []

    def received(receiver: Node, sender: str, message: Message) -> None:
        if isinstance(message, Examine) and sender == "operator-1" and run.now > 3.0 and not asked_again:
            asked_again.append(run.now)
            run.at(run.now + 1.5, operators._ask)  # the third one gets the number that the second one had

    run.on_receive.append(received)
    # nobody answers, and nobody is back before the second one asks again
    run.swallows.append(lambda node, to, message: run.now > 2.0 and node.role != "operator" and not asked_again)
    for at in (2.1, 2.2):
        run.at(at, operators._ask)
    run.at(2.5, lambda: run.kill(run.nodes["operator-0"]))
    run.at(2.5, lambda: run.kill(run.nodes["coordinator"]))
    run.at(3.0, run.start_coordinator)
    run.run()
    assert asked_again
    assert operators.num_answered >= 2


@pytest.mark.repeats
def test_a_coordinator_that_waits_for_ever_for_those_who_are_silent(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Probes, "next_deadline", lambda self: None)
    monkeypatch.setattr(Probes, "on_deadline", lambda self, now: [])
    caught("sync-probed-stops", "waits for nodes that do not answer")


@pytest.mark.repeats
def test_a_coordinator_that_takes_any_answer_for_that_to_its_question(monkeypatch: Patch) -> None:
    def any_number(original, self, member, message, now):  # type: ignore[no-untyped-def]
        numbers = list(self._open)
        number = numbers[-1] if numbers else message.number
        return original(self, member, Probed(number, message.stacks, message.lag_s, message.lines), now)

    wrap(monkeypatch, Probes, "probed", any_number)
    caught("sync-probed-stops", "has not answered, or has, and is answered")


@pytest.mark.repeats
def test_a_coordinator_that_shows_anybody_the_threads_of_a_node(monkeypatch: Patch) -> None:
    def anybody(original, identity, event, member):  # type: ignore[no-untyped-def]
        if not isinstance(event.message, Examine):
            original(identity, event, member)

    original = machine.check_message
    monkeypatch.setattr(machine, "check_message", partial(anybody, original))
    caught("sync-probed-loss", "are shown to anybody")


@pytest.mark.repeats
def test_a_coordinator_that_forgets_servers(monkeypatch: Patch) -> None:
    def only_workers(original, self, peer, message, now):  # type: ignore[no-untyped-def]
        members = {who: member for who, member in self._members.items() if member.role == "worker"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "_members", members)
            return original(self, peer, message, now)

    wrap(monkeypatch, Probes, "examine", only_workers)
    caught("sync-probed-loss", "it was not checked whether")


def test_a_member_that_does_not_answer_while_others_do(monkeypatch: Patch) -> None:
    def silent(original, self, message, now):  # type: ignore[no-untyped-def]
        actions = original(self, message, now)
        if not isinstance(message, Probe) or self.rank:
            return actions
        return [action for action in actions if not (isinstance(action, Send) and isinstance(action.message, Probed))]

    wrap(monkeypatch, Member, "on_message", silent)
    caught("sync-probed-loss", "was asked and says nothing")


class Returned(Simulation):
    """Operators ask when a test says so, and the coordinator dies at 2.5 s and is back at 3 s.

    Attributes
    ----------
    states
        What is said of the server, in the order of the answers.
    answered
        When the server answered which question.
    """

    def __init__(self, patch: Patch, asked_at: Sequence[float]) -> None:
        patch.setattr(comebacks, "DEATHS", (0, 0))  # by itself
        patch.setattr(network, "RECONNECT_S", (0.5, 0.5))
        for name, value in {"FIRST_S": asked_at[0], "RATE": 1e-9, "NAMES_ONE": 0.0, "WATCH": 0.0}.items():
            patch.setattr(probing, name, value)
        operated = ProbedAsync(steps=12, compute_s=1.0)
        super().__init__(1, servers=1, workers=1, training=operated, journaled=True)
        assert operated.operators is not None
        self.states: list[str] = []
        self.answered: list[tuple[float, int]] = []
        self.on_receive.append(self._heard)
        for at in asked_at[1:]:
            self.at(at, operated.operators._ask)
        self.at(2.5, lambda: self.kill(self.nodes["coordinator"]))
        self.at(3.0, self.start_coordinator)

    def _heard(self, receiver: Node, sender: str, message: Message) -> None:
        if isinstance(message, Probed) and sender == "server-0":
            self.answered.append((self.now, message.number))
        elif isinstance(message, Examined):
            self.states += [row["state"] for row in message.findings["nodes"] if row["role"] == "server"]


def test_an_answer_to_what_the_coordinator_asked_in_its_life_before_is_none(monkeypatch: Patch) -> None:
    simulation = Returned(monkeypatch, [2.0, 5.0])
    simulation.at(1.9, lambda: simulation.stop(simulation.servers[0], 4.1))  # it takes the first question at 6 s
    simulation.at(2.5, lambda: simulation.kill(simulation.nodes["operator-0"]))
    simulation.run()
    ((at, number),) = simulation.answered
    assert 6.0 < at < 7.0
    assert number == 1
    assert simulation.states == ["silent"]


def test_an_operator_that_asks_before_anybody_is_back_is_told_so(monkeypatch: Patch) -> None:
    simulation = Returned(monkeypatch, [2.0, 2.2, 4.5])
    simulation.at(2.1, lambda: simulation.stop(simulation.servers[0], 1.9))
    simulation.at(2.1, lambda: simulation.stop(simulation.workers[0], 1.9))
    simulation.run()
    # the third operator's question is the second one of this life, as the second operator's was of the life before
    assert 2 in [number for at, number in simulation.answered if at > 4.5]
    assert simulation.states == ["answered", "answered", "silent"]
