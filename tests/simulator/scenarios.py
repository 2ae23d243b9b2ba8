"""The scenarios that seeds run through: a mode, its training, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tests.simulator.jobs.asynchronous import AsyncTraining
from tests.simulator.jobs.bounded import BoundedTraining
from tests.simulator.jobs.coded import CodedTraining
from tests.simulator.jobs.crowd import CrowdedTraining, OutrankedTraining
from tests.simulator.jobs.large import large_scenarios
from tests.simulator.jobs.lines import LINE_BANDWIDTH, LineTraining
from tests.simulator.jobs.means import mean_scenarios
from tests.simulator.jobs.setting import SettingTraining
from tests.simulator.jobs.several import SeveralJobs
from tests.simulator.jobs.synchronous import SyncTraining
from tests.simulator.jobs.training import Training
from tests.simulator.members.attackers import attacked_scenarios
from tests.simulator.members.hosts import HostGroups
from tests.simulator.members.numbers import NumberedSimulation, numbered_scenarios
from tests.simulator.members.supervisors import Reported, reported_scenarios
from tests.simulator.network import Faults
from tests.simulator.placement.restores import Restored
from tests.simulator.row_scenarios import row_scenarios
from tests.simulator.simulation import Simulation
from tests.simulator.watching.notes import note_scenarios
from tests.simulator.watching.probing import probed_scenarios
from tests.simulator.watching.traced import Traced, traced_scenarios
from zmqps.core.job.data import DataSpec

LOSS = Faults(delay=0.004, loss=0.004)
LOSSES = Faults(delay=0.004, loss=0.03)
BREAKS = Faults(delay=0.004, loss=0.03, crash=0.3)
TWISTED = Faults(delay=0.01, duplication=0.15, reordering=0.15)
CRASHES = Faults(delay=0.002, crash=0.4)
STOPS = Faults(delay=0.002, stop=0.3, stop_s=8.0)
PARTITIONS = Faults(delay=0.002, partition=0.25, partition_s=6.0)
ROUTES = Faults(delay=0.002, route=0.8, partition_s=6.0)
RESTARTS = Faults(delay=0.005, crash=0.1, server_crash=0.05, coordinator_crash=0.1)
EVERYTHING = Faults(
    delay=0.005, loss=0.002, duplication=0.05, reordering=0.05, partition=0.08, partition_s=6.0, crash=0.1, stop=0.1
)
FREEZES = Faults(delay=0.002, freeze=0.4)
DROPS = Faults(delay=0.004, drop=0.02)
DEPARTURES = Faults(delay=0.004, crash=0.12, stop=0.08, stop_s=14.0, departure=0.6)
RETURNS = Faults(delay=0.005, loss=0.004, duplication=0.05, reordering=0.05, crash=0.6, stop=0.05, stop_s=8.0)
LOST_SERVERS = Faults(delay=0.004, server_crash=0.3, copying=0.02)
CUT_SERVERS = Faults(delay=0.003, partition=0.15, ways=0.6, partition_s=3.0)
SILENT_SERVERS = Faults(delay=0.003, deaf=0.15, veil=0.4, server_stop=0.3, partition_s=3.0, stop_s=3.0)
LOST_NODES = Faults(
    delay=0.004, loss=0.002, duplication=0.05, reordering=0.05, server_crash=0.1, copying=0.003, crash=0.1,
    partition=0.05, ways=0.1, server_stop=0.05, partition_s=2.0, stop_s=3.0,
)  # fmt: skip
MEMORY = Faults(delay=0.004, memory=0.02, duplication=0.05, reordering=0.05)
KINDS = {
    "loss": LOSS, "twisted": TWISTED, "crashes": CRASHES, "stops": STOPS, "partitions": PARTITIONS,
    "restarts": RESTARTS, "everything": EVERYTHING, "memory": MEMORY, "freezes": FREEZES,
}  # fmt: skip
DRAINS = {
    "drains": Faults(delay=0.01, drain=1.5),
    "drains-breaks": Faults(delay=0.004, drain=1.0, loss=0.02),
    "drains-drops": Faults(delay=0.004, drain=1.0, drop=0.02),
    "drains-lost": Faults(delay=0.004, drain=1.0, server_crash=0.15, copying=0.01),
    "drains-freezes": replace(FREEZES, drain=1.0),
    "drains-everything": replace(EVERYTHING, drain=0.5),
}
SCALES = {
    "scales": Faults(delay=0.01, scale=1.5),
    "scales-breaks": Faults(delay=0.004, scale=1.0, loss=0.02),
    "scales-drops": Faults(delay=0.004, scale=1.0, drop=0.02),
    "scales-drains": Faults(delay=0.004, scale=0.5, drain=0.5),
    "scales-crashes": Faults(delay=0.004, scale=1.0, crash=0.2),
    "scales-twisted": Faults(delay=0.01, scale=1.0, duplication=0.15, reordering=0.15),
    "scales-lost": Faults(delay=0.004, scale=1.0, server_crash=0.15, copying=0.005),
    "scales-freezes": replace(FREEZES, scale=1.0),
    "scales-everything": replace(EVERYTHING, scale=0.5, drain=0.2),
}
#: What else goes wrong in these goes wrong in others with their names, too, in which nodes stand still besides.
ALSO_FROZEN = (
    "async-everything", "bounded-everything", "sync-everything", "jobs-everything", "sync-backup", "sync-several",
    "sync-continue", "sync-fail", "sync-data", "async-departures", "sync-departures", "async-returns", "sync-returns",
    "jobs-returns", "async-saves-ended", "sync-saves-everything", "async-falls-returned", "sync-falls-everything",
    "async-returned-claimed", "sync-returned-restarts", "async-returned-both", "sync-returned-both",
    "async-replicas-both", "sync-replicas-both", "sync-replicas-two", "async-replicas-saves", "sync-exact-replicas",
    "async-replicas-silent", "bounded-replicas-silent",
    "jobs-replicas", "async-scales-returned", "sync-drains-returned", "async-scales-lost-replicas", "sync-together",
    "sync-lent", "sync-lent-drains", "sync-skips", "sync-workers", "sync-voids", "sync-terms-replicas",
    "sync-values-returned", "async-values-replicas", "async-attacked", "jobs-attacked", "async-keyed",
    "async-numbered-returned", "sync-numbered-replicas", "sync-coded-twisted", "async-coded-drains",
    "async-rows-everything", "sync-rows-returned-replicas", "async-rows-replicas-two", "async-rows-expires",
    "sync-reported-replicas", "async-reported-returned", "async-probed-returned", "sync-notes-returned-everything",
)  # fmt: skip
#: Bytes a second that a node sends.
BANDWIDTH = 1.25e9
#: The same where a slice takes longer than the longest silence before a server is asked what it has.
SLOW_BANDWIDTH = 1e3
#: What may wait for backups where that is little: two or three pushes.
LITTLE_NBYTES = 8 << 10
#: Seconds after which nothing goes wrong any more: whatever is still to do must then be possible.
CALM_S = 8.0
#: The same where a server is lost again and again, each time when the loss before it is made good.
LONG_CALM_S = 12.0
#: The same where it takes as long as a timeout until what matters goes wrong.
LATE_CALM_S = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What a seed runs.

    Parameters
    ----------
    faults
        What goes wrong.
    training
        Makes what is trained.
    servers, workers
        How many.
    attacked
        Whether strangers are there, too.
    keyed
        Whether nodes have keys; the strangers then know all secrets, and have keys of an observer and of a worker.
    orphaned
        Whether the coordinator dies for good.
    succeeded
        Whether it dies once, and another one is started at its address.
    journaled
        Whether it dies again and again, and comes back from its journal.
    claimed
        Whether workers that are started again have a claim to their place.
    numbered
        Whether a launcher has given servers and workers numbers.
    calm_s
        After so many seconds nothing goes wrong any more.
    bandwidth
        Bytes a second that a node sends; where it is little, nothing may be sent twice.
    saved
        Whether it is saved, loses its power, and goes on from the disk.
    replicas, spares
        How many backups each shard has, and how many servers there are beyond those that are needed.
    chained
        Whether most of its checkpoints hold only the rows that have changed since the one before.
    unconfirmed_nbytes
        What may wait for the backups of a server; None: as much as really may.
    combined
        The mode of a job whose workers are those of one host, and combine their gradients; nothing else is simulated.
    """

    faults: Faults
    training: Callable[[], Training]
    servers: int = 2
    workers: int = 3
    attacked: bool = False
    keyed: bool = False
    orphaned: bool = False
    succeeded: bool = False
    journaled: bool = False
    claimed: bool = False
    numbered: bool = False
    calm_s: float = CALM_S
    bandwidth: float = BANDWIDTH
    saved: bool = False
    ended: bool = False  # is asked to end, in the place of losing its power
    replicas: int = 0
    chained: bool = False
    spares: int = 0
    unconfirmed_nbytes: int | None = None
    combined: str = ""

    def simulation(self, seed: int) -> Simulation | Restored | HostGroups:
        """Return the run of a seed."""
        if self.combined:
            return HostGroups(seed, self.combined, self.workers, self.faults)
        if self.saved:
            return Restored(
                seed, self.servers, self.workers, self.faults, self.training(), calm_s=self.calm_s, ended=self.ended,
                replicas=self.replicas, journaled=self.journaled, chained=self.chained, keyed=self.keyed,
            )  # fmt: skip
        kind = Traced if self.faults.trace else Reported if self.faults.report else Simulation
        return (NumberedSimulation if self.numbered else kind)(
            seed, self.servers, self.workers, self.faults, self.training(), supervised=True, calm_s=self.calm_s,
            attacked=self.attacked, keyed=self.keyed, orphaned=self.orphaned, succeeded=self.succeeded,
            claimed=self.claimed, bandwidth=self.bandwidth, thrifty=self.bandwidth < BANDWIDTH, replicas=self.replicas,
            spares=self.spares, unconfirmed_nbytes=self.unconfirmed_nbytes, journaled=self.journaled,
        )  # fmt: skip


