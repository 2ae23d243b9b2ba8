"""How many lives a process has and when each begins, by a clock of the test, and what is in their environment."""

from __future__ import annotations

import asyncio
import itertools
import selectors
import signal
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from tests.tables import for_each
from zmqps.client.lives import Life, find_life
from zmqps.core.protocol import exits
from zmqps.errors import NodeFailedError, PSError
from zmqps.launch.processes import worker_environment
from zmqps.launch.supervision import MOST_PAUSE_S, RESTART, TOKEN, End, Restarts, supervise, while_all_run

T = TypeVar("T")


class FakeChild:
    """A process that ends when the test says with which code."""

    def __init__(self, name: str, code: int | None = None) -> None:
        self.name = name
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.was_heard = False
        if code is not None:
            self.code.set_result(code)

    @property
    def ended(self) -> bool:
        return self.code.done()

    async def exited(self) -> int:
        return await asyncio.shield(self.code)

    async def heard(self) -> None:
        assert self.ended
        self.was_heard = True

    def failure(self, code: int) -> NodeFailedError:
        return NodeFailedError(name=self.name, how=f"exit code {code}", tail="  bad luck")

    def send_signal(self, number: signal.Signals) -> None:
        raise AssertionError("nobody ends a process here")

    def kill(self) -> None:
        raise AssertionError("nobody ends a process here")


class SkippingSelector(selectors.SelectSelector):
    """Waits for nothing: the clock goes on at once to when there is something to do."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen"
        self.now += max(0.0, timeout)
        return super().select(0)


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop whose time is that of a `SkippingSelector`."""

    def __init__(self) -> None:
        self.skipping = SkippingSelector()
        super().__init__(self.skipping)

    def time(self) -> float:
        return self.skipping.now


