"""The one loop that feeds a machine, executes what it says, and re-arms one timer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Thread
from typing import Any, Protocol

from zmqps.core.node.throttle import Throttle
from zmqps.core.protocol import exits
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import (
    Action,
    Connect,
    Disconnect,
    Exit,
    Landed,
    Log,
    Look,
    Looked,
    Machine,
    Notify,
    Peer,
    Pending,
    Received,
    Record,
    Resolve,
    Returned,
    Run,
    Send,
    Stop,
    Undecodable,
    Unreachable,
)
from zmqps.core.protocol.messages.large import Large
from zmqps.core.protocol.security.roles import ORDERS
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import InternalError, PSError, ServerMemoryError, printable
from zmqps.net.loops import look, stood_still_s
from zmqps.net.routes import why_silent
from zmqps.net.system import stacks
from zmqps.net.system.host import Health
from zmqps.net.system.memory import FreedObjects
from zmqps.net.system.signals import answered
from zmqps.net.transport import INBOUND, Transport

#: How long the last messages of a node (goodbyes) may take to leave.
LINGER_S = 1.0
#: What an exception says may be as long as what a peer has sent.
MAX_CAUSE_CHARS = 300
#: A standstill so long, in seconds, is logged: others have missed heartbeats.
STANDSTILL_S = 2.0
#: How many things are done aside at once: files of checkpoints, large messages.
ASIDE_THREADS = 4
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

# looked up by the exact class: for every message, however many kinds there are
COMPLETED = frozenset((m.Hello, m.Welcome, m.Heartbeat, m.Error, m.Probed, m.Examined))
#: Of these the machine learns which key opened the connection.
INTRODUCTIONS = frozenset((m.Hello, m.Welcome, m.Farewell, Large)) | ORDERS


class Journal(Protocol):
    """Where a node's `Record` actions go."""

    def write(self, records: Sequence[Record]) -> None:
        """Keep records, all or none of them; what follows them may be done when this returns."""


