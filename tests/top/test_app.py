"""The live view on Textual's own terminal: what is seen, and what the keys do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.top.views import HEALTH, member, training, waits
from zmqps.errors import DeadlineError, IdentityError
from zmqps.top.app import Questions, Top, Window, screenshot
from zmqps.top.model import NodeRow

pytestmark = pytest.mark.processes

Test = Callable[[Top, Pilot[None]], Awaitable[None]]


class Asked:
    """Answers what the view asks, as a test wants it."""

    def __init__(self) -> None:
        self.view: Mapping[str, Any] | Exception = waits(training(slow=0.21), 4.2)
        self.stacks_of: list[str] = []
        self.error: Exception | None = None
        self.questions = Questions(
            view=self._view,
            health=lambda: HEALTH,
            stacks=self._stacks,
            log=lambda node: [f"{node.log} says {n}" for n in range(99)],
        )

    def _view(self) -> Mapping[str, Any]:
        if isinstance(self.view, Exception):
            raise self.view
        return self.view

    def _stacks(self, node: NodeRow) -> Sequence[str]:
        if self.error is not None:
            raise self.error
        self.stacks_of.append(node.key)
        return ["thread MainThread", "  train.py:3 step"]


def run(asked: Asked, test: Test, size: tuple[int, int] = (80, 24)) -> None:
    async def main() -> None:
        app = Top(asked.questions, "tcp://127.0.0.1:5570", every_s=None)
        async with app.run_test(size=size) as pilot:
            await app.refresh_view()
            await drawn(app, pilot)
            await test(app, pilot)

    asyncio.run(main())


def screen(app: Top) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


async def drawn(app: Top, pilot: Pilot[None]) -> None:
    """Wait until nothing on the screen changes any more: a pause ends on a busy machine before all is drawn."""
    before, unchanged = "", 0
    while unchanged < 3:
        await pilot.pause()
        unchanged = unchanged + 1 if screen(app) == before else 0
        before = screen(app)


async def press(app: Top, pilot: Pilot[None], *keys: str) -> str:
    for key in keys:
        await pilot.press(key)
        await app.workers.wait_for_complete()
        await drawn(app, pilot)
    return screen(app)


def test_all_is_seen_in_a_terminal_of_80_by_24() -> None:
    async def test(app: Top, pilot: Pilot[None]) -> None:
        shown = screen(app)
        lines = shown.split("\n")
        assert len(lines) == 24
        assert lines[0] == "zmqps top · tcp://127.0.0.1:5570 · ready · up 3 min 4 s · 2 servers · 4 workers"
        assert lines[1] == "worker 2 on host-a is slow: 310 ms a step, 3.1 × the median of the others"
        assert "step 412 waits 4.2 s for worker 2 on host-a" in lines[2]
        assert any("default" in line and "3.5" in line and "loss" in line and "█▇▄▂▁" in line for line in lines)
        for title in (*(f"worker {n}" for n in range(4)), "server 0", "server 1"):
            assert any(line.startswith(title) for line in lines), shown
        assert all(key in lines[-1] for key in ("node", "l log", "s stacks", "h health", "j job", "? keys", "q quit"))

    run(Asked(), test)


@pytest.mark.parametrize("width", [30, 50, 130])
def test_narrow_and_wide_terminals_do(width: int) -> None:
    async def test(app: Top, pilot: Pilot[None]) -> None:
        assert "worker 2" in screen(app)
        await pilot.resize_terminal(80, 12)
        await drawn(app, pilot)
        assert "worker 0" in screen(app)

    run(Asked(), test, (width, 24))


def test_enter_shows_all_that_is_known_of_the_chosen_node() -> None:
    async def test(app: Top, pilot: Pilot[None]) -> None:
        shown = await press(app, pilot, "down", "down", "enter")
        assert "worker 2 of job 'default': worker-2" in shown
        assert "pushes  12" in shown
        assert "server 0" in await press(app, pilot, "escape")

    run(Asked(), test)


def test_the_log_is_shown_from_its_end() -> None:
    async def test(app: Top, pilot: Pilot[None]) -> None:
        shown = await press(app, pilot, "l")
        assert "log of worker 0, worker-0" in shown
        assert "worker-0 says 98" in shown
        assert "worker-0 says 0\n" in await press(app, pilot, "g")

    run(Asked(), test)


def test_stacks_are_those_of_the_chosen_node() -> None:
    asked = Asked()

    async def test(app: Top, pilot: Pilot[None]) -> None:
        shown = await press(app, pilot, "down", "s")
        assert "threads of worker 1 on host-a" in shown
        assert "train.py:3 step" in shown
        assert asked.stacks_of == ["default/worker 1"]

    run(asked, test)


def test_a_question_that_is_refused_is_answered_with_why() -> None:
    asked = Asked()
    asked.error = IdentityError("only the coordinator's own user may")

    async def test(app: Top, pilot: Pilot[None]) -> None:
        assert "only the coordinator's own user may" in await press(app, pilot, "s")

    run(asked, test)


def test_a_health_check_names_who_is_silent() -> None:
    async def test(app: Top, pilot: Pilot[None]) -> None:
        shown = await press(app, pilot, "h")
        assert "worker 2 on host-a does not answer; the others do" in shown
        assert "4.2 ms" in shown

    run(Asked(), test)


def test_j_goes_from_job_to_job_and_v_from_value_to_value() -> None:
    asked = Asked()
    view = training()
    view["status"]["jobs"]["large"] = view["status"]["jobs"]["default"]
    view["status"]["members"].append(member("worker", 0, job="large", host="host-z"))
    asked.view = view

    async def test(app: Top, pilot: Pilot[None]) -> None:
        assert "host-z" in screen(app)
        assert "host-z" not in await press(app, pilot, "j")
        shown = await press(app, pilot, "j")
        assert "host-z" in shown
        assert "worker 3" not in shown
        assert "worker 3" in await press(app, pilot, "j")
        assert "accuracy" in await press(app, pilot, "v")
        assert "loss" in await press(app, pilot, "v")

    run(asked, test)


def test_the_cursor_stays_at_its_node_when_others_come_and_go() -> None:
    asked = Asked()
    asked.view = view = training()

    async def test(app: Top, pilot: Pilot[None]) -> None:
        await press(app, pilot, "down", "down")
        assert app.chosen is not None
        assert app.chosen.title == "worker 2"
        view["status"]["members"] = [m for m in view["status"]["members"] if m["name"] != "worker-0"]
        await app.refresh_view()
        await drawn(app, pilot)
        assert app.chosen is not None
        assert app.chosen.title == "worker 2"

    run(asked, test)


def test_a_coordinator_that_does_not_answer_is_named_until_it_does() -> None:
    asked = Asked()

    async def test(app: Top, pilot: Pilot[None]) -> None:
        asked.view = DeadlineError(operation="watch", seconds=3.0, waiting_for="the coordinator")
        await app.refresh_view()
        await drawn(app, pilot)
        shown = screen(app)
        assert re.search(r"the coordinator has not answered for \d+ s; this is what it said last", shown)
        assert "worker 3" in shown
        asked.view = training()
        await app.refresh_view()
        await drawn(app, pilot)
        assert "no node is awaited" in screen(app)

    run(asked, test)


def test_before_the_first_answer_the_keys_do_no_harm() -> None:
    asked = Asked()
    asked.view = DeadlineError(operation="watch", seconds=3.0, waiting_for="the coordinator")

    async def test(app: Top, pilot: Pilot[None]) -> None:
        shown = await press(app, pilot, "l", "s", "enter", "j", "v")
        assert "has not answered for" in shown

    run(asked, test)


def test_help_is_a_key_away_and_q_leads_back_and_then_out() -> None:
    async def test(app: Top, pilot: Pilot[None]) -> None:
        assert "what its threads are doing" in await press(app, pilot, "question_mark")
        assert isinstance(app.screen, Window)
        await press(app, pilot, "q")
        assert not isinstance(app.screen, Window)
        await pilot.press("q")
        assert app._exit

    run(Asked(), test)


def test_a_picture_shows_the_same_and_downloads_nothing() -> None:
    drawn = screenshot(Asked().questions, keys=["down"])
    assert drawn.startswith("<svg")
    text = drawn.replace("&#160;", " ")
    assert "3.1 × the median of the others" in text
    assert not [found for found in ("url(http", 'url("http', "href=", "@import") if found in text]
