"""Workers that were lost: who came instead, how the job ends, and how the cluster that was there for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.machines import Coordinator, exits_of, hello, job, logged, sent
from tests.tables import for_each
from zmqps.core.coordinator.members import places as module
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import Exit
from zmqps.core.protocol.messages import EndJob, Heartbeat, HeartbeatAck, Leave


def lose(coordinator: Coordinator, *others: str) -> str:
    """Let time pass in which only these give signs of life; return what is logged."""
    return logged(coordinator.wait(coordinator.now + 12.0, *others))


def end_of(coordinator: Coordinator, *finishing: str) -> tuple[int, str]:
    """Let workers finish; return how the cluster ends."""
    actions = [action for name in finishing for action in coordinator.take(name, Leave("finished"))]
    actions += coordinator.wait(coordinator.now + 5.0)
    end = next(action for action in actions if isinstance(action, Exit))
    return end.code, end.reason


@for_each("workers", [None, 2])
def test_a_job_that_was_finished_without_a_lost_worker_is_no_success(workers: int | None) -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1", once=True, workers=workers)
    lose(coordinator, "s0", "w0")
    assert coordinator.machine.status(0.0)["jobs"]["default"]["lost"].startswith("worker 1 (w1, host, pid 7) was lost")
    code, reason = end_of(coordinator, "w0")
    assert code == exits.WORKERS_FAILED
    assert reason == (
        "the job is finished, but worker 1 (w1, host, pid 7) was lost, and none came instead: its part of the data "
        "may be unused"
    )
    (ended,) = coordinator.machine.status(0.0)["ended"]
    assert ended["how"].startswith("its workers have finished, but worker 1 (w1, host, pid 7) was lost")


def test_the_number_of_workers_follows_the_losses_and_those_who_come_back() -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1", "w2", workers=3)
    lose(coordinator, "s0", "w0")
    assert sent(coordinator.take("w0", Heartbeat({})), HeartbeatAck) == [HeartbeatAck(1, 1)]
    coordinator.attach("w7", job())
    assert sent(coordinator.take("w0", Heartbeat({})), HeartbeatAck) == [HeartbeatAck(2, 1)]
    assert coordinator.run().losses.text.startswith("worker 2 (w2, host, pid 7) was lost"), "w7 has the rank of w1"
    coordinator.take("w7", Leave("finished"))
    assert sent(coordinator.take("w0", Heartbeat({})), HeartbeatAck) == [HeartbeatAck(2, 1)], "it was not lost"


def test_who_comes_instead_of_a_lost_worker_makes_the_end_a_success() -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1", once=True)
    lose(coordinator, "s0", "w0")
    coordinator.attach("w8", job())
    assert end_of(coordinator, "w0", "w8") == (exits.OK, "the job is finished")


def test_a_worker_that_was_expected_anyway_comes_in_nobodys_place() -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1", once=True, workers=3)
    lose(coordinator, "s0", "w1")
    coordinator.attach("w2", job())
    assert coordinator.run().losses.text.startswith("worker 0 (w0, host, pid 7) was lost")
    coordinator.take("w8", replace(hello("worker", "w8"), name="w0"))
    coordinator.init("w8", job())
    assert not coordinator.run().losses, "it has come back by its name"


def test_a_worker_that_was_restarted_before_it_was_missed_is_no_loss() -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1", once=True)
    again = replace(hello("worker", "w9"), name="w1")
    coordinator.take("w9", again)
    coordinator.init("w9", job())
    lose(coordinator, "s0", "w0", "w9")
    assert not coordinator.run().losses
    assert end_of(coordinator, "w0", "w9") == (exits.OK, "the job is finished")


def test_who_only_looked_on_or_never_began_is_no_loss() -> None:
    coordinator = Coordinator.trains("s0", "w0", once=True)
    coordinator.join("o1", "w2")
    lose(coordinator, "s0", "w0")
    assert end_of(coordinator, "w0") == (exits.OK, "the job is finished")


def test_a_cluster_for_one_job_ends_with_it_when_a_server_is_lost_or_its_workers_stay_away() -> None:
    coordinator = Coordinator.trains("s0", "w0", once=True)
    assert "lost server 0" in lose(coordinator, "w0")
    code, reason = end_of(coordinator, "w0")
    assert code == exits.FAILED
    assert reason.startswith("the job has failed: lost server 0 (s0, host, pid 7)")
    coordinator = Coordinator.trains("s0", "w0", once=True, lease=30.0)
    coordinator.take("w0", Leave("closed"))
    assert exits_of(coordinator.wait(40.0, "s0"))[:1] == [exits.IDLE]
    coordinator = Coordinator.trains("s0", "w0", once=True)
    coordinator.take("anybody", EndJob(3, "default"))
    assert end_of(coordinator)[0] == exits.OK


def test_a_lasting_cluster_stays_when_a_job_has_failed_and_says_what_it_waits_for() -> None:
    coordinator = Coordinator.trains("s0", "s1", "w0", servers=2)
    lose(coordinator, "s0", "w0")
    actions = coordinator.take("w0", Leave("closed"))
    assert "job 'default' has ended: lost server 1" in logged(actions)
    assert exits_of(coordinator.wait(60.0, "s0")) == []
    assert coordinator.machine.status(0.0)["waiting"] == ["waiting for 1 of 2 servers and a worker's init"]


def test_of_many_a_few_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 4)
    coordinator = Coordinator.trains("s0", *(f"w{n}" for n in range(7)))
    lose(coordinator, "s0", "w0")
    losses = coordinator.run().losses
    assert len(losses) == 4
    assert losses.text.count("pid 7") == module.MOST_NAMED
    assert losses.text.endswith("and 1 more were lost, and none came instead")
