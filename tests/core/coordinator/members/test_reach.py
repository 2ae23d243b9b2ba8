"""Addresses that nobody could reach are refused at the door; servers that a worker cannot reach stand in the status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.core.machines import Coordinator, error_of, errors, hello, job, peer, sent
from tests.tables import for_each
from zmqps.core.coordinator.members.reach import MAX_UNREACHED_CHARS, MOST_NAMED
from zmqps.core.protocol.events import Action, Received
from zmqps.core.protocol.messages import Heartbeat, Init, Welcome
from zmqps.errors import UnreachableAddressError

ELSEWHERE = "10.0.0.2"
LOCAL = "ipc://@zmqps-0123"


def join(coordinator: Coordinator, role: str, name: str, endpoint: str = "", origin: str = "") -> list[Action]:
    message = replace(hello(role, name), endpoint=endpoint)
    return coordinator.handle(Received(peer(name), message, origin))


def refusal(actions: list[Action]) -> str:
    raised = error_of(actions, UnreachableAddressError)
    assert not sent(actions, Welcome)
    return str(raised)


@for_each("host", ["127.0.0.1", "127.0.1.1", "[::1]", "localhost"])
def test_a_server_elsewhere_that_advertises_loopback_is_refused_with_what_to_do(host: str) -> None:
    coordinator = Coordinator()
    text = refusal(join(coordinator, "server", "s", f"tcp://{host}:5571 {LOCAL}", ELSEWHERE))
    assert f"server s (host, pid 7) advertises tcp://{host}:5571, where only its own host can reach it" in text
    assert "start it without --address, or with --advertise 10.0.0.2" in text
    assert not coordinator.machine.servers


def test_a_server_elsewhere_that_has_only_a_socket_of_its_host_is_refused() -> None:
    refusal(join(Coordinator(), "server", "s", LOCAL, ELSEWHERE))


@for_each("endpoint", ["tcp://0.0.0.0:5571", "tcp://[::]:5571", "tcp://*:5571", "tcp://a:0", "tcp://a"])
@for_each("origin", ["", ELSEWHERE])
def test_what_nobody_can_connect_to_is_refused_from_anywhere(endpoint: str, origin: str) -> None:
    text = refusal(join(Coordinator(), "server", "s", f"{endpoint} {LOCAL}", origin))
    assert "start it with --advertise HOST" in text


@for_each(
    "endpoint, origin",
    [
        (f"tcp://127.0.0.1:5571 {LOCAL}", ""),  # a cluster on one host
        (LOCAL, ""),
        ("tcp://10.0.0.2:5571", ELSEWHERE),
        ("tcp://node-b:5571", ELSEWHERE),  # what that stands for is for the workers to find out
        ("tcp://[fd00::2]:5571", "fd00::2"),
    ],
)
def test_other_servers_are_welcome(endpoint: str, origin: str) -> None:
    assert sent(join(Coordinator(), "server", "s", endpoint, origin), Welcome)


def test_a_server_that_says_hello_again_is_not_asked_where_it_comes_from() -> None:
    coordinator = Coordinator()
    join(coordinator, "server", "s", "tcp://10.0.0.2:5571", ELSEWHERE)
    assert sent(join(coordinator, "server", "s", "tcp://10.0.0.2:5571"), Welcome)
    assert next(iter(coordinator.machine.servers)).origin.address == ELSEWHERE


@for_each("role", ["worker", "observer"])
def test_a_worker_elsewhere_is_told_at_once_of_servers_that_only_their_host_can_reach(role: str) -> None:
    coordinator = Coordinator()
    join(coordinator, "server", "s", f"tcp://127.0.0.1:5571 {LOCAL}")
    text = refusal(join(coordinator, role, "w", origin=ELSEWHERE))
    assert "server 0 (s, host, pid 7) advertises tcp://127.0.0.1:5571" in text
    assert f"this {role} is on another one (10.0.0.2)" in text
    assert "--address tcp://HOST:PORT" in text
    assert sent(join(coordinator, role, "local"), Welcome)


def test_a_worker_elsewhere_that_was_here_before_those_servers_is_told_at_its_init() -> None:
    coordinator = Coordinator()
    assert sent(join(coordinator, "worker", "w", origin=ELSEWHERE), Welcome)
    join(coordinator, "server", "s", "tcp://127.0.0.1:5571")
    assert errors(coordinator.take("w", Init(1, job().to_wire()))) == [UnreachableAddressError.code]


# --- what workers report -------------------------------------------------------------------------


def waiting(coordinator: Coordinator) -> list[str]:
    return list(coordinator.machine.status(coordinator.now)["waiting"])


def beat(coordinator: Coordinator, name: str, unreached: Any = None) -> None:
    coordinator.take(name, Heartbeat({} if unreached is None else {"unreached": unreached}))


def test_a_server_that_a_worker_cannot_reach_stands_in_the_status_until_it_can() -> None:
    coordinator = Coordinator()
    join(coordinator, "server", "s", "tcp://10.0.0.2:5571", ELSEWHERE)
    join(coordinator, "worker", "w")
    coordinator.take("w", Init(1, job().to_wire()))
    beat(coordinator, "w", "server 0 (s, tcp://10.0.0.2:5571) for 7 s (connection refused)")
    text = "worker 0 (w, host, pid 7) cannot reach server 0 (s, tcp://10.0.0.2:5571) for 7 s (connection refused)"
    assert [line for line in waiting(coordinator) if text in line]
    assert text in coordinator.machine.status(0.0)["jobs"]["default"]["waiting"]
    beat(coordinator, "w")
    assert not [line for line in waiting(coordinator) if "cannot reach" in line]


@for_each("unreached", [7, "", None, {"a": 1}, "\n\x1b[31m" + "x" * 10_000])
def test_what_a_worker_says_of_it_is_bounded_and_printable(unreached: Any) -> None:
    coordinator = Coordinator()
    join(coordinator, "worker", "w")
    beat(coordinator, "w", unreached)
    for line in waiting(coordinator):
        assert line.isprintable()
        assert len(line) < 5 * MAX_UNREACHED_CHARS


def test_of_many_who_cannot_reach_servers_a_few_are_named() -> None:
    coordinator = Coordinator()
    for number in range(MOST_NAMED + 3):
        join(coordinator, "worker", f"w{number}")
        beat(coordinator, f"w{number}", "server 0")
    coordinator.take("w0", Init(1, job().to_wire()))
    named = [line for line in waiting(coordinator) if "cannot reach" in line]
    assert len(named) == MOST_NAMED + 1, named
    assert named[-1].endswith("3 more members cannot reach servers")
