"""Scenarios of the synchronous mode: means over all workers, and steps that a worker leaves out for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from tests.simulator.jobs.synchronous import SyncTraining
from tests.simulator.jobs.training import Training

#: `tests.simulator.scenarios.Scenario`.
S = TypeVar("S")
#: What trains in them.
OPTIONS: dict[str, dict[str, Any]] = {
    "workers": {"mean": "workers", "skips": 0.4, "steps": 7, "clip_norm": 5.0},
    "voids": {"voids": 0.2, "values": 0.3, "skips": 0.1, "steps": 7},
}
#: By kind, the scenario whose faults there are, and what else trains otherwise.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "": ("sync-everything", {}),
    "-backup": ("sync-everything", {"aggregate": 2}),
    "-several": ("sync-everything", {"aggregate": 4}),
    "-continue": ("sync-everything", {"on_straggler": "continue", "hiccup": 0.1}),
    "-returned": ("sync-skips-returned", {}),
    "-replicas": ("sync-replicas-both", {"lives": 30, "compute_s": 0.8, "timeout": 60.0}),
    "-falls": ("sync-falls-everything", {}),
}


def mean_scenarios(found: Mapping[str, S]) -> dict[str, S]:
    """Return scenarios, made of those there are."""
    made: dict[str, S] = {}
    for name, options in OPTIONS.items():
        for kind, (faults, others) in KINDS.items():
            made[f"sync-{name}{kind}"] = _with(found[faults], **options, **others)
    lent: dict[str, Any] = {"together": 0.7, "lends": True, "skips": 0.2, "timeout": 6.0}
    made["sync-workers-lent"] = _with(found["sync-everything"], mean="workers", **lent)
    partly: dict[str, Any] = {"partly": True, "parameters": 6, "voids": 0.1}
    made["sync-workers-partly"] = _with(found["sync-everything"], mean="workers", **partly)
    return made


def _with(scenario: S, **options: Any) -> S:
    def training() -> Training:
        return SyncTraining(**{"steps": 4, "compute_s": 0.4, **options})

    return replace(scenario, training=training)  # type: ignore[type-var]