def _asynchronous() -> Training:
    return AsyncTraining(steps=4, parameters=4, size=32, lives=8, compute_s=0.2)


def _bounded(staleness: int) -> Training:
    return BoundedTraining(staleness, steps=5, parameters=4, size=32, lives=12, compute_s=0.2)


def _synchronous(**options: object) -> Callable[[], Training]:
    return lambda: SyncTraining(**{"steps": 4, "compute_s": 0.4, **options})  # type: ignore[arg-type]


def _several(end_s: Sequence[float] = ()) -> Training:
    """Three jobs, one of each mode, in two of which tensors have the same names and other sizes.

    They number their workers together, so each may have as many lives as the others.
    """
    return SeveralJobs(
        [
            AsyncTraining(steps=3, parameters=3, size=32, lives=20, compute_s=0.3),
            SyncTraining(steps=3, parameters=2, size=24, lives=20, compute_s=0.3),
            BoundedTraining(1, steps=4, parameters=4, size=28, lives=20, compute_s=0.2),
        ],
        end_s,
    )


def _alike() -> Training:
    """Two jobs of the same model: what is meant for one would fit the other."""
    return SeveralJobs([AsyncTraining(steps=4, parameters=3, size=32, lives=16, compute_s=0.2) for _ in range(2)])


#: How synchronous steps go on without some: the training of each.
POLICIES = {
    "backup": _synchronous(aggregate=2),
    "several": _synchronous(aggregate=5),
    "continue": _synchronous(on_straggler="continue", steps=9, hiccup=0.1),
    "fail": _synchronous(on_straggler="fail", steps=9, hiccup=0.1),
    "data": _synchronous(data=DataSpec(name="examples", num_examples=60, range_size=10, passes=2), compute_s=0.5),
}
#: What is trained for long enough that a coordinator dies meanwhile.
LONG = {
    "async": lambda: AsyncTraining(steps=8, parameters=4, size=32, lives=16, compute_s=1.0),
    "sync": _synchronous(steps=8, compute_s=1.0, lives=16),
}
#: What goes wrong where jobs are saved.
SAVING = {
    "saves": Faults(delay=0.004, disk=0.02), "saves-breaks": LOSSES, "saves-twisted": TWISTED,
    "saves-crashes": Faults(delay=0.004, saving=0.02, disk=0.01), "saves-memory": MEMORY,
    "saves-everything": replace(EVERYTHING, disk=0.02, saving=0.005), "saves-stops": STOPS,
    "saves-freezes": FREEZES,
}  # fmt: skip
#: What is trained there.
SAVED = {
    "async": lambda: AsyncTraining(steps=7, parameters=4, size=64, lives=32, compute_s=0.3),
    "bounded": lambda: BoundedTraining(2, steps=7, parameters=4, size=64, lives=32, compute_s=0.3),
    "sync": _synchronous(steps=8, retain=1),
}
#: What is trained while servers come and go. Nobody gives up and tries again what an old leader has turned away: it
#: has to come by itself.
DRAINED = {
    "async": lambda: AsyncTraining(steps=10, parameters=4, size=48, lives=12, compute_s=1.0, timeout=200.0),
    "bounded": lambda: BoundedTraining(1, steps=8, parameters=4, size=48, lives=12, compute_s=1.0, timeout=200.0),
    "sync": _synchronous(steps=8, retain=1, compute_s=1.0, timeout=200.0),
    "jobs": _several,
}
#: What is trained where a job may go back to a checkpoint.
FALLING = {
    **SAVED, "sync-data": _synchronous(data=DataSpec(name="examples", num_examples=120, range_size=10, passes=2)),
}  # fmt: skip


