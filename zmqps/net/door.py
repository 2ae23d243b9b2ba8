"""The door of a ROUTER: what connections may cost before they are welcomed.

ZeroMQ reads whatever a connection sends and keeps it until a message is complete. So the door has a list of
*strangers*, connections without a welcomed peer, and shuts those that take longer, send more or are more than allowed:
`PATIENCE_S`, `ALLOWANCE_NBYTES`, `max_strangers`. It learns of connections from the socket's monitor, of their bytes
from the kernel.

A separate thread does this, because a node may be busy with one update for longer than a stranger needs to send a
gigabyte. It wakes for events, and every few milliseconds while there are strangers.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import zmq
from zmq.utils.monitor import recv_monitor_message

from zmqps.core.node.awake import AwakeClock
from zmqps.core.protocol.events import Peer
from zmqps.core.protocol.message import WINDOW_NBYTES
from zmqps.net.connections import (
    Account,
    Address,
    Credentials,
    address_of,
    are_scarce,
    borrowed,
    confirmed,
    end_now,
    received,
    waiting,
)
from zmqps.net.refusals import RefusalLog
from zmqps.net.sockets import free_in_io_threads
from zmqps.net.system.memory import give_back_freed_memory, keep_freed_memory, let_freed_memory_go

#: Seconds from the connection to the Hello, or between two requests of a client that does not join.
PATIENCE_S = 10.0
#: What a stranger may send at first, and per second after that: a Hello is a few hundred bytes.
ALLOWANCE_NBYTES = 16 << 10
ALLOWANCE_NBYTES_S = 2 << 10
#: It may be a returning peer whose first message a busy node has not read yet: until then it may send what a worker has
#: in flight, and all of them together twice as much.
MAX_UNREAD_NBYTES = 2 * WINDOW_NBYTES
#: The bytes that each message of a stranger counts in addition, for the work it causes.
MESSAGE_NBYTES = 256
#: Strangers at a time; a quarter of the descriptor limit if that is less. The oldest is shut.
MAX_STRANGERS = 4096
#: Welcomed peers whose connection broke, and that need not send Hello again.
MAX_RETURNING = 8192
#: Seconds between two checks of strangers' bytes; longer if there are many.
LOOK_S = 0.005
#: The same for welcomed peers.
LOOK_KNOWN_S = 0.1
#: Data older than this has been read by ZeroMQ and seen by a loop that was asked to check.
SUSPECT_S = 0.05
#: Seconds after the end of a connection until its memory is returned to the system; twice, because ZeroMQ is late with
#: some.
TIDY_S, TIDY_TIMES = 1.0, 2
#: Seconds during which malloc keeps nothing of what is freed meanwhile.
LET_GO_S = 0.2
#: Seconds during which a sender of too many messages is ignored.
DEAF_S = 1.0
#: Bytes read by ZeroMQ after which the first messages of a connection have been delivered.
HANDED_ON_NBYTES = 128 << 10
#: Seconds between two log lines of a kind.
LOG_S = 10.0

TOO_MUCH = "it sent more than a Hello"
ENDLESS = "it sent a message that does not end"
_BROKEN_OFF, _WRONG = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL), int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_ACCEPTED, _FAILED, _GONE = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_ACCEPT_FAILED), int(zmq.EVENT_DISCONNECTED)

log = logging.getLogger("zmqps.door")
T = TypeVar("T")


@dataclass(slots=True, eq=False, kw_only=True)
class Stranger:
    """A connection without a welcomed peer."""

    address: Credentials | Address  # which identifies it
    since: float
    due: float  # its deadline
    num_messages: int = 0
    suspect_since: float | None = None  # it has sent too much if it is still a stranger: its messages are read first

    def allowed(self, now: float) -> float:
        """Return how many bytes it may have sent."""
        return ALLOWANCE_NBYTES + ALLOWANCE_NBYTES_S * (now - self.since) - MESSAGE_NBYTES * self.num_messages

    def is_suspect(self, now: float) -> bool:
        """Whether its messages can be no excuse any more once all arrivals were processed."""
        return self.suspect_since is not None and now >= self.suspect_since + SUSPECT_S


class Door:
    """Watches the connections that a ROUTER accepts.

    A connection is identified by its descriptor, which ZeroMQ opens and closes. The number may be reused at any time,
    so each action first compares its address.

    Parameters
    ----------
    router
        The socket, before it is bound.
    gone
        Called when a welcomed peer's connection has ended, usually in the door's thread.
    ask
        Called in the door's thread to have pending messages taken, and then `judge` called.
    doubt
        Called in the door's thread to have `trust` called at the next message of a welcomed peer.
    scarce
        Called in the door's thread with True when descriptors become scarce, and with False afterwards.
    keyed
        Whether connections must show a key.
    """

    def __init__(
        self,
        router: zmq.Socket[bytes],
        gone: Callable[[Peer], None],
        ask: Callable[[], None],
        doubt: Callable[[Peer], None],
        scarce: Callable[[bool], None],
        *,
        keyed: bool = False,
    ) -> None:
        self.counters = {"connections_shut": 0, "accepts_failed": 0}
        self.max_strangers = _max_strangers()
        self.max_unread_nbytes = MAX_UNREAD_NBYTES  # of a welcomed peer
        self._gone = gone
        self._ask = ask
        self._doubt = doubt
        self._tell_scarce = scarce
        self._scarce = False
        self._refusals = RefusalLog(keyed=keyed)
        self._router = router
        self._lock = threading.RLock()
        self._strangers: dict[int, Stranger] = {}  # by descriptor, in order of arrival
        self._peers: dict[int, Peer] = {}  # by descriptor: the welcomed ones
        self._descriptors: dict[Peer, int] = {}
        self._accounts: dict[int, Account] = {}  # of those
        self._look_at = self._next_look = 0.0  # the next checks of peers, and of strangers on request
        self._shut_here: set[int] = set()  # connections closed here, until the number is reused
        self._deaf_to: dict[tuple[Peer, int], float] = {}  # senders of too many messages, until when
        self._early: set[int] = set()  # welcomed before the monitor's event
        self._logged: dict[str, float] = {}
        # spare descriptors for when there are no more: one to examine a connection, one to accept and close
        self._null = os.open(os.devnull, os.O_RDWR)
        self._held = os.dup(self._null)
        self._spare: int | None = os.dup(self._null)
        self._refusing = False  # the spare descriptor is in use for an accept
        address = f"inproc://zmqps-door-{id(self)}"
        router.monitor(address, _ACCEPTED | _FAILED | _GONE | _BROKEN_OFF | _WRONG)
        self._monitor: zmq.Socket[bytes] = router.context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.LINGER, 0)
        self._monitor.connect(address)
        self._wake_read, self._wake_write = os.pipe()
        #: Whether the transport discards an oversized message: it cannot identify other senders meanwhile.
        self.behind = False
        self._closing = False
        self._tidy_due: float | None = None
        self._tidy_left = 0
        self._letting_go = False
        self._resting = False  # the thread waits for longer than it may while there are strangers
        self._clock = AwakeClock(time.monotonic())  # of the thread: no stranger is late because the thread was stopped
        self._thread = threading.Thread(target=self._run, name="zmqps-door", daemon=True)
        self._thread.start()

    # --- called by the transport, in its own thread ---------------------------------------------

    def heard(self, peer: Peer, descriptor: int) -> bool:
        """Count a message of a stranger; one that sends too many is shut.

        False: it was shut before. Messages that ZeroMQ had read by then still arrive, up to a thousand, when the number
        of its descriptor may have been reused.
        """
        now = self._now()
        with self._lock:
            self._settle()
            if now < self._deaf_to.get((peer, descriptor), 0.0):
                return False
            stranger = self._strangers.get(descriptor)
            if stranger is not None:
                stranger.num_messages += 1
                stranger.due = now + PATIENCE_S
                if stranger.allowed(now) < 0:
                    self._shut(descriptor, TOO_MUCH)
                    self._deaf_to[peer, descriptor] = now + DEAF_S
                    if len(self._deaf_to) > MAX_STRANGERS:
                        del self._deaf_to[next(iter(self._deaf_to))]
            return descriptor not in self._shut_here

    def admit(self, peer: Peer, descriptor: int) -> bool:
        """Welcome a peer on this connection, or note its return; False if the connection has ended already.

        -1: the connection is unknown.
        """
        with self._lock:
            self._settle()
            if descriptor < 0 or self._descriptors.get(peer) == descriptor:
                return True
            stranger = self._strangers.pop(descriptor, None)
            if stranger is not None:
                self._accounts[descriptor] = Account(stranger.address)
            elif descriptor not in self._peers:
                address = self._at(descriptor, address_of)
                if address is None:
                    return False
                self._accounts[descriptor] = Account(address)
                self._early.add(descriptor)
            self._forget(self._descriptors.get(peer, -1))
            old = self._peers.get(descriptor)
            if old is not None:
                del self._descriptors[old]
            self._peers[descriptor] = peer
            self._descriptors[peer] = descriptor
            return True

    def judge(self) -> None:
        """All arrivals were processed: shut those that are still strangers and have sent too much."""
        with self._lock:
            self._settle()
            now = self._now()
            for descriptor in [d for d, stranger in self._strangers.items() if stranger.is_suspect(now)]:
                self._shut(descriptor, TOO_MUCH)

    def fall_behind(self) -> None:
        """The transport discards an oversized message: until it is done, shut every stranger that has sent too much."""
        with self._lock:
            self.behind = True
            self._settle()
            if self._now() >= self._next_look:
                self._look(self._now())

    def catch_up(self, *, behind: bool) -> None:
        """One message has been discarded; ``behind``: there is another one."""
        with self._lock:
            self.behind = behind
            self._tidy_soon()

    def trust(self, peer: Peer) -> None:
        """A message of a doubted peer has arrived: so it does end them."""
        with self._lock:
            descriptor = self._descriptors.get(peer, -1)
            account = self._accounts.get(descriptor)
            if account is not None:
                account.heard_at_nbytes, account.doubted = received(descriptor), False

    def is_here(self, peer: Peer) -> bool:
        """Whether a peer has a connection."""
        with self._lock:
            return peer in self._descriptors

    def confirmed(self, peer: Peer) -> int:
        """Return how many bytes the host of a peer has confirmed; 0 if unknown."""
        with self._lock:
            return confirmed(self._descriptors.get(peer, -1))

    def shut(self, descriptor: int, why: str) -> None:
        """End the connection of a stranger; ZeroMQ discards its undelivered messages."""
        with self._lock:
            self._settle()
            if descriptor in self._strangers:
                self._shut(descriptor, why)

    def expel(self, peer: Peer, why: str) -> None:
        """End the connection of a welcomed peer."""
        with self._lock:
            self._settle()
            if peer in self._descriptors:
                self._shut(self._descriptors[peer], why)

    def close(self) -> None:
        """Stop watching; call it before the socket is closed."""
        if self._closing:
            return
        # the thread continues to read meanwhile: ZeroMQ waits for room for its last events
        self._router.disable_monitor()
        self._closing = True
        os.write(self._wake_write, b"x")
        self._thread.join()
        self._monitor.close(0)
        for descriptor in (self._null, self._held, self._spare, self._wake_read, self._wake_write):
            if descriptor is not None:
                os.close(descriptor)

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        poller = select.poll()
        poller.register(int(self._monitor.FD), select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        while not self._closing:
            wait = LOOK_KNOWN_S
            try:
                wait = self._turn()
            except Exception:
                log.exception("internal error; please report it")
            self._clock.look(time.monotonic(), wait)
            if any(descriptor == self._wake_read for descriptor, _ in poller.poll(1000 * wait)):
                os.read(self._wake_read, 1)

    def _now(self) -> float:
        return self._clock.now(time.monotonic())

    def _turn(self) -> float:
        """Do what is due; return how long the thread may wait."""
        with self._lock:
            begin = time.thread_time()
            self._settle()  # before the first wait, too: ZeroMQ only signals a reader that has found nothing
            self._look(self._now())
            self._tell(self._refusals.overdue(self._now()))
            self._resting = not self._strangers and not self._refusing
            wait = max(LOOK_KNOWN_S if self._resting else LOOK_S, 5 * (time.thread_time() - begin))
            tidy = self._tidy_due is not None and self._now() >= self._tidy_due
        if tidy:
            self._tidy()
        return wait

    def _tidy(self) -> None:
        """Return memory of messages, and of objects made from them: malloc would keep it."""
        now = self._now()
        self._letting_go = not self._letting_go
        if self._letting_go:
            let_freed_memory_go()
            self._tidy_due = now + LET_GO_S
            return
        free_in_io_threads(self._router.context)
        give_back_freed_memory()
        keep_freed_memory()
        self._tidy_left -= 1
        self._tidy_due = now + TIDY_S if self._tidy_left > 0 else None

    def _tidy_soon(self) -> None:
        self._tidy_left = TIDY_TIMES
        self._tidy_due = self._tidy_due or self._now() + TIDY_S

    def _settle(self) -> None:
        """Process the monitor's events."""
        while not self._closing and int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event: Any = recv_monitor_message(self._monitor)
            try:
                self._take(int(event["event"]), int(event["value"]))
            except Exception:  # any error: ZeroMQ stops for good if its events are not read
                log.exception("internal error; please report it")

    def _take(self, kind: int, value: int) -> None:
        if kind == _ACCEPTED:
            self._accepted(value)
        elif kind == _GONE:
            stranger = self._strangers.get(value)  # none if it ended before it was examined
            self._tell(self._refusals.ended(None if stranger is None else stranger.address, self._now()))
            self._ended(value)
            self._tidy_soon()
        elif kind == _FAILED:
            self._failed(value)
        else:
            self._refusals.failed(kind, value)

    def _accepted(self, descriptor: int) -> None:
        if descriptor in self._early:
            self._early.discard(descriptor)
            return
        self._ended(descriptor)  # of an earlier connection, replaced by another one of the same peer
        self._shut_here.discard(descriptor)
        address = self._at(descriptor, address_of)
        if address is None:
            return  # it has ended meanwhile
        now = self._now()
        self._strangers[descriptor] = Stranger(address=address, since=now, due=now + PATIENCE_S)
        if self._resting:  # another thread may have taken the event that would have woken this one
            self._resting = False
            os.write(self._wake_write, b"x")
        if self._refusing:
            self._shut(descriptor, "there are no descriptors left")
        elif isinstance(address, Credentials) and address.uid not in (0, os.geteuid()):
            self._shut(descriptor, "it is of another user")
        while len(self._strangers) > self.max_strangers:
            self._shut(next(iter(self._strangers)), f"there are {self.max_strangers} others")

    def _ended(self, descriptor: int) -> None:
        self._strangers.pop(descriptor, None)
        peer = self._peers.get(descriptor)
        if peer is not None:
            self._forget(descriptor)
            self._gone(peer)

    def _forget(self, descriptor: int) -> None:
        self._accounts.pop(descriptor, None)
        peer = self._peers.pop(descriptor, None)
        if peer is not None:
            del self._descriptors[peer]

    def _failed(self, number: int) -> None:
        """Accept and close waiting connections: otherwise ZeroMQ retries at once, forever."""
        self.counters["accepts_failed"] += 1
        if number not in (errno.EMFILE, errno.ENFILE):
            self._say("accept", f"cannot accept a connection: {os.strerror(number)}")
            return
        self._say("accept", "no descriptors left to accept connections with: raise the limit with `ulimit -n`")
        self._refusing = True
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _look(self, now: float) -> None:
        """Shut strangers that are late or have sent too much; watch the descriptors."""
        begin = time.thread_time()
        scarce = are_scarce(self._null)
        if scarce is not None and scarce != self._scarce:
            self._scarce = scarce
            self._tell_scarce(scarce)
        suspected, unread = False, 0
        for descriptor, stranger in list(self._strangers.items()):
            nbytes = received(descriptor)
            if self.behind and nbytes <= stranger.allowed(now):
                stranger.due = now + PATIENCE_S  # its Hello may have come
            elif now >= stranger.due:
                self._shut(descriptor, f"no Hello in {PATIENCE_S:.0f} s")
            elif nbytes > stranger.allowed(now):
                unread += nbytes
                if self.behind or nbytes > MAX_UNREAD_NBYTES or unread > 2 * MAX_UNREAD_NBYTES:
                    self._shut(descriptor, TOO_MUCH)
                elif nbytes - waiting(descriptor) > HANDED_ON_NBYTES:
                    stranger.suspect_since = now - SUSPECT_S
                elif stranger.suspect_since is None:
                    stranger.suspect_since = now
                suspected |= stranger.is_suspect(now)
        if suspected:
            self._ask()
        self._next_look = now + 5 * (time.thread_time() - begin)
        if now >= self._look_at:
            begin = time.thread_time()
            self._look_at_known()
            self._look_at = now + max(LOOK_KNOWN_S, 20 * (time.thread_time() - begin))
        if self._refusing and self._spare is None:
            try:
                self._spare = os.dup(self._null)
                self._refusing = False
            except OSError:  # another thread took it
                if self._strangers:
                    self._shut(next(iter(self._strangers)), "there are no descriptors left")

    def _look_at_known(self) -> None:
        """Shut peers with an endless message, all of which ZeroMQ would keep."""
        for descriptor, account in list(self._accounts.items()):
            nbytes = received(descriptor)
            if nbytes - account.heard_at_nbytes <= self.max_unread_nbytes:
                continue
            if account.doubted:
                self._shut(descriptor, ENDLESS)
            else:
                account.heard_at_nbytes, account.doubted = nbytes, True
                self._doubt(self._peers[descriptor])

    def _shut(self, descriptor: int, why: str) -> None:
        known = self._strangers.pop(descriptor, None) or self._accounts.get(descriptor)
        address = None if known is None else known.address

        def end(connection: socket.socket) -> None:
            if address_of(connection) == address:
                end_now(connection)
                self._shut_here.add(descriptor)
                self.counters["connections_shut"] += 1
                self._say(why, f"shut a connection {address}: {why}")

        self._at(descriptor, end)

    def _at(self, descriptor: int, do: Callable[[socket.socket], T]) -> T | None:
        """Return a function's result for a connection; None if it has ended and its number is another socket's."""
        try:
            os.dup2(descriptor, self._held, inheritable=False)  # so that it stays the same connection meanwhile
            with borrowed(self._held) as connection:
                return do(connection)
        except OSError:
            return None
        finally:
            os.dup2(self._null, self._held, inheritable=False)

    def _tell(self, line: str | None) -> None:
        if line is not None:
            log.warning("%s", line)

    def _say(self, kind: str, text: str) -> None:
        """Log a line, unless one of its kind was logged just now."""
        now = self._now()
        if now >= self._logged.get(kind, 0.0) + LOG_S:
            self._logged[kind] = now
            log.warning("%s", text)


def _max_strangers() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_STRANGERS if limit == resource.RLIM_INFINITY else max(4, min(MAX_STRANGERS, limit // 4))
