"""The process of a follower: one thread follows the table, the other answers lookups."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from zmqps.checkpoint.table_file import check_arrow
from zmqps.client.sparse.tables import Table
from zmqps.core.job.tables import TableSpec
from zmqps.errors import PSError
from zmqps.follow.following import FollowedTable
from zmqps.follow.machine import Caught, Changed, FollowerMachine, resolve
from zmqps.follow.saved import make_directory, saved_table
from zmqps.keys.keyring import load_node_keys
from zmqps.keys.security import Security
from zmqps.net import loops
from zmqps.net.driver import Driver, run_node
from zmqps.net.identity import check_bind, new_identity
from zmqps.net.zeromq import ZmqTransport
from zmqps.nodes.listening import Place, resolved
from zmqps.settings.follower import FollowerSettings
from zmqps.worker import Worker, connect

#: Rows that are applied at a time: lookups wait for no more.
PART_ROWS = 8192
#: Between two attempts to reach the cluster, doubling from the first to the second.
RETRY_S, MAX_RETRY_S = 0.5, 10.0
#: How often a thread that waits for the other looks whether that has ended.
LOOK_S = 0.5
ASK_S = 30.0
#: How long a follower that ends waits for what it is doing: it may be waiting for a cluster that is not there.
END_S = 2.0

log = logging.getLogger("zmqps.follow")


class _EndedError(Exception):
    """The follower ends."""


class Following(threading.Thread):
    """Follows a table, reconnects when the cluster was away, and hands what has changed to the loop.

    Parameters
    ----------
    settings
        The follower's.
    table
        The name of the table.
    hand
        Passes an event to the machine in the loop's thread.
    """

    def __init__(self, settings: FollowerSettings, table: str, hand: Callable[[Any], object]) -> None:
        super().__init__(name="zmqps-following", daemon=True)
        self.ending = threading.Event()
        self._settings = settings
        self._table = table
        self._hand_over = hand
        self._seed = secrets.randbits(63)
        self._followed: FollowedTable | None = None
        self._said = ""
        self._wait_s = RETRY_S
        self._has_copy = False  # for readers

    def run(self) -> None:
        """Follow until the follower ends."""
        while not self.ending.is_set():
            try:
                self._continue()
                with self._connected() as worker:
                    self._follow(worker.table(self._table))
            except _EndedError:
                return
            except (PSError, MemoryError) as error:
                if str(error) != self._said:
                    self._said = str(error)
                    readers = "lookups continue" if self._has_copy else "readers wait for the first copy"
                    log.warning("cannot follow %r at the moment, %s: %s", self._table, readers, error)
            except Exception:
                log.exception("internal error; please report it")
            self.ending.wait(self._wait_s)
            self._wait_s = min(2 * self._wait_s, MAX_RETRY_S)

    def _continue(self) -> None:
        """Begin with what an earlier follower has saved: the cluster may not be there."""
        directory = self._settings.save
        if self._followed is None and directory is not None:
            spec = saved_table(directory, self._settings.job, self._table)
            if spec is not None:
                self._begin(spec)

    def _begin(self, spec: TableSpec) -> None:
        self._followed = FollowedTable(self._settings, spec, self._hand, self._seed)
        self._followed.load()

    def _connected(self) -> Worker:
        settings = self._settings
        security = Security(keys=settings.keys, job_secret=settings.job_secret)
        return connect(
            settings.coordinator, job=settings.job, observer=True, security=security, metrics="", timeout=ASK_S
        )

    def _follow(self, table: Table) -> None:
        spec = table._requests(ASK_S).spec
        if self._followed is None or self._followed.spec != spec:
            self._begin(spec)
        assert self._followed is not None
        feed = table.changes(since=self._followed.cursor, most=PART_ROWS)
        while not self.ending.is_set():
            self._followed.poll(feed, ASK_S)
            self._wait_s = RETRY_S
            if self._said:
                log.info("the copy is up to date")
                self._said = ""
            self._followed.save()
            self.ending.wait(self._settings.every)

    def _hand(self, event: Changed | Caught) -> None:
        """Pass an event to the machine, and wait until it has taken it."""
        event.future = Future()
        try:
            self._hand_over(event)
        except RuntimeError:
            raise _EndedError from None
        while not event.future.done():
            if self.ending.is_set():
                raise _EndedError
            wait([event.future], LOOK_S)
        event.future.result()
        self._has_copy = True


async def _listen(settings: FollowerSettings, transport: ZmqTransport, *, keyed: bool) -> str:
    """Return where readers reach this follower."""
    place = Place(settings.address, settings.advertise, settings.interface)
    place.check()
    where = await resolved(lambda: place.binds(0, settings.coordinator), None, log)
    assert where is not None
    check_bind(where, insecure=settings.insecure, keyed=keyed)
    bound = place.bind(transport.bind, where)
    advertised = await resolved(lambda: place.advertises(bound, settings.coordinator), None, log)
    assert advertised is not None
    return advertised


async def serve(settings: FollowerSettings, table: str, announce: Callable[[str], object] = print) -> int:
    """Follow a table, and answer lookups, until the process is asked to end; return the exit code.

    Raises
    ------
    AddressInUseError, CheckpointStorageError, ConfigurationError
        It cannot listen there, a directory cannot be made, or the keys cannot be read.
    """
    if settings.changes is not None:
        check_arrow()
    for directory in (settings.save, settings.changes):
        if directory is not None:
            make_directory(directory)
    keys = load_node_keys(settings.keys)
    transport = ZmqTransport(keys=keys, role="observer")
    try:
        endpoint = await _listen(settings, transport, keyed=keys is not None)
    except BaseException:
        transport.close(0)
        raise
    identity = new_identity("observer", name=settings.name or f"follower-{table}", job=settings.job)
    machine = FollowerMachine(identity)
    transport.largest_nbytes = machine.largest_nbytes
    driver = Driver(machine, transport, log, resolve)
    loop = asyncio.get_running_loop()
    following = Following(settings, table, lambda event: loop.call_soon_threadsafe(driver.submit, event))
    announce(f"lookups of {table!r} at {endpoint}")
    following.start()
    try:
        code = await run_node(driver)
    finally:
        following.ending.set()
    await asyncio.to_thread(following.join, END_S)
    return code


def run(settings: FollowerSettings, table: str) -> int:
    """Run a follower in this process's main thread; return the exit code."""
    return loops.run(serve(settings, table))
