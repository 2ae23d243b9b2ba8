"""A supervisor ends in order at the first signal and at once at the second one, unless it ends already."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.tables import for_each
from zmqps.cli.running.children import Asked
from zmqps.core.protocol import exits
from zmqps.launch.config import GRACE_S, ClusterConfig
from zmqps.settings.saving import Saving


class Log:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, level: str, text: str) -> None:
        self.said.append(text)

    def note(self, error: Exception) -> None:
        self.said.append(f"noted {error}")


def asked(work: Callable[[Asked], Awaitable[int]], cluster: ClusterConfig | None = None) -> tuple[Any, Asked, Log]:
    """Return what work comes to, or its error; how often all was killed is said last."""
    log, killed = Log(), []

    async def main() -> tuple[Any, Asked]:
        found = Asked(log, cluster or ClusterConfig(), "ending", lambda: killed.append(True))  # type: ignore[arg-type]
        with found.answered():
            return await work(found), found

    result, found = asyncio.run(main())
    log.said += [f"killed {len(killed)} times"] * bool(killed)
    return result, found, log


async def send(number: int) -> None:
    os.kill(os.getpid(), number)
    for _ in range(5):  # the loop hears of it in its next turn, and answers in the one after it
        await asyncio.sleep(0)


async def waits(number: signal.Signals) -> int:
    await send(number)
    await asyncio.Event().wait()
    return 0


@for_each(
    ("number", "code", "passed_on", "grace"),
    [
        (signal.SIGINT, exits.INTERRUPTED, signal.SIGINT, GRACE_S),
        (signal.SIGTERM, exits.TERMINATED, signal.SIGTERM, 77.0),
        (signal.SIGHUP, exits.TERMINATED, signal.SIGTERM, GRACE_S),
    ],
)
def test_the_first_signal_ends_work_and_its_code_is_that_of_the_signal(
    number: signal.Signals, code: int, passed_on: signal.Signals, grace: float
) -> None:
    result, found, log = asked(lambda found: found.code_of(waits(number)))
    assert result == code
    assert (found.ending, found.over.is_set()) == (True, True)
    assert (found.passed_on, found.grace(77.0)) == (passed_on, grace)
    assert log.said == [f"{number.name}: ending"]


def test_the_second_signal_kills() -> None:
    async def work(found: Asked) -> int:
        code = await found.code_of(waits(signal.SIGTERM))
        await send(signal.SIGINT)
        return code

    result, found, log = asked(work)
    assert (result, found.number) == (exits.TERMINATED, signal.SIGTERM)
    assert log.said == ["SIGTERM: ending", "killed 1 times"]


async def ends() -> int:
    return 7


@for_each(("saves", "said"), [(False, ["killed 2 times"]), (True, ["SIGINT: what was trained", "killed 1 times"])])
def test_a_signal_after_the_end_kills_unless_what_was_trained_is_being_saved(
    tmp_path_factory: pytest.TempPathFactory, saves: bool, said: list[str]
) -> None:
    async def work(found: Asked) -> int:
        code = await found.code_of(ends())
        assert found.ending
        await send(signal.SIGINT)
        await send(signal.SIGINT)
        return code

    checkpoints = Saving(checkpoint=str(tmp_path_factory.mktemp("saves"))) if saves else Saving()
    assert checkpoints.saves_at_end == saves
    result, _, log = asked(work, ClusterConfig(saving=checkpoints))
    assert result == 7
    assert [text.partition(" is being")[0] for text in log.said] == said


def test_an_error_is_noted_and_raised() -> None:
    async def fails() -> int:
        raise ValueError("no")

    async def work(found: Asked) -> int:
        with pytest.raises(ValueError, match="no"):
            await found.code_of(fails())
        return 1

    _, found, log = asked(work)
    assert log.said == ["noted no"]
    assert found.over.is_set()
    assert found.number is None