class Driver:
    """Runs one machine on one transport, inside one asyncio loop.

    Parameters
    ----------
    machine
        A machine of the core.
    transport
        Carries its messages.
    log
        Where its `Log` actions go.
    resolve
        What to do with its `Resolve` actions: ``resolve(operation, value)``.
    landed
        The same for `Landed`: ``landed(operation, parameters)``.
    failed
        Called after a defect: requests to this machine are failed, and it ends. Without it the
        machine continues, and the peer that sent the request gets an error.
    journal
        Where its `Record` actions go; None: nowhere.
    """

    def __init__(
        self,
        machine: Machine,
        transport: Transport,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        resolve: Callable[[Any, Any], None] | None = None,
        landed: Callable[[Any, tuple[int, ...]], None] | None = None,
        failed: Callable[[InternalError], None] | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._journal = journal
        self.machine = machine
        self.transport = transport
        self.log = log
        self.counters: Counter[str] = Counter()
        #: Returns the message of some frames, as far as this machine needs it at once.
        self.decode: Callable[[Sequence[Any]], m.Message] = decode
        #: Returns what a heartbeat tells besides what the machine, the transport and this process count.
        self.more: Callable[[], Mapping[str, Any]] = dict
        #: Takes what its `Notify` actions tell.
        self.notify: Callable[[Any], None] | None = None
        self._health = Health()
        self._began_at = 0.0
        self._lag_s = 0.0  # by how much its timer was late when it rang last
        self._stood_s = 0.0  # how long the loop has stood still, as far as reported
        self._throttle = Throttle("messages that there was no memory for")
        self._resolve = resolve
        self._landed = landed
        self._failed = failed
        self._exit: asyncio.Future[Exit] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # once it runs
        self._time: Callable[[], float] = time.monotonic  # the loop's, then
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # one thread, because what a device does it does in order
        self._waiter = ThreadPoolExecutor(1, "zmqps-waiter")
        # few, for what a thread has freed malloc keeps for that thread
        self._aside = ThreadPoolExecutor(ASIDE_THREADS, "zmqps-aside")
        self._freed = FreedObjects()

    async def run(self) -> Exit:
        """Start the machine and run it until it exits."""
        self._loop = loop = asyncio.get_running_loop()
        look(loop)  # what a node takes before it begins is not a standstill
        self._stood_s = stood_still_s(loop)
        self._exit, self._time, self._began_at = loop.create_future(), loop.time, loop.time()
        self._health.start()
        try:
            self.transport.start(self.deliver, self._arm, self.submit)
            self._do(self.machine.start)  # type: ignore[attr-defined]
            self._arm()
            return await self._exit
        finally:
            self._health.stop()
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks:
                task.cancel()
            for pool in (self._waiter, self._aside):
                pool.shutdown(wait=False, cancel_futures=True)
            self.transport.close(LINGER_S)

    def submit(self, event: Any) -> None:
        """Feed an event that did not come over the network; call it in the loop's thread."""
        if self._exit is not None and not self._exit.done():
            self._do(self.machine.handle, event)
            self._arm()

    def deliver(self, peer: Peer, frames: Sequence[Any]) -> None:
        """Take what a peer has sent, as the transport has it."""
        event: Received | Unreachable | None
        try:
            message = self.decode(frames)
        except PSError as error:
            self.counters["undecodable"] += 1
            # no variable of this function holds it: its traceback leads here, and so the frames would stay in a circle
            self._do(self.machine.handle, Undecodable(peer, error))
            return
        except MemoryError as error:
            self._lost(error, peer)
            return
        else:
            event = self._introduced(peer, message) if type(message) in INTRODUCTIONS else Received(peer, message)
        if event is not None:
            self._do(self.machine.handle, event)

    def _do(self, ask: Callable[..., list[Action]], *events: Any) -> None:
        """Execute what the machine says; a defect takes none of the other actions along."""
        try:
            actions = ask(*events, self._time())
        except Exception as error:
            self._defect(error, *events)
            return
        if self._journal is not None and actions and isinstance(actions[0], Record):
            actions = self._keep(self._journal, actions)
        for action in actions:
            try:
                self._execute(action)
            except Exception as error:
                if isinstance(error, MemoryError) and isinstance(action, Send) and self._failed is None:
                    self._lost(error, action.peer)
                else:
                    self._defect(error, action)

    def _keep(self, journal: Journal, actions: list[Action]) -> list[Action]:
        """Write the records that come first in one transaction; return the actions that follow."""
        records = [action for action in actions if isinstance(action, Record)]
        assert all(isinstance(action, Record) for action in actions[: len(records)]), "records come first"
        journal.write(records)
        return actions[len(records) :]

    def _lost(self, cause: MemoryError, peer: Peer) -> None:
        """There is no memory for a message: it is lost, as on a network, and its sender sends it again."""
        self.counters["out_of_memory"] += 1
        self.transport.make_room()
        line = self._throttle.admit(f"no memory for a message: {cause}", self._time(), peer)
        if line is not None:
            self.log.warning("%s", line)

    def _defect(self, cause: Exception, *about: Any) -> None:
        """Report a defect in taking an event or an action, also to those that wait for its outcome."""
        self.counters["internal_errors"] += 1
        self.log.error("internal error; please report it", exc_info=cause)
        error = InternalError(node=self.machine.title, what=f"{type(cause).__name__}: {cause}"[:MAX_CAUSE_CHARS])
        error.__cause__ = cause
        for one in about:
            peer, request = getattr(one, "peer", b""), getattr(getattr(one, "message", None), "request", 0)
            if request and peer.startswith(INBOUND):
                self.transport.send(peer, encode(m.Error.of(request, error)), ())
        failed, self._failed = self._failed, None
        if failed is not None:
            failed(error)
            self._do(self.machine.handle, Stop("closed"))  # a goodbye, so that others need not find out
            self._execute(Exit(exits.FAILED, str(error)))

    def _execute(self, action: Action) -> None:
        if type(action) is Send:  # before all others: what is done all the time
            if action.after is not None:
                self._spawn(self._send_after(action.after, replace(action, after=None)))
                return
            peer, message = action.peer, action.message
            if type(message) in COMPLETED:
                message = self._complete(peer, message)
            self.transport.send(peer, encode(message), action.readers)
            return
        match action:
            case Resolve(operation, value):
                assert self._resolve is not None
                self._resolve(operation, value)
            case Notify(event):
                if self.notify is not None:
                    self.notify(event)
            case Landed(operation, parameters):
                assert self._landed is not None
                self._landed(operation, parameters)
            case Log(level, text):
                self.log.log(LEVELS[level], "%s", printable(text), extra=action.about())
            case Connect(peer, endpoint):
                try:
                    self.transport.connect(peer, endpoint)
                except PSError as error:
                    self._unreachable(peer, error)
            case Disconnect(peer):
                self.transport.disconnect(peer)
            case Look(peer, endpoint):
                # not awaited: the system's resolver may take a minute
                Thread(target=self._look, args=(self._loop, peer, endpoint), daemon=True).start()
            case Run():
                self._spawn(self._run(action))
            case Exit():
                assert self._exit is not None
                if not self._exit.done():
                    self._exit.set_result(action)

    def _look(self, loop: asyncio.AbstractEventLoop, peer: Peer, endpoint: str) -> None:
        looked = Looked(peer, why_silent(endpoint))
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self.submit, looked)

    # Transports negotiate by means of capabilities, of which the core knows nothing.

    def _introduced(self, peer: Peer, message: m.Message) -> Received | Unreachable | None:
        origin = self.transport.origin(peer) if isinstance(message, m.Hello | m.EndJob) else ""
        if origin is None:  # the peer has disconnected, so its origin is unknown: it says hello again
            return None
        if isinstance(message, m.Hello | m.Welcome):
            try:
                self.transport.greeted(peer, message.capabilities)
            except PSError as error:
                return Unreachable(peer, error)
        return Received(peer, message, origin, self.transport.holder(peer))

    def _complete(self, peer: Peer, message: m.Message) -> m.Message:
        """Add what the transport has to say."""
        if isinstance(message, m.Error):
            if message.code == ServerMemoryError.code:
                self.transport.make_room()
            return message
        if isinstance(message, m.Heartbeat):
            told = m.Heartbeat({**self.facts(), **message.counters})
            self._health.told()
            return told
        if isinstance(message, m.Probed):
            lines = stacks.threads() if message.stacks else ()
            return replace(message, lag_s=self._lag_s, lines=lines)
        if isinstance(message, m.Examined):
            own = {"lag_s": self._lag_s, **({"stacks": stacks.threads()} if message.own else {})}
            return replace(message, findings={**message.findings, **own})
        assert isinstance(message, m.Hello | m.Welcome)
        try:
            return replace(message, capabilities=(*message.capabilities, *self.transport.greeting(peer)))
        except PSError as error:
            self._unreachable(peer, error)
            return message

    def facts(self) -> dict[str, Any]:
        """Return what a heartbeat tells besides the machine's own counters."""
        awake_s = round(self._time() - self._began_at, 3)
        facts = {**self._health.facts(), **self.more(), **self.transport.facts(), **self.counters, **stacks.facts()}
        return {"awake_seconds": awake_s, **facts}

    def _unreachable(self, peer: Peer, error: PSError) -> None:
        self._do(self.machine.handle, Unreachable(peer, error))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_after(self, pending: Pending, send: Send) -> None:
        """Send a message whose payload a device still writes; if it fails the peer gets the error instead."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._waiter, pending.wait)
        except PSError as error:
            send = Send(send.peer, m.Error.of(getattr(send.message, "request", 0), error))
            self.log.error("%s", error, extra={"error": error.number})
        except Exception as error:
            self._defect(error, send)
            return
        self._do(lambda now: [send])

    async def _run(self, run: Run) -> None:
        value: Any
        try:
            value = await asyncio.get_running_loop().run_in_executor(self._aside, self._work, run)
        except Exception as error:
            self.log.debug("what was done aside has failed", exc_info=True)
            value = error.with_traceback(None)  # whose frames hold whatever was allocated
        self.submit(Returned(run.tag, value))

    def _work(self, run: Run) -> Any:
        """Do it, in another thread."""
        with self._freed.reading(run.nbytes) if run.nbytes else contextlib.nullcontext():
            return run.work()

    def _arm(self) -> None:
        """Set the timer to the machine's next deadline, if that has moved."""
        if self._exit is None or self._exit.done():
            return  # after the end the loop goes round a few times more: nothing is sent or opened there
        due = self.machine.next_deadline()
        if due == self._timer_at and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = due
        if due is not None:
            assert self._loop is not None
            self._timer = self._loop.call_at(due, self._ring)

    def _stood_still(self) -> float:
        """Return for how long the loop has stood still since the last time; say so where others noticed."""
        assert self._loop is not None
        before, self._stood_s = self._stood_s, stood_still_s(self._loop)
        stood_s = self._stood_s - before
        if stood_s >= STANDSTILL_S:
            self.log.warning(
                "stood still for %.1f s (stopped, swapped out, or the host was); that time counts against no peer",
                stood_s,
            )
        return stood_s

    def _ring(self) -> None:
        if self._timer_at is not None:
            self._lag_s = max(0.0, self._time() - self._timer_at) + self._stood_still()
            self._health.late(self._lag_s)
        self._timer = self._timer_at = None
        try:
            self._do(self.machine.on_deadline)
        finally:  # also where there is no memory for what is due: it is the next time
            self._arm()


