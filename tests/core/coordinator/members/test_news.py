"""Who causes many lines in the log, under whatever names, silences nobody else."""

from __future__ import annotations

from dataclasses import replace

from tests.core.machines import Coordinator, hello, job, logged, peer
from zmqps.core.coordinator.members.news import MOST_NEWS
from zmqps.core.node.throttle import FEW_LINES, MOST_LINES
from zmqps.core.protocol.events import Received, Undecodable
from zmqps.core.protocol.messages import EndJob, Heartbeat, Leave, Ready
from zmqps.errors import ProtocolError

STRANGE, OTHER, ELSEWHERE = "10.0.0.9", "10.0.0.8", "10.0.0.2"


def come_and_go(coordinator: Coordinator, number: int, origin: str, *, through: str = "") -> int:
    """Let observers come and go, each from a host of its own by what it says; return how many lines that makes."""
    lines = 0
    for i in range(number):
        who = f"o{i}-{origin}"
        said = replace(hello("observer", who), host=f"invented-{i}")
        for message in (said, Leave("closed")):
            at = peer(through or who)
            lines += bool(logged(coordinator.machine.handle(Received(at, message, origin), coordinator.now)))
    return lines


def come(coordinator: Coordinator, name: str, origin: str) -> str:
    return logged(coordinator.handle(Received(peer(name), hello("worker", name), origin)))


def test_an_address_whose_members_come_and_go_fills_no_log_and_64_workers_keep_their_lines() -> None:
    coordinator = Coordinator()
    honest = [f"w{i}" for i in range(64)]
    joined = [logged(coordinator.join(name)) for name in honest]
    assert all("joined job 'default'" in text for text in joined)
    assert come_and_go(coordinator, 3000, STRANGE) == MOST_NEWS
    left = [logged(coordinator.take(name, Leave("finished"))) for name in honest]
    assert all("finished" in text for text in left)
    assert f"{6000 - MOST_NEWS} lines about members and jobs that came and went were not logged" in logged(
        coordinator.wait(20.0)
    )


def test_two_addresses_that_invent_hosts_leave_a_few_lines_to_each_other_one() -> None:
    coordinator = Coordinator()
    for origin in (STRANGE, OTHER):
        assert come_and_go(coordinator, MOST_NEWS, origin) == MOST_NEWS
    assert "w0" in come(coordinator, "w0", "")
    assert "w1" in come(coordinator, "w1", ELSEWHERE)
    texts = [come(coordinator, f"w{i}", ELSEWHERE) for i in range(2, 20)]
    assert sum(map(bool, texts)) == FEW_LINES - 1


def test_a_connection_on_this_host_leaves_lines_to_the_others_here() -> None:
    coordinator = Coordinator()
    assert come_and_go(coordinator, MOST_NEWS, "", through="same") == MOST_NEWS // 2
    assert all("joined" in come(coordinator, f"w{i}", "") for i in range(64))


def test_members_that_go_count_for_the_address_that_they_came_from() -> None:
    coordinator = Coordinator()
    for i in range(MOST_NEWS):
        assert "joined" in come(coordinator, f"w{i}", STRANGE)
    coordinator.join("w")
    assert not any(logged(coordinator.take(f"w{i}", Leave("closed"))) for i in range(MOST_NEWS))
    assert "closed" in logged(coordinator.take("w", Leave("closed")))


def test_requests_that_are_refused_are_counted_for_the_address_whatever_host_members_say() -> None:
    coordinator = Coordinator()
    lines = 0
    for i in range(100):
        said = replace(hello("observer", f"o{i}"), host=f"invented-{i}")
        coordinator.handle(Received(peer(f"o{i}"), said, STRANGE))
        lines += bool(logged(coordinator.take(f"o{i}", Ready(1, 1))))
    assert lines == MOST_LINES
    coordinator.join("w0")
    assert "refused a request of worker 0 (w0" in logged(coordinator.take("w0", Ready(1, 1)))


def test_strangers_take_no_lines_from_members_and_none_from_strangers_elsewhere() -> None:
    coordinator = Coordinator.joined("w0")
    lines = [logged(coordinator.take(f"stranger-{i}", Heartbeat({}))) for i in range(100)]
    assert sum(map(bool, lines)) == MOST_LINES
    assert not logged(coordinator.handle(Undecodable(peer("x"), ProtocolError("what is this?"))))
    bad = [replace(hello("worker", f"x{i}"), magic="other", host=f"invented-{i}") for i in range(100)]
    lines = [logged(coordinator.handle(Received(peer(f"x{i}"), said, STRANGE))) for i, said in enumerate(bad)]
    assert sum(map(bool, lines)) == MOST_LINES
    ending = EndJob(1, "no such job")
    assert not logged(coordinator.handle(Received(peer("y"), ending, STRANGE)))
    assert logged(coordinator.handle(Received(peer("z"), ending, OTHER)))
    assert logged(coordinator.handle(Received(peer("here"), bad[0])))
    assert "refused a request of worker 0 (w0" in logged(coordinator.take("w0", Ready(1, 1)))


def test_a_wait_that_goes_on_is_logged_less_and_less_often_and_at_once_when_it_returns() -> None:
    coordinator = Coordinator()
    coordinator.join("s0")

    def logged_at(seconds: int, *alive: str) -> list[int]:
        start = coordinator.now
        return [
            after for after in range(5, seconds + 1, 5)
            if "worker's init" in logged(coordinator.wait(start + after, *alive))
        ]  # fmt: skip

    assert logged_at(240, "s0") == [5, 15, 35, 75, 135, 195]
    coordinator.join("w0")
    coordinator.init("w0", job())
    assert not logged_at(10, "s0", "w0")
    coordinator.take("w0", Leave("finished"))
    assert logged_at(20, "s0") == [5, 15]
