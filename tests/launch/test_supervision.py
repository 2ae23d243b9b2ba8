"""How many lives a process may have, how long the pauses are, and what its lives have in their environment."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from tests.tables import for_each
from zmqps.client.lives import Life, find_life
from zmqps.core.protocol import exits
from zmqps.errors import NodeFailedError, PSError
from zmqps.launch.processes import worker_environment
from zmqps.launch.supervision import MOST_PAUSE_S, RESTART, TOKEN, Restarts, failed, while_all_run


class FakeChild:
    """A process that ends when it is told with which code."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.signals: list[int] = []

    @property
    def ended(self) -> bool:
        return self.code.done()

    async def exited(self) -> int:
        return await asyncio.shield(self.code)

    def failure(self, code: int) -> NodeFailedError:
        return NodeFailedError(name=self.name, how=f"exit code {code}", tail="  bad luck")

    def send_signal(self, number: signal.Signals) -> None:
        self.signals.append(number)

    def kill(self) -> None:
        self.signals.append(signal.SIGKILL)


# --- while all run ------------------------------------------------------------------------------


def waits(work: Coroutine[Any, Any, str], ended: Sequence[int | None]) -> str:
    """Wait for work while processes run of which some have ended with these codes."""

    async def wait() -> str:
        children = [FakeChild(f"server-{index}") for index in range(len(ended))]
        for child, code in zip(children, ended, strict=True):
            if code is not None:
                child.code.set_result(code)
        found = await while_all_run(work, children)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    return asyncio.run(wait())


async def said() -> str:
    return "said"


async def waits_for_ever() -> str:
    return str(await asyncio.Event().wait())


async def refuses() -> str:
    raise PSError("no")


def test_work_is_waited_for_while_all_processes_run() -> None:
    assert waits(said(), [None, None]) == "said"
    assert waits(said(), []) == "said"
    with pytest.raises(PSError, match="no"):
        waits(refuses(), [None])


def test_a_process_that_ends_before_is_the_error() -> None:
    with pytest.raises(NodeFailedError, match="server-1 ended with exit code 0"):
        waits(waits_for_ever(), [None, 0])


def test_work_that_is_done_when_a_process_ends_is_done() -> None:
    assert waits(said(), [None, 9]) == "said"


# --- how many lives -----------------------------------------------------------------------------


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
