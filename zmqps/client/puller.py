"""Pulling a job's parameters: what workers and observers have in common, on top of their `Connection`."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from zmqps import checks
from zmqps.client.connection import Connection
from zmqps.client.inplace import GradientBuffers
from zmqps.client.pytrees import register_where_used
from zmqps.client.requests import Params, Requests
from zmqps.client.sparse.cache_options import CacheOptions
from zmqps.client.sparse.row_cache import Call, RowCaches
from zmqps.client.sparse.tables import Table
from zmqps.client.thread import in_callback, refuse_in_callback
from zmqps.codecs import Codec
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.worker.layout.rollbacks import Rollback
from zmqps.core.worker.operations import Attached, Exchange, Restored, StartJob
from zmqps.core.worker.statistics import Statistics
from zmqps.errors import ConfigurationError
from zmqps.gpu.handover import Handover


class Puller(Connection):
    """A member of a cluster that takes the job as it is and pulls; `Pusher` adds what changes it."""

    _requests: Requests | None = None
    _restored: Restored | None = None

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
    ) -> None:
        register_where_used()
        self._handover = handover = Handover()
        self._buffers: GradientBuffers | None = None  # outlive a life in the cluster
        self._trained: JobSpec | None = None  # likewise: a later life trains the same job, or none
        self._named = False  # it is one that this worker has named: a later life names it, too, to count
        self._caches = RowCaches()  # of sparse tables; outlive a life, but for what they hold
        super().__init__(
            address,
            job=job,
            timeout=timeout,
            name=name,
            observer=observer,
            transport=transport,
            job_secret=job_secret,
            keys=keys,
            token=token,
            io_threads=io_threads,
            metrics=metrics,
            pinned=lambda: handover.pinned_nbytes,
        )
        me = weakref.ref(self)

        def recut(event: Any) -> None:
            worker = me()
            requests = None if worker is None else worker._requests
            if isinstance(event, Attached) and requests is not None:
                requests.lie(event.placement)
            if worker is not None and isinstance(event, Attached | Rollback):
                worker._caches.outdate()

        self._listeners.append(recut)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The job's parameters, and its buffers, in the order of the key space; empty before `init`."""
        return self._requests.job.parameters if self._requests else ()

    @property
    def restored(self) -> Restored | None:
        """The checkpoint that the job has begun from, with what was saved beside it; None: it began with new values."""
        return self._restored

    def on_rollback(self, callback: Callable[[Rollback], object]) -> None:
        """Let a function be called whenever the job goes back to a checkpoint, because a part of it was lost.

        It runs on the background thread, as callbacks of futures do, before any values are returned that have gone
        back; so only methods that do not block may be called in it. A training loop that goes by `Params.version` needs
        none. What the function raises is logged.

        Parameters
        ----------
        callback : callable
            Called with a `Rollback`: the version, how much is lost, and the state that was saved with the checkpoint.
        """
        call = checks.function("callback", callback)
        self._listeners.append(lambda event: call(event) if isinstance(event, Rollback) else None)

    def statistics(self) -> Statistics:
        """Return what this worker has done so far; a frozen copy, also after `close`. Not in a callback of a future."""
        shared, borrowed = self._arenas.nbytes, self._lanes.borrowed_nbytes if self._lanes else 0
        pinned = self._handover.pinned_nbytes
        return replace(super().statistics(), pinned_bytes=pinned, shared_bytes=shared, borrowed_bytes=borrowed)

    def _disown(self) -> None:
        super()._disown()
        self._requests = None  # so each request asks for the job, and is refused before it touches an array
        self._caches = RowCaches()

    def _reads_in_place(self) -> bool:
        return self._lanes is not None and self._lanes.in_place

    def _attach(self, init: StartJob, timeout: float | None) -> Future[None]:
        me = weakref.ref(self)

        def reads_in_place() -> bool:
            worker = me()  # no circle, which would keep a worker that nobody refers to
            return worker is not None and worker._reads_in_place()

        def attach(value: Attached) -> None:
            self._named |= init.job is not None
            self._restored = value.restored
            if init.job is not None or self._trained is None:
                self._trained = value.job
            if self._requests is None:
                self._requests = Requests(
                    value,
                    self._handover,
                    self._arenas.empty,
                    reads_in_place,
                    self._buffers,
                    self._arenas.part,
                )

        return self._submit(init, timeout, attach)

    def _job(self, timeout: float | None) -> Requests:
        """Return the job; an observer, or a worker that did not call `init`, takes it as it is."""
        if self._requests is None:
            refuse_in_callback()
            self._attach(StartJob(0.0), timeout).result()
            assert self._requests is not None
            if self._trained is not None and self._requests.job != self._trained:
                found, self._requests = self._requests.job, None
                found.check_same(self._trained, "the worker that began it anew")
            if self._named:  # only now: before, it would have begun a job that has ended
                self._attach(StartJob(0.0, job=self._trained), timeout).result()
        assert self._requests is not None
        return self._requests

    def table(self, name: str, *, cache: CacheOptions | None = None, timeout: float | None = None) -> Table:
        """Return the way to a sparse table of the job.

        Parameters
        ----------
        name : str
            As ``init(tables={name: …})`` has it.
        cache : CacheOptions, optional
            From `zmqps.row_cache`: how many rows this worker keeps, and for how long it reads them again. It is the
            worker's: all that this method returns for the table uses it from then on. By default as it was; at first
            there is none.
        timeout : float, optional
            Seconds to ask for the job, where `init` was not called.

        Raises
        ------
        UnknownParameterError
            The job has no such table.
        ConfigurationError
            The cache does not go with the job: it is synchronous, or bounded by less; or deferred gradients could not
            be seen.
        """
        job = self._job(timeout)
        requests = job.table(name)
        if cache is not None:
            if not isinstance(cache, CacheOptions):
                raise ConfigurationError(f"cache comes from zmqps.row_cache, not {checks.shown(cache):.60}")
            call = Call(self, requests, timeout)
            self._caches.choose(name, cache, job.job, call)
        return Table(self, name)

    def _reads_at(self) -> int | None:
        """Return the clock of a read that is asked for now, after all that was submitted; None: it ends no steps."""
        if not self._named:
            return None
        return self._thread.ask(lambda: self._thread.machine.transfers.pace.reads_at)

    def _send_kept(self, timeout: float | None = None) -> list[Future[Any]]:
        """Begin to send the gradients that caches keep."""
        requests = self._requests
        if requests is None or not self._caches:
            return []
        return [cache.flush(Call(self, requests.table(name), timeout)) for name, cache in self._caches.items()]

    def finish(self, *, timeout: float | None = None) -> None:
        """See `Connection.finish`; gradients that caches of tables keep are sent before."""
        refuse_in_callback()
        try:
            for sent in self._send_kept(timeout):
                sent.result()
        finally:
            super().finish(timeout=timeout)

    def finish_async(self, *, timeout: float | None = None) -> Future[None]:
        """`finish` without the close, as a future."""
        self._send_kept(timeout)
        return super().finish_async(timeout=timeout)

    def drain_async(self, *, timeout: float | None = None) -> Future[None]:
        """`drain` without the close and the end of the program, as a future."""
        self._send_kept(timeout)
        return super().drain_async(timeout=timeout)

    def close(self, *, timeout: float | None = None) -> None:
        """See `Connection.close`; gradients that caches of tables keep have two seconds to be applied before."""
        if self._caches and not in_callback():  # there it is refused
            requests = self._requests
            for name, cache in self._caches.items():
                cache.leave(None if requests is None else Call(self, requests.table(name), None))
        super().close(timeout=timeout)

    def pull(
        self,
        names: str | Iterable[str] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        at_least: int | None = None,
        exact: int | None = None,
        codec: str | Codec | None = None,
        copy: bool = True,
        timeout: float | None = None,
    ) -> Params:
        """Return the parameters' values.

        Parameters
        ----------
        names : str or iterable of str, optional
            Which; by default those in ``out``, or all. They come in the order given here, as far as each
            server can say: those of one slice come together.
        out : mapping of str to array, optional
            Arrays to put the values into, in place, converted to their dtype. They may be on GPUs.
        at_least, exact : int, optional
            Wait for this version or a later one; or read this very one (synchronous mode, where it
            must be retained).
        codec : Codec or str, optional
            How the values travel: ``raw``, ``bf16``, ``fp16`` or ``int8``; by default the job's.
        copy : bool
            False: return read-only arrays, which are views of a server's own memory where that is on this
            host, in reach (``docs/lane.md``), and holds the parameter in one piece. A
            view stays as it is until garbage-collected: the server puts later updates elsewhere, for which
            it keeps up to two more copies of its values. So let go of the last values
            before, or soon after, the next ones come. It stays valid memory after `close`, and when the server
            ends. From a server elsewhere a parameter that came whole in one message, and is at least a sixteenth of
            it, is a view of that message, which it keeps in this process's memory. Others are copies. Not together
            with ``out``.
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Returns
        -------
        Params
            A dict of ``out``'s arrays, or of new ones in the dtype the servers keep, with the
            ``version`` they are of. In synchronous mode all values are of that version. Otherwise
            a value may hold another worker's update in one slice and not yet in the next, and the
            version is the oldest of the slices'.

        Raises
        ------
        UnknownParameterError, ShapeError, DtypeError, DeviceError
            Nothing was asked for.
        DeadlineError, PeerLostError
            ``out`` may hold some new values and some old ones.
        """
        refuse_in_callback()
        pull, result = self._job(timeout).pull(names, out, at_least, exact, codec, copy)
        params: Params = self._complete(Exchange(pull=pull), timeout, result)
        return params

    def pull_async(
        self,
        names: str | Iterable[str] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        at_least: int | None = None,
        exact: int | None = None,
        codec: str | Codec | None = None,
        copy: bool = True,
        timeout: float | None = None,
    ) -> Future[Params]:
        """`pull`, as a future."""
        pull, result = self._job(timeout).pull(names, out, at_least, exact, codec, copy)
        return self._submit(Exchange(pull=pull), timeout, result)

    def pull_each(
        self,
        names: str | Iterable[str] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        at_least: int | None = None,
        codec: str | Codec | None = None,
        timeout: float | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """Ask for parameters at once and hand out each as soon as it is there, in the order of ``names``.

        So a forward pass can begin with the first layer while the last ones are on their way. It is still one
        pull, begun by this call, not by the first step of the loop.

        Parameters
        ----------
        names
            As for `pull`; by default the order of the job.
        out : mapping of str to ndarray, optional
            Contiguous arrays to put the values into; by default new ones.
        at_least, codec, timeout
            As for `pull`; the timeout is that of the whole.

        Returns
        -------
        iterator of (str, ndarray)
            In synchronous mode all are of one version: that of the worker's step. Where the others may
            go on without this worker (backup workers), keep it readable with ``init(retain=n)``.

        Raises
        ------
        UnknownParameterError, ShapeError, DtypeError, ConfigurationError
            At once; nothing was asked for.
        DeadlineError, PeerLostError, VersionError
            By the iterator, where the value is missing; what it has handed out before is right.
        """
        refuse_in_callback()
        futures = self.pull_each_async(names, out=out, at_least=at_least, codec=codec, timeout=timeout)
        return ((name, future.result()) for name, future in futures.items())

    def pull_each_async(
        self,
        names: str | Iterable[str] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        at_least: int | None = None,
        codec: str | Codec | None = None,
        timeout: float | None = None,
    ) -> dict[str, Future[Any]]:
        """`pull_each`, as a future for each parameter."""
        requests = self._job(timeout)
        pull, values = requests.pull_each(names, out, at_least, codec)
        futures = self._submit_each(Exchange(pull=pull), timeout, values)
        return {requests.job.parameters[number].name: future for number, future in futures.items()}
