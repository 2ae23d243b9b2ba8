"""Servers that this coordinator's parent has started, too: the kernel reports their end.

A parent without a loop to watch them in, as `LocalCluster` in a script, hands the coordinator what it can
watch them by: a descriptor of each process (`os.pidfd_open`), with the token that this process was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

from zmqps.core.protocol.events import Received
from zmqps.core.protocol.messages import Exited
from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.net.driver import Driver

#: In place of a missing peer of a node: nothing is answered.
NOBODY = b""


class Siblings:
    """The processes that are watched for one coordinator.

    Parameters
    ----------
    driver
        Its machine's.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._tokens: dict[int, bytes] = {}  # by descriptor of a process

    def hear(self, parent_fd: int) -> bool:
        """Take what the parent says; return whether it is there."""
        with socket.socket(fileno=os.dup(parent_fd)) as parent:
            try:
                token, fds, _, _ = socket.recv_fds(parent, KEY_NBYTES, 1)
            except ConnectionResetError:  # it was killed before it had read the announcement
                return False
        loop = asyncio.get_running_loop()
        for fd in fds:
            self._tokens[fd] = token
            loop.add_reader(fd, self._ended, fd)
        return bool(token)

    def _ended(self, fd: int) -> None:
        token = self._forget(fd)
        self._driver.submit(Received(NOBODY, Exited(0, token, "its process has ended")))

    def _forget(self, fd: int) -> bytes:
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        return self._tokens.pop(fd)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch them for so long."""
        try:
            yield
        finally:
            for fd in list(self._tokens):
                self._forget(fd)
