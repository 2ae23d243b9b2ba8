"""The chief of a job: always one, and it knows."""

from __future__ import annotations

from tests.core.coordinator.members.test_places_losses import lose
from tests.core.machines import Coordinator, job, logged, peer, sent
from tests.tables import for_each
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import Heartbeat, HeartbeatAck, Job, Leave


def told(actions: list[Action]) -> dict[str, int]:
    """Return who was told whether it is the chief."""
    names = ("w0", "w1", "w2")
    return {name: m.chief for name in names for m in sent(actions, HeartbeatAck, peer(name))}


def chiefs(coordinator: Coordinator, *names: str) -> list[str]:
    return [name for name in names if told(coordinator.take(name, Heartbeat({})))[name]]


@for_each("workers", [3, None])
def test_the_chief_is_the_worker_with_the_lowest_rank_that_is_here(workers: int | None) -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1", "w2", workers=workers)
    assert chiefs(coordinator, "w0", "w1", "w2") == ["w0"]
    assert coordinator.machine.status(0.0)["jobs"]["default"]["chief"] == "worker 0 (w0, host, pid 7)"
    actions = coordinator.take("w0", Leave("closed"))
    assert told(actions) == {"w1": 1}
    assert "worker 1 (w1, host, pid 7) is the chief of job 'default' now, in the place of worker 0" in logged(actions)
    assert chiefs(coordinator, "w1", "w2") == ["w1"]
    lose(coordinator, "s0", "w2")
    assert chiefs(coordinator, "w2") == ["w2"]


def test_one_that_comes_back_with_rank_0_is_the_chief_again() -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1", workers=2)
    coordinator.take("w0", Leave("closed"))
    assert chiefs(coordinator, "w1") == ["w1"]
    actions = coordinator.attach("w2", job())
    [answer] = sent(actions, Job)
    assert (answer.rank, answer.chief) == (0, 1)
    assert told(actions) == {"w1": 0, "w2": 1}
    assert chiefs(coordinator, "w1", "w2") == ["w2"]


def test_while_the_first_has_yet_to_come_nobody_is_the_chief() -> None:
    coordinator = Coordinator.joined("s0", workers=2)
    coordinator.join("w0")
    assert told(coordinator.attach("w1", job())) == {}
    assert chiefs(coordinator, "w0", "w1") == []
    assert told(coordinator.init("w0", job())) == {"w0": 1}
    assert chiefs(coordinator, "w0", "w1") == ["w0"]


def test_without_workers_there_is_none() -> None:
    coordinator = Coordinator.trains("s0", "w0", workers=None)
    assert chiefs(coordinator, "w0") == ["w0"]
    assert told(coordinator.take("w0", Leave("closed"))) == {}
    assert coordinator.machine.status(0.0)["jobs"]["default"]["chief"] == ""
