"""A member of a job: the job as this process uses it, its sparse tables, and what ends with it."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from zmqps.client.connection import Connection, Profile
from zmqps.client.frameworks import register_where_used
from zmqps.client.inplace import GradientBuffers, SharedMemory
from zmqps.client.requests import Requests
from zmqps.client.sparse.row_cache import Call, RowCaches
from zmqps.client.thread import in_callback, refuse_in_callback
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.arrays import Bytes
from zmqps.core.worker.layout.rollbacks import Rollback
from zmqps.core.worker.operations import Attached, Operation, Restored, StartJob
from zmqps.errors import PSError
from zmqps.net.lane.private import Private

log = logging.getLogger("zmqps.worker")


class Company(Protocol):
    """Other processes that a member shares its steps with."""

    def leave(self) -> None:
        """Leave them; they continue without it."""

    def end(self) -> None:
        """Begin nothing more with them."""

    def disown(self) -> None:
        """Discard, in a forked child, what belongs to the parent."""


class Member:
    """A connection, and the job that it is used for.

    Parameters
    ----------
    connection
        The connection.

    Attributes
    ----------
    requests
        Makes transfers of the job; None: it is not known yet, in this life.
    restored
        The checkpoint that the job started from.
    trained
        The job, in all lives: a later one trains the same, or none.
    named
        Whether this worker has named the job: a later life names it, too, to count.
    buffers
        Those of `zmqps.Worker.gradient_buffers`, kept across lives.
    caches
        Of sparse tables; kept across lives, but without their contents.
    company
        The other workers of its host, with ``combine="host"``.
    """

    def __init__(self, connection: Connection, company: Company | None = None) -> None:
        register_where_used()
        self.connection = connection
        self.company = company
        self.requests: Requests | None = None
        self.restored: Restored | None = None
        self.trained: JobSpec | None = None
        self.named = False
        self.buffers: GradientBuffers | None = None
        self.caches = RowCaches()
        me = weakref.ref(self)

        def recut(event: Any) -> None:
            member = me()
            requests = None if member is None else member.requests
            if isinstance(event, Attached) and requests is not None:
                requests.lie(event.placement)
            if member is not None and isinstance(event, Attached | Rollback):
                member.caches.outdate()

        connection.listeners.append(recut)
        _open.add(self)

    @property
    def job_name(self) -> str:
        """The name of its job."""
        return self.connection.profile.job

    @property
    def observes(self) -> bool:
        """Whether it only looks."""
        return self.connection.profile.role == "observer"

    # --- the job ------------------------------------------------------------------------------

    def attach(self, init: StartJob, timeout: float | None) -> Future[None]:
        """Start a job, or learn of the one there is."""

        def attached(value: Attached) -> None:
            self.named |= init.job is not None
            self.restored = value.restored
            if init.job is not None or self.trained is None:
                self.trained = value.job
            if self.requests is None:
                self.requests = Requests(value, self.connection.handover, memory, self.buffers)

        memory = self._memory()
        return self.submit(init, timeout, attached)

    def _memory(self) -> SharedMemory:
        """Return what servers on this host and this process read of each other."""
        me = weakref.ref(self.connection)  # no cycle, which would keep a worker without references alive

        def reads() -> bool:
            connection = me()
            return connection is not None and connection.lanes is not None and connection.lanes.in_place

        def private(memory: Bytes, hold: Any) -> Private | None:
            connection = me()
            lanes = None if connection is None else connection.lanes
            return None if lanes is None else lanes.private(memory, hold)

        def num_workers() -> int:
            connection = me()
            return 1 if connection is None else connection.num_workers

        arenas = self.connection.arenas
        lent = None if self.observes else private  # training does not wait until it has read them
        return SharedMemory(
            empty=arenas.empty, part=arenas.part, reads=reads, private=lent, num_workers=num_workers
        )  # fmt: skip

    def job(self, timeout: float | None) -> Requests:
        """Return the job; an observer, or a worker that did not call `init`, uses it as it is."""
        if self.requests is None:
            refuse_in_callback()
            self.attach(StartJob(0.0), timeout).result()
            assert self.requests is not None
            if self.trained is not None and self.requests.job != self.trained:
                found, self.requests = self.requests.job, None
                found.check_same(self.trained, "the worker that restarted it")
            if self.named:  # only now: before, it would have started an ended job again
                self.attach(StartJob(0.0, job=self.trained), timeout).result()
        assert self.requests is not None
        return self.requests

    def reads_at(self) -> int | None:
        """Return the clock of a read requested now, after all submitted operations; None: this member ends no steps."""
        if not self.named:
            return None
        thread = self.connection.thread
        return thread.ask(lambda: thread.machine.transfers.pace.reads_at)

    # --- operations ---------------------------------------------------------------------------

    def submit(
        self, operation: Operation, timeout: float | None, result: Callable[[Any], Any] | None = None
    ) -> Future[Any]:
        """Begin an operation."""
        return self.connection.submit(operation, timeout, result)

    def complete(self, operation: Operation, timeout: float | None, result: Callable[[Any], Any] | None = None) -> Any:
        """Begin an operation and return its result; this thread may run the loop meanwhile."""
        connection = self.connection
        connection.check_open()
        return connection.thread.complete(operation, connection.seconds(timeout), result)

    def send_deferred(self, timeout: float | None = None) -> list[Future[Any]]:
        """Start to send the gradients that caches of tables keep."""
        requests = self.requests
        if requests is None or not self.caches:
            return []
        return [cache.flush(Call(self, requests.table(name), timeout)) for name, cache in self.caches.items()]

    # --- lives --------------------------------------------------------------------------------

    def rejoin(self, timeout: float | None) -> None:
        """Join as a new incarnation, in the job that it had."""
        if self.company is not None:
            self.company.leave()
        before = self.connection.thread
        try:
            left = self.connection.rejoin(self.connection.seconds(timeout))
        finally:
            if self.connection.thread is not before:  # even before an answer: this life knows no server
                if self.requests is not None:
                    self.requests.copies.end()
                self.requests = None
                self.caches.forget()
        if self.trained is not None:
            self.job(left)

    def close(self, timeout: float | None = None) -> None:
        """Leave the job and the cluster, and release everything."""
        if self.company is not None and not self.connection.thread.forked:
            self.company.leave()
        if self.caches and not in_callback():  # there it is refused
            requests = self.requests
            for name, cache in self.caches.items():
                cache.leave(None if requests is None else Call(self, requests.table(name), None))
        self.connection.close(timeout)
        if self.requests is not None:
            self.requests.staging.end()
        if self.company is not None:
            self.company.end()
        _open.discard(self)

    def disown(self) -> None:
        """Discard, in a forked child, what belongs to the parent."""
        self.connection.disown()
        self.requests = None  # so each request asks for the job, and is refused before it touches an array
        self.caches = RowCaches()
        if self.company is not None:
            self.company.disown()


# --- all members of this process ------------------------------------------------------------------

_open: weakref.WeakSet[Member] = weakref.WeakSet()


def close_namesakes(profile: Profile) -> None:
    """Close this process's earlier connection under the same name, such as when a notebook cell runs again.

    The notebook or a traceback may still refer to the earlier one, and other workers would wait for it.
    """
    mine = (profile.address, profile.job, profile.role, profile.name)
    for other in list(_open):
        theirs = other.connection.profile
        if (theirs.address, theirs.job, theirs.role, theirs.name) == mine:
            text, about = "%s %r of this process connects again: the one before is closed", {"job": profile.job}
            log.warning(text, profile.role, profile.name, extra=about)
            other.close(profile.timeout)


@atexit.register
def _close_all() -> None:
    for member in list(_open):
        try:
            member.close()
        except PSError as error:  # the next one is closed anyway
            log.error("%s", error)


def _disown_all() -> None:
    for member in list(_open):
        member.disown()
    _open.clear()  # they are not this process's to close


os.register_at_fork(after_in_child=_disown_all)
