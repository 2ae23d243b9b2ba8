"""The tests' own test: defects of replication that the tests of any order must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.core.server.replicas.test_replication_any_order import Asynchronous, Synchronous
from zmqps.core.protocol.messages import Replicate
from zmqps.core.server.dense import part
from zmqps.core.server.dense.part import DensePart
from zmqps.core.server.ledger import Ledger
from zmqps.core.server.replicas import backup, replication, stream
from zmqps.core.server.replicas.backup import Backup
from zmqps.core.server.replicas.follower import Follower
from zmqps.core.server.replicas.replication import ReplicaStreams
from zmqps.core.server.replicas.stream import Stream

pytestmark = pytest.mark.slow  # half a minute of examples

Break = Callable[[pytest.MonkeyPatch], None]


def answers_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stream, "is_behind", property(lambda self: False))


def waits_for_one_backup(patch: pytest.MonkeyPatch) -> None:
    """It waits for the first backup that has it."""

    def confirmed(self: Stream) -> int:
        return max([f.confirmed(self.position) for f in self.followers.values()], default=self.position)

    patch.setattr(Stream, "confirmed", property(confirmed))


def confirms_before_it_has_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Follower, "confirmed", lambda self, position: position)


def forgets_what_was_pushed(patch: pytest.MonkeyPatch) -> None:
    """The copy's ledger does not have what came with the records."""

    def note(self: Backup, ledger: Ledger, record: Replicate, theirs: Any, ours: Any) -> None:
        self.number = record.number

    patch.setattr(Backup, "_note", note)


def sends_no_ledgers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stream, "ledgers_of", lambda ledgers: [])


def applies_to_slices_that_are_missing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(part, "present", lambda missing, states, parts, pieces: (states, parts, pieces))


def sends_slices_as_they_were(patch: pytest.MonkeyPatch) -> None:
    """All slices are read when the filling begins."""
    real = Follower.fill

    def fill(self: Follower, ledgers: Any, slices: Any) -> None:
        found = []
        while (record := slices(len(found))) is not None:
            found.append(record)
        real(self, ledgers, lambda index: found[index] if index < len(found) else None)

    patch.setattr(Follower, "fill", fill)


def takes_records_after_its_promotion(patch: pytest.MonkeyPatch) -> None:
    real = ReplicaStreams.follow

    def follow(self: ReplicaStreams, client: Any, tenant: Any, record: Replicate) -> Any:
        if not tenant.follows:
            tenant.follows = True
            backup = self.backups[record.epoch] = Backup(tenant.assign.epoch, tenant.ledgers)
            backup.number = record.number
        return real(self, client, tenant, record)

    patch.setattr(ReplicaStreams, "follow", follow)


def answers_although_it_was_deposed(patch: pytest.MonkeyPatch) -> None:
    def depose(self: ReplicaStreams, tenant: Any, generation: int) -> Any:
        held = [h for h in self.streams[tenant.assign.epoch]._held]
        self.discarded(tenant)
        return [action for h in held for action in self._answer(tenant, h)]

    patch.setattr(ReplicaStreams, "_depose", depose)


def ends_no_steps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stream, "end_step", lambda self, shard: None)


def leaves_out_slices_without_a_mean(patch: pytest.MonkeyPatch) -> None:
    def end_step(dense: DensePart, step: int) -> None:
        assert dense.steps is not None
        dense.steps.version = step + 1

    patch.setattr(backup, "end_step", end_step)


def reports_a_step_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replication.Stream, "is_behind", property(lambda self: False))


ASYNCHRONOUS: list[Break] = [
    answers_at_once,
    waits_for_one_backup,
    confirms_before_it_has_it,
    forgets_what_was_pushed,
    sends_no_ledgers,
    applies_to_slices_that_are_missing,
    sends_slices_as_they_were,
    takes_records_after_its_promotion,
    answers_although_it_was_deposed,
]
SYNCHRONOUS: list[Break] = [
    ends_no_steps,
    leaves_out_slices_without_a_mean,
    reports_a_step_at_once,
    sends_slices_as_they_were,
]
SEARCH = settings(
    max_examples=300,
    stateful_step_count=30,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("defect", ASYNCHRONOUS)
def test_a_defect_is_noticed(defect: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    defect(monkeypatch)
    with pytest.raises(BaseException):  # noqa: B017, PT011 -- an assertion as a rule
        run_state_machine_as_test(seed(1)(Asynchronous), settings=SEARCH)


@pytest.mark.parametrize("defect", SYNCHRONOUS)
def test_a_defect_in_the_synchronous_mode_is_noticed(defect: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    defect(monkeypatch)
    with pytest.raises(BaseException):  # noqa: B017, PT011
        run_state_machine_as_test(seed(1)(Synchronous), settings=SEARCH)