def _plain(found: dict[str, Scenario]) -> None:
    """Enter what each mode must stand."""
    found |= {f"async-{kind}": Scenario(faults=faults, training=_asynchronous) for kind, faults in KINDS.items()}
    for number, (kind, faults) in enumerate(KINDS.items()):
        found[f"bounded-{kind}"] = Scenario(faults=faults, training=lambda bound=1 + number % 3: _bounded(bound))  # type: ignore[misc]
        found[f"sync-{kind}"] = Scenario(faults=faults, training=_synchronous(retain=number % 3))
    found |= {f"sync-{name}": Scenario(faults=EVERYTHING, training=training) for name, training in POLICIES.items()}
    for kind, faults in KINDS.items():
        found[f"jobs-{kind}"] = Scenario(faults=faults, training=_several, workers=6)
    crowded = partial(CrowdedTraining, steps=24, plain=True, compute_s=0.5)
    found["sync-crowd"] = Scenario(faults=Faults(), training=crowded)
    found["sync-outranked"] = Scenario(faults=LOSS, training=lambda: OutrankedTraining(steps=4, plain=True))
    slow = {
        "async": lambda: AsyncTraining(steps=8, parameters=4, size=32, lives=12, compute_s=4.0),
        "sync": _synchronous(steps=8, compute_s=4.0),
    }
    for mode, training in slow.items():
        found[f"{mode}-departures"] = Scenario(faults=DEPARTURES, training=training, calm_s=LATE_CALM_S)
    found["async-routes"] = Scenario(faults=ROUTES, training=_asynchronous)
    found["sync-routes"] = Scenario(faults=ROUTES, training=_synchronous(retain=1))
    found["jobs-alike"] = Scenario(faults=EVERYTHING, training=_alike, workers=4)
    found["jobs-ended"] = Scenario(faults=LOSS, training=lambda: _several(end_s=(1.5, 2.5, 3.5)), workers=6)
    found["sync-eager"] = Scenario(faults=BREAKS, training=_synchronous(aggregate=1, eager=0.5))
    found["sync-data-crashes"] = Scenario(faults=CRASHES, training=POLICIES["data"])
    found["sync-backup-stops"] = Scenario(faults=STOPS, training=POLICIES["backup"])


