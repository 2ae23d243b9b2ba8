"""A cluster that is saved while it trains, loses its power, and goes on from the disk with other servers."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulator.jobs.training import Training
from tests.simulator.members.comebacks import PATIENCE_S
from tests.simulator.network import Faults
from tests.simulator.placement.replicas import replicated
from tests.simulator.placement.stores import Disk
from tests.simulator.simulation import Report, Simulation
from zmqps.core.coordinator.options import CoordinatorOptions

#: How long a cluster may take to end, once its jobs are saved.
ENDING_S = 4.0
#: When the power fails, or the cluster is asked to end.
POWER_FAILS_S = (1.5, 9.0)
#: Servers afterwards.
MOST_SERVERS = 4


class Restored:
    """Two simulations, of which the second one has nothing of the first but its disk.

    Parameters
    ----------
    seed
        Of both.
    servers, workers, faults, training, calm_s, replicas, journaled
        As for `Simulation`; the second has another number of servers.
    chained
        Whether most checkpoints hold only the rows that have changed since the one before.
    ended
        Whether the first one is asked to end, in the place of losing its power.
    keyed
        Whether nodes have keys, and there are strangers.
    """

    def __init__(
        self,
        seed: int,
        servers: int,
        workers: int,
        faults: Faults,
        training: Training,
        *,
        calm_s: float,
        replicas: int = 0,
        journaled: bool = False,
        chained: bool = False,
        ended: bool = False,
        keyed: bool = False,
    ) -> None:
        self.seed = seed
        self._keyed = keyed
        self._ended = ended
        self._journaled, self._chained = journaled, chained
        self.disk = Disk()
        self.training = training
        self._rng = Random(seed)
        self._replicas = replicas
        self._servers, self._workers, self._faults, self._calm_s = servers, workers, faults, calm_s

    def run(self) -> Report:
        """Run both until all workers of the second one are done.

        Raises
        ------
        SimulationError
            An invariant was violated.
        """
        rng = self._rng
        ends_s = rng.uniform(*POWER_FAILS_S)
        first = self._simulation(self.seed, self._servers, **({} if self._ended else {"power_fails_s": ends_s}))
        if self._ended:
            assert first.savers is not None
            first.savers.lasts.end_at(ends_s, lambda: setattr(first, "power_fails_s", first.now + ENDING_S))
        before = first.run()
        # as if found by its manifest
        saved = self.disk.published[-1] if self.disk.published else None
        second = self._simulation(
            self.seed + (1 << 32) + (self.seed == 2),  # 2 and 2 + (1 << 32) are one seed to Python's generator
            rng.randint(1 + self._replicas, MOST_SERVERS),
            resumed=saved,
            first_worker=first.num_started,
        )
        after = second.run()
        return replace(after, seed=self.seed, digest=before.digest ^ after.digest)

    def _simulation(self, seed: int, servers: int, **options: object) -> Simulation:
        often = saved_often(self._rng, self.training, servers, self._workers, self._faults)
        often = chained(self._rng, often) if self._chained else often
        often = replace(often, patience=PATIENCE_S if self._journaled else 0.0)
        return Simulation(
            seed, servers, self._workers, self._faults, self.training, supervised=True, calm_s=self._calm_s,
            options=replicated(often, self._replicas), disk=self.disk, journaled=self._journaled,
            attacked=self._keyed, keyed=self._keyed,
            **options,  # type: ignore[arg-type]
        )  # fmt: skip


def saved_often(rng: Random, training: Training, servers: int, workers: int, faults: Faults) -> CoordinatorOptions:
    """Return what a coordinator is told that saves its jobs without being asked, too."""
    seconds, steps = rng.choice(((None, None), (0.7, None), (2.0, None), (None, 1), (None, 3)))
    return CoordinatorOptions(
        servers=servers,
        workers=workers,
        once=not (faults.server_crash or faults.saving or faults.copying),  # else it ends with the first server
        slice_size=training.slice_nbytes,
        checkpoint_seconds=seconds,
        checkpoint_steps=steps,
    )


def chained(rng: Random, options: CoordinatorOptions) -> CoordinatorOptions:
    """Return what a coordinator is told whose checkpoints mostly hold only the rows that have changed."""
    seconds, steps = rng.choice(((0.3, None), (0.7, None), (None, 1), (None, 2)))
    every = rng.choice((2, 3, 9))
    return replace(options, checkpoint_seconds=seconds, checkpoint_steps=steps, checkpoint_full_every=every)
