"""The thread of a host group's leader: its sockets, and the machine that decides (`zmqps.combine.group`)."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from zmqps.combine import meeting
from zmqps.combine.group import MAX_MEMBERS, GroupMachine
from zmqps.combine.memory import Layout, MappedModels
from zmqps.combine.messages import (
    MAX_NBYTES,
    Alone,
    CloseConnection,
    ConnectionEnded,
    Fetched,
    FetchValues,
    Heard,
    Here,
    HostAction,
    HostEvent,
    HostGradients,
    HostMessage,
    Place,
    PushRound,
    Rewound,
    RoundPushed,
    Say,
    Tell,
    decode,
    encode,
)
from zmqps.combine.work import Work
from zmqps.core.protocol.arrays import Array
from zmqps.errors import ConfigurationError, InternalError, ProtocolError, PSError
from zmqps.net.loops import AwakeSelector

#: Models of one member that stay mapped: its own memory for gradients, and its `gradient_buffers`.
NUM_MODELS = 2

log = logging.getLogger("zmqps.host")


@dataclass(frozen=True, slots=True)
class Brought:
    """What a member has brought, and its gradients by parameter, in place."""

    bring: HostGradients
    flat: Mapping[int, Array]


class Leader:
    """Leads the group of one job on this host until it is stopped.

    Parameters
    ----------
    machine
        What it decides; only its thread touches it.
    met
        With the listener.
    path
        Where that listens.
    layout
        Of the gradients that members bring.
    push
        Pushes the sum of what members have brought, and ends the leader's step: ``push(step, brought)``.
    fetch
        Puts values into a place: ``fetch(number, place, step)``.
    places
        The arenas of the places for values.
    """

    def __init__(
        self,
        machine: GroupMachine,
        met: meeting.Met,
        path: Path,
        *,
        layout: Layout,
        push: Callable[[int, Sequence[Brought]], RoundPushed],
        fetch: Callable[[FetchValues], Fetched],
        places: Sequence[list[Place]],
    ) -> None:
        assert met.listener is not None
        self._machine = machine
        machine.values.places = list(places)
        self._selector = AwakeSelector()
        self._listener, self._path, self._file = met.listener, path, met.file
        self._mapped = MappedModels(layout, NUM_MODELS)
        self._brought: dict[int, Brought] = {}  # by member: the last
        self._push, self._fetch = push, fetch
        self._connections: dict[int, socket.socket] = {}
        self._last = 0
        self._happened: deque[HostEvent] = deque()
        self._stopping = False
        self._waker, self._wakes = socket.socketpair()
        self._work = Work("zmqps-host-work", 2)
        self._thread = threading.Thread(target=self._main, name="zmqps-host", daemon=True)
        self._thread.start()

    def rewind(self) -> None:
        """The job went back to a checkpoint; from any thread."""
        self._happen(Rewound())

    def stop(self) -> None:
        """End the group here; its members find together without this one."""
        self._stopping = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def disown(self) -> None:
        """Close, in a forked child, what is the parent's."""
        for one in (self._listener, self._waker, self._wakes, *self._connections.values()):
            one.close()

    def _happen(self, event: HostEvent) -> None:
        self._happened.append(event)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it has ended; or it is about to be woken anyway
            self._waker.send(b"!", socket.MSG_DONTWAIT)

    # --- the thread ---------------------------------------------------------------------------

    def _main(self) -> None:
        selector = self._selector
        for one in (self._listener, self._wakes):
            one.setblocking(False)
            selector.register(one, selectors.EVENT_READ, 0)
        try:
            while not self._stopping:
                for key, _ in selector.select(max(0.0, self._machine.next_deadline() - self._selector.time())):
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    elif key.fileobj is self._wakes:
                        self._wakes.recv(4096)
                    else:
                        self._read(selector, key.data)
                while self._happened:
                    self._carry_out(selector, self._machine.handle(self._happened.popleft(), self._selector.time()))
                if self._selector.time() >= self._machine.next_deadline():
                    self._carry_out(selector, self._machine.on_deadline(self._selector.time()))
        except Exception:
            log.exception("the leader of this host's workers failed; they continue with another one; please report it")
        finally:
            meeting.end(self._listener, self._path, self._file)
            for connection in self._connections.values():
                connection.close()
            selector.close()
            self._work.end()
            self._waker.close()
            self._wakes.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the peer has left
            return
        try:
            meeting.check_peer_user(connection)
            if len(self._connections) >= MAX_MEMBERS:
                raise ConfigurationError(f"there are {MAX_MEMBERS} workers on this host already")
        except (ConfigurationError, OSError) as error:
            log.warning("refused a connection: %s", error)
            connection.close()
            return
        connection.setblocking(False)
        self._last += 1
        self._connections[self._last] = connection
        selector.register(connection, selectors.EVENT_READ, self._last)

    def _read(self, selector: selectors.BaseSelector, number: int) -> None:
        connection = self._connections.get(number)
        if connection is None:
            return
        try:
            data = connection.recv(MAX_NBYTES + 1)
            message = decode(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ProtocolError) as error:
            log.warning("a worker of this host is left out: %s", error)
            message = None
        if isinstance(message, HostGradients):
            try:  # now, as long as it lives
                self._brought[number] = Brought(message, self._mapped.flat(number, message.places))
            except ProtocolError as error:
                log.warning("a worker of this host pushes by itself: %s", error)
                self._send(number, Alone(reads=False))
                message = Here(message.step + 1)
        if message is None:
            self._lose(selector, number)
        else:
            self._carry_out(selector, self._machine.handle(Heard(number, message), self._selector.time()))

    def _lose(self, selector: selectors.BaseSelector, number: int) -> None:
        if self._close(selector, number):
            self._carry_out(selector, self._machine.handle(ConnectionEnded(number), self._selector.time()))

    def _close(self, selector: selectors.BaseSelector, number: int) -> bool:
        connection = self._connections.pop(number, None)
        if connection is None:
            return False
        selector.unregister(connection)
        connection.close()
        self._mapped.forget(number)
        self._brought.pop(number, None)
        return True

    def _carry_out(self, selector: selectors.BaseSelector, actions: Sequence[HostAction]) -> None:
        lost: list[int] = []
        for action in actions:
            if isinstance(action, Tell):
                if not self._send(action.member, action.message):
                    lost.append(action.member)
            elif isinstance(action, CloseConnection):
                self._close(selector, action.member)
            elif isinstance(action, PushRound):
                brought = [self._brought[number] for number in action.brought if number not in lost]
                self._do(partial(self._pushed, action.step, brought))
            elif isinstance(action, FetchValues):
                self._do(partial(self._fetched, action))
            else:
                self._say(action)
        for number in lost:
            self._lose(selector, number)

    def _send(self, number: int, message: HostMessage) -> bool:
        connection = self._connections.get(number)
        if connection is None:
            return False
        try:
            connection.send(encode(message))
        except OSError:  # it has left, or has not read for so long that nothing more fits
            return False
        return True

    def _say(self, action: Say) -> None:
        log.log(logging.WARNING if action.level == "warning" else logging.INFO, "%s", action.text)

    # --- what takes time ----------------------------------------------------------------------

    def _do(self, work: Callable[[], HostEvent]) -> None:
        self._work.submit(lambda: self._happen(work()))

    def _pushed(self, step: int, brought: Sequence[Brought]) -> HostEvent:
        try:
            return self._push(step, brought)
        except PSError as error:
            return RoundPushed(error)
        except Exception as error:
            log.exception("adding up gradients failed; please report it")
            return RoundPushed(InternalError(node="the leader of this host's workers", what=repr(error)[:200]))

    def _fetched(self, fetch: FetchValues) -> HostEvent:
        try:
            return self._fetch(fetch)
        except PSError as error:
            return Fetched(fetch.number, fetch.step, error=error)
        except Exception as error:
            log.exception("reading values failed; please report it")
            what = InternalError(node="the leader of this host's workers", what=repr(error)[:200])
            return Fetched(fetch.number, fetch.step, error=what)
