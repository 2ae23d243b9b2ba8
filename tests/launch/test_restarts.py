"""The lives of a worker: how many there may be, how long the pauses are, and what they have in their environment."""

from __future__ import annotations

import signal

import pytest

from tests.tables import for_each
from zmqps.client.lives import Life, find_life
from zmqps.core.protocol import exits
from zmqps.launch.processes import worker_environment
from zmqps.launch.restarts import MOST_PAUSE_S, RESTART, TOKEN, Restarts, failed


def test_a_worker_is_started_again_so_often_and_its_pauses_grow() -> None:
    lives, pauses = Restarts(9), []
    while lives.may_follow(1):
        pauses.append(lives.pause)
        lives.begin()
    assert pauses == [0.5, 1, 2, 4, 8, 16, MOST_PAUSE_S, MOST_PAUSE_S, MOST_PAUSE_S]
    assert lives.what_follows(1) == "it does not start again: it was restarted 9 times, as often as it may"


@for_each("code", [exits.USAGE, 126, 127])
def test_what_would_fail_again_is_not_started_again(code: int) -> None:
    lives = Restarts(3)
    assert not lives.may_follow(code)
    assert lives.what_follows(code) == f"it does not start again: exit code {code} says that this would be no use"


@for_each("code", [exits.OK, exits.DRAINED])
def test_who_has_ended_in_order_is_not_started_again(code: int) -> None:
    lives = Restarts(3)
    assert not failed(code)
    assert not lives.may_follow(code)
    assert lives.what_follows(code) == ""


@for_each("code", [1, 9, 143, -signal.SIGKILL, -signal.SIGTERM])
def test_what_follows_a_failure_is_said(code: int) -> None:
    lives = Restarts(2)
    assert lives.what_follows(code) == "it starts again in 0.5 s: restart 1 of 2"
    lives.begin()
    assert lives.what_follows(code) == "it starts again in 1 s: restart 2 of 2"
    assert Restarts(0).what_follows(code) == ""


def test_all_lives_have_one_token_and_each_its_number() -> None:
    lives = Restarts(2)
    first = worker_environment("tcp://here:1", 3, lives=lives)
    lives.begin()
    second = worker_environment("tcp://here:1", 3, lives=lives)
    assert first[TOKEN] == second[TOKEN] != Restarts(2).environment[TOKEN]
    assert (first[RESTART], second[RESTART]) == ("0", "1")
    assert (find_life(first).number, find_life(second).number) == (0, 1)
    assert find_life(first).token == find_life(second).token == bytes.fromhex(first[TOKEN])
    assert find_life(second).name("worker") == "worker-3"


def test_who_is_not_started_again_has_no_token_nor_that_of_another_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "12" * 16)
    monkeypatch.setenv(RESTART, "4")
    for env in (worker_environment("tcp://here:1", 0), worker_environment("tcp://here:1", 0, lives=Restarts(0))):
        assert not {TOKEN, RESTART} & set(env)
        assert find_life(env) == Life(index=0)
