"""Chains of checkpoints that are made in the wrong way: the simulator must notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.simulation.test_invariants import Patch, caught, wrap
from tests.simulator.placement.restores import Restored
from tests.simulator.scenarios import SCENARIOS
from zmqps.core.coordinator.saving.checkpoints import Checkpoints
from zmqps.core.coordinator.saving.making import Chains, Making
from zmqps.core.protocol.events import Action
from zmqps.core.server.saves import Saves
from zmqps.core.server.tables.row_snapshot import Marks, RowMarks
from zmqps.core.server.tables.rows import rows_in

pytestmark = pytest.mark.repeats

WRONG = {"async": "lacks rows that were acknowledged", "sync": "sequential reference"}


@pytest.mark.parametrize("mode", ["async", "bounded", "sync"])
def test_rows_are_left_out_and_chains_are_long(mode: str) -> None:
    built, longest = 0, 0
    for seed in range(12):
        simulation = SCENARIOS[f"{mode}-rows-saves-chained"].simulation(seed)
        assert isinstance(simulation, Restored)
        simulation.run()
        lengths: dict[str | None, int] = {None: 0}
        for saved in simulation.disk.published:
            lengths[saved.path] = lengths[saved.manifest["base"]] + 1
            built += sum(not table["whole"] for state in saved.states for table in state["tables"].values())
        longest = max(longest, *lengths.values())
        if built > 10 and longest > 2:
            return
    raise AssertionError(f"{built} tables built upon others, and the longest chain has {longest} checkpoints")


def test_what_was_begun_and_never_published_and_is_built_upon(monkeypatch: Patch) -> None:
    def fail(original: Any, checkpoints: Checkpoints, why: str, now: float) -> list[Action]:
        making = checkpoints._making
        assert isinstance(making, Making)
        if making.shards:
            checkpoints._chains.published(making.run.name, making.number, making.target.path, making.shards, 1, None)
        return original(checkpoints, why, now)  # type: ignore[no-any-return]

    wrap(monkeypatch, Checkpoints, "_fail", fail)
    caught("async-rows-saves-chained", "which was never published")


@pytest.mark.parametrize("mode", WRONG)
def test_a_server_that_counts_from_the_save_that_it_began_last(monkeypatch: Patch, mode: str) -> None:
    def base_of(original: Any, marks: Marks, epoch: int, base: int) -> Any:
        known = marks._of.get(epoch, {})
        return original(marks, epoch, max(known, default=base) if base else 0)

    wrap(monkeypatch, Marks, "base", base_of)
    caught(f"{mode}-rows-saves-chained", WRONG[mode])


def test_a_server_that_notes_what_it_has_saved_when_it_is_written(monkeypatch: Patch) -> None:
    def returned(original: Any, saves: Saves, tag: Any, value: Any, now: float) -> list[Action]:
        save = saves._under_way.get(tag.epoch)
        actions: list[Action] = original(saves, tag, value, now)
        if save is not None and tag.epoch not in saves._under_way and (shard := save.tenant.shard) is not None:
            saves._marks.note(tag.epoch, tag.number, save.message.base, RowMarks(rows_in(shard).tables))
        return actions

    wrap(monkeypatch, Saves, "returned", returned)
    caught("sync-rows-saves-chained", WRONG["sync"])


class _Unchanged(RowMarks):
    """What is not known here counts as unchanged."""

    def __init__(self) -> None:
        super().__init__(())

    def since(self, tables: Any) -> Any:
        return [(table.steps, np.empty(0, np.int64)) for table in tables]


def test_copies_that_were_loaded_elsewhere_and_go_on_with_the_chain(monkeypatch: Patch) -> None:
    def base_of(original: Any, marks: Marks, epoch: int, base: int) -> Any:
        found = original(marks, epoch, base)
        return _Unchanged() if base and found is None else found

    def any_copies(original: Any, chains: Chains, job: str, shards: Any) -> Any:
        link = chains._links.get(job)
        return original(chains, job, link.shards if link is not None else shards)

    wrap(monkeypatch, Marks, "base", base_of)
    wrap(monkeypatch, Chains, "base", any_copies)
    caught("sync-rows-falls-chained", WRONG["sync"])
