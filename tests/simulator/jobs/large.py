"""Jobs that are described by large messages, which the coordinator opens aside while members come, go and train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tests.simulator.engine import Node
from tests.simulator.jobs.asynchronous import AsyncTraining
from tests.simulator.jobs.several import SeveralJobs
from tests.simulator.jobs.synchronous import SyncTraining
from tests.simulator.jobs.training import Training
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.openings import SHARE, Opening
from zmqps.core.job.spec import MAX_NAME_CHARS, JobSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.events import Peer, Run
from zmqps.core.protocol.messages import Init, Message
from zmqps.core.protocol.messages.large import Large

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

S = TypeVar("S")

#: So many parameters with the longest names are a large message.
PARAMETERS = 34
#: How often a worker dies while its message waits or is opened, and how soon after it came.
DIES, SOON_S = 0.2, 0.6
#: How often the coordinator opens one message: once more where another job has begun meanwhile, or where a worker that
#: was not answered in time has said it twice.
MOST_TIMES = 3
ROUNDING_S = 1e-6


class LargeMessages:
    """Asserts that the coordinator opens large messages one at a time, seldom enough, and none again and again.

    Parameters
    ----------
    simulation
        Where they are; some of their senders die soon.
    """

    def __init__(self, simulation: SimulatedCluster) -> None:
        self.num_opened = 0
        self.num_died = 0
        self._simulation = simulation
        self._rests_until: dict[CoordinatorMachine, float] = {}
        self._times: Counter[tuple[CoordinatorMachine, Peer, int]] = Counter()
        simulation.on_run.append(self._ran)
        simulation.on_receive.append(self._received)

    def _ran(self, node: Node, run: Run, seconds: float) -> None:
        if not isinstance(run.tag, Opening):
            return
        machine, now = node.machine, self._simulation.now
        assert isinstance(machine, CoordinatorMachine)
        early = self._rests_until.get(machine, 0.0) - now
        assert early <= ROUNDING_S, f"a large message is opened {early:.3f} s before others have had their time"
        self._rests_until[machine] = now + seconds * (1 + SHARE)
        self.num_opened += 1
        tag = run.tag
        self._times[machine, tag.event.peer, tag.large.request] += 1
        times = self._times[machine, tag.event.peer, tag.large.request]
        assert times <= MOST_TIMES, f"the same large message is opened {times} times"

    def _received(self, node: Node, sender: str, message: Message) -> None:
        simulation = self._simulation
        if not isinstance(message, Large) or message.cls is not Init:
            return
        if not simulation.network.quiet and simulation.network.happens(DIES):
            self.num_died += 1
            simulation.at(
                simulation.now + simulation.rng.uniform(0.0, SOON_S),
                lambda: simulation.kill(simulation.nodes[sender]),
            )


class Describing(Training):
    """Mixed into a training whose workers describe it by a large message."""

    def job(self) -> tuple[JobSpec, list[Array]]:
        """The same, with the longest names there are."""
        job, values = super().job()
        named = [replace(p, name=p.name.ljust(MAX_NAME_CHARS, "x")) for p in job.parameters]
        return replace(job, parameters=tuple(named)), values


class LargeAsync(Describing, AsyncTraining):
    """Asynchronous training of a job that takes long to read."""


class LargeSync(Describing, SyncTraining):
    """Synchronous training of a job that takes long to read."""


class LargeJobs(SeveralJobs):
    """Two jobs that take long to read beside a small one that is trained."""

    def __init__(self) -> None:
        small: dict[str, Any] = {"parameters": 3, "size": 32}
        large: dict[str, Any] = {"parameters": PARAMETERS, "size": 32}
        super().__init__(
            [
                AsyncTraining(steps=8, lives=24, compute_s=0.5, **small),
                LargeAsync(steps=3, lives=24, compute_s=0.3, **large),
                LargeSync(steps=3, compute_s=0.3, **large),
            ]
        )

    def watch(self, simulation: SimulatedCluster) -> None:
        """Look at what is opened."""
        super().watch(simulation)
        self.messages = LargeMessages(simulation)


def large_scenarios(found: Mapping[str, S]) -> dict[str, S]:
    """Return scenarios whose jobs are described by large messages, made of those of several jobs."""
    make: Callable[[], Training] = LargeJobs
    kinds = ("crashes", "twisted", "freezes", "everything", "restarts")
    return {f"jobs-large-{kind}": replace(found[f"jobs-{kind}"], training=make) for kind in kinds}  # type: ignore[type-var]
