"""The view is asked for again and again, and what was said last stays while nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from zmqps.errors import DeadlineError, KeyRefusedError
from zmqps.top.source import Source


def test_the_last_view_stays_and_the_silence_is_said() -> None:
    now = [100.0]
    answers: list[Mapping[str, Any] | Exception] = [
        {"now": 1}, DeadlineError(operation="watch", seconds=3.0, waiting_for="it"), {"now": 2},
    ]  # fmt: skip

    def ask() -> Mapping[str, Any]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    source = Source(ask, lambda: now[0])
    assert (source.view, source.trouble) == ({}, "")
    assert asyncio.run(source.update())
    assert (source.view, source.trouble) == ({"now": 1}, "")
    now[0] += 3.0
    assert not asyncio.run(source.update())
    assert source.view == {"now": 1}
    assert source.trouble == "the coordinator has not answered for 3 s; this is what it said last"
    now[0] += 4.0
    assert "for 7 s" in source.trouble
    assert asyncio.run(source.update())
    assert (source.view, source.trouble) == ({"now": 2}, "")


def test_who_is_not_let_in_is_told_why() -> None:
    error = KeyRefusedError(address="tcp://c:1", role="observer", why="it shows none")

    def ask() -> Mapping[str, Any]:
        raise error

    source = Source(ask)
    assert not asyncio.run(source.update())
    assert source.trouble == str(error)
