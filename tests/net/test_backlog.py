"""What gathers at a socket, and who has to go where memory is short."""

from __future__ import annotations

import contextlib

import pytest

from tests.attack.raw import RawPeer
from tests.net.test_dealer import said, soon
from tests.net.test_door import aside, known
from tests.net.test_zeromq import ANYWHERE, PATIENCE, End, with_ends
from zmqps.core.protocol.events import COORDINATOR
from zmqps.core.protocol.message import MAX_ALL_BACKLOGS_NBYTES, MAX_BACKLOG_NBYTES, WINDOW_NBYTES
from zmqps.net import backlog, zeromq
from zmqps.net.backlog import LOOK_NBYTES, MARK_NBYTES, MUCH_NBYTES, STUCK_S, Backlog, Backlogs, most_waits_for
from zmqps.net.transport import INBOUND


def holding(nbytes: int) -> Backlog:
    held = Backlog()
    held.fresh = nbytes
    return held


def test_who_has_most_to_read_is_found_if_it_is_much() -> None:
    assert most_waits_for({b"": holding(9 * MUCH_NBYTES), b"a": holding(MUCH_NBYTES - 1)}) is None
    assert most_waits_for({b"a": holding(MUCH_NBYTES), b"b": holding(2 * MUCH_NBYTES), b"c": holding(0)}) == b"b"
    assert most_waits_for({}) is None


def test_where_memory_is_short_who_has_most_to_read_has_to_come_again() -> None:
    async def scenario(server: End, client: End) -> None:
        client.connect(COORDINATOR, server.transport.bind(ANYWHERE))
        assert await soon(client.came) == COORDINATOR
        peer, _ = await said(client, server)
        server.transport.make_room()
        assert await said(client, server) == (peer, [b"hear me"]), "it has nothing to read"
        server.transport._backlogs[peer].fresh = MUCH_NBYTES
        server.transport.make_room()
        assert await soon(client.gone) == COORDINATOR
        assert await soon(client.came) == COORDINATOR
        await said(client, server)

    with_ends(scenario, b"server", b"client")


# --- in sum ---------------------------------------------------------------------------------------


class Watching:
    """A door that says what has arrived, and whom it was told to shut."""

    def __init__(self) -> None:
        self.arrived: dict[bytes, int] = {}
        self.shut: list[bytes] = []

    def confirmed(self, peer: bytes) -> int:
        return self.arrived.get(peer, 0)

    def expel(self, peer: bytes, why: str) -> None:
        self.shut.append(peer)


def crowd(**nbytes: int) -> Backlogs:
    backlogs = Backlogs()
    for name, waiting in nbytes.items():
        backlogs.add(name.encode())
        backlogs[name.encode()].fresh = waiting
    return backlogs


def test_where_too_much_waits_in_all_who_has_most_has_to_go() -> None:
    door, most = Watching(), MAX_BACKLOG_NBYTES
    backlogs = crowd(**{f"deaf{number}": most - number for number in range(20)}, honest=MUCH_NBYTES)
    backlogs.queued_nbytes = LOOK_NBYTES + 1
    backlogs.relieve(door, 0.0)
    assert backlogs.queued_nbytes == 0, "the next look comes when as much was queued again"
    needed = (20 * most + MUCH_NBYTES - MAX_ALL_BACKLOGS_NBYTES + LOOK_NBYTES) // most + 1
    assert door.shut == [f"deaf{number}".encode() for number in range(needed)]
    backlogs.relieve(door, 1.0)
    assert len(door.shut) == needed, "what is being shut is counted no more"


def test_who_reads_and_keeps_to_its_window_may_stay_however_many_there_are() -> None:
    door, each = Watching(), WINDOW_NBYTES
    names = [f"w{number}" for number in range(2 * MAX_ALL_BACKLOGS_NBYTES // each)]
    backlogs = crowd(**dict.fromkeys(names, each), small=MUCH_NBYTES - 1)
    for now in range(0, 31, 5):
        backlogs.relieve(door, float(now))
        for name in names[:-1]:
            door.arrived[name.encode()] = MARK_NBYTES * (1 + now)
        assert (door.shut == []) == (now < STUCK_S)
    assert door.shut == [names[-1].encode()], "only who reads nothing"


def test_the_bytes_that_are_counted_lie_on_top_of_those_of_the_last_look() -> None:
    backlogs, door = crowd(a=MAX_BACKLOG_NBYTES), Watching()
    backlogs.relieve(door, 0.0)
    backlogs.relieve(door, 100.0)
    assert door.shut == [], "alone it has the limit of one peer"


def test_what_has_left_is_known_when_the_last_frame_has_left() -> None:
    async def scenario(server: End, client: End) -> None:
        client.connect(COORDINATOR, server.transport.bind(ANYWHERE))
        assert await soon(client.came) == COORDINATOR
        peer, _ = await said(client, server)
        for _ in range(3):
            assert server.transport.send(peer, [b"header", bytes(3 * MARK_NBYTES), b"end"], ())
            waits = server.transport._backlogs[peer]
            assert waits.fresh == 0
            await client.receive()
            for mark, _ in list(waits._marks):
                await aside(mark.wait, PATIENCE)
            assert waits.waits() == 0, "also where nothing is sent after it"
        assert server.transport._backlogs.queued_nbytes > 9 * MARK_NBYTES

    with_ends(scenario, b"server", b"client")


def test_deaf_ones_are_shut_when_all_of_them_have_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MAX_ALL_BACKLOGS_NBYTES", 16 * MARK_NBYTES)
    monkeypatch.setattr(backlog, "FAIR_NBYTES", 6 * MARK_NBYTES)
    for module in (backlog, zeromq):
        monkeypatch.setattr(module, "LOOK_NBYTES", MARK_NBYTES)

    async def scenario(server: End, client: End) -> None:
        endpoint = server.transport.bind(ANYWHERE)
        client.connect(COORDINATOR, endpoint)
        assert await soon(client.came) == COORDINATOR
        peer, _ = await said(client, server)
        deaf, left = {INBOUND + name: RawPeer(endpoint, PATIENCE) for name in (b"x", b"y", b"z")}, set[bytes]()
        with contextlib.ExitStack() as stack:
            for name, raw in deaf.items():
                await known(server, stack.enter_context(raw), name[len(INBOUND) :])
            while not left:
                for name in deaf:  # none of them comes to the limit of one peer
                    assert server.transport.send(name, [b"header", bytes(2 * MARK_NBYTES)], ())
                assert server.transport.send(peer, [b"header", bytes(MARK_NBYTES)], ())
                await client.receive()
                kept = server.transport._backlogs
                left = {name for name in deaf if name not in kept or kept[name].shut}
                assert sum(b.waits() for b in kept.values()) < 32 * MARK_NBYTES
            for _ in left:
                assert await soon(server.gone) in left
            assert await said(client, server) == (peer, [b"hear me"])

    with_ends(scenario, b"server", b"client")
