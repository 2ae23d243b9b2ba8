"""Who waits at the coordinator, and for whom: told to those who wait, to the log and to the status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from zmqps.core.coordinator.membership import MemberInfo
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import Waiting

if TYPE_CHECKING:
    from zmqps.core.coordinator.machine import CoordinatorMachine

#: How often those who wait are told for whom, when that changes: one message each, not one each time.
TELL_S = 0.1


class Waits:
    """Those who wait: for the start of the job, at named barriers, for a step, for a range of data."""

    def __init__(self, coordinator: CoordinatorMachine) -> None:
        self._coordinator = coordinator
        self._tell_due: float | None = None

    def tell_soon(self, now: float) -> None:
        """Whom somebody waits for may just have changed."""
        if self._tell_due is None and any(True for _ in self._waiters()):
            self._tell_due = now + TELL_S

    def next_deadline(self) -> float | None:
        """Return when those who wait want to be told."""
        return self._tell_due

    def on_deadline(self) -> list[Action]:
        """Tell everybody who waits for whom."""
        self._tell_due = None
        return [Send(member.peer, Waiting(request, text)) for member, request, text in self._waiters()]

    def _waiters(self) -> Iterator[tuple[MemberInfo, int, str]]:
        of, missing = self._coordinator, self._coordinator.num_missing
        yield from of.startup.waiters(of.membership.of("server"))
        yield from of.barriers.waiters(missing)
        yield from of.steps.waiters(missing)
        yield from of.data.waiters()

    def lines(self) -> list[str]:
        """Return in words what is waited for."""
        of, missing = self._coordinator, self._coordinator.num_missing
        if of.startup.ready or of.ending is not None:
            barriers = of.barriers.by_name.values()
            texts = [f"barrier {b.name!r} waits for {of.barriers.waiting_for(b, missing)}" for b in barriers]
            step = of.steps.waiting_for(missing)
            texts += [f"step waits for {step}"] if step else []
            return texts + list(dict.fromkeys(f"{who.title} waits for {text}" for who, _, text in of.data.waiters()))
        if of.startup.parked:
            return [f"init waits for {of.startup.waiting_for(of.membership.of('server'))}"]
        absent = of.options.servers - of.membership.count("server")
        needs = [f"{absent} of {of.options.servers} servers"] if absent > 0 else []
        needs += ["a worker's init"] if of.startup.job is None else []
        return [f"waiting for {' and '.join(needs)}"] if needs else []
