"""Every mode with every kind of fault: nothing is lost, nothing counts twice, nobody waits for ever.

A failing seed says what to type to see it again; `make simulate SEEDS=100000` runs as many as wished.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulator.scenarios import SCENARIOS
from tests.simulator.seeds import replay
from tests.simulator.simulation import SimulationError
from tests.tables import one_in

#: One seed of each scenario is enough where so much is pushed in it. Where a fault has ended it early, as the sleep of
#: a server without copies does, others are tried; `make test-slow` runs thousands of all together.
ENOUGH, MOST_SEEDS = 5, 5
#: Parts of the thousands of seeds, which are spread over processes.
SHARES = 60


def one_of_each_kind() -> list[str]:
    """Return a scenario of every kind, with each mode in its turn; `make test-slow` runs them in all modes."""
    kinds: dict[str, list[str]] = {}
    for name in SCENARIOS:
        kinds.setdefault(name.partition("-")[2].removeprefix("rows-"), []).append(name)
    return [names[number % len(names)] for number, names in enumerate(kinds.values())]


@pytest.mark.parametrize("name", one_in(24, one_of_each_kind()))
def test_a_seed_of_every_scenario(name: str) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(MOST_SEEDS):
        try:
            outcomes.update(SCENARIOS[name].simulation(seed).run().outcomes)
        except SimulationError as error:
            raise AssertionError(f"to see it again: {replay(name, seed)}") from error
        if outcomes["push"] + outcomes["push_pull"] >= ENOUGH:
            return
    raise AssertionError(f"the faults leave no room for training: {outcomes}")


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_thousands_of_seeds(share: int) -> None:
    for name in [*SCENARIOS][share::SHARES]:
        for seed in range(1000, 1032):
            try:
                SCENARIOS[name].simulation(seed).run()
            except SimulationError as error:
                raise AssertionError(f"to see it again: {replay(name, seed)}") from error


@pytest.mark.parametrize("name", one_in(2, ["async-everything", "bounded-stops", "sync-data-crashes", "sync-restarts"]))
def test_a_seed_replays_exactly(name: str) -> None:
    first, second = (SCENARIOS[name].simulation(7) for _ in range(2))
    assert first.run() == second.run()
    assert first.trace() == second.trace()
    assert SCENARIOS[name].simulation(8).run().digest != first.digest
