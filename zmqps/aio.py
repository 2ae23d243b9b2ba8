"""The worker for asyncio programs: the names of ``zmqps.Worker``, to await.

::

    async with zmqps.aio.connect("tcp://127.0.0.1:5570") as worker:
        await worker.init(params, optimizer=zmqps.optim.sgd(learning_rate=0.1))
        values = await worker.push_pull(grads)

There is one worker: everything here hands it an operation and awaits the future of that. The
loop is never blocked; what would block is done by one helper thread a worker, in the order asked
(`statistics`, `rejoin` and `close` do not wait for their turn).

Cancelling an ``await`` withdraws a pull, and a push of which nothing has left yet: the arrays given to it
are free. Anything else continues in the background: a push that was begun is still applied,
once, and its result is dropped; its arrays stay in use until it is done, at its timeout at the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from inspect import signature
from types import TracebackType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar

from zmqps.client.futures import begins
from zmqps.client.requests import Params
from zmqps.client.sparse.cache_options import CacheOptions
from zmqps.client.sparse.tables import Table
from zmqps.client.sparse.whole import CHUNK_ROWS
from zmqps.codecs import Codec
from zmqps.core.job.data import DataRange, DataSpec
from zmqps.core.job.spec import Parameter
from zmqps.core.worker.layout.rollbacks import Rollback
from zmqps.core.worker.operations import Restored
from zmqps.errors import ClosedError
from zmqps.worker import DRAINED, Worker
from zmqps.worker import connect as connect_blocking

P = ParamSpec("P")
T = TypeVar("T")
#: What blocks: `Worker`, `Table`.
B = TypeVar("B", covariant=True)

__all__ = ["AsyncTable", "AsyncWorker", "connect"]


class _Awaitable(Generic[B]):
    """Something that blocks, whose methods are asked for in their turn.

    Parameters
    ----------
    blocking
        It.
    hand_over
        Lets the helper thread call something: ``hand_over(call)``, a future.
    """

    def __init__(self, blocking: B, hand_over: Callable[[Callable[[], Any]], Future[Any]]) -> None:
        self._blocking = blocking
        self._hand_over = hand_over

    async def _ask(self, call: Callable[[], T]) -> T:
        """Return what a call returns, in its turn."""
        return await asyncio.wrap_future(self._hand_over(call))


def _awaiting(
    blocks: Callable[Concatenate[B, P], T],
) -> Callable[Concatenate[_Awaitable[B], P], Coroutine[Any, Any, T]]:
    """Return a blocking method as one to await, made from what begins it: its signature and docstring are its own."""
    begin = begins(blocks)

    @wraps(blocks)
    async def method(self: _Awaitable[B], /, *args: P.args, **kwargs: P.kwargs) -> T:
        # even to begin may take long: to convert a large model's arrays, or to ask for the job
        asked = self._hand_over(partial(begin, self._blocking, *args, **kwargs))
        try:
            begun = await asyncio.wrap_future(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(_cancel_unwanted)
            raise
        return await asyncio.wrap_future(begun)

    return method


def _asking(blocks: Callable[Concatenate[B, P], T]) -> Callable[Concatenate[_Awaitable[B], P], Coroutine[Any, Any, T]]:
    """Return a blocking method as one to await, which the helper thread calls in its turn."""

    @wraps(blocks)
    async def method(self: _Awaitable[B], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._ask(partial(blocks, self._blocking, *args, **kwargs))

    return method


def _threaded(
    blocks: Callable[Concatenate[B, P], T],
) -> Callable[Concatenate[_Awaitable[B], P], Coroutine[Any, Any, T]]:
    """Return a blocking method as one to await, which does not wait for its turn."""

    @wraps(blocks)
    async def method(self: _Awaitable[B], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(blocks, self._blocking, *args, **kwargs)

    return method


def _same(waits_not: Callable[Concatenate[B, P], T]) -> Callable[Concatenate[_Awaitable[B], P], T]:
    """Return a method that does not block as it is."""

    @wraps(waits_not)
    def method(self: _Awaitable[B], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return waits_not(self._blocking, *args, **kwargs)

    return method


def _shown(of: Any) -> Any:
    """Return a property of what blocks as one of this; type checkers see an attribute."""
    return property(lambda self: of.fget(self._blocking), doc=of.__doc__)


class AsyncTable(_Awaitable[Table]):
    """A sparse table; made by `AsyncWorker.table`. Arguments, results and errors are those of `zmqps.Table`."""

    pull = _awaiting(Table.pull)
    push = _awaiting(Table.push)
    push_pull = _awaiting(Table.push_pull)
    load = _awaiting(Table.load)
    flush = _awaiting(Table.flush)
    rows = _asking(Table.rows)
    statistics = _asking(Table.statistics)
    cache_statistics = _same(Table.cache_statistics)

    async def chunks(self, most: int = CHUNK_ROWS, *, timeout: float | None = None) -> AsyncIterator[tuple[Any, Any]]:
        """Go through all rows, as `zmqps.Table.chunks` does, for ``async for``."""
        chunks = self._blocking.chunks(most, timeout=timeout)
        while (chunk := await self._ask(partial(next, chunks, None))) is not None:
            yield chunk

    def __repr__(self) -> str:
        return repr(self._blocking).replace("zmqps.Table", "zmqps.aio.AsyncTable")


class AsyncWorker(_Awaitable[Worker]):
    """A connection to a cluster; made by `connect`. Arguments, results and errors are those of `zmqps.Worker`."""

    def __init__(self, worker: Worker, helper: ThreadPoolExecutor) -> None:
        super().__init__(worker, self._to_helper)
        self._worker = worker
        self._helper = helper

    init = _awaiting(Worker.init)
    pull = _awaiting(Worker.pull)
    push = _awaiting(Worker.push)
    push_pull = _awaiting(Worker.push_pull)
    advance = _awaiting(Worker.advance)
    skip = _awaiting(Worker.skip)
    set = _awaiting(Worker.set)
    average = _awaiting(Worker.average)
    set_hyperparameters = _awaiting(Worker.set_hyperparameters)
    set_learning_rate = _awaiting(Worker.set_learning_rate)
    barrier = _awaiting(Worker.barrier)
    checkpoint = _awaiting(Worker.checkpoint)
    status = _awaiting(Worker.status)
    gradient_buffers = _asking(Worker.gradient_buffers)
    statistics = _threaded(Worker.statistics)
    rejoin = _threaded(Worker.rejoin)
    log = _same(Worker.log)
    address: str = _shown(Worker.address)
    rank: int = _shown(Worker.rank)
    job: str = _shown(Worker.job)
    is_chief: bool = _shown(Worker.is_chief)
    num_workers: int = _shown(Worker.num_workers)
    steps_left_out: int = _shown(Worker.steps_left_out)
    parameters: tuple[Parameter, ...] = _shown(Worker.parameters)
    restored: Restored | None = _shown(Worker.restored)
    draining: bool = _shown(Worker.draining)

    async def ranges(
        self,
        num_examples: int,
        range_size: int,
        *,
        passes: int = 1,
        shuffle_seed: int | None = None,
        name: str = "data",
        timeout: float | None = None,
    ) -> AsyncIterator[DataRange]:
        """`Worker.ranges`, for ``async for``."""
        data = DataSpec(
            name=name, num_examples=num_examples, range_size=range_size, passes=passes, shuffle_seed=shuffle_seed
        )
        taken: DataRange | None = None
        take = self._worker._exchanges.take
        while (taken := await asyncio.wrap_future(take(data, taken, timeout))) is not None:
            yield taken

    async def steps(
        self, until: int, *, out: Mapping[str, Any] | None = None, copy: bool = True, timeout: float | None = None
    ) -> AsyncIterator[Params]:
        """`Worker.steps`, for ``async for``."""
        steps = await self._ask(partial(self._worker._begin_steps, until, timeout))
        while not steps.is_over:
            params = await self.pull(out=out, copy=copy, timeout=timeout)
            if not steps.begin(params.version):
                return
            yield params
            del params  # before the next ones arrive

    async def pull_each(
        self,
        names: str | Iterable[str] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        at_least: int | None = None,
        codec: str | Codec | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[tuple[str, Any]]:
        """`Worker.pull_each`, for ``async for``; the pull begins with the first step of the loop."""
        begin = partial(self._worker.pull_each_async, names, out=out, at_least=at_least, codec=codec, timeout=timeout)
        futures = await self._ask(begin)
        try:
            for name, future in futures.items():
                yield name, await asyncio.wrap_future(future)
        finally:
            for future in futures.values():  # of a loop that was left early
                future.cancel()

    def on_rollback(self, callback: Callable[[Rollback], object]) -> None:
        """Let a function be called in the running loop whenever the job goes back, as `zmqps.Worker.on_rollback` does.

        It is called before any ``await`` returns values of the restored checkpoint.
        """
        loop = asyncio.get_running_loop()
        if callable(callback):
            self._worker.on_rollback(lambda rollback: loop.call_soon_threadsafe(callback, rollback))
        else:
            self._worker.on_rollback(callback)  # which refuses it

    async def table(self, name: str, *, cache: CacheOptions | None = None, timeout: float | None = None) -> AsyncTable:
        """Return a sparse table of the job, as `zmqps.Worker.table` does."""
        table = await self._ask(partial(self._worker.table, name, cache=cache, timeout=timeout))
        return AsyncTable(table, self._hand_over)

    def _to_helper(self, call: Callable[[], T]) -> Future[T]:
        self._worker._member.connection.thread.refuse_in_fork()  # in which the helper does not run
        try:
            return self._helper.submit(call)
        except RuntimeError:  # the helper has ended, so the worker is closed
            raise ClosedError("the worker is closed") from None

    async def finish(self, *, timeout: float | None = None) -> None:
        """Complete what is pending, inform the others that this worker is done, and close: `zmqps.Worker.finish`."""
        await self._leave(timeout)

    async def drain(self, *, timeout: float | None = None) -> NoReturn:
        """Complete what is pending, leave as drained, close and end the program: `zmqps.Worker.drain`."""
        await self._leave(timeout, drained=True)
        raise SystemExit(DRAINED)

    async def _leave(self, timeout: float | None, *, drained: bool = False) -> None:
        try:
            finished = await self._ask(partial(self._worker._begin_leaving, timeout, drained=drained))
            await asyncio.wrap_future(finished)
        finally:
            await self.close()

    async def close(self, *, timeout: float | None = None) -> None:
        """Leave the cluster and release everything, as `zmqps.Worker.close` does."""
        # not on the helper thread, which may be waiting for just what this ends
        await asyncio.to_thread(self._close, timeout)

    def _close(self, timeout: float | None) -> None:
        self._worker._member.connection.thread.refuse_in_fork()
        self._helper.shutdown(wait=False)
        self._worker.close(timeout=timeout)
        self._helper.shutdown(wait=True)  # what it was doing has failed by now

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._worker).replace("zmqps.Worker", "zmqps.aio.AsyncWorker")


class _Connecting:
    """What `connect` returns: await it, or enter it with ``async with``."""

    def __init__(self, connecting: Coroutine[Any, Any, AsyncWorker]) -> None:
        self._connecting = connecting
        self._worker: AsyncWorker | None = None

    def __await__(self) -> Generator[Any, None, AsyncWorker]:
        return self._connecting.__await__()

    async def __aenter__(self) -> AsyncWorker:
        self._worker = await self._connecting
        return self._worker

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._worker is not None
        await self._worker.close()


def _connecting(blocks: Callable[P, Worker]) -> Callable[P, _Connecting]:
    """Return `zmqps.connect` as something to await or to enter, with its signature and its checks of options."""
    check = vars(blocks)["check"]

    @wraps(blocks)
    def connect(*args: P.args, **kwargs: P.kwargs) -> _Connecting:
        check(args, kwargs)
        return _Connecting(_connect(partial(blocks, *args, **kwargs)))

    connect.__doc__ = """Join a cluster as a worker: ``await connect(…)`` or ``async with connect(…) as worker``.

    Parameters, result and errors are those of `zmqps.connect`. When cancelled, a connection that is made nevertheless
    is closed.
    """
    connect.__annotations__ = {**blocks.__annotations__, "return": "_Connecting"}
    vars(connect).update(__signature__=signature(blocks).replace(return_annotation="_Connecting"))
    return connect


connect = _connecting(connect_blocking)


async def _connect(call: Callable[[], Worker]) -> AsyncWorker:
    helper = ThreadPoolExecutor(1, thread_name_prefix="zmqps-aio")
    future = helper.submit(call)
    try:
        return AsyncWorker(await asyncio.wrap_future(future), helper)
    except BaseException:
        future.add_done_callback(_close_unwanted)
        helper.shutdown(wait=False)
        raise


def _cancel_unwanted(asked: Future[Future[Any]]) -> None:
    if not asked.cancelled() and asked.exception() is None:
        asked.result().cancel()


def _close_unwanted(future: Future[Worker]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()
