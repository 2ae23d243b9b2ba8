"""The kernel trains without any extension: a job starts, makes steps and ends, and a loss takes it with it."""

from __future__ import annotations

from typing import Any

from tests.core.machines import Coordinator, identity, job, logged, sent
from zmqps.core.coordinator.kernel.machine import CoordinatorKernel
from zmqps.core.coordinator.kernel.run import JobKernel, JobState
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action


class Kernel(Coordinator):
    """A coordinator that nothing extends."""

    def __init__(self, **options: Any) -> None:
        self.machine: Any = CoordinatorKernel(
            identity("coordinator"), CoordinatorOptions(servers=1, **options), JobKernel
        )
        self.now = 0.0
        self.machine.start(0.0)

    def arrive(self, name: str, step: int) -> list[Action]:
        return self.take(name, m.Arrive(100 + step, step, (1,)))


def trained(*names: str) -> Kernel:
    kernel = Kernel()
    kernel.join(*names)
    for name in names[1:]:
        kernel.init(name, job(mode="sync"))
    kernel.ready("s0", loaded=False)
    kernel.ready("s0")
    return kernel


def test_a_job_makes_steps_and_ends() -> None:
    kernel = trained("s0", "w0", "w1")
    assert kernel.run().state is JobState.TRAINING
    assert not sent(kernel.arrive("w0", 0), m.Commit)
    [commit] = sent(kernel.arrive("w1", 0), m.Commit)
    kernel.take("s0", m.Committed(commit.epoch, commit.step))
    assert kernel.run().steps.clock == 1
    for name in ("w0", "w1"):
        actions = kernel.take(name, m.Leave("finished"))
    assert "job 'default' has ended" in logged(actions, "info")
    assert sent(actions, m.Discard)


def test_a_job_that_has_lost_workers_does_not_end_well() -> None:
    kernel = trained("s0", "w0", "w1")
    kernel.wait(15.0, "s0", "w0")
    assert "job 'default' has ended" in logged(kernel.take("w0", m.Leave("finished")), "error")


def test_a_worker_that_is_lost_is_not_waited_for() -> None:
    kernel = trained("s0", "w0", "w1")
    kernel.arrive("w0", 0)
    actions = kernel.wait(15.0, "s0", "w0")
    assert "w1" in logged(actions)
    assert sent(actions, m.Commit)
    assert [departed.incarnation for departed in sent(actions, m.Departed)][:1] == [
        identity("worker", "w1").incarnation
    ]


def test_a_server_that_is_lost_takes_the_job_with_it() -> None:
    kernel = trained("s0", "w0")
    actions = kernel.wait(15.0, "w0")
    assert kernel.run().state is JobState.FAILED
    assert sent(actions, m.Lost)


def test_a_server_that_leaves_takes_the_job_with_it_too() -> None:
    kernel = trained("s0", "w0")
    kernel.take("s0", m.Leave("drained"))  # nothing here can have moved its shards
    assert kernel.run().state is JobState.FAILED


def test_what_extensions_take_the_kernel_does_not() -> None:
    kernel = trained("s0", "w0")
    for message in (m.Take, m.Note, m.Checkpoint, m.Followed):
        assert message not in {**kernel.machine.from_members, **kernel.run().from_members}
