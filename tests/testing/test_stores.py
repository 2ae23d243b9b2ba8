"""Chains of checkpoints that are made in the wrong way: the simulator must notice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.testing.test_invariants import Patch, caught, wrap
from zmqps.core.coordinator.chains import Chains
from zmqps.core.coordinator.checkpoints import Checkpoints
from zmqps.core.coordinator.making import Making
from zmqps.core.protocol.events import Action
from zmqps.core.server.changes import Changes
from zmqps.core.server.saves import Saves
from zmqps.testing.restores import Restored
from zmqps.testing.scenarios import SCENARIOS

pytestmark = pytest.mark.repeats

WRONG = {"async": "lacks what was acknowledged", "ssp": "lacks what was acknowledged", "sync": "sequential reference"}
#: Seeds that notice a server that counts from the save that it began last.
BEGIN = {"async": 58, "ssp": 8, "sync": 0}


@pytest.mark.parametrize("mode", ["async", "ssp", "sync"])
def test_slices_are_left_out_and_chains_are_long(mode: str) -> None:
    unchanged, longest = 0, 0
    for seed in range(12):
        simulation = SCENARIOS[f"{mode}-saves-chained"].simulation(seed)
        assert isinstance(simulation, Restored)
        simulation.run()
        unchanged += simulation.disk.num_unchanged
        lengths: dict[str | None, int] = {None: 0}
        for saved in simulation.disk.published:
            lengths[saved.path] = lengths[saved.manifest["base"]] + 1
        longest = max(longest, *lengths.values())
        if unchanged > 10 and longest > (1 if mode == "async" else 2):
            return
    raise AssertionError(f"{unchanged} slices were left out, and the longest chain has {longest} checkpoints")


def test_what_was_begun_and_never_published_and_is_built_upon(monkeypatch: Patch) -> None:
    def fail(original: Any, checkpoints: Checkpoints, why: str, now: float) -> list[Action]:
        making = checkpoints._making
        assert isinstance(making, Making)
        if making.shards:
            checkpoints._chains.published(making.run.name, making.number, making.path, making.shards, 1, None)
        return original(checkpoints, why, now)  # type: ignore[no-any-return]

    wrap(monkeypatch, Checkpoints, "_fail", fail)
    caught("async-saves-chained", "which was never published")


@pytest.mark.parametrize("mode", WRONG)
def test_a_server_that_counts_from_the_save_that_it_began_last(monkeypatch: Patch, mode: str) -> None:
    def unchanged(original: Any, changes: Changes, epoch: int, base: int, states: Any) -> Any:
        known = changes._counts.get(epoch, {})
        return original(changes, epoch, max(known, default=base) if base else 0, states)

    wrap(monkeypatch, Changes, "unchanged", unchanged)
    caught(f"{mode}-saves-chained", WRONG[mode], begin=BEGIN[mode])


def test_a_server_that_notes_what_it_has_saved_when_it_is_written(monkeypatch: Patch) -> None:
    def returned(original: Any, saves: Saves, tag: Any, value: Any, now: float) -> list[Action]:
        save = saves._under_way.get(tag.epoch)
        actions: list[Action] = original(saves, tag, value, now)
        if save is not None and tag.epoch not in saves._under_way and save.tenant.shard is not None:
            saves._changes.note(tag.epoch, tag.number, save.message.base, save.tenant.shard.slices)
        return actions

    wrap(monkeypatch, Saves, "returned", returned)
    caught("sync-saves-chained", WRONG["sync"])


def test_a_server_that_takes_a_slice_for_unchanged_by_its_first_parameter(monkeypatch: Patch) -> None:
    def unchanged(original: Any, changes: Changes, epoch: int, base: int, states: Any) -> Any:
        found = original(changes, epoch, base, states)
        known = changes._counts.get(epoch, {}).get(base, {})
        return (
            found
            if found is None
            else found
            | {
                s.slice.index: (s.version, s.steps.tolist())
                for s in states
                if s.slice.index in known and known[s.slice.index][0][0] == s.steps[0]
            }
        )

    wrap(monkeypatch, Changes, "unchanged", unchanged)
    caught("sync-saves-chained", WRONG["sync"], begin=4)


def test_copies_that_were_loaded_elsewhere_and_go_on_with_the_chain(monkeypatch: Patch) -> None:
    def unchanged(original: Any, changes: Changes, epoch: int, base: int, states: Any) -> Any:
        found = list(states)
        if base and base not in changes._counts.get(epoch, {}):  # what is not known here counts as unchanged
            return {state.slice.index: (state.version, state.steps.tolist()) for state in found}
        return original(changes, epoch, base, found)

    def any_copies(original: Any, chains: Chains, job: str, shards: Any) -> Any:
        link = chains._links.get(job)
        return original(chains, job, link.shards if link is not None else shards)

    wrap(monkeypatch, Changes, "unchanged", unchanged)
    wrap(monkeypatch, Chains, "base", any_copies)
    caught("sync-falls-chained", WRONG["sync"], begin=43)