def _patient(found: dict[str, Scenario]) -> None:
    """Enter what must come by itself, and what must not be sent twice."""
    # no request times out and is retried: lost messages have to come by themselves
    patient = {
        "async": lambda: AsyncTraining(steps=4, parameters=4, size=32, compute_s=0.2, timeout=200.0),
        "sync": _synchronous(timeout=200.0),
    }
    for mode, training in patient.items():
        found[f"{mode}-drops"] = Scenario(faults=DROPS, training=training)
        found[f"{mode}-breaks"] = Scenario(faults=LOSSES, training=training)
    large = {"size": 1024, "slice_nbytes": 8 << 10, "timeout": 2000.0}
    starved = {
        "async": lambda: AsyncTraining(steps=3, parameters=2, **large),  # type: ignore[arg-type]
        "bounded": lambda: BoundedTraining(1, steps=3, parameters=2, **large),  # type: ignore[arg-type]
        "sync": _synchronous(steps=3, parameters=2, **large),
    }
    for mode, training in starved.items():
        found[f"{mode}-slow"] = Scenario(faults=Faults(), training=training, workers=2, bandwidth=SLOW_BANDWIDTH)
    for kind, faults in (("line", Faults()), ("line-delays", Faults(delay=0.002))):
        found[f"async-{kind}"] = Scenario(
            faults=faults, training=LineTraining, servers=1, workers=1, bandwidth=LINE_BANDWIDTH
        )


