"""What gathers at a socket, and who has to go where memory is short."""

from __future__ import annotations

from tests.net.test_dealer import said, soon
from tests.net.test_zeromq import ANYWHERE, End, with_ends
from zmqps.core.protocol.events import COORDINATOR
from zmqps.net.backlog import MUCH_NBYTES, Backlog, most_waits_for


def holding(nbytes: int) -> Backlog:
    backlog = Backlog()
    backlog.fresh = nbytes
    return backlog


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
