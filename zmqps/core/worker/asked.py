"""Requests that only the coordinator can answer: how each operation is sent, and what its answer means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import COORDINATOR, Action, Log, Send
from zmqps.core.worker.connections.links import Links
from zmqps.core.worker.host import SessionHost
from zmqps.core.worker.operations import (
    AskStatus,
    Attached,
    EnterBarrier,
    Question,
    Restored,
    SavedCheckpoint,
    SaveJob,
    SetNumbers,
    StartJob,
)
from zmqps.core.worker.questions import Questions
from zmqps.core.worker.transfer import LoadTransfer, Source, plan
from zmqps.core.worker.transfers import Transfers
from zmqps.errors import PSError, from_wire, presented, printable


class Asked(Questions):
    """What one session has asked the coordinator: for operations, and at its arrivals."""

    def __init__(self, host: SessionHost, links: Links, transfers: Transfers) -> None:
        super().__init__(links.commons.alarm)
        self._host = host
        self._links = links
        self._transfers = transfers
        self._operations: dict[int, Question] = {}  # by the number of the request
        self.answers: dict[tuple[type[Question], type[m.Message]], Callable[[Any, Any, float], list[Action]]] = {
            (StartJob, m.Job): self._job,
            (EnterBarrier, m.Released): self._released,
            (AskStatus, m.Status): self._status,
            (SetNumbers, m.RatesSet): self._rates_set,
            (SaveJob, m.Checkpointed): self._saved,
        }

    def begin(self, operation: Question, now: float) -> list[Action]:
        """Send the request of an operation, and resend it until it is answered."""
        operation.request = next(self.numbers)
        self._operations[operation.request] = operation
        return self.ask(operation.message(self._transfers.pace.next_step), now)

    def end(self, operation: Question, value: Any) -> list[Action]:
        """Forget a completed operation; inform the coordinator if it failed and could still be answered."""
        self._operations.pop(operation.request, None)
        self.answered(operation.request)
        answers = not (self._host.member.lost or self._host.member.left)  # a goodbye withdraws all requests
        if answers and isinstance(value, Exception) and not isinstance(operation, AskStatus):
            return [Send(COORDINATOR, m.Withdraw(operation.request))]
        return []

    def answer(self, message: m.Message, now: float) -> list[Action]:
        """Process the coordinator's answer to an operation; an answer to none is dropped."""
        operation = self._operations.get(getattr(message, "request", 0))
        if operation is None:
            return []
        if isinstance(message, m.Waiting):
            operation.waiting_for = printable(message.text)
            return []
        if isinstance(message, m.Error):
            return self._host.resolve(operation, from_wire(message.code, message.text, message.facts))
        take = self.answers.get((type(operation), type(message)))
        return [] if take is None else take(operation, message, now)

    def validate(self) -> None:
        """Assert the invariants."""
        assert set(self._operations.values()) <= set(self._host.operations)

    # --- the answers ---------------------------------------------------------------------------

    def _released(self, enter: EnterBarrier, message: m.Released, now: float) -> list[Action]:
        return [*self._transfers.resume(message.step), *self._host.resolve(enter, None)]

    def _status(self, ask: AskStatus, message: m.Status, now: float) -> list[Action]:
        return self._host.resolve(ask, presented(message.status))

    def _rates_set(self, ask: SetNumbers, message: m.RatesSet, now: float) -> list[Action]:
        self._host.member.cluster.terms = message.terms
        return self._host.resolve(ask, tuple(message.terms[1:]) == tuple(ask.rates))

    def _saved(self, ask: SaveJob, message: m.Checkpointed, now: float) -> list[Action]:
        made = SavedCheckpoint(printable(message.path), message.version, message.seconds, message.nbytes)
        return self._host.resolve(ask, made)

    def _job(self, init: StartJob, message: m.Job, now: float) -> list[Action]:
        try:
            return self._attach(init, message, now)
        except PSError as error:
            return self._host.resolve(init, error)

    def _attach(self, init: StartJob, message: m.Job, now: float) -> list[Action]:
        host, actions = self._host, list[Action]()
        if (
            host.attached is None or message.epoch != host.attached.epoch
        ):  # another one if the first could not be started
            job = JobSpec.from_wire(message.job)
            placement = Placement.from_wire(KeySpace.of(job), message.placement)
            actions += self._links.connect(placement, message.placement, now)
            host.attached = Attached(job, placement, Restored.from_wire(message.restored), message.epoch)
            for attached in host.hooks.attached:
                attached(host.attached, message.placement)
        host.member.rank = message.rank
        if not message.load:
            host.member.cluster.num_workers = message.num_workers
            host.member.cluster.is_chief |= bool(message.chief)  # unless it has learned it before
            host.member.cluster.terms = message.terms  # none: the optimizer's own numbers apply
            mode, counts_all = host.attached.job.mode, host.attached.job.mean == "workers"
            self._transfers.pace.attach(mode, message.step, counts_all=counts_all)
            actions += [Log("warning", message.note)] if message.note else []
            return actions + host.resolve(init, host.attached)
        if not init.loads:
            init.loads = True
            assert init.job is not None
            # our order of the parameters may differ from the job's
            index = {parameter.name: i for i, parameter in enumerate(init.job.parameters)}
            values = [init.values[index[parameter.name]] for parameter in host.attached.job.parameters]
            load = LoadTransfer(cargoes=plan(host.attached.placement), source=Source(arrays=values))
            actions += self._transfers.start(init, load, now)
        return actions