def _orphaned(found: dict[str, Scenario]) -> None:
    """Enter coordinators that die for good, or have a successor, and workers that come back with a claim."""
    lasting = {
        "async": lambda: AsyncTraining(steps=8, parameters=4, size=32, lives=8, compute_s=4.0),
        "bounded": lambda: BoundedTraining(1, steps=8, parameters=4, size=32, lives=8, compute_s=4.0),
        "sync": _synchronous(steps=8, compute_s=3.0, retain=1, eager=0.3),
        "sync-data": _synchronous(data=DataSpec(name="examples", num_examples=600, range_size=10, passes=2)),
    }
    for mode, training in lasting.items():
        # one server: where it dies, no other one says that the coordinator is lost
        servers = 1 if mode == "sync" else 2
        found[f"{mode}-orphaned"] = Scenario(
            faults=Faults(delay=0.004), training=training, servers=servers, orphaned=True
        )
    for mode, training in LONG.items():
        found[f"{mode}-succeeded"] = Scenario(faults=Faults(delay=0.004), training=training, succeeded=True)
    returning = {
        "async": lambda: AsyncTraining(steps=4, parameters=4, size=32, lives=16, compute_s=0.3),
        "bounded": lambda: BoundedTraining(1, steps=5, parameters=4, size=32, lives=16, compute_s=0.3),
        "sync": _synchronous(steps=5, retain=1),
        "sync-backup": POLICIES["backup"],
        "sync-data": POLICIES["data"],
        "jobs": _several,
    }
    for mode, training in returning.items():
        workers = 6 if mode == "jobs" else 3
        found[f"{mode}-returns"] = Scenario(faults=RETURNS, training=training, workers=workers, claimed=True)


def _saved(found: dict[str, Scenario]) -> None:
    """Enter jobs that are saved, lose their power, and go on from the disk."""
    for mode, training in SAVED.items():
        for kind, faults in SAVING.items():
            found[f"{mode}-{kind}"] = Scenario(faults=faults, training=training, saved=True)
        found |= {f"{n}-ended": replace(found[n], ended=True) for n in (f"{mode}-saves", f"{mode}-saves-crashes")}
        found[f"{mode}-saves-drains-ended"] = replace(found[f"{mode}-saves-ended"], faults=DRAINS["drains"], servers=3)
    failing = Faults(delay=0.004, saving=0.004, disk=0.05)
    partly = {
        "async": lambda: AsyncTraining(steps=7, parameters=4, size=64, lives=32, compute_s=0.3, partly=True),
        "bounded": lambda: BoundedTraining(2, steps=7, parameters=4, size=64, lives=32, compute_s=0.8, partly=True),
        "sync": _synchronous(steps=12, parameters=6, partly=True),
    }
    for mode, training in partly.items():
        workers = 2 if mode == "bounded" else 3  # of three, one has always pushed meanwhile
        found[f"{mode}-saves-partly"] = Scenario(faults=failing, training=training, saved=True, workers=workers)


def _drained(found: dict[str, Scenario]) -> None:
    """Enter servers that are drained."""
    for mode, training in DRAINED.items():
        workers = 6 if mode == "jobs" else 3
        for kind, faults in DRAINS.items():
            if kind != "drains-lost" and (mode in ("async", "sync") or kind in ("drains", "drains-everything")):
                found[f"{mode}-{kind}"] = Scenario(faults=faults, training=training, servers=3, workers=workers)
            if mode != "jobs" and not faults.loss and not faults.drop:  # who is silent is lost before it can be back
                found[f"{mode}-{kind}-replicas"] = Scenario(faults=faults, training=training, servers=3, replicas=1)
        found[f"{mode}-drains-returned"] = Scenario(
            faults=DRAINS["drains"], training=training, servers=3, workers=workers, journaled=True, calm_s=LATE_CALM_S
        )


def _scaled(found: dict[str, Scenario]) -> None:
    """Enter clusters whose number of servers changes."""
    for mode, training in DRAINED.items():
        workers = 6 if mode == "jobs" else 3
        for kind, faults in SCALES.items():
            if kind != "scales-lost" and (mode != "jobs" or kind in ("scales", "scales-twisted")):
                found[f"{mode}-{kind}"] = Scenario(faults=faults, training=training, workers=workers)
            if mode != "jobs" and not faults.loss and not faults.drop:  # who is silent is lost before it can be back
                found[f"{mode}-{kind}-replicas"] = Scenario(faults=faults, training=training, servers=3, replicas=1)
        found[f"{mode}-scales-returned"] = Scenario(
            faults=SCALES["scales"], training=training, workers=workers, journaled=True, calm_s=LATE_CALM_S
        )
        if mode != "jobs":
            found[f"{mode}-scales-returned-replicas"] = replace(
                found[f"{mode}-scales-returned"], faults=SCALES["scales-lost"], servers=3, replicas=1
            )
            found[f"{mode}-scales-saves"] = Scenario(
                faults=replace(SAVING["saves"], scale=1.0), training=training, saved=True
            )
    found["sync-scales-falls"] = Scenario(
        faults=Faults(delay=0.004, server_crash=0.1, scale=1.0), training=DRAINED["sync"], saved=True
    )


