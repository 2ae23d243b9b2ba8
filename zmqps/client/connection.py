"""The worker's place in the cluster: a `SessionMachine` on a background thread, from joining to the end.

A training loop computes for seconds without returning to an event loop. So transfers and heartbeats run on a background
thread with its own loop. The methods here pass it an operation and return its future.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, cast

from zmqps import checks
from zmqps.client.beside import in_two_threads
from zmqps.client.lives import Life, find_life
from zmqps.client.scraped import scraped
from zmqps.client.tensors import are_finite, warm_up
from zmqps.client.thread import HELD_UP, SessionThread, refuse_in_callback
from zmqps.core.job.data import DataRange, DataSpec
from zmqps.core.protocol.endpoints import check_peer
from zmqps.core.protocol.messages.hello import MAX_JOB_NAME_CHARS
from zmqps.core.worker.extensions import SessionMachine
from zmqps.core.worker.notes import Notebook
from zmqps.core.worker.operations import Join, Operation
from zmqps.core.worker.ranges import TakeRange
from zmqps.core.worker.statistics import Statistics
from zmqps.errors import ClosedError, DeadlineError
from zmqps.gpu.handover import Handover
from zmqps.keys.keyring import Keys, find_keys
from zmqps.keys.security import Security
from zmqps.logs.handler import under_a_supervisor
from zmqps.logs.uncaught import show_briefly
from zmqps.net.identity import new_identity, read_job_secret
from zmqps.net.lane.arena import Arenas
from zmqps.net.lane.shm import LaneTransport
from zmqps.net.routes import check_transport
from zmqps.net.system.environment import find_address
from zmqps.net.system.stacks import answer_signal
from zmqps.net.zeromq import ZmqTransport
from zmqps.trace.doors import DOORS

#: The least default wait of a call, in seconds, and in heartbeat timeouts, after which lost nodes are named.
DEFAULT_TIMEOUT = 60.0
LOSSES_PER_TIMEOUT = 2.0
MAX_IO_THREADS = 64

log = logging.getLogger("zmqps.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How a member of a cluster joins it, and under which name: the same in all its lives.

    Attributes
    ----------
    address
        The coordinator's.
    job, name
        Of its job, and its own; None: made of host and pid.
    role
        ``worker`` or ``observer``.
    timeout
        Seconds to wait for the coordinator.
    transport, io_threads
        As for `zmqps.connect`.
    keys, job_secret
        What it shows.
    life
        Which worker of its launcher it is.
    """

    address: str
    job: str
    name: str | None
    role: str
    timeout: float
    transport: str
    io_threads: int
    keys: Keys | None = field(repr=False)
    job_secret: bytes = field(repr=False)
    life: Life


def profile_of(
    address: str | None,
    *,
    job: str,
    name: str | None,
    observer: bool,
    transport: str,
    security: Security,
    io_threads: int,
    timeout: float,
) -> Profile:
    """Return the profile that options of `zmqps.connect` describe.

    Raises
    ------
    ConfigurationError
        One of them is wrong.
    """
    keys = find_keys(security.keys, security.token, os.environ)
    address = check_peer(_find_address(keys) if address is None else address)
    checks.name("a job's name", job, MAX_JOB_NAME_CHARS)
    if name is not None:
        checks.name("a worker's name", name)
    check_transport(transport)
    role = "observer" if checks.flag("observer", observer) else "worker"
    timeout = checks.seconds("timeout", timeout)
    life = find_life(os.environ)
    job_secret = read_job_secret(security.job_secret)
    if keys is not None:
        keys.pair(role)  # raises if the keys are for another role
    io_threads = checks.whole("io_threads", io_threads, 1, MAX_IO_THREADS)
    return Profile(
        address=address, job=job, name=name or life.name(role), role=role, timeout=timeout, transport=transport,
        io_threads=io_threads, keys=keys, job_secret=job_secret, life=life,
    )  # fmt: skip


def _find_address(keys: Keys | None) -> str:
    """Return the coordinator's address from the keys or this process's environment."""
    if keys is not None and keys.address:
        return keys.address
    address, source = find_address(os.environ, socket.getfqdn)
    log.info("the coordinator is %s, says %s", address, source)
    return address


