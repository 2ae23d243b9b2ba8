"""What a coordinator's parent says to it."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import cast

from tests.tables import for_each
from zmqps.core.protocol.events import Received
from zmqps.core.protocol.messages import Exited
from zmqps.net.driver import Driver
from zmqps.nodes.coordinator import Siblings

TOKEN = bytes(range(16))


class Submitted:
    """Takes what is submitted to the coordinator's driver."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Received] = asyncio.Queue()

    def submit(self, event: Received) -> None:
        self.events.put_nowait(event)


@for_each("is_read", [True, False], ids=["read", "unread"])
def test_a_parent_that_is_gone_is_not_there_whether_it_had_read_the_announcement_or_not(is_read: bool) -> None:
    async def work() -> bool:
        parent, child = socket.socketpair()
        with child:
            child.sendall(b"tcp://127.0.0.1:5570\n")
            if is_read:
                parent.recv(4096)
            parent.close()
            return Siblings(cast(Driver, Submitted())).hear(child.fileno())

    assert not asyncio.run(work())


def test_a_process_that_ends_is_told_of_with_its_token() -> None:
    async def work() -> None:
        submitted = Submitted()
        siblings, (parent, child), (ends, process) = (
            Siblings(cast(Driver, submitted)),
            socket.socketpair(),
            os.pipe(),  # readable when its other end is closed, as a process's descriptor when that ends
        )
        with parent, child, siblings.watched():
            socket.send_fds(parent, [TOKEN], [ends])
            os.close(ends)
            assert siblings.hear(child.fileno())
            os.close(process)
            event = await asyncio.wait_for(submitted.events.get(), 30.0)
        assert isinstance(event.message, Exited)
        assert event.message.token == TOKEN

    asyncio.run(work())