def _fallen(found: dict[str, Scenario]) -> None:
    """Enter jobs that go back to a checkpoint, because a shard of theirs is lost."""
    ways = {
        "falls": Faults(delay=0.004, server_crash=0.12),
        "falls-crashes": Faults(delay=0.004, server_crash=0.08, falling=0.02),
        "falls-drains": Faults(delay=0.004, server_crash=0.1, drain=0.6),
        "falls-freezes": replace(FREEZES, server_crash=0.05),
        "falls-everything": replace(EVERYTHING, server_crash=0.06, falling=0.005, disk=0.01),
    }  # fmt: skip
    for mode, training in FALLING.items():
        for kind, faults in ways.items():
            servers = 3 if faults.drain else 2
            found[f"{mode}-{kind}"] = Scenario(faults=faults, training=training, saved=True, servers=servers)
        found[f"{mode}-falls-returned"] = Scenario(
            faults=ways["falls-crashes"], training=training, saved=True, journaled=True, calm_s=LATE_CALM_S
        )


def _returned(found: dict[str, Scenario]) -> None:
    """Enter coordinators that die again and again, and come back from their journals."""
    kept = {
        "async": LONG["async"],
        "bounded": lambda: BoundedTraining(1, steps=8, parameters=4, size=32, lives=16, compute_s=1.0),
        "sync": _synchronous(steps=8, compute_s=1.0, lives=16, retain=1),
        "sync-data": _synchronous(data=DataSpec(name="examples", num_examples=120, range_size=10, passes=2)),
        "sync-backup": _synchronous(steps=8, compute_s=1.0, aggregate=2),
        "sync-several": _synchronous(steps=8, compute_s=1.0, aggregate=5),
        "sync-continue": _synchronous(on_straggler="continue", steps=9, hiccup=0.1),
        "sync-fail": _synchronous(on_straggler="fail", steps=9, hiccup=0.1),
    }
    for mode, training in kept.items():
        calm = Faults(delay=0.004)
        found[f"{mode}-returned"] = Scenario(faults=calm, training=training, journaled=True, calm_s=LATE_CALM_S)
    for mode in ("async", "bounded", "sync", "sync-data"):
        for kind, faults in (("everything", EVERYTHING), ("restarts", RESTARTS), ("freezes", FREEZES)):
            found[f"{mode}-returned-{kind}"] = Scenario(
                faults=faults, training=kept[mode], journaled=True, calm_s=LATE_CALM_S
            )
    found["jobs-returned"] = Scenario(faults=LOSS, training=_several, workers=6, journaled=True, calm_s=LATE_CALM_S)
    for mode in ("async", "sync"):
        found[f"{mode}-returned-claimed"] = Scenario(
            faults=RETURNS, training=kept[mode], journaled=True, claimed=True, calm_s=LATE_CALM_S
        )
    for mode, training in FALLING.items():
        crashes = SAVING["saves-crashes"]
        found[f"{mode}-returned-saves"] = Scenario(faults=crashes, training=training, saved=True, journaled=True)
    copied = {
        "async": lambda: AsyncTraining(steps=8, parameters=4, size=32, lives=12, compute_s=0.8, timeout=60.0),
        "bounded": lambda: BoundedTraining(1, steps=8, parameters=4, size=32, lives=12, compute_s=0.8, timeout=60.0),
        "sync": _synchronous(steps=8, compute_s=0.8, lives=30, timeout=60.0),
    }
    for mode, training in copied.items():
        # not both in one synchronous step: that ends its job, and a script that has failed is not started again
        both = replace(LOST_NODES, crash=0.0, partition=0.0) if mode == "sync" else LOST_NODES
        for kind, faults in (("replicas", LOST_SERVERS), ("cut", CUT_SERVERS), ("both", both), ("frozen", FREEZES)):
            found[f"{mode}-returned-{kind}"] = Scenario(
                faults=faults, training=training, servers=3, replicas=1, journaled=True, calm_s=LATE_CALM_S
            )


