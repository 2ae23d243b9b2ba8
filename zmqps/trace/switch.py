"""Recording that begins and ends while a node runs: what `zmqps.core.node.tracing` is given to record with.

During a recording, wrappers replace the driver's machine and transport, and the doors behind them are open; before and
after, nothing differs from a driver that never recorded.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import cast

from zmqps.core.node.member import Identity
from zmqps.core.protocol.events import Machine, Peer
from zmqps.net.driver import Driver
from zmqps.net.system.host import boot
from zmqps.net.transport import Transport
from zmqps.trace.doors import DOORS, Doors
from zmqps.trace.ring import Ring
from zmqps.trace.watched import Labels, OperationOf, WatchedMachine, WatchedTransport

log = logging.getLogger("zmqps.trace")


class Switch:
    """The recorder of one node.

    Parameters
    ----------
    driver
        Runs the node; all calls come from its thread.
    identity
        The node's identity.
    operation_of
        Of a worker: which operation a request is a part of.
    known
        Of a server: the incarnation behind a connection.
    doors
        What is called behind the machine's own door.
    """

    def __init__(
        self,
        driver: Driver,
        identity: Identity,
        *,
        operation_of: OperationOf = lambda peer, number: None,
        known: Callable[[Peer], bytes] = lambda peer: b"",
        doors: Doors = DOORS,
    ) -> None:
        self._driver = driver
        self._identity = identity
        self._operation_of = operation_of
        self._known = known
        self._doors = doors
        self._ring: Ring | None = None
        self._before: tuple[Machine, Transport] | None = None  # what the driver runs otherwise

    def start(self, nbytes: int) -> None:
        """Record into that many bytes from now on."""
        self.stop()
        who, driver = self._identity, self._driver
        epoch_ns = time.time_ns() - time.monotonic_ns()
        head = {"title": f"{who.role} {who.name}", "boot": boot(), "pid": os.getpid(), "epoch_ns": epoch_ns}
        try:
            ring = Ring(nbytes, head)
        except MemoryError:
            log.warning("nothing is recorded: there is no memory for %d bytes of spans", nbytes)
            return
        role = "worker" if who.role == "observer" else who.role
        labels = Labels(role, who, self._known)
        self._ring, self._before = ring, (driver.machine, driver.transport)
        within = partial(self._doors.within, ring)
        machine = WatchedMachine(driver.machine, ring, role, labels, self._operation_of, within)
        driver.machine = cast(Machine, machine)
        driver.transport = cast(Transport, WatchedTransport(driver.transport, ring, role, labels))
        self._hand_to()
        self._doors.start(ring)

    def stop(self) -> None:
        """Record no more; what there is can be read."""
        if self._before is None or self._ring is None:
            return
        self._driver.machine, self._driver.transport = self._before
        self._before = None
        self._hand_to()
        self._doors.stop(self._ring)
        self._ring.close()

    def forget(self) -> None:
        """Give the memory back."""
        self.stop()
        self._ring = None

    def time(self) -> float:
        """Return the time by the clock that spans are noted with."""
        return time.monotonic()

    @property
    def nbytes(self) -> int:
        """How many bytes can be read."""
        return 0 if self._ring is None else self._ring.nbytes

    @property
    def lost(self) -> int:
        """How many were overwritten."""
        return 0 if self._ring is None else self._ring.lost

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return that many bytes of the recording."""
        return b"" if self._ring is None else self._ring.read(offset, nbytes)

    def _hand_to(self) -> None:
        """Let the transport deliver through the wrapper of the machine, or to the machine again."""
        hand_to = getattr(self._driver.transport, "hand_to", None)
        if hand_to is not None:
            hand_to(self._driver.deliver)
