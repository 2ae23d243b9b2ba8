"""A coordinator with a journal, for tests: after each event it holds what the machine knows."""

from __future__ import annotations

from typing import Any

from tests.core.machines import Coordinator, identity, sent
from zmqps.core.coordinator.journal import key_of
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.remembered import dump_all
from zmqps.core.protocol.events import Action, Exit, Record
from zmqps.core.protocol.messages import Back, Heartbeat
from zmqps.core.protocol.plain import pack, unpack


class Kept(Coordinator):
    """A coordinator with a journal, which can come back from it."""

    def __init__(self, **options: Any) -> None:
        self.journal: dict[str, bytes] = {}
        super().__init__(patience=600.0, **options)
        self._options = self.machine.options
        self.back()

    def back(self) -> list[Action]:
        """Start it (again) from its journal."""
        kept = {key: unpack(data) for key, data in self.journal.items()}
        self.machine = CoordinatorMachine(identity("coordinator"), self._options, kept=kept)
        return self._keep(self.machine.start(self.now))

    def handle(self, event: Any) -> list[Action]:
        return self._keep(super().handle(event))

    def pass_time(self, seconds: float) -> list[Action]:
        until, actions = self.now + seconds, list[Action]()
        while (due := self.machine.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            actions += self._keep(self.machine.on_deadline(self.now))
            if any(isinstance(action, Exit) for action in actions):
                break
        self.now = until
        return actions

    def _keep(self, actions: list[Action]) -> list[Action]:
        records = [action for action in actions if isinstance(action, Record)]
        assert actions[: len(records)] == records, "records come first"
        for record in records:
            self.journal[record.key] = pack(record.data)
            if record.data is None:
                del self.journal[record.key]
        knows = {key_of(*key): pack(data) for key, data in dump_all(self.machine).items()}
        assert knows == self.journal
        return actions[len(records) :]

    def return_with(self, *names: str) -> list[Action]:
        """Start it again, and let these members come back to it."""
        self.back()
        return self.come_back(*names)

    def come_back(self, *names: str) -> list[Action]:
        actions = []
        for name in names:
            assert sent(self.take(name, Heartbeat({})), Back) == [Back(self.machine.identity.incarnation)]
            actions += self.join(name)
        return actions
