"""A session on a background thread, with futures at its door."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from zmqps import checks
from zmqps.core.protocol.events import Stop
from zmqps.core.worker.operations import Cancelled, Finish, Operation
from zmqps.core.worker.session import FAREWELL_S, SessionMachine
from zmqps.errors import ClosedError, ConfigurationError, DeadlineError, InternalError, PSError
from zmqps.net.driver import Driver
from zmqps.net.transport import Transport
from zmqps.trace.record import watch

T = TypeVar("T")

#: Seconds that a question about the session waits for the background thread.
ASK_S = 60.0
#: Seconds that a cancel waits for it, which may be called in a user's asyncio loop.
CANCEL_S = 1.0
HELD_UP = "the worker's background thread; does a callback of a future not return?"

log = logging.getLogger("zmqps.worker")


@dataclass(slots=True, eq=False)
class Submitted:
    """What an operation's future is resolved with; runs on the background thread."""

    future: Future[Any]
    operation: Operation | None = None  # None: a question
    result: Callable[[Any], Any] = lambda value: value
    landed: Callable[[tuple[int, ...]], None] = lambda parameters: None


class Answer(Future[Any]):
    """The future of an operation.

    It refuses to be waited for where that would stop it from ever being resolved. Cancelling it withdraws
    the operation; that of one parameter of a pull, the whole pull.

    Parameters
    ----------
    thread
        Resolves it.
    withdraw
        Withdraws its operation, if that is possible.
    """

    def __init__(self, thread: threading.Thread, withdraw: Callable[[Answer], None]) -> None:
        super().__init__()
        self._resolver = thread
        self._withdraw = withdraw

    def result(self, timeout: float | None = None) -> Any:
        """Return the result once it is there; see `concurrent.futures.Future.result`."""
        self._refuse_own_thread()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception once it is there; see `concurrent.futures.Future.exception`."""
        self._refuse_own_thread()
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Withdraw the operation; return whether it was: nothing of it is read or written any more.

        A pull can be withdrawn, and a push of which nothing has been sent yet. Anything else goes on to its end,
        and so does the future. What it takes to withdraw is done by the worker's thread; if that is
        held up for longer than a second, it is done later.
        """
        if not self.done():
            self._withdraw(self)
        return self.cancelled()

    def withdrawn(self) -> None:
        """Note that the operation is withdrawn."""
        super().cancel()
        self.set_running_or_notify_cancel()

    def _refuse_own_thread(self) -> None:
        if threading.current_thread() is self._resolver and not self.done():
            raise ConfigurationError(
                "a callback of a future runs on the thread that would have to resolve this one, so it would wait "
                "forever; use the methods in _async there, or hand over to another thread"
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
        self.transport: Transport | None = None  # once it is made
        self._make_transport = make_transport
        self._loop: asyncio.AbstractEventLoop | None = None
        self._driver: Driver | None = None
        self._ready = threading.Event()
        self._pending: dict[Future[Any], Submitted] = {}
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
                pending, self._pending = self._pending, {}
            for future in pending:
                future.set_exception(ClosedError("the worker was closed"))
            self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        session = self.machine
        self.transport = self._make_transport()
        machine, transport = watch(session, self.transport, session.member.identity, session.operation_of)
        self._driver = Driver(machine, transport, log, self._resolve, self._landed, self._fail)
        self._loop.call_soon(self._ready.set)
        await self._driver.run()

    def submit(self, operation: Operation, timeout: float, result: Callable[[Any], Any] | None = None) -> Future[Any]:
        """Hand an operation to the session; its future fails at the timeout at the latest."""
        entry = Submitted(Answer(self._thread, self._withdraw), operation, result or (lambda value: value))
        return self._submit(operation, timeout, entry)

    def submit_each(self, operation: Operation, timeout: float, values: Mapping[int, Any]) -> dict[int, Future[Any]]:
        """Hand over a pull whose parameters are waited for one by one: return for each a future of its value."""

        def withdraw(part: Future[Any]) -> None:
            if (unfinished := pull()) is not None:
                unfinished.cancel()

        parts = {parameter: Answer(self._thread, withdraw) for parameter in values}

        def landed(parameters: tuple[int, ...]) -> None:
            for parameter in parameters:
                if not parts[parameter].done():
                    parts[parameter].set_result(values[parameter])

        def ended(whole: Future[Any]) -> None:
            error = None if whole.cancelled() else whole.exception()
            for part in parts.values():
                if whole.cancelled() and not part.done():
                    part.withdrawn()
                elif error is not None and not part.done():
                    part.set_exception(error)
            landed(tuple(parts))  # those without elements, of which nothing ever comes

        whole = Answer(self._thread, self._withdraw)
        pull = weakref.ref(whole)  # which refers to the parts
        self._submit(operation, timeout, Submitted(whole, operation, landed=landed)).add_done_callback(ended)
        return dict(parts)

    def _withdraw(self, future: Future[Any]) -> None:
        """Withdraw the operation of a future, if that is possible, and wait until it is clear."""
        handled = threading.Event()

        def withdraw() -> None:
            assert self._driver is not None
            entry = self._pending.get(future)
            if entry is not None and entry.operation is not None:
                self._driver.submit(Cancelled(entry.operation))
            handled.set()

        if threading.current_thread() is self._thread:
            withdraw()
            return
        with suppress(ClosedError):
            self._call_soon(withdraw)
            handled.wait(CANCEL_S)

    def _submit(self, operation: Operation, timeout: float, entry: Submitted) -> Future[Any]:
        if type(timeout) is not float or not timeout > 0.0:  # else there is nothing to say, in each step
            checks.seconds("a timeout", timeout)
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
            self._call_soon(begin)
            self._pending[entry.future] = entry
        return entry.future

    def ask(self, question: Callable[[], T]) -> T:
        """Return what a question about the session returns; it is asked on the thread as long as that runs."""
        if threading.current_thread() is self._thread:
            return question()
        entry = Submitted(Future())
        try:
            with self._lock:
                if self._ended:
                    return question()
                self._call_soon(lambda: self._settle(entry, question()))
                self._pending[entry.future] = entry
            value: T = entry.future.result(ASK_S)
        except ClosedError:  # it has ended meanwhile
            self._thread.join()
            return question()
        except TimeoutError:
            raise DeadlineError(operation="statistics", seconds=ASK_S, waiting_for=HELD_UP) from None
        return value

    def _call_soon(self, call: Callable[[], None]) -> None:
        """Run something on the background thread."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed, and the thread about to end
            raise ClosedError("the worker is closed") from None

    def _landed(self, operation: Operation, parameters: tuple[int, ...]) -> None:
        if operation.future is not None:
            operation.future.landed(parameters)

    def _resolve(self, operation: Operation, value: Any) -> None:
        entry = operation.future
        if entry is None:
            return  # an operation of the session's own
        operation.future = None  # whose result may refer to the operation: no circle that keeps its arrays
        self._settle(entry, value)

    def _settle(self, entry: Submitted, value: Any) -> None:
        with self._lock:
            if self._pending.pop(entry.future, None) is None:
                return
        if isinstance(value, Cancelled):
            assert isinstance(entry.future, Answer)
            entry.future.withdrawn()
            return
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
            pending, self._pending = self._pending, {}
        for entry in pending.values():
            entry.future.set_exception(error)

    def let_go(self) -> None:
        """End the thread of a worker that was dropped without a close.

        The main thread waits until the coordinator knows, so that whoever connects in its place does not meet the
        dropped one. Any other thread may be one that collects objects while it holds the lock.
        """
        if self._loop is None or self._ended:
            return
        if threading.current_thread() is not threading.main_thread():
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(lambda: self._driver.submit(Stop("dropped")) if self._driver else None)
            return
        with suppress(PSError, TimeoutError):
            self.submit(Finish(0.0, reason="closed"), FAREWELL_S).result(FAREWELL_S)
        self.stop(FAREWELL_S)

    def stop(self, timeout: float) -> bool:
        """End the thread; whatever waits gets `ClosedError`.

        Returns
        -------
        bool
            Whether it has ended, and its transport is closed. Called on the thread itself it ends
            after what runs there now.
        """
        with self._lock, suppress(ClosedError):
            if not self._ended:
                self._call_soon(lambda: self._driver.submit(Stop("closed")) if self._driver else None)
        if threading.current_thread() is self._thread:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()
