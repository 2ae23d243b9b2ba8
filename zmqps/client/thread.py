"""A session on a background thread, with futures as its interface."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from threading import get_ident
from typing import Any, TypeVar

from zmqps import checks
from zmqps.client.turns import Turns, check_own_thread, not_started, running
from zmqps.core.node.tracing import trace
from zmqps.core.protocol.events import Stop
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.worker.extensions import SessionMachine
from zmqps.core.worker.operations import Cancelled, Finish, Operation
from zmqps.core.worker.session import FAREWELL_S
from zmqps.errors import ClosedError, ConfigurationError, DeadlineError, ForkedError, InternalError, PSError
from zmqps.logs.handler import About
from zmqps.net.driver import Driver
from zmqps.net.loops import Deadline, new_runner
from zmqps.net.transport import Transport
from zmqps.trace.doors import DOORS
from zmqps.trace.switch import Switch

T = TypeVar("T")

#: Seconds that a question about the session waits for the background thread.
ASK_S = 60.0
#: Seconds that a cancel waits for it; it may be called in a user's asyncio loop.
CANCEL_S = 1.0
HELD_UP = "the worker's background thread; does a callback of a future not return?"

log = logging.getLogger("zmqps.worker")

_threads: weakref.WeakSet[SessionThread] = weakref.WeakSet()


def in_callback() -> bool:
    """Return whether this thread runs callbacks of a worker's futures, as its background thread does."""
    return get_ident() in running


def refuse_in_callback() -> None:
    """Raise an error in a callback of a future: waiting there would block the worker's thread that it waits for.

    Raises
    ------
    ConfigurationError
        This is the background thread of this or another worker.
    """
    if get_ident() in running:
        raise ConfigurationError(
            "a callback of a future runs on the background thread of its worker, which must not wait there: no answer "
            "and no heartbeat would pass meanwhile; use the methods in _async there, or hand over to another thread"
        )


