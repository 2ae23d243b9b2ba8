"""Names in the place of addresses: found aside, tried one after the other, found again when they move."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from tests.pace import allow
from zmqps.errors import UnresolvedNameError
from zmqps.net.system import names
from zmqps.net.system.names import Dialer, find, has_name

NODE = "tcp://node-b:5571"
PATIENCE = allow(20.0)


def test_what_has_a_name() -> None:
    assert all(map(has_name, [NODE, "tcp://localhost:1"]))
    assert not any(map(has_name, ["tcp://10.0.0.1:1", "tcp://[::1]:1", "tcp://*:1", "ipc://@x", "sim://a"]))


def test_an_address_is_found_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "resolve", None)
    for endpoint in ("tcp://10.0.0.1:1", "ipc://@x"):
        assert find(endpoint) == endpoint


def test_of_several_addresses_the_first_that_answers_is_taken_ipv4_before_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "resolve", lambda host: ["fd00::2", "10.0.0.2", "10.1.0.2"])
    here: set[str] = set()
    monkeypatch.setattr(names, "answers", lambda address, port: address in here)
    assert find(NODE) == "tcp://10.0.0.2:5571"  # nobody answers yet
    here.add("fd00::2")
    assert find(NODE) == "tcp://[fd00::2]:5571"
    here.add("10.1.0.2")
    assert find(NODE) == "tcp://10.1.0.2:5571"
    assert find(NODE, "tcp://[fd00::2]:5571") == "tcp://[fd00::2]:5571"  # what was taken stays


def test_a_single_address_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "resolve", lambda host: ["10.0.0.2"])
    monkeypatch.setattr(names, "answers", None)
    assert find(NODE) == "tcp://10.0.0.2:5571"


def test_who_listens_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert names.answers("127.0.0.1", port)
    assert not names.answers("127.0.0.1", port)


class Line:
    """What a dialer has dialled, and whether it is up."""

    def __init__(self) -> None:
        self.up = False
        self.dialled: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def next(self) -> tuple[str, str]:
        return await asyncio.wait_for(self.dialled.get(), PATIENCE)


def dialling(
    monkeypatch: pytest.MonkeyPatch, answers: list[str | None], scenario: Callable[[Line], Awaitable[None]]
) -> None:
    """Run a scenario with a name that stands for one answer after the other; None: for nothing."""
    monkeypatch.setattr(names, "LOOK_S", 0.001)
    left = list(answers)

    def search(endpoint: str, before: str) -> str:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if answer is None:
            raise UnresolvedNameError(name="node-b", host="here", why="not known")
        return answer

    async def run() -> None:
        line = Line()
        dial = lambda found, before: line.dialled.put_nowait((found, before))  # noqa: E731
        dialer = Dialer(NODE, asyncio.get_running_loop(), lambda: line.up, dial, search)
        try:
            await scenario(line)
        finally:
            dialer.close()

    asyncio.run(run())


def test_a_name_that_resolves_later_is_dialled_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(line: Line) -> None:
        assert await line.next() == ("tcp://10.0.0.2:5571", "")

    dialling(monkeypatch, [None, None, "tcp://10.0.0.2:5571"], scenario)


def test_a_name_that_moves_is_followed_while_there_is_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(line: Line) -> None:
        assert await line.next() == ("tcp://10.0.0.2:5571", "")
        assert await line.next() == ("tcp://10.0.0.3:5571", "tcp://10.0.0.2:5571")

    dialling(monkeypatch, ["tcp://10.0.0.2:5571", "tcp://10.0.0.2:5571", "tcp://10.0.0.3:5571"], scenario)


def test_a_connection_that_is_there_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(line: Line) -> None:
        line.up = True
        assert await line.next() == ("tcp://10.0.0.2:5571", "")
        await asyncio.sleep(0.02)  # many looks
        assert line.dialled.empty()

    dialling(monkeypatch, ["tcp://10.0.0.2:5571", "tcp://10.0.0.3:5571"], scenario)