async def run_node(
    driver: Driver,
    announcement: str = "",
    parent_fd: int | None = None,
    drain_s: float = 0.0,
    *,
    hear: Callable[[int], bool] = lambda fd: False,
) -> int:
    """Run a server's or coordinator's driver until it exits; return the process's exit code.

    Ctrl-C and SIGTERM ask the machine to stop, which says goodbye first; a second one ends at once.

    Parameters
    ----------
    driver
        The node.
    announcement
        A line that tells the parent process where this node can be reached.
    parent_fd
        One end of a socket pair whose other end the parent holds. The announcement is written to
        it, and when the parent has ended, in any way, the node stops: no orphans.
    drain_s
        Seconds that the node may take after SIGTERM to hand over what it has.
    hear
        Takes what the parent says through ``parent_fd``; returns whether it is there. By default it says nothing.
    """
    loop = asyncio.get_running_loop()
    asked: list[int] = []

    codes = {signal.SIGINT: exits.INTERRUPTED, signal.SIGTERM: exits.TERMINATED}

    def ask(number: signal.Signals) -> None:
        if asked:
            raise SystemExit(codes[number])
        asked.append(codes[number])
        driver.submit(Stop(number.name, drain_s if number == signal.SIGTERM else 0.0))

    def heard(fd: int) -> None:
        if not hear(fd):
            loop.remove_reader(fd)  # readable without having been written to: the end of the parent
            driver.submit(Stop("the parent process has ended"))

    if parent_fd is not None:
        with contextlib.suppress(BrokenPipeError):  # gone already, which the reader is about to notice
            os.write(parent_fd, announcement.encode() + b"\n")
        loop.add_reader(parent_fd, heard, parent_fd)
    try:
        with answered(codes, ask, from_parent=parent_fd is not None):
            end = await driver.run()
    finally:
        if parent_fd is not None:
            loop.remove_reader(parent_fd)
    driver.log.log(logging.INFO if end.code in (exits.OK, exits.IDLE) else logging.ERROR, "exit: %s", end.reason)
    return asked[0] if asked and end.code == exits.OK and not end.done else end.code
