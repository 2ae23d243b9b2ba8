"""The scenarios with sparse tables: those without, with others to train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tests.simulator.jobs.asynchronous import AsyncTraining
from tests.simulator.jobs.bounded import BoundedTraining
from tests.simulator.jobs.setting import SettingTraining
from tests.simulator.jobs.several import SeveralJobs
from tests.simulator.jobs.synchronous import SyncTraining
from tests.simulator.jobs.training import Training

#: Kinds in which shards move, and all that take longer.
MOVES = "replicas", "drains", "scales"
LASTING = *MOVES, "departures", "returned"
#: A request that waits for so long is not retried: lost messages have to come by themselves.
PATIENT_S = 200.0

#: `tests.simulator.scenarios.Scenario`.
S = TypeVar("S")
#: Kinds of faults, with parameters and tables in one job. A kind that a mode does not have is left out.
KINDS = (
    "loss", "twisted", "crashes", "stops", "partitions", "restarts", "everything", "memory", "drops", "breaks",
    "routes", "slow", "departures", "returns", "attacked", "backup", "skips", "workers", "voids", "returned",
    "returned-everything", "returned-restarts", "returned-saves", "saves", "saves-breaks", "saves-twisted",
    "saves-crashes", "saves-memory", "saves-everything", "falls", "falls-crashes", "falls-everything",
    "falls-returned", "replicas", "replicas-cut", "replicas-silent", "replicas-both", "replicas-two",
    "replicas-memory", "replicas-saves", "returned-replicas",
    "drains", "drains-replicas", "drains-lost-replicas", "drains-everything", "falls-drains", "scales",
    "scales-replicas", "scales-breaks", "scales-drains-replicas", "scales-crashes", "scales-twisted-replicas",
    "scales-lost-replicas", "scales-everything", "scales-returned-replicas", "scales-saves", "scales-falls",
    "freezes", "returned-freezes", "returned-frozen", "replicas-freezes", "saves-freezes",
)  # fmt: skip
#: Kinds whose checkpoints mostly hold only the rows that have changed, and those that they are made of.
CHAINED = {
    "saves-chained": "saves-partly", "falls-chained": "falls-crashes", "returned-chained": "returned-saves",
    "replicas-chained": "replicas-saves",
}  # fmt: skip
#: Kinds with nothing but a table.
ALONE = "everything", "falls", "replicas", "scales-replicas"
#: Tables that do not keep all rows (`tests.simulator.jobs.marks.KINDS`).
LIMITED = "full", "evicts", "admits", "expires", "lapses"


def row_scenarios(found: Mapping[str, S]) -> Mapping[str, S]:
    """Return scenarios with tables, made of those without."""
    rows: dict[str, S] = {}
    for mode in ("async", "bounded", "sync"):
        for kind in KINDS:
            if (scenario := found.get(f"{mode}-{kind}")) is not None:
                rows[f"{mode}-rows-{kind}"] = _with(scenario, _training(mode, kind))
        for kind, like in CHAINED.items():
            workers = 2 if mode == "bounded" else 3  # of three, one has always pushed meanwhile
            chained = replace(found[f"{mode}-{like}"], chained=True, workers=workers)  # type: ignore[type-var]
            rows[f"{mode}-rows-{kind}"] = _with(chained, _training(mode, kind))
        for kind in ALONE:
            rows[f"{mode}-rows-alone-{kind}"] = _with(found[f"{mode}-{kind}"], _training(mode, kind, parameters=0))
    for name in LIMITED:
        rows[f"async-rows-{name}"] = _with(found["async-everything"], _limited((name, "plain")))
    rows["async-rows-limits-memory"] = _with(found["async-memory"], _limited(LIMITED))
    rows["async-rows-limits-saves-chained"] = _with(rows["async-rows-saves-chained"], _limited(LIMITED[1:]))
    # other numbers of servers may have no room for a full table
    rows["async-rows-limits-falls-chained"] = _with(rows["async-rows-falls-chained"], _limited(LIMITED[2:]))
    for kind in ("replicas", "drains-replicas", "scales"):  # copies do not know how often ids were touched
        rows[f"async-rows-limits-{kind}"] = _with(found[f"async-{kind}"], _limited(("evicts", "expires", "lapses")))
    for kind in ("everything", "memory"):
        training = _training("sync", kind, tables=("full", "items"))
        rows[f"sync-rows-full-{kind}"] = _with(found[f"sync-{kind}"], training)
    rows["async-rows-set"] = _with(found["async-values"], lambda: SettingTraining(tables=True))
    rows["bounded-rows-set"] = _with(found["bounded-values"], lambda: SettingTraining(2, tables=True))
    rows["async-rows-set-memory"] = _with(found["async-memory"], lambda: SettingTraining(tables=True))
    rows["jobs-rows-everything"] = _with(found["jobs-everything"], _several)
    return rows


def _with(scenario: S, training: Callable[[], Training]) -> S:
    return replace(scenario, training=training)  # type: ignore[type-var]


def _training(mode: str, kind: str, **others: Any) -> Callable[[], Training]:
    """Return what trains tables, and perhaps parameters, where such a kind of faults is."""
    options: dict[str, Any] = {"steps": 6, "parameters": 2, "compute_s": 0.4}
    if kind in ("drops", "breaks"):
        options |= {"timeout": PATIENT_S}
    elif kind == "slow":
        options |= {"steps": 3, "size": 1024, "slice_nbytes": 8 << 10, "timeout": 2000.0}
    elif kind.startswith(LASTING):
        options |= {"compute_s": 1.0, "steps": 8}
        options |= {"timeout": PATIENT_S} if kind.startswith(MOVES) else {}
    if mode == "sync":
        special: dict[str, dict[str, Any]] = {
            "backup": {"aggregate": 2},
            "skips": {"skips": 0.4},
            "workers": {"mean": "workers", "skips": 0.3},
            "voids": {"voids": 0.2},
        }
        options |= {"tables": ("items", "users"), **special.get(kind, {}), **others}
        return lambda: SyncTraining(**options)
    options = {"size": 32, "lives": 24, "tables": ("plain", "halves"), **options, **others}
    if mode == "async":
        return lambda: AsyncTraining(**options)
    return lambda: BoundedTraining(1, skips=0.4 if kind == "skips" else 0.0, **options)


def _limited(names: Sequence[str]) -> Callable[[], Training]:
    return lambda: AsyncTraining(steps=8, parameters=1, size=32, lives=24, compute_s=0.3, tables=names)


def _several() -> Training:
    """Three jobs, one of each mode, whose tables have the same names."""
    return SeveralJobs([_training(mode, "everything", tables=("plain",))() for mode in ("async", "sync", "bounded")])
