"""How often the coordinator is asked, and what becomes of its answers."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from tests.page.asked import PATIENCE, Asked, live, series
from zmqps.core.protocol.messages import Watch
from zmqps.errors import DeadlineError
from zmqps.page import feed
from zmqps.page.feed import LEAST_S, NOBODY, QUIET_S, SPANS, WEEK_S, Feed, asking

SERIES = [series("loss", [999.0, 1 / 3, 0.0, 1.0, 7])]


class Time:
    """Goes on when somebody sleeps, and by a millisecond whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def fed(asked: Asked) -> tuple[Feed, Time]:
    time = Time()
    return Feed(asked, time.clock, time.sleep), time


def test_many_viewers_of_all_spans_make_one_question_a_second() -> None:
    asked = Asked(live(), SERIES)

    async def look() -> float:
        feed, time = fed(asked)
        for _ in range(5):
            await asyncio.gather(*(feed.get(span) for span in [*SPANS, 0] * 20))
        return time.now - 100.0

    lasted = asyncio.run(look())
    every = {question.every for question in asked.questions if not question.node}
    assert every == set(SPANS.values()), "every span has had its turn"
    assert 4 <= len(asked.questions) <= 2 + lasted / LEAST_S, "at first, all that has happened is asked for as well"


def test_an_answer_is_kept_for_a_second_and_longer_where_points_are_further_apart() -> None:
    asked = Asked(live(), SERIES)

    async def look() -> None:
        feed, time = fed(asked)
        for _ in range(3):
            await feed.get(300)
        assert [question.node for question in asked.questions] == [NOBODY, ""]
        time.now += LEAST_S
        await feed.get(300)
        assert len(asked.questions) == 3
        await feed.get(86400)
        time.now += 30
        await feed.get(86400)
        assert [question.every for question in asked.questions[1:]] == [1.0, 1.0, 120.0]
        assert asked.questions[1].span == 300.0
        assert asked.questions[2].span < 20.0, "what is known is not asked for again"

    asyncio.run(look())


def test_what_is_now_comes_without_series_and_of_the_newest_view() -> None:
    asked = Asked(live(host="there"), SERIES)

    async def look() -> tuple[bytes, bytes, bytes]:
        feed, _ = fed(asked)
        first = await feed.get(0)
        whole = await feed.get(300)
        return first.plain, whole.plain, gzip.decompress(whole.packed)

    first, whole, unpacked = asyncio.run(look())
    assert json.loads(first) == {"live": asked.live}
    told = json.loads(whole)
    assert told["live"]["host"] == "there"
    assert told["series"][0]["points"] == [[999.0, 0.333333, 0.0, 1.0, 7]]
    assert unpacked == whole
    assert asked.questions[0].node, "no series are made for nothing"


def test_what_has_happened_is_remembered_and_told_once() -> None:
    def happened(*times: float) -> list[dict[str, Any]]:
        return [{"t": t, "kind": "joined", "level": "info", "job": "", "text": str(t)} for t in times]

    asked = Asked(live(events=happened(1.0, 500.0, 990.0)), SERIES)

    async def look() -> list[list[float]]:
        feed, time = fed(asked)
        seen = []
        for new, passes in (
            ((990.0,), 2.0),
            ((), 2.0),
            ((990.0, 1001.0), 2.0),
            ((1.0, 500.0, 1001.0, 1400.0), QUIET_S + 1),
        ):
            told = json.loads((await feed.get(300)).plain)
            seen.append([event["t"] for event in told["live"]["events"]])
            asked.live = live(events=happened(*new))
            time.now += passes
        seen.append([event["t"] for event in json.loads((await feed.get(300)).plain)["live"]["events"]])
        return seen

    assert asyncio.run(look()) == [
        *([1.0, 500.0, 990.0], [1.0, 500.0, 990.0], [1.0, 500.0, 990.0], [1.0, 500.0, 990.0, 1001.0]),
        [1.0, 500.0, 1001.0, 1400.0],
    ]
    assert asked.questions[-2].node == NOBODY, "who has not looked for long is told of all"


def test_a_coordinator_that_does_not_answer_is_an_error_and_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "ANSWER_S", 0.01)
    silent: list[Future[dict[str, Any]]] = []
    spans: list[float] = []

    def ask(asked: Watch) -> Future[dict[str, Any]]:
        spans.append(asked.span)
        silent.append(Future())
        return silent[-1]

    async def look() -> None:
        feed = Feed(ask, sleep=Time().sleep)
        for _ in range(2):
            with pytest.raises(DeadlineError, match="waiting for the coordinator"):
                await feed.get(300)

    asyncio.run(look())
    assert silent[0].cancelled(), "the coordinator need not answer any more"
    assert spans == [WEEK_S, WEEK_S], "it has told nothing yet"


def test_it_asks_in_the_loop_of_the_coordinator_and_defects_go_to_whoever_asks() -> None:
    threads: list[str] = []

    def view(asked: Watch, now: float) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        raise ZeroDivisionError("a defect")

    async def coordinate() -> BaseException | None:
        ask = asking(asyncio.get_running_loop(), view)
        future = await asyncio.to_thread(ask, Watch(0, 1.0, 1, 0.0, "", ""))
        return await asyncio.to_thread(future.exception, PATIENCE)

    assert isinstance(asyncio.run(coordinate()), ZeroDivisionError)
    assert threads == [threading.current_thread().name]
