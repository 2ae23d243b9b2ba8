"""The worker's place in the cluster: a `SessionMachine` on a background thread, from joining to the end.

A training loop computes for seconds without returning to an event loop. So transfers and heartbeats run on a background
thread with its own loop. The methods here pass it an operation and wait for its future, or return it.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NoReturn, Self, cast

from zmqps import checks
from zmqps.client.beside import in_two_threads
from zmqps.client.draining import is_draining
from zmqps.client.lives import find_life
from zmqps.client.scraped import scraped
from zmqps.client.tensors import are_finite, warm_up
from zmqps.client.thread import HELD_UP, SessionThread, refuse_in_callback
from zmqps.core.job.data import DataRange, DataSpec
from zmqps.core.protocol.endpoints import check_peer
from zmqps.core.protocol.exits import DRAINED
from zmqps.core.protocol.messages.hello import MAX_JOB_NAME_CHARS
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.worker.extensions import SessionMachine
from zmqps.core.worker.notebook import Notebook
from zmqps.core.worker.operations import AskStatus, EnterBarrier, Exchange, Finish, Join, Operation
from zmqps.core.worker.ranges import TakeRange
from zmqps.core.worker.statistics import Statistics
from zmqps.errors import ClosedError, ConfigurationError, DeadlineError, PSError
from zmqps.keys.keyring import find_keys
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

_open: weakref.WeakSet[Connection] = weakref.WeakSet()


class Connection:
    """A member of a cluster, in one of its jobs; `zmqps.Worker` adds the training."""

    def __init__(
        self,
        address: str | None,
        *,
        job: str,
        timeout: float,
        name: str | None,
        observer: bool,
        transport: str,
        job_secret: str | os.PathLike[str] | None = None,
        keys: str | os.PathLike[str] | None = None,
        token: str | None = None,
        io_threads: int = 1,
        metrics: str = "",
        pinned: Callable[[], int] = int,
    ) -> None:
        refuse_in_callback()
        under_a_supervisor(os.environ)
        show_briefly()
        self._keys = find_keys(keys, token, os.environ)
        self.address = check_peer(self._find_address() if address is None else address)
        checks.name("a job's name", job, MAX_JOB_NAME_CHARS)
        if name is not None:
            checks.name("a worker's name", name)
        check_transport(transport)
        checks.flag("observer", observer)
        timeout = checks.seconds("timeout", timeout)
        self._timeout = timeout
        self._default_timeout = max(timeout, DEFAULT_TIMEOUT)  # until the timeout of lost nodes is known
        self._job_name = job
        self._role = "observer" if observer else "worker"
        self._life = find_life(os.environ)
        self._name = name or self._life.name(self._role)
        self._transport = transport
        self._job_secret = read_job_secret(job_secret)
        if self._keys is not None:
            self._keys.pair(self._role)  # raises if the keys are for another role
        self._io_threads = checks.whole("io_threads", io_threads, 1, MAX_IO_THREADS)
        if name is not None:
            self._close_namesakes(timeout)
        self._arenas = Arenas()  # memory that servers on this host may read
        self._notebook = Notebook()  # what the script logs, in all lives
        self._closed = False
        self._listeners: list[Callable[[Any], object]] = []  # callbacks for rollbacks, in all lives
        self._lives = threading.RLock()  # no new life begins once it is closed, maybe by a signal handler
        self._used: dict[str, tuple[int, int]] = {}  # data set -> pass and range used last
        self._scraped = scraped(self, metrics, pinned)
        self._thread = self._start()
        _open.add(self)
        try:
            self._join(timeout)
        except BaseException:
            self.close()
            raise

    def _close_namesakes(self, timeout: float) -> None:
        """Close this process's earlier connection under the same name, such as when a notebook cell runs again.

        The notebook or a traceback may still refer to the earlier one, and other workers would wait for it.
        """
        mine = (self.address, self._job_name, self._role, self._name)
        for other in list(_open):
            if (other.address, other._job_name, other._role, other._name) == mine:
                text, about = "%s %r of this process connects again: the one before is closed", {"job": self._job_name}
                log.warning(text, self._role, self._name, extra=about)
                other.close(timeout=timeout)

    def _find_address(self) -> str:
        """Return the coordinator's address from the keys or this process's environment."""
        if self._keys is not None and self._keys.address:
            return self._keys.address
        address, source = find_address(os.environ, socket.getfqdn)
        log.info("the coordinator is %s, says %s", address, source)
        return address

    def _start(self) -> SessionThread:
        warm_up()  # here, not where heartbeats are sent: numba's import takes a while
        identity = new_identity(
            self._role, name=self._name, job=self._job_name, job_secret=self._job_secret, token=self._life.token,
            life=self._life.number, index=self._life.wish(self._role),
        )  # fmt: skip
        coding = DOORS.coding(in_two_threads())
        lanes: list[LaneTransport] = []  # once it is made
        machine = SessionMachine(identity, self.address, are_finite, coding, self._notebook)
        transport, arenas = self._transport, self._arenas  # the thread must not refer to this worker
        keys, role, io_threads = self._keys, self._role, self._io_threads

        def make_transport() -> LaneTransport:
            lanes.append(LaneTransport(ZmqTransport(io_threads, keys=keys, role=role), transport, arenas=arenas))
            return lanes[0]

        if self._life.index is not None:  # its standard error is a log, where `zmqps stack` looks
            answer_signal(self._life.log or f"worker-{self._life.index}")
        thread = SessionThread(machine, make_transport, self._listeners, self._scraped.held(arenas, lanes))
        self._scraped.follow(thread)
        # a worker without references leaves, such as in a notebook whose cell runs again
        weakref.finalize(self, thread.let_go).atexit = False
        return thread

    @property
    def _lanes(self) -> LaneTransport | None:
        return cast("LaneTransport | None", self._thread.transport)

    # --- identity -----------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's 0-based index: its number if a launcher has started it (``ZMQPS_WORKER_INDEX``).

        Otherwise it is the lowest free rank, or the previous one. If a number of workers is expected, `init` may change
        it to one below that number, so that strangers take no rank from the training workers.
        """
        return self._thread.machine.member.rank

    @property
    def is_chief(self) -> bool:
        """Whether this worker does what only one worker should do: save files, print, evaluate.

        Once all expected workers of the job have called `init`, there is always one: the worker with the lowest rank,
        which is 0 at first. When it is lost or leaves, the coordinator names the next one and shows it in the status. A
        restarted worker that gets rank 0 back is the chief again. Workers are informed one after the other, so during a
        change there may be none or two for a moment.
        """
        return self._thread.machine.member.cluster.is_chief

    @property
    def job(self) -> str:
        """The name of this worker's job."""
        return self._job_name

    @property
    def num_workers(self) -> int:
        """How many workers the job counts on: the expected number, or the present one."""
        return self._thread.machine.member.cluster.num_workers

    # --- other workers ------------------------------------------------------------------------

    def barrier(self, name: str, *, timeout: float | None = None) -> None:
        """Wait until every worker of the job has entered the barrier of this name.

        Workers that have finished are not waited for. No step of synchronous or bounded mode waits for a worker in a
        barrier: the others complete their steps without it, and it continues at the step they have reached. So workers
        may take different numbers of steps between two barriers. Complete pushes first (``push`` has returned).

        By default ``timeout`` is as `connect` says, at least 60 s.

        Raises
        ------
        DeadlineError
            Names the awaited workers; this worker is no longer in the barrier.
        PeerLostError
            One of the awaited workers is lost.
        """
        refuse_in_callback()
        self.barrier_async(name, timeout=timeout).result()

    def barrier_async(self, name: str, *, timeout: float | None = None) -> Future[None]:
        """`barrier`, as a future."""
        if self._role != "worker":
            raise ConfigurationError("an observer is not waited for, so it cannot enter a barrier")
        return self._submit(EnterBarrier(0.0, barrier=checks.name("a barrier's name", name)), timeout)

    def ranges(
        self,
        num_examples: int,
        range_size: int,
        *,
        passes: int = 1,
        shuffle_seed: int | None = None,
        name: str = "data",
        timeout: float | None = None,
    ) -> Iterator[DataRange]:
        """Yield ranges of a data set's examples, which the coordinator hands out to all workers on request.

        So fast workers take more. A range counts as used when the loop asks for the next one, or when the worker
        finishes. The range of a worker that dies, is evicted or closes is handed out again. When no range of a pass is
        left, a worker waits until the others have used theirs, so in each pass every example is used by one worker,
        once. No step waits for this worker meanwhile.

        Parameters
        ----------
        num_examples : int
            The number of examples; the coordinator never sees them.
        range_size : int
            Examples per range: a few batches, because another worker repeats the range of a dead one.
        passes : int
            How often every example is used.
        shuffle_seed : int, optional
            Permute all examples, differently in each pass; by default they come in their order.
        name : str
            Of the data set. Workers with the same name share its ranges; a used-up data set stays used up.
        timeout : float, optional
            Seconds to wait for each range; by default as `connect` says, at least 60.

        Yields
        ------
        DataRange
            With ``indices``, an array; ``number`` and ``data_pass`` say which range of which pass it is.
            A loop left early keeps its range; the next one of that name begins with it.

        Raises
        ------
        JobMismatchError
            Another worker has described the data set differently.
        DeadlineError
            Names the workers whose ranges were awaited.
        """
        data = DataSpec(
            name=name, num_examples=num_examples, range_size=range_size, passes=passes, shuffle_seed=shuffle_seed
        )
        return self._each_range(data, timeout)

    def _each_range(self, data: DataSpec, timeout: float | None) -> Iterator[DataRange]:
        """Yield ranges; each one counts as used when the next one is requested."""
        taken: DataRange | None = None
        while True:
            refuse_in_callback()
            taken = self._take_async(data, taken, timeout=timeout).result()
            if taken is None:
                return
            yield taken

    def _take_async(
        self, data: DataSpec, used: DataRange | None = None, *, timeout: float | None = None
    ) -> Future[DataRange | None]:
        """Report the used range and request the next; one step of `ranges`. None: all passes are done."""
        if used is not None:
            self._used[data.name] = (used.data_pass, used.number)
        take = TakeRange(0.0, data=data, used=self._used.get(data.name))
        return self._submit(take, timeout, lambda message: DataRange.of(data, message))

    def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the coordinator's view of the cluster, as ``zmqps status --json`` prints it."""
        refuse_in_callback()
        return self.status_async(timeout=timeout).result()

    def status_async(self, *, timeout: float | None = None) -> Future[dict[str, Any]]:
        """`status`, as a future."""
        return self._submit(AskStatus(0.0), timeout, dict)

    def statistics(self) -> Statistics:
        """Return a frozen copy of this worker's counts so far, also after `close`. Not in a callback of a future."""
        return self._thread.ask(self._thread.machine.statistics)

    # --- the end ------------------------------------------------------------------------------

    def finish(self, *, timeout: float | None = None) -> None:
        """Do what `zmqps.Worker.finish` says, without the tables."""
        refuse_in_callback()
        try:
            self.finish_async(timeout=timeout).result()
        finally:
            self.close()

    def finish_async(self, *, timeout: float | None = None) -> Future[None]:
        """`finish` without the close, as a future."""
        return self._submit(Finish(0.0), timeout)

    @property
    def draining(self) -> bool:
        """Whether a signal of `zmqps.drain_on` has asked this process to leave: call `drain` at the end of a step."""
        return is_draining()

    def drain(self, *, timeout: float | None = None) -> NoReturn:
        """Complete pending operations, leave as drained, close, and end the program.

        Like `finish`, but the job is not done: it waits ``--lease`` seconds for workers that continue it. No loss is
        reported. The worker's current range of data, of which it may have used a part, is handed out again. A restarted
        worker of the same name gets its rank back if that is free.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Raises
        ------
        SystemExit
            Always, with the exit code 75, unless another error comes first. The supervisor knows by it that the worker
            left in order, before it was done.
        DeadlineError
            Names the operations that did not complete; the worker is closed anyway.
        """
        refuse_in_callback()
        try:
            self.drain_async(timeout=timeout).result()
        finally:
            self.close()
        raise SystemExit(DRAINED)

    def drain_async(self, *, timeout: float | None = None) -> Future[None]:
        """`drain` without the close and the end of the program, as a future."""
        return self._submit(Finish(0.0, reason=DepartureCause.DRAINED), timeout)

    def _rejoin(self, timeout: float) -> float:
        """End this life and join as a new incarnation; return the remaining seconds."""
        refuse_in_callback()
        timeout = checks.seconds("a timeout", timeout)
        before = self._thread
        if (lost := before.machine.links.lost_server) is not None:  # there is no job to rejoin
            raise lost.again()
        self._stop(before, "rejoin", timeout)
        with self._lives:
            if self._closed:
                raise ClosedError("the worker is closed; connect again")
            if self._thread is before:
                self._thread = self._start()
            if self._closed:  # by a signal handler, meanwhile
                self._stop(self._thread, "rejoin", timeout)
                raise ClosedError("the worker is closed; connect again")
        began_at = self._thread.time()
        self._join(timeout)
        return max(began_at + timeout - self._thread.time(), 0.001)

    def close(self, *, timeout: float | None = None) -> None:
        """Do what `zmqps.Worker.close` says, without the tables."""
        self._refuse_in_fork()
        refuse_in_callback()
        seconds = checks.seconds("a timeout", self._seconds(timeout))
        with self._lives:
            self._closed = True
        self._scraped.close()
        self._stop(self._thread, "close", seconds)
        _open.discard(self)

    def _stop(self, thread: SessionThread, operation: str, timeout: float) -> None:
        if not thread.stop(timeout):
            raise DeadlineError(operation=operation, seconds=timeout, waiting_for=HELD_UP)

    def _submit(
        self, operation: Operation, timeout: float | None, result: Callable[[Any], Any] | None = None
    ) -> Future[Any]:
        if self._closed:
            raise ClosedError("the worker is closed")
        return self._thread.submit(operation, self._seconds(timeout), result)

    def _complete(self, operation: Operation, timeout: float | None, result: Callable[[Any], Any] | None = None) -> Any:
        """Submit an operation and return its result."""
        if self._closed:
            raise ClosedError("the worker is closed")
        return self._thread.complete(operation, self._seconds(timeout), result)

    def _submit_each(self, pull: Exchange, timeout: float | None, values: dict[int, Any]) -> dict[int, Future[Any]]:
        if self._closed:
            raise ClosedError("the worker is closed")
        return self._thread.submit_each(pull, self._seconds(timeout), values)

    def _join(self, timeout: float) -> None:
        self._thread.submit(Join(0.0), timeout).result()
        welcome = self._thread.machine.member.welcome
        lost_after = 0.0 if welcome is None else welcome.heartbeat_timeout
        self._default_timeout = max(self._timeout, DEFAULT_TIMEOUT, LOSSES_PER_TIMEOUT * lost_after)

    def _seconds(self, timeout: float | None) -> float:
        return self._default_timeout if timeout is None else timeout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self._thread.forked:  # a forked child that leaves the block leaves the worker to its parent
            self.close()

    def _refuse_in_fork(self) -> None:
        """Raise `ForkedError` in a forked child of the connected process."""
        self._thread.refuse_in_fork()

    def _disown(self) -> None:
        """Discard, in a forked child, the state that belongs to the parent."""
        self._lives = threading.RLock()  # another thread of the parent may have held it

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<zmqps.{type(self).__name__} {self.rank} of {self.num_workers} at {self.address}{state}>"


@atexit.register
def _close_all() -> None:
    for connection in list(_open):
        try:
            connection.close()
        except PSError as error:  # the next one is closed anyway
            log.error("%s", error)


def _disown_all() -> None:
    for connection in list(_open):
        connection._disown()
    _open.clear()  # they are not this process's to close


os.register_at_fork(after_in_child=_disown_all)
