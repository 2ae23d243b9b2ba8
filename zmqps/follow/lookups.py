"""Rows of a table from a follower, for a service that answers requests of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import numpy as np

from zmqps import checks
from zmqps.client.sparse.rows import flat_ids
from zmqps.codecs import Codec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import check_codec
from zmqps.core.protocol.endpoints import check_endpoint
from zmqps.core.protocol.events import Stop
from zmqps.errors import ClosedError, DeadlineError, ForkedError, ShapeError
from zmqps.follow.asking import Lookup, LookupMachine
from zmqps.follow.machine import resolve
from zmqps.gpu.handover import Handover
from zmqps.keys.keyring import Keys, find_keys
from zmqps.net.driver import Driver
from zmqps.net.identity import new_identity
from zmqps.net.loops import new_runner
from zmqps.net.zeromq import ZmqTransport

log = logging.getLogger("zmqps.follow")

#: Seconds that the last message may take to leave when a connection is closed.
CLOSE_S = 2.0
#: How often a waiting lookup looks whether the connection was closed.
LOOK_S = 0.5
CLOSED = "the connection to the follower was closed"


class _Thread:
    """The thread of a connection; it refers to no `Lookups`, so that those that are not closed are collected."""

    def __init__(self, machine: LookupMachine, keys: Keys | None) -> None:
        self.machine = machine
        self.ended = False
        self._pid = os.getpid()
        self._keys = keys
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._driver: Driver | None = None
        self._thread = threading.Thread(target=self._main, name="zmqps-lookups", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _main(self) -> None:
        try:
            with new_runner() as runner:
                runner.run(self._run())
        finally:
            self.ended = True
            self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        transport = ZmqTransport(keys=self._keys, role="observer")
        self._driver = Driver(self.machine, transport, log, resolve)
        self._loop.call_soon(self._ready.set)
        await self._driver.run()

    def submit(self, event: Any) -> None:
        """Pass an event to the machine; raise `ClosedError` if the thread has ended."""
        try:
            if self.ended or self._loop is None or self._driver is None:
                raise RuntimeError
            self._loop.call_soon_threadsafe(self._driver.submit, event)
        except RuntimeError:
            raise ClosedError(CLOSED) from None

    def let_go(self) -> None:
        """Close the connection that nothing refers to any more.

        The main thread waits for that, and so the interpreter does at its end. Any other thread, such as this one, may
        be the one that collects garbage, and must not wait; nor must an asyncio loop. A forked child does nothing.
        """
        if os.getpid() == self._pid:
            self.stop()
            if threading.current_thread() is threading.main_thread() and asyncio._get_running_loop() is None:
                self.join()

    def stop(self) -> None:
        """Begin to close the connection."""
        with suppress(ClosedError):
            self.submit(Stop("closed"))

    def join(self) -> None:
        """Wait until the connection is closed."""
        self._thread.join(CLOSE_S)


class Lookups:
    """A connection to a follower; made by `connect`.

    It may be used from any thread, by several at once. Close it, best as a context manager.
    """

    def __init__(self, address: str, *, keys: Keys | None, timeout: float) -> None:
        self.address = address
        self._timeout = timeout
        self._pid = os.getpid()
        self._handover = Handover()
        self._thread = _Thread(LookupMachine(new_identity("observer"), address), keys)
        self._end = weakref.finalize(self, self._thread.let_go)

    @property
    def version(self) -> int:
        """The version of the rows that came last: steps, or messages that each shard had applied; 0 before."""
        return self._thread.machine.version

    def pull(self, ids: Any, *, out: Any = None, codec: str | Codec = "raw", timeout: float | None = None) -> Array:
        """Return rows.

        Parameters
        ----------
        ids : array of int64
            Of any shape; an id may occur often. Unsigned ids are taken by their bits. Unchanged until this returns.
        out : float array ``ids.shape + (dim,)``, optional
            For the rows.
        codec : Codec or str
            How rows travel; lossy ones are rounded in addition to how the follower keeps them.
        timeout : float, optional
            Seconds; by default as `connect` says.

        Returns
        -------
        float32 array ``ids.shape + (dim,)``
            Or ``out``. For an id without a row what a row begins with. It is not shared.

        Raises
        ------
        DtypeError, ShapeError
            Nothing was asked.
        DeadlineError
            There was no answer. The connection reconnects by itself: ask again.
        LimitError
            These are more rows than one answer may have: ask for fewer at a time.
        KeyRefusedError
            The follower does not accept this key.
        """
        flat, shape = flat_ids("ids", ids, self._handover)
        seconds = self._timeout if timeout is None else checks.seconds("a timeout", timeout)
        found: Array = self._ask(flat, check_codec(codec, pulls=True), seconds)
        found = found.reshape(*shape, found.shape[1])
        if out is None:
            return found
        if np.shape(out) != found.shape:
            raise ShapeError(name="out", got=str(np.shape(out)), expected=str(found.shape))
        np.copyto(out, found, casting="unsafe")
        given: Array = out
        return given

    def _ask(self, ids: Array, codec: str, seconds: float) -> Array:
        if os.getpid() != self._pid:
            raise ForkedError(what="connection", pid=self._pid, advice="connect in this process, after the fork")
        future: Future[Array] = Future()
        self._thread.submit(Lookup(ids=ids, codec=codec, timeout=seconds, future=future))
        until = time.monotonic() + seconds + CLOSE_S  # the thread resolves it before, as long as it runs
        while not future.done() and not self._thread.ended and time.monotonic() < until:
            with suppress(TimeoutError):
                future.exception(LOOK_S)
        if future.done():
            return future.result()
        if self._thread.ended:
            raise ClosedError(CLOSED)
        raise DeadlineError(operation="lookup", seconds=seconds, waiting_for="the thread of this connection")

    def close(self) -> None:
        """Close the connection; may be called again."""
        if os.getpid() == self._pid:
            self._end()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def connect(
    address: str, *, keys: str | os.PathLike[str] | None = None, token: str | None = None, timeout: float = 10.0
) -> Lookups:
    """Connect to a follower (``zmqps follow``); it need not be there yet.

    Parameters
    ----------
    address : str
        Where it listens, as it says when it starts.
    keys : path, optional
        The directory with an observer's key, if the cluster has keys; by default as ``ZMQPS_KEYS`` says.
    token : str, optional
        The same in one string; by default ``ZMQPS_TOKEN``.
    timeout : float
        Seconds that a lookup may take.

    Raises
    ------
    ConfigurationError
        ``address`` is not an endpoint, or the keys cannot be read.

    Examples
    --------
    >>> with zmqps.follow.connect("tcp://127.0.0.1:5590") as lookups:  # doctest: +SKIP
    ...     rows = lookups.pull([7, 8, 9])
    """
    check_endpoint(address)
    return Lookups(address, keys=find_keys(keys, token, os.environ), timeout=checks.seconds("timeout", timeout))
