"""Attackers and faults beside honest training on real clusters: it goes on, and every value stays exact."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import zmqps
from tests.attack import bound
from tests.attack.__main__ import attack
from tests.attack.arena import FIRST_STEPS, Arena, Outcome, attack_beside, final_values, last_look, newcomer
from tests.attack.attackers import all_attackers
from tests.attack.faults import FAULTS, NEED_ROOM
from tests.attack.nodes import most
from tests.attack.soak import soak
from tests.attack.training import CORE, parameters
from tests.pace import allow

ROOT = Path(__file__).parents[2]


def check(out: Outcome) -> None:
    assert out.broken == []
    assert "attacker" not in out.counts, out.counts


@pytest.mark.processes
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
#: Who comes one after the other beside the same training: two halves, for two cores.
TURNS = [
    (mode, sorted(names)[half::2]) for mode, names in (("async", all_attackers()), ("sync", BY_MODE)) for half in (0, 1)
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("mode", "names"), TURNS, ids=["async-0", "async-1", "sync-0", "sync-1"])
def test_honest_training_goes_on_beside_each(mode: str, names: list[str], subtests: pytest.Subtests) -> None:
    with ExitStack() as stack:
        arena = None
        for name in names:
            with subtests.test(name):
                if arena is None or arena.dead:
                    stack.close()
                    arena = stack.enter_context(Arena(mode))
                    arena.warm_up()
                check(attack_beside(arena, name, timed=False, before_s=0.5, during_s=1.5))
        assert arena is not None
        assert last_look(arena) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in NEED_ROOM])
def test_honest_training_goes_on_while_a_server_lacks(name: str) -> None:
    check(attack(name, "async", 3.0, timed=False))


def check_that_training_is_exact(arena: Arena) -> None:
    arena.begin()
    arena.wait_until_trained()
    assert newcomer(arena) == []
    arena.stop_training()
    assert [*arena.dead, *arena.wrong_values(), *final_values(arena)] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_with_a_job_secret_who_comes_before_the_first_worker_gets_nowhere(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x" * 32)
    monkeypatch.setenv("ZMQPS_JOB_SECRET", str(secret))  # which the honest have, and the attacker does not use
    with (
        Arena(mode, begun=False, security=zmqps.Security(job_secret=secret)) as arena,
        arena.attacked("first-comer") as attack,
    ):
        arena.wait_for(lambda: attack.look() > 3)
        check_that_training_is_exact(arena)
        attack.look()
    assert all(what.startswith("Error ") for what in attack.counts if what != "ready"), attack.counts


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_without_a_job_secret_who_comes_before_the_first_worker_holds_the_job_only_while_it_stays(mode: str) -> None:
    with Arena(mode, begun=False) as arena:
        with arena.attacked("first-comer") as attack:
            arena.wait_for(lambda: attack.look() > 3)
            with (
                zmqps.connect(arena.cluster.address, timeout=allow(30.0)) as worker,
                pytest.raises(zmqps.JobMismatchError),
            ):
                worker.init(parameters(), optimizer=zmqps.optim.sgd(1.0), mode="async", timeout=allow(30.0))
        assert "attacker" not in attack.counts, attack.counts
        arena.wait_for(lambda: all(member["role"] != "worker" for member in arena.cluster.status()["members"]))
        check_that_training_is_exact(arena)


#: Those that fill a server's memory, with one connection or many; and how many connections strangers have in all.
HUNGRY = ("deaf-puller", "parked-pulls", "staged-gradients", "half-sent", "unended-message", "kept-connections")
NUM_STRANGERS = 40 + 4 + 2000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_holds_no_more_than_is_documented_while_all_fill_its_memory_at_once() -> None:
    with Arena("async") as arena, ExitStack() as stack:
        arena.warm_up()
        arena.watch(1.0, {})
        idle, peaks = most(arena.held), dict[str, int]()
        attacks = [stack.enter_context(arena.attacked(name)) for name in HUNGRY]
        for attack in attacks:
            arena.wait_for(lambda attack=attack: attack.look() > 0)
        arena.watch(8.0, peaks)
        members = CORE + len(HUNGRY)  # each attacker has joined by the rules as well
        for name in ("server-0", "server-1"):
            assert peaks[name] <= bound.bound(idle[name].rss, 0, members, NUM_STRANGERS)
        assert [*arena.dead, *arena.wrong_values()] == []


def test_the_document_says_what_a_server_holds() -> None:
    text = (ROOT / "docs/security.md").read_text()
    for nbytes in (
        bound.member_nbytes(), bound.unread_nbytes(), bound.strangers_nbytes(), bound.constant_nbytes()
    ):  # fmt: skip
        assert f"| {nbytes / (1 << 20):.0f} MiB |" in text
    assert f"| {bound.unconfirmed_nbytes(0) >> 20} MiB and one push |" in text
    shards, beside = bound.staged()
    assert f"| {shards} shards and {beside >> 20} MiB |" in text


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NEED_ROOM)
def test_honest_training_goes_on_while_there_is_no(name: str) -> None:
    if subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    command = [sys.executable, "-m", "tests.attack", "--attack", name, "--mode", "async", "--seconds", "3", "--untimed"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_minute_of_killed_workers_and_attackers_in_turn_leaves_nothing_behind(mode: str) -> None:
    assert soak(mode, 1.0).broken == []
