"""A session on a background thread, with futures at its door."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from zmqps.core.protocol.events import Stop
from zmqps.core.worker.operations import Operation
from zmqps.core.worker.session import SessionMachine
from zmqps.errors import ClosedError, ConfigurationError, InternalError, PSError
from zmqps.net.driver import Driver
from zmqps.net.transport import Transport
from zmqps.trace.record import watch

log = logging.getLogger("zmqps.worker")


@dataclass(slots=True, eq=False)
class Pending:
    """What an operation's future is resolved with; runs on the background thread."""

    future: Future[Any]
    result: Callable[[Any], Any] = lambda value: value
    landed: Callable[[tuple[int, ...]], None] = lambda parameters: None


class Answer(Future[Any]):
    """A future that refuses to be waited for where that would stop it from ever being resolved."""

    def __init__(self, thread: threading.Thread) -> None:
        super().__init__()
        self._resolver = thread

    def result(self, timeout: float | None = None) -> Any:
        """Return the result once it is there; see `concurrent.futures.Future.result`."""
        self._check()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception once it is there; see `concurrent.futures.Future.exception`."""
        self._check()
        return super().exception(timeout)

    def _check(self) -> None:
        if threading.current_thread() is self._resolver and not self.done():
            raise ConfigurationError(
                "a callback of a future runs on the thread that would have to resolve this one, so it would wait for "
                "ever; use the methods in _async there, or hand over to another thread"
            )


class SessionThread:
    """The background thread of a worker: one loop, one driver, one session.

    Parameters
    ----------
    machine
        The session; only this thread touches it.
    make_transport
        Called in the thread.
    """

    def __init__(self, machine: SessionMachine, make_transport: Callable[[], Transport]) -> None:
        self.machine = machine
        self._make_transport = make_transport
        self._loop: asyncio.AbstractEventLoop | None = None
        self._driver: Driver | None = None
        self._ready = threading.Event()
        self._pending: set[Pending] = set()
        self._lock = threading.Lock()
        self._ended = False
        self._defect: InternalError | None = None
        self._thread = threading.Thread(target=self._main, name="zmqps", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception:
            log.exception("the background thread failed; please report it")
        finally:
            with self._lock:
                self._ended = True
                pending, self._pending = self._pending, set()
            for entry in pending:
                entry.future.set_exception(ClosedError("the worker was closed"))
            self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        machine, transport = watch(self.machine, self._make_transport(), self.machine.member.identity)
        self._driver = Driver(machine, transport, log, self._resolve, self._landed, self._fail)
        self._loop.call_soon(self._ready.set)
        await self._driver.run()

    def submit(self, operation: Operation, timeout: float, result: Callable[[Any], Any] | None = None) -> Future[Any]:
        """Hand an operation to the session; its future fails at the timeout at the latest."""
        return self._submit(operation, timeout, Pending(self._future(), result) if result else Pending(self._future()))

    def submit_each(self, operation: Operation, timeout: float, values: Mapping[int, Any]) -> dict[int, Future[Any]]:
        """Hand over a pull whose parameters are waited for one by one: return for each a future of its value."""
        parts = {parameter: self._future() for parameter in values}

        def landed(parameters: tuple[int, ...]) -> None:
            for parameter in parameters:
                if not parts[parameter].done():
                    parts[parameter].set_result(values[parameter])

        def ended(whole: Future[Any]) -> None:
            error = whole.exception()
            for part in parts.values():
                if error is not None and not part.done():
                    part.set_exception(error)
            landed(tuple(parts))  # those without elements, of which nothing ever comes

        self._submit(operation, timeout, Pending(self._future(), landed=landed)).add_done_callback(ended)
        return parts

    def _future(self) -> Future[Any]:
        future = Answer(self._thread)
        future.set_running_or_notify_cancel()  # what was sent cannot be called back
        return future

    def _submit(self, operation: Operation, timeout: float, entry: Pending) -> Future[Any]:
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise ConfigurationError(f"a timeout is a positive number of seconds, not {timeout!r}")
        operation.future = entry

        def begin() -> None:
            assert self._loop is not None
            assert self._driver is not None
            operation.deadline = self._loop.time() + timeout
            self._driver.submit(operation)

        with self._lock:
            if self._defect is not None:
                raise self._defect
            if self._ended:
                raise ClosedError("the worker is closed")
            self._pending.add(entry)
            self.call_soon(begin)
        return entry.future

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run something on the background thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(call)

    def _landed(self, operation: Operation, parameters: tuple[int, ...]) -> None:
        if operation.future is not None:
            operation.future.landed(parameters)

    def _resolve(self, operation: Operation, value: Any) -> None:
        entry = operation.future
        if entry is None:
            return  # an operation of the session's own
        operation.future = None  # whose result may refer to the operation: no circle that keeps its arrays
        with self._lock:
            if entry not in self._pending:
                return
            self._pending.remove(entry)
        if isinstance(value, PSError):
            entry.future.set_exception(value)
            return
        try:
            entry.future.set_result(entry.result(value))
        except Exception as error:
            entry.future.set_exception(error)

    def _fail(self, error: InternalError) -> None:
        """Fail all that waits, now and later: the session has met a defect, and nothing can be said of its state."""
        with self._lock:
            self._defect = error
            pending, self._pending = self._pending, set()
        for entry in pending:
            entry.future.set_exception(error)

    def stop(self) -> None:
        """End the thread; whatever waits gets `ClosedError`."""
        with self._lock:
            if not self._ended:
                self.call_soon(lambda: self._driver.submit(Stop("closed")) if self._driver else None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