def _replicated(found: dict[str, Scenario]) -> None:
    """Enter servers that are lost, and whose backups take over."""
    replicated = {
        "async": lambda: AsyncTraining(steps=8, parameters=6, size=40, lives=12, compute_s=0.8, timeout=60.0),
        "bounded": lambda: BoundedTraining(1, steps=8, parameters=6, size=40, lives=12, compute_s=0.8, timeout=60.0),
        "sync": _synchronous(steps=8, parameters=6, size=48, lives=30, compute_s=0.8, timeout=60.0),
    }
    losing = {
        "replicas": LOST_SERVERS, "replicas-cut": CUT_SERVERS, "replicas-silent": SILENT_SERVERS,
        "replicas-both": LOST_NODES, "replicas-freezes": FREEZES,
    }  # fmt: skip
    for mode, training in replicated.items():
        for kind, faults in losing.items():
            found[f"{mode}-{kind}"] = Scenario(
                faults=faults, training=training, servers=3, replicas=1, calm_s=LONG_CALM_S
            )
        found[f"{mode}-replicas-two"] = replace(found[f"{mode}-replicas-both"], servers=4, replicas=2, spares=1)
        found[f"{mode}-replicas-memory"] = replace(
            found[f"{mode}-replicas"],
            faults=replace(LOST_SERVERS, memory=0.01, ways=0.1),
            unconfirmed_nbytes=LITTLE_NBYTES,
        )
        found[f"{mode}-replicas-saves"] = replace(
            found[f"{mode}-replicas"],
            training=SAVED[mode],
            faults=replace(LOST_SERVERS, disk=0.02),
            saved=True,
        )
    exact = _synchronous(steps=8, plain=True, parameters=6, size=48, deterministic=True, compute_s=0.8, timeout=60.0)
    found["sync-exact-replicas"] = replace(found["sync-replicas"], training=exact)
    found["jobs-replicas"] = replace(found["async-replicas"], training=_several, workers=6, calm_s=CALM_S)


def _together(found: dict[str, Scenario]) -> None:
    """Enter pulls that wait, gradients that are lent, and steps that workers skip."""
    # pulls that are under way while the step goes on without their worker, or needs another gradient of it
    together: dict[str, object] = {"together": 0.7, "hiccup": 0.2, "steps": 8, "retain": 1}
    for kind, policy in {"": {}, "-backup": {"aggregate": 1}, "-several": {"aggregate": 4}}.items():
        found[f"sync-together{kind}"] = Scenario(faults=EVERYTHING, training=_synchronous(**together, **policy))
    found["sync-together-falls"] = replace(found["sync-falls-everything"], training=_synchronous(**together))
    lent: dict[str, object] = {**together, "lends": True, "timeout": 6.0}
    found["sync-lent"] = Scenario(faults=EVERYTHING, training=_synchronous(**lent))
    found["sync-lent-drops"] = Scenario(faults=DROPS, training=_synchronous(**lent, clip_norm=5.0))
    found["sync-lent-falls"] = replace(found["sync-falls-everything"], training=_synchronous(**lent))
    found["sync-lent-drains"] = replace(found["sync-drains-everything"], training=_synchronous(**lent))
    skipping = _synchronous(skips=0.4, steps=6, retain=1)
    found["sync-skips"] = Scenario(faults=EVERYTHING, training=skipping)
    found["sync-skips-backup"] = Scenario(faults=EVERYTHING, training=_synchronous(skips=0.4, aggregate=2))
    found["sync-skips-continue"] = Scenario(
        faults=EVERYTHING, training=_synchronous(skips=0.4, on_straggler="continue", steps=9, hiccup=0.1)
    )
    found["sync-skips-returned"] = Scenario(faults=EVERYTHING, training=skipping, journaled=True, calm_s=LATE_CALM_S)
    found["sync-skips-replicas"] = replace(
        found["sync-replicas-both"], training=_synchronous(skips=0.4, steps=8, lives=30, compute_s=0.8, timeout=60.0)
    )
    skips = partial(BoundedTraining, 1, skips=0.4, steps=6, parameters=4, size=32, lives=12, compute_s=0.2, partly=True)
    found["bounded-skips"] = Scenario(faults=EVERYTHING, training=skips)