class Outcome:
    """The result of an operation whose caller runs the loop until it is there: a future that is not shared."""

    __slots__ = ("_error", "_value", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: Any = None
        self._error: BaseException | None = None

    def set_result(self, value: Any) -> None:
        """It is done."""
        self._value, self.done = value, True

    def set_exception(self, error: BaseException) -> None:
        """It has failed."""
        self._error, self.done = error, True

    def result(self) -> Any:
        """Return the result, or raise the error; once."""
        assert self.done
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._value


@dataclass(slots=True, eq=False)
class Submitted:
    """How an operation's future is resolved; runs on the background thread."""

    future: Future[Any] | Outcome
    operation: Operation | None = None  # None: a question
    result: Callable[[Any], Any] = lambda value: value
    landed: Callable[[tuple[int, ...]], None] = lambda parameters: None


class Answer(Future[Any]):
    """The future of an operation.

    Waiting for it is refused where that would prevent its resolution. Cancelling it withdraws the operation; for one
    parameter of a pull, the whole pull.

    Parameters
    ----------
    session
        The session whose thread resolves it.
    withdraw
        Withdraws its operation, if possible.
    """

    def __init__(self, session: SessionThread, withdraw: Callable[[Answer], None]) -> None:
        super().__init__()
        self.blocks = False  # its caller does nothing but wait for it
        self._session = session
        self._withdraw = withdraw

    def result(self, timeout: float | None = None) -> Any:
        """Return the result once it is there; see `concurrent.futures.Future.result`."""
        self._refuse_to_wait()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception once it is there; see `concurrent.futures.Future.exception`."""
        self._refuse_to_wait()
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Withdraw the operation; return whether it was: then none of its arrays is read or written any more.

        A pull can be withdrawn, and a push of which nothing has been sent yet. Any other operation completes, and so
        does the future. The worker's thread withdraws it; if that thread is blocked for longer than a second, it does
        so later.
        """
        self._session.refuse_in_fork()
        if not self.done():
            self._withdraw(self)
        return self.cancelled()

    def withdrawn(self) -> None:
        """Note that the operation is withdrawn."""
        super().cancel()
        self.set_running_or_notify_cancel()

    def _refuse_to_wait(self) -> None:
        self._session.refuse_in_fork()
        if get_ident() in running and not self.done():
            refuse_in_callback()


class SessionThread:
    """The background thread of a worker: one loop, one driver, one session.

    Parameters
    ----------
    machine
        The session; only this thread touches it.
    make_transport
        Called in the thread.
    listeners
        Called in the thread with the session's notifications.
    more
        Called in the thread: additional counters for heartbeats.
    """

    def __init__(
        self,
        machine: SessionMachine,
        make_transport: Callable[[], Transport],
        listeners: Sequence[Callable[[Any], object]] = (),
        more: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self.machine = machine
        self._more = more
        self.transport: Transport | None = None  # once it is made
        self._make_transport = make_transport
        self._listeners = listeners
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns: Turns | None = None
        self._driver: Driver | None = None
        self._ready = threading.Event()
        self._pending: dict[Future[Any] | Outcome, Submitted] = {}
        self._calls: deque[Callable[[], object]] = deque()  # to be called in the loop, in rounds that take all
        self._rounds = count(1)
        self._round_asked, self._round_begun = 0, 0
        self._ended = False
        self._defect: PSError | None = None
        self._pid = os.getpid()
        self.forked = False  # whether this is a child of the process that it runs in
        _threads.add(self)
        self._thread = threading.Thread(target=self._main, name="zmqps", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._driver is None and self._defect is not None:
            raise self._defect.again()

    def _main(self) -> None:
        running.add(get_ident())
        try:
            check_own_thread()
            with new_runner() as runner:
                loop = runner.get_loop()
                self._turns = Turns(loop)
                session = loop.create_task(self._run())
                session.add_done_callback(lambda _: loop.stop())
                self._turns.serve(session.done)
                session.result()
        except Exception as error:
            self._defect = not_started(error)
            if self._driver is not None:
                log.exception("the background thread failed; please report it")
        finally:
            self._ended = True
            self._fail_pending(lambda: ClosedError("the worker was closed"))
            self._calls.clear()  # which hold their operations' arrays
            self._ready.set()
            running.discard(get_ident())

    async def _run(self) -> None:
        self._loop, session = asyncio.get_running_loop(), self.machine
        self.transport = self._make_transport()
        about = About(log, {"job": session.member.identity.job})
        self._driver = Driver(session, self.transport, about, self._resolve, self._landed, self._fail)
        self._driver.notify, self._driver.more = self._notify, self._more
        DOORS.add(session.transfers, "all_finite", DOORS.function("check", "worker"))
        member = session.member
        trace(member, Switch(self._driver, member.identity, operation_of=session.operation_of))
        self._loop.call_soon(self._ready.set)
        await self._driver.run()

    def time(self) -> float:
        """Return the time from this node's transport; any thread may ask."""
        assert self._loop is not None
        return self._loop.time()

    def submit(self, operation: Operation, timeout: float, result: Callable[[Any], Any] | None = None) -> Future[Any]:
        """Pass an operation to the session; its future fails at the timeout at the latest."""
        entry = Submitted(Answer(self, self._withdraw), operation, result or (lambda value: value))
        return self._submit(operation, timeout, entry)

    def complete(self, operation: Operation, timeout: float, result: Callable[[Any], Any] | None = None) -> Any:
        """Pass an operation to the session, and return its result; this thread may run the loop meanwhile."""
        outcome = Outcome()
        entry = Submitted(outcome, operation, result or (lambda value: value))
        begin = self._beginning(operation, timeout, entry)
        waits = self._ended or self.forked or self._defect or self._calls  # what was asked for before begins before
        if self._turns is not None and self._turns.resting and not waits:

            def enter() -> None:
                self._pending[outcome] = entry
                begin()

            if self._turns.take(enter, lambda: outcome.done, lambda: bool(self._pending)):
                if not outcome.done:  # the session has ended, and all waiting calls fail
                    self._thread.join()
                return outcome.result()
        entry.future = answer = Answer(self, self._withdraw)
        answer.blocks = True
        self._register(entry, begin)
        return answer.result()

    def submit_each(self, operation: Operation, timeout: float, values: Mapping[int, Any]) -> dict[int, Future[Any]]:
        """Pass a pull whose parameters are awaited one by one: return a future for each value."""

        def withdraw(part: Future[Any]) -> None:
            if (unfinished := pull()) is not None:
                unfinished.cancel()

        parts = {parameter: Answer(self, withdraw) for parameter in values}

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
            landed(tuple(parts))  # parameters without elements, of which nothing ever arrives

        whole = Answer(self, self._withdraw)
        pull = weakref.ref(whole)  # which refers to the parts
        self._submit(operation, timeout, Submitted(whole, operation, landed=landed)).add_done_callback(ended)
        return dict(parts)

    def _withdraw(self, future: Future[Any]) -> None:
        """Withdraw the operation of a future, if possible, and wait for the outcome."""
        handled = threading.Event()

        def withdraw() -> None:
            assert self._driver is not None
            entry = self._pending.get(future)
            if entry is not None and entry.operation is not None:
                self._driver.submit(Cancelled(entry.operation))
            handled.set()

        if self._turns is not None and self._turns.holder == get_ident() in running:  # in a callback
            withdraw()
            return
        with suppress(ClosedError):
            self._call_soon(withdraw)
            handled.wait(CANCEL_S)

    def _submit(self, operation: Operation, timeout: float, entry: Submitted) -> Future[Any]:
        self._register(entry, self._beginning(operation, timeout, entry))
        assert isinstance(entry.future, Future)
        return entry.future

    def _beginning(self, operation: Operation, timeout: float, entry: Submitted) -> Callable[[], None]:
        """Return a function that starts an operation in the loop."""
        if type(timeout) is not float or not timeout > 0.0:  # checked inline, because this runs in each step
            timeout = checks.seconds("a timeout", timeout)
        operation.future = entry

        def begin() -> None:
            assert self._loop is not None
            assert self._driver is not None
            operation.deadline = self._loop.time() + timeout
            self._driver.submit(operation)

        return begin

    def _register(self, entry: Submitted, call: Callable[[], None]) -> None:
        """Register a future to be resolved, and run something on the background thread for it.

        It takes no lock, because a signal handler that closes the worker would wait for it together with its holder.
        Each entry is removed once, by the code that resolves it; entries after the end are removed here.
        """
        self._pending[entry.future] = entry
        try:
            if self._defect is not None:
                raise self._defect.again()
            self._call_soon(call, entry)
        except PSError:
            if self._pending.pop(entry.future, None) is not None:
                raise

    def counted(self) -> dict[str, Any]:
        """Return the counters of a heartbeat now; only on the thread, see `ask`."""
        return {**(self._driver.facts() if self._driver is not None else {}), **self.machine.counters()}

    def ask(self, question: Callable[[], T], operation: str = "statistics", timeout: float = ASK_S) -> T:
        """Return the answer to a question about the session; it is asked on the thread as long as that runs."""
        self.refuse_in_fork()
        refuse_in_callback()
        if self._ended:
            self._thread.join()
            return question()
        answer: Future[T] = Future()
        entry = Submitted(answer)
        try:
            self._register(entry, lambda: self._settle(entry, question()))
            if not Deadline(timeout).wait(lambda seconds: futures.wait((answer,), seconds).done):
                raise DeadlineError(operation=operation, seconds=timeout, waiting_for=HELD_UP)
            return answer.result()
        except ClosedError:  # it has ended meanwhile
            self._thread.join()
            return question()

    def _call_soon(self, call: Callable[[], None], entry: Submitted | None = None) -> None:
        """Run something on the background thread, which may have settled an entry, and rest, before this has ended."""
        self.refuse_in_fork()
        assert self._loop is not None
        try:
            if self._ended:
                raise ClosedError("the worker is closed")
            self._calls.append(call)
            if self._round_asked <= self._round_begun:  # else one is about to begin, and includes this
                number = next(self._rounds)
                self._loop.call_soon_threadsafe(self._make_calls, number)
                self._round_asked = number  # not before: a signal handler in between must not count on it
            if self._turns is not None and self._turns.resting and (entry is None or entry.future in self._pending):
                self._turns.wake()
        except RuntimeError:  # the loop is closed, and the thread about to end
            raise ClosedError("the worker is closed") from None

    def _make_calls(self, number: int) -> None:
        self._round_begun = max(self._round_begun, number)  # before any is taken: later ones ask for another round
        try:
            for _ in range(len(self._calls)):
                self._calls.popleft()()
        finally:
            if self._calls and self._loop is not None:
                self._loop.call_soon(self._make_calls, number)

    def _notify(self, event: Any) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:
                log.exception("a callback has failed")

    def _landed(self, operation: Operation, parameters: tuple[int, ...]) -> None:
        if operation.future is not None:
            operation.future.landed(parameters)

    def _resolve(self, operation: Operation, value: Any) -> None:
        entry = operation.future
        if entry is None:
            return  # an operation of the session's own
        operation.future = None  # its result may refer to the operation: no cycle that keeps its arrays
        self._settle(entry, value)

    def _settle(self, entry: Submitted, value: Any) -> None:
        if self._pending.pop(entry.future, None) is None:
            return
        assert self._turns is not None
        if type(entry.future) is Outcome:
            self._turns.stop()
        elif type(entry.future) is Answer and entry.future.blocks and not self._pending:
            self._turns.pause()
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
        """Fail all waiting operations, now and later: the session has met a defect, and its state is unknown."""
        self._defect = error
        self._fail_pending(lambda: error)

    def _fail_pending(self, error: Callable[[], PSError]) -> None:
        for future in list(self._pending):
            if self._pending.pop(future, None) is not None:
                future.set_exception(error())

    def let_go(self) -> None:
        """End the thread of a worker dropped without a close; pending operations have `FAREWELL_S` to complete.

        The main thread waits until the coordinator knows, so that a worker that connects next does not meet the dropped
        one. Any other thread must not wait, because it may hold what the worker needs; nor must an asyncio loop.
        """
        if self._loop is None or self._ended or self.forked:
            return
        with suppress(PSError):
            finished = self.submit(Finish(0.0, reason=DepartureCause.CLOSED), FAREWELL_S)
            finished.add_done_callback(lambda _: self._ask_to_stop())
            if threading.current_thread() is threading.main_thread() and asyncio._get_running_loop() is None:
                self._thread.join(2 * FAREWELL_S)  # for pending operations, then for the goodbye's answer

    def stop(self, timeout: float) -> bool:
        """End the thread: waiting calls get `ClosedError`, the coordinator a goodbye, for whose answer this waits.

        Returns
        -------
        bool
            Whether it has ended, and its transport is closed.
        """
        self.refuse_in_fork()
        refuse_in_callback()
        self._ask_to_stop()
        if not Deadline(min(FAREWELL_S, timeout) / 2).wait(self._has_ended):
            self._ask_to_stop()  # once more, without waiting for an answer
            return Deadline(timeout).wait(self._has_ended)
        return True

    def _has_ended(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _ask_to_stop(self) -> None:
        with suppress(ClosedError):
            self._call_soon(lambda: self._driver.submit(Stop("closed")) if self._driver else None)

    # --- forks --------------------------------------------------------------------------------

    def refuse_in_fork(self) -> None:
        """Raise an error in a forked child: the thread belongs to its parent, and so do its sockets and shared memory.

        Raises
        ------
        ForkedError
            This process is not the one that has connected.
        """
        if self.forked:
            raise ForkedError(what="worker", pid=self._pid, advice="connect in this one as well")

    def disown(self) -> None:
        """Note that this is a forked child."""
        self.forked = True


def _disown_all() -> None:
    running.clear()
    for thread in list(_threads):
        thread.disown()


os.register_at_fork(after_in_child=_disown_all)
