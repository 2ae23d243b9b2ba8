"""Attackers and faults beside honest training on real clusters: it goes on, and every value stays exact."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.attack.__main__ import attack
from tests.attack.arena import FIRST_STEPS, Arena, Outcome, final_values, newcomer
from tests.attack.attackers import all_attackers
from tests.attack.faults import FAULTS, NEED_ROOM
from tests.attack.soak import soak


def check(out: Outcome) -> None:
    assert out.broken == []
    assert "attacker" not in out.counts, out.counts


@pytest.mark.timeout(300)  # seven processes, on a machine that may be busy
def test_training_and_its_values_survive_two_attackers_and_a_wrong_value_does_not_go_unnoticed() -> None:
    with Arena("async") as arena:
        arena.wait_until_trained()
        for name in ("garbage", "stolen-server"):
            with arena.attacked(name) as attack:
                arena.wait_until_trained(FIRST_STEPS + min(arena.steps))
                arena.wait_for(lambda attack=attack: attack.look() > 3)
            assert "attacker" not in attack.counts, attack.counts
        assert newcomer(arena) == []
        arena.stop_training()
        assert [*arena.dead, *arena.wrong_values(), *final_values(arena)] == []
        arena.tally.set(0, "acknowledged", arena.tally.get(0, "acknowledged") + 1)
        assert len(final_values(arena)) == 2, "its own parameter and the shared one"


#: Where it matters whether training is synchronous: who takes part, and what is kept of whom.
BY_MODE = {name for name, one in all_attackers().items() if one.run.__module__.endswith(("identities", "queues"))}
CASES = [(name, "async") for name in [*all_attackers(), *FAULTS] if name not in NEED_ROOM]
CASES += [(name, "sync") for name in sorted(BY_MODE)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_honest_training_goes_on_beside(name: str, mode: str) -> None:
    check(attack(name, mode, 3.0))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NEED_ROOM)
def test_honest_training_goes_on_while_there_is_no(name: str) -> None:
    if subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    command = [sys.executable, "-m", "tests.attack", "--attack", name, "--mode", "async", "--seconds", "3"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_two_minutes_of_killed_workers_and_attackers_in_turn_leave_nothing_behind(mode: str) -> None:
    assert soak(mode, 2.0).broken == []
