"""The simulator sees when what is logged is taken twice, or lost and not counted: machines are broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.test_invariants import caught, wrap
from tests.simulator.members.comebacks import Comebacks
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.watching.notes import FewNotes
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.remembered import restore
from zmqps.core.coordinator.watching.notes import NoteReceiver
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import Note, Noted
from zmqps.core.worker.notes import Notebook
from zmqps.core.worker.notes import NoteSender as WorkerNotes

pytestmark = pytest.mark.repeats

Patch = pytest.MonkeyPatch


def test_much_is_logged_and_some_of_it_is_lost_where_there_is_little_room() -> None:
    taken = lost = 0
    for seed in range(6):
        simulation = SCENARIOS["async-notes-few"].simulation(seed)
        simulation.run()
        assert isinstance(simulation.training, FewNotes)
        taken += simulation.training.diary.num_taken
        lost += simulation.training.diary.num_lost
    assert taken > 100
    assert lost > 10


def test_a_coordinator_that_takes_what_comes_again(monkeypatch: Patch) -> None:
    def forget(original: Any, self: NoteReceiver, member: MemberInfo, message: Note, now: float) -> list[Action]:
        member.notes.number = min(member.notes.number, message.first)
        return original(self, member, message, now)

    wrap(monkeypatch, NoteReceiver, "take", forget)
    caught("async-notes-breaks", "is taken twice")


def test_a_coordinator_that_forgets_what_it_has_when_it_is_back(monkeypatch: Patch) -> None:
    def forget(machine: Any, *kept: Any) -> None:
        restore(machine, *kept)
        for member in machine.membership.members.values():
            member.notes.number = 0

    monkeypatch.setattr("zmqps.core.coordinator.machine.restore", forget)
    monkeypatch.setattr(Comebacks, "check", lambda self, node: None)
    caught("async-notes-returned", "is taken twice")


def test_a_worker_that_does_not_number_what_it_has_dropped(monkeypatch: Patch) -> None:
    def drop(original: Any, self: Notebook) -> None:
        original(self)
        kept = list(self._kept)
        for place in range(self._num_sent, len(kept)):
            self._kept[place] = kept[place]._replace(number=kept[place].number - 1)
        self._num_kept -= 1

    wrap(monkeypatch, Notebook, "_drop", drop)
    monkeypatch.setattr(Notebook, "validate", lambda self: None)
    caught("async-notes-few", "are lost, and not counted")


def test_a_worker_that_takes_what_it_has_sent_for_said(monkeypatch: Patch) -> None:
    def look(original: Any, self: WorkerNotes, now: float) -> list[Action]:
        actions = original(self, now)
        for action in actions:
            self.noted(Noted(action.message.first + len(action.message.entries)), now)
        return actions

    wrap(monkeypatch, WorkerNotes, "on_deadline", look)
    caught("async-notes-breaks", "that it had room for")


def test_a_worker_that_takes_any_answer_for_that_to_all_it_has_logged(monkeypatch: Patch) -> None:
    def confirm(original: Any, self: Notebook, upto: int, *, lost: bool = False) -> None:
        original(self, self.num_logged, lost=lost)

    wrap(monkeypatch, Notebook, "confirm", confirm)
    caught("async-notes-breaks", "that it had room for", begin=3)


def test_a_worker_that_finishes_without_saying_all(monkeypatch: Patch) -> None:
    wrap(monkeypatch, WorkerNotes, "waits", lambda original, self, now: False)

    def last(original: Any, self: WorkerNotes, now: float) -> list[Action]:
        self.notebook.confirm(self.notebook.num_logged)
        return []

    wrap(monkeypatch, WorkerNotes, "last", last)
    wrap(monkeypatch, WorkerNotes, "finish", lambda original, self, now: [])
    caught("async-notes", "was told that", begin=38)