def simulated(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(work)


class Case:
    """A process whose lives end with these codes, and what its supervisor hears of it."""

    def __init__(self, restarts: Restarts, codes: Sequence[int]) -> None:
        self.restarts = restarts
        self.codes = list(codes)
        self.over = asyncio.Event()
        self.starts: list[float] = []
        self.ends: list[End[FakeChild]] = []
        self.lost: list[tuple[str, int]] = []  # which life, and its code
        self.on_end: Callable[[], object] = lambda: None

    async def start(self) -> FakeChild:
        self.starts.append(asyncio.get_running_loop().time())
        return FakeChild(f"life {len(self.starts)}", self.codes.pop(0))

    async def told(self, end: End[FakeChild]) -> None:
        assert end.child.was_heard
        self.ends.append(end)
        self.on_end()

    async def supervise(self, child: FakeChild | None = None) -> int:
        lost = lambda child, code: self.lost.append((child.name, code))  # noqa: E731
        return await supervise(self.restarts, self.start, self.told, self.over, lost=lost, child=child)

    def run(self) -> int:
        return simulated(self.supervise())


# --- while all run ------------------------------------------------------------------------------


def waits(work: Coroutine[Any, Any, str], ended: Sequence[int | None]) -> str:
    """Wait for work while processes run of which some have ended with these codes."""

    async def wait() -> str:
        children = [FakeChild(f"server-{index}", code) for index, code in enumerate(ended)]
        found = await while_all_run(work, children)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    return simulated(wait())


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


# --- one loop -----------------------------------------------------------------------------------


@for_each("code", [exits.OK, exits.DRAINED])
def test_a_process_that_ends_well_has_one_life(code: int) -> None:
    case = Case(Restarts(3), [code])
    assert case.run() == code
    (end,) = case.ends
    assert (end.code, end.text, end.again) == (code, "", False)
    assert case.lost == [("life 1", code)]


def test_a_process_that_fails_starts_again_after_pauses_until_it_ends_well() -> None:
    case = Case(Restarts(3), [1, -9, 0])
    assert case.run() == 0
    assert case.starts == [0.0, 0.5, 1.5]
    assert [(end.code, end.again, end.level) for end in case.ends[:2]] == [(1, True, "warning"), (-9, True, "warning")]
    assert case.ends[0].text == (
        "life 1 failed with exit code 1; its last lines:\n  bad luck\n  it starts again in 0.5 s: restart 1 of 3"
    )


def test_a_process_that_always_fails_starts_no_more_than_so_often() -> None:
    case = Case(Restarts(2), [1, -2, 9])
    assert case.run() == 9
    assert [end.again for end in case.ends] == [True, True, False]
    assert case.ends[-1].level == "error"
    assert case.ends[-1].text.endswith("\n  it does not start again: it was restarted 2 times, as often as it may")


def test_a_process_that_may_not_start_again_just_fails() -> None:
    case = Case(Restarts(0), [1])
    assert case.run() == 1
    assert case.ends[0].text == "life 1 failed with exit code 1; its last lines:\n  bad luck"


@for_each("code", [exits.USAGE, 126, 127])
def test_a_process_whose_failure_is_hopeless_does_not_start_again(code: int) -> None:
    case = Case(Restarts(3), [1, code])
    assert case.run() == code
    assert f"exit code {code} says that this would be no use" in case.ends[-1].text


def test_a_process_with_a_reason_starts_again_at_once_and_says_why() -> None:
    case = Case(Restarts(2, why="it gets copies"), [1, 1, 1])
    assert case.run() == 1
    assert case.starts == [0.0, 0.0, 0.0]
    assert case.ends[0].text == "life 1 failed with exit code 1 and is started again (1 of 2): it gets copies"
    assert "bad luck\n  it does not start again: it was restarted 2 times" in case.ends[2].text


def test_a_process_with_a_reason_that_may_never_start_again_says_that() -> None:
    case = Case(Restarts(0, why="it gets copies"), [1])
    assert case.run() == 1
    assert case.ends[0].text.endswith("bad luck\n  it does not start again")


def test_what_is_well_and_whether_another_life_is_possible_are_up_to_the_caller() -> None:
    case = Case(Restarts(3, well=(exits.OK, exits.IDLE)), [exits.DRAINED, exits.IDLE])
    assert case.run() == exits.IDLE
    assert [bool(end.text) for end in case.ends] == [True, False]
    case = Case(Restarts(3, possible=lambda: len(case.ends) == 0), [1, 1])
    assert case.run() == 1
    assert case.ends[-1].text == "life 2 failed with exit code 1; its last lines:\n  bad luck"


def test_only_lives_whose_place_no_other_takes_are_lost() -> None:
    case = Case(Restarts(2), [1, 3, 0])
    case.on_end = lambda: None if len(case.ends) == 3 else case.lost.append(("none", 0))
    assert case.run() == 0
    assert case.lost == [("none", 0), ("none", 0), ("life 1", 1), ("life 2", 3), ("life 3", 0)]


def test_all_lives_that_are_not_replaced_are_lost_at_once() -> None:
    case = Case(Restarts(2, replaces=False), [1, 3, 0])
    case.on_end = lambda: case.lost.append(("told", 0))
    assert case.run() == 0
    assert [which for which, _ in case.lost] == ["life 1", "told", "life 2", "told", "life 3", "told"]


def test_nothing_starts_once_it_is_over() -> None:
    case = Case(Restarts(3), [1])
    case.over.set()
    assert case.run() == 1
    assert case.ends[0].text == "life 1 failed with exit code 1; its last lines:\n  bad luck"
    assert case.lost == [("life 1", 1)]


def test_the_end_of_everything_ends_a_pause() -> None:
    case = Case(Restarts(3, 20.0), [1])

    async def work() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(7.0, case.over.set)
        assert await case.supervise() == 1
        return loop.time()

    assert simulated(work()) == 7.0
    assert case.ends[0].again


def test_a_life_that_has_begun_is_the_first_one() -> None:
    case = Case(Restarts(3), [0])

    async def work() -> int:
        child = FakeChild("the first")
        asyncio.get_running_loop().call_later(5.0, child.code.set_result, 1)
        return await case.supervise(child)

    assert simulated(work()) == 0
    assert case.starts == [5.5]
    assert case.ends[0].child.name == "the first"


def test_what_a_start_raises_ends_the_supervision() -> None:
    case = Case(Restarts(3), [1])
    with pytest.raises(IndexError):
        case.run()
    assert len(case.starts) == 2


# --- how many lives -----------------------------------------------------------------------------


def test_pauses_grow_up_to_the_longest() -> None:
    case = Case(Restarts(9), [1] * 10)
    assert case.run() == 1
    pauses = [after - before for before, after in itertools.pairwise(case.starts)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, MOST_PAUSE_S, MOST_PAUSE_S, MOST_PAUSE_S]


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