def _set(found: dict[str, Scenario]) -> None:
    """Enter numbers of optimizers, and values of parameters, that are set meanwhile."""
    terms: dict[str, object] = {"clip_norm": 5.0, "sets": 0.4, "steps": 8}
    found["sync-terms"] = Scenario(faults=EVERYTHING, training=_synchronous(**terms))
    found["sync-terms-backup"] = Scenario(faults=EVERYTHING, training=_synchronous(**terms, aggregate=2))
    found["sync-terms-returned"] = Scenario(
        faults=EVERYTHING, training=_synchronous(**terms), journaled=True, calm_s=LATE_CALM_S
    )
    moved: dict[str, object] = {**terms, "lives": 30, "compute_s": 0.8, "timeout": 60.0}
    found["sync-terms-replicas"] = replace(found["sync-replicas-both"], training=_synchronous(**moved))
    found["sync-exact-terms-replicas"] = replace(
        found["sync-replicas"], training=_synchronous(**moved, plain=True, deterministic=True)
    )
    setting: dict[str, object] = {"values": 0.5, "clip_norm": 5.0, "steps": 8}
    found["async-values"] = Scenario(faults=EVERYTHING, training=SettingTraining)
    found["bounded-values"] = Scenario(faults=EVERYTHING, training=lambda: SettingTraining(2))
    found["async-values-replicas"] = replace(
        found["async-replicas"], training=lambda: SettingTraining(compute_s=0.8, timeout=60.0)
    )
    found["sync-values"] = Scenario(faults=EVERYTHING, training=_synchronous(**setting, retain=2))
    found["sync-values-backup"] = Scenario(faults=EVERYTHING, training=_synchronous(**setting, aggregate=2))
    found["sync-values-returned"] = Scenario(
        faults=EVERYTHING, training=_synchronous(**setting), journaled=True, calm_s=LATE_CALM_S
    )
    moved = {**setting, "lives": 30, "compute_s": 0.8, "timeout": 60.0}
    found["sync-values-replicas"] = replace(found["sync-replicas-both"], training=_synchronous(**moved))
    found["sync-values-saves"] = replace(found["sync-replicas-saves"], training=_synchronous(**moved))
    found["sync-exact-values-replicas"] = replace(
        found["sync-replicas"], training=_synchronous(**moved, plain=True, deterministic=True)
    )


def _coded(found: dict[str, Scenario]) -> None:
    """Enter codecs, and workers of one host that combine their gradients."""
    for kind, faults in {"loss": LOSS, "twisted": TWISTED, "drops": DROPS}.items():
        found[f"async-coded-{kind}"] = Scenario(faults=faults, training=partial(CodedTraining, mode="async"))
        found[f"sync-coded-{kind}"] = Scenario(faults=faults, training=CodedTraining, workers=4)
    for mode, workers in (("async", 3), ("sync", 4)):
        coded = partial(CodedTraining, mode=mode, compute_s=0.3, timeout=200.0)
        found[f"{mode}-coded-drains"] = Scenario(faults=DRAINS["drains"], training=coded, servers=3, workers=workers)
        found[f"{mode}-coded-scales"] = Scenario(faults=SCALES["scales"], training=coded, workers=workers)
        found[f"{mode}-coded-replicas"] = Scenario(
            faults=LOST_SERVERS, training=coded, servers=3, workers=workers, replicas=1, calm_s=LONG_CALM_S
        )
        for kind, faults in {"crashes": CRASHES, "stops": STOPS, "freezes": FREEZES, "everything": EVERYTHING}.items():
            found[f"{mode}-combined-{kind}"] = Scenario(faults=faults, training=_asynchronous, workers=4, combined=mode)


#: What enters scenarios, each those of one subject; some are made of others that were entered before.
SUBJECTS = (
    _plain, _patient, _orphaned, _saved, _drained, _scaled, _fallen, _returned, _replicated, _together, _set, _coded,
)  # fmt: skip


def _scenarios() -> Mapping[str, Scenario]:
    found: dict[str, Scenario] = {}
    for enter in SUBJECTS:
        enter(found)
    found |= mean_scenarios(found)
    found |= {**attacked_scenarios(found), **numbered_scenarios(found)}
    made = (large_scenarios, row_scenarios, note_scenarios, probed_scenarios, traced_scenarios, reported_scenarios)
    found |= {name: scenario for make in made for name, scenario in make(found).items()}
    for name in ALSO_FROZEN:
        found[f"{name}-freezes"] = replace(found[name], faults=replace(found[name].faults, freeze=FREEZES.freeze / 2))
    return found


#: By name: ``mode-what``. A seed and a name say everything about a run.
SCENARIOS = _scenarios()
