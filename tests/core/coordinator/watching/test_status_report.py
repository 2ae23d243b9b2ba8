"""What is said of a job: whom it waits for."""

from __future__ import annotations

from tests.core.machines import Coordinator
from zmqps.core.coordinator.watching.status import MOST_WAITS, job_status, job_waits
from zmqps.core.protocol.messages import Enter


def test_of_many_barriers_a_few_are_told() -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1")
    for i in range(MOST_WAITS + 2):
        coordinator.take("w0", Enter(10 + i, f"b{i}"))
    run, servers = coordinator.run(), list(coordinator.machine.servers)
    waits = job_waits(run, servers)
    assert waits[0] == "barrier 'b0' waits for worker 1 (w1, host, pid 7)"
    assert waits[MOST_WAITS:] == ["2 more barriers are waited at"]
    status = job_status(run, servers, 0.0)
    assert (status["state"], status["waiting"], status["workers"]) == ("training", waits, 2)


def test_a_job_that_nobody_has_begun_waits_for_it_once_a_worker_is_there() -> None:
    coordinator = Coordinator.joined("s0", "o0")
    assert job_waits(coordinator.run(), []) == []
    coordinator.join("w0")
    assert job_waits(coordinator.run(), []) == ["waiting for a worker's init"]