class Connection:
    """A member of a cluster, from its joining to its end.

    Parameters
    ----------
    profile
        How it joins.
    metrics
        Where it answers scrapes; empty: nowhere.

    Attributes
    ----------
    thread
        The background thread of its present life.
    arenas
        Memory that servers on this host may read.
    handover
        Transfers to and from arrays on GPUs.
    notebook
        What the script logs, in all lives.
    listeners
        Called on the background thread with the session's notifications, in all lives.
    closed
        Whether it is closed, or about to be.
    """

    def __init__(self, profile: Profile, metrics: str = "") -> None:
        refuse_in_callback()
        under_a_supervisor(os.environ)
        show_briefly()
        self.profile = profile
        self.default_timeout = max(profile.timeout, DEFAULT_TIMEOUT)  # until the timeout of lost nodes is known
        self.arenas = Arenas()
        self.handover = handover = Handover()
        self.notebook = Notebook()
        self.closed = False
        self.listeners: list[Callable[[Any], object]] = []
        self._lives = threading.RLock()  # no new life begins once it is closed, maybe by a signal handler
        self._used: dict[str, tuple[int, int]] = {}  # data set -> pass and range used last
        self.scraped = scraped(self, metrics, profile.role, profile.job, lambda: handover.pinned_nbytes)
        self.thread = self._start()

    def join(self) -> None:
        """Join the cluster; if that fails, close."""
        try:
            self._join(self.profile.timeout)
        except BaseException:
            self.close(None)
            raise

    def _start(self) -> SessionThread:
        warm_up()  # here, not where heartbeats are sent: numba's import takes a while
        profile, life = self.profile, self.profile.life
        identity = new_identity(
            profile.role, name=profile.name, job=profile.job, job_secret=profile.job_secret, token=life.token,
            life=life.number, index=life.wish(profile.role),
        )  # fmt: skip
        coding = DOORS.coding(in_two_threads())
        lanes: list[LaneTransport] = []  # once it is made
        machine = SessionMachine(identity, profile.address, are_finite, coding, self.notebook)
        arenas = self.arenas  # the thread must not refer to this connection

        def make_transport() -> LaneTransport:
            sockets = ZmqTransport(profile.io_threads, keys=profile.keys, role=profile.role)
            lanes.append(LaneTransport(sockets, profile.transport, arenas=arenas))
            return lanes[0]

        if life.index is not None:  # its standard error is a log, where `zmqps stack` looks
            answer_signal(life.log or f"worker-{life.index}")
        thread = SessionThread(machine, make_transport, self.listeners, self.scraped.held(arenas, lanes))
        self.scraped.follow(thread)
        # a worker without references leaves, such as in a notebook whose cell runs again
        weakref.finalize(self, thread.let_go).atexit = False
        return thread

    @property
    def lanes(self) -> LaneTransport | None:
        """The transport of the present life; None: it is not made yet."""
        return cast("LaneTransport | None", self.thread.transport)

    @property
    def num_workers(self) -> int:
        """How many workers the job counts on."""
        return self.thread.machine.member.cluster.num_workers

    def take(self, data: DataSpec, used: DataRange | None, timeout: float | None) -> Future[DataRange | None]:
        """Report the used range and request the next; None: all passes are done."""
        if used is not None:
            self._used[data.name] = (used.data_pass, used.number)
        take = TakeRange(0.0, data=data, used=self._used.get(data.name))
        return self.submit(take, timeout, lambda message: DataRange.of(data, message))

    def statistics(self) -> Statistics:
        """Return a frozen copy of this worker's counts so far, also after `close`."""
        counts = self.thread.ask(self.thread.machine.statistics)
        borrowed = self.lanes.borrowed_nbytes if self.lanes else 0
        pinned, shared = self.handover.pinned_nbytes, self.arenas.nbytes
        return replace(counts, pinned_bytes=pinned, shared_bytes=shared, borrowed_bytes=borrowed)

    # --- operations ---------------------------------------------------------------------------

    def submit(
        self, operation: Operation, timeout: float | None, result: Callable[[Any], Any] | None = None
    ) -> Future[Any]:
        """Begin an operation."""
        self.check_open()
        return self.thread.submit(operation, self.seconds(timeout), result)

    def check_open(self) -> None:
        """Raise `ClosedError` if it is closed."""
        if self.closed:
            raise ClosedError("the worker is closed")

    def seconds(self, timeout: float | None) -> float:
        """Return how long a call may wait."""
        return self.default_timeout if timeout is None else timeout

    # --- lives --------------------------------------------------------------------------------

    def _join(self, timeout: float) -> None:
        self.thread.submit(Join(0.0), timeout).result()
        welcome = self.thread.machine.member.welcome
        lost_after = 0.0 if welcome is None else welcome.heartbeat_timeout
        self.default_timeout = max(self.profile.timeout, DEFAULT_TIMEOUT, LOSSES_PER_TIMEOUT * lost_after)

    def rejoin(self, timeout: float) -> float:
        """End this life and join as a new incarnation; return the remaining seconds."""
        refuse_in_callback()
        timeout = checks.seconds("a timeout", timeout)
        before = self.thread
        if (lost := before.machine.links.lost_server) is not None:  # there is no job to rejoin
            raise lost.again()
        self._stop(before, "rejoin", timeout)
        with self._lives:
            if self.closed:
                raise ClosedError("the worker is closed; connect again")
            if self.thread is before:
                self.thread = self._start()
            if self.closed:  # by a signal handler, meanwhile
                self._stop(self.thread, "rejoin", timeout)
                raise ClosedError("the worker is closed; connect again")
        began_at = self.thread.time()
        self._join(timeout)
        return max(began_at + timeout - self.thread.time(), 0.001)

    def close(self, timeout: float | None) -> None:
        """Leave the cluster and release everything."""
        self.thread.refuse_in_fork()
        refuse_in_callback()
        seconds = checks.seconds("a timeout", self.seconds(timeout))
        with self._lives:
            self.closed = True
        self.scraped.close()
        self._stop(self.thread, "close", seconds)

    def _stop(self, thread: SessionThread, operation: str, timeout: float) -> None:
        if not thread.stop(timeout):
            raise DeadlineError(operation=operation, seconds=timeout, waiting_for=HELD_UP)

    def disown(self) -> None:
        """Discard, in a forked child, the state that belongs to the parent."""
        self._lives = threading.RLock()  # another thread of the parent may have held it
