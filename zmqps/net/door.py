"""The door of a ROUTER: what connections may cost that have not said yet who they are.

ZeroMQ takes whatever a connection sends and keeps it until a message is whole. So the door keeps a
list of *strangers*, connections on which nobody has been welcomed yet, and shuts those that take
longer, send more or are more than they may: `PATIENCE_S`, `ALLOWANCE_NBYTES`, `max_strangers`. It
learns of connections from the socket's monitor, of their bytes from the kernel.

A thread does this, because a node may be busy with one update for longer than a stranger needs to
send a gigabyte. It wakes for events, and while there are strangers every few milliseconds.
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
from zmqps.core.protocol.limits import WINDOW_NBYTES
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

#: From the connection to the Hello, or from one request to the next of somebody who does not join.
PATIENCE_S = 10.0
#: What a stranger may send at first, and so much more a second: a Hello is a few hundred bytes.
ALLOWANCE_NBYTES = 16 << 10
ALLOWANCE_NBYTES_S = 2 << 10
#: It may be a known peer that has come back, whose first message a busy node has not looked at yet: until then it,
#: and twice as much all together, may send what a worker has outstanding.
MAX_UNREAD_NBYTES = 2 * WINDOW_NBYTES
#: A message of a stranger counts as so many bytes more, for what it makes us do.
MESSAGE_NBYTES = 256
#: Strangers at a time; where few descriptors may be open, a quarter of those. The one who came first has to go.
MAX_STRANGERS = 4096
#: Peers who were welcomed, whose connection broke, and who need not say Hello again.
MAX_RETURNING = 8192
#: Between two looks at what strangers have sent, in seconds; longer if there are many of them.
LOOK_S = 0.005
#: The same for what those have sent who were welcomed.
LOOK_KNOWN_S = 0.1
#: What has come so long before, ZeroMQ has read and handed on, and a loop that was asked to look has seen.
SUSPECT_S = 0.05
#: Seconds after the end of a connection what it has left is given back to the system; twice, ZeroMQ is late with some.
TIDY_S, TIDY_TIMES = 1.0, 2
#: So long malloc keeps nothing of what is freed meanwhile.
LET_GO_S = 0.2
#: Nothing is heard of who has sent too many messages for so long.
DEAF_S = 1.0
#: Of a connection of which ZeroMQ has read so much it has handed on the first messages.
HANDED_ON_NBYTES = 128 << 10
#: Between two lines of a kind in the log.
LOG_S = 10.0

TOO_MUCH = "it sent more than a Hello"
ENDLESS = "it sent a message that does not end"
_BROKEN_OFF, _WRONG = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL), int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_ACCEPTED, _FAILED, _GONE = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_ACCEPT_FAILED), int(zmq.EVENT_DISCONNECTED)

log = logging.getLogger("zmqps.door")
T = TypeVar("T")


@dataclass(slots=True, eq=False, kw_only=True)
class Stranger:
    """A connection on which nobody was welcomed yet."""

    address: Credentials | Address  # by which it is recognised
    since: float
    due: float  # when its patience is over
    num_messages: int = 0
    suspect_since: float | None = None  # it has sent more, if it is a stranger still: its messages are looked at first

    def allowed(self, now: float) -> float:
        """Return how many bytes it may have sent."""
        return ALLOWANCE_NBYTES + ALLOWANCE_NBYTES_S * (now - self.since) - MESSAGE_NBYTES * self.num_messages

    def is_suspect(self, now: float) -> bool:
        """Whether its messages, once all that has come was taken, can be no excuse any more."""
        return self.suspect_since is not None and now >= self.suspect_since + SUSPECT_S


class Door:
    """Watches the connections that a ROUTER accepts.

    A connection is named by its descriptor, which ZeroMQ has opened and closes: the number may be
    another one's at any time, so nothing is done to it before it was compared with its address.

    Parameters
    ----------
    router
        The socket, before it is bound.
    gone
        Called when the connection of a peer that was welcomed has ended, as a rule in the door's thread.
    ask
        Called in the door's thread to have the messages taken that are there, and then `judge` called.
    doubt
        Called in the door's thread to have `trust` called at the next message of a peer that was welcomed.
    scarce
        Called in the door's thread when descriptors begin to run short, with True, and when they do no more.
    keyed
        Whether who comes in has to show a key.
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
        self.max_unread_nbytes = MAX_UNREAD_NBYTES  # of a peer that was welcomed
        self._gone = gone
        self._ask = ask
        self._doubt = doubt
        self._tell_scarce = scarce
        self._scarce = False
        self._refusals = RefusalLog(keyed=keyed)
        self._router = router
        self._lock = threading.RLock()
        self._strangers: dict[int, Stranger] = {}  # by descriptor, in the order they came
        self._peers: dict[int, Peer] = {}  # by descriptor: those who were welcomed
        self._descriptors: dict[Peer, int] = {}
        self._accounts: dict[int, Account] = {}  # of those
        self._look_at = self._next_look = 0.0  # at those again, and at strangers, by whoever else asks for it
        self._shut_here: set[int] = set()  # connections that were ended here, until the number is another one's
        self._deaf_to: dict[tuple[Peer, int], float] = {}  # who has sent too many messages, until when
        self._early: set[int] = set()  # welcomed before the monitor has told of them
        self._logged: dict[str, float] = {}
        # descriptors for the time when there are no more: one to look at a connection, one that is let go
        self._null = os.open(os.devnull, os.O_RDWR)
        self._held = os.dup(self._null)
        self._spare: int | None = os.dup(self._null)
        self._refusing = False  # what is accepted was accepted with the spare descriptor
        address = f"inproc://zmqps-door-{id(self)}"
        router.monitor(address, _ACCEPTED | _FAILED | _GONE | _BROKEN_OFF | _WRONG)
        self._monitor: zmq.Socket[bytes] = router.context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.LINGER, 0)
        self._monitor.connect(address)
        self._wake_read, self._wake_write = os.pipe()
        #: Whether the transport throws away what somebody has sent: it cannot tell who the others are meanwhile.
        self.behind = False
        self._closing = False
        self._tidy_due: float | None = None
        self._tidy_left = 0
        self._letting_go = False
        self._resting = False  # the thread, for longer than it may while there are strangers
        self._clock = AwakeClock(time.monotonic())  # of the thread: nobody is late because it stood still
        self._thread = threading.Thread(target=self._run, name="zmqps-door", daemon=True)
        self._thread.start()

    # --- what the transport asks, in its own thread ---------------------------------------------

    def heard(self, peer: Peer, descriptor: int) -> bool:
        """Take note of a message of a stranger; one that sends too many is shut.

        False: it was shut before. What ZeroMQ had taken of it by then still comes, up to a thousand messages, when the
        number of its descriptor may be another one's.
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
        """A peer was welcomed on this connection, or has come back on it; False if the connection has ended already.

        -1: which one it is is not known.
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
        """All that has come was taken: who is a stranger still, and has sent too much, has to go."""
        with self._lock:
            self._settle()
            now = self._now()
            for descriptor in [d for d, stranger in self._strangers.items() if stranger.is_suspect(now)]:
                self._shut(descriptor, TOO_MUCH)

    def fall_behind(self) -> None:
        """The transport throws away what somebody has sent: until it is done, whoever has sent too much has to go."""
        with self._lock:
            self.behind = True
            self._settle()
            if self._now() >= self._next_look:
                self._look(self._now())

    def catch_up(self, *, behind: bool) -> None:
        """One message has been thrown away; ``behind``: there is another one."""
        with self._lock:
            self.behind = behind
            self._tidy_soon()

    def trust(self, peer: Peer) -> None:
        """A message of a peer that was doubted is here: so it does end them."""
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
        """Return how many bytes the host of a peer has confirmed; 0 where that is not known."""
        with self._lock:
            return confirmed(self._descriptors.get(peer, -1))

    def shut(self, descriptor: int, why: str) -> None:
        """End the connection of a stranger; ZeroMQ throws away what has not been delivered of it."""
        with self._lock:
            self._settle()
            if descriptor in self._strangers:
                self._shut(descriptor, why)

    def expel(self, peer: Peer, why: str) -> None:
        """End the connection of a peer that was welcomed."""
        with self._lock:
            self._settle()
            if peer in self._descriptors:
                self._shut(self._descriptors[peer], why)

    def close(self) -> None:
        """Stop watching; call it before the socket is closed."""
        if self._closing:
            return
        # the thread goes on to read meanwhile: ZeroMQ waits for room for its last events
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
        """Do what is due; return how long the thread may rest."""
        with self._lock:
            begin = time.thread_time()
            self._settle()  # before the first wait as well: ZeroMQ signals only to who has found nothing
            self._look(self._now())
            self._tell(self._refusals.overdue(self._now()))
            self._resting = not self._strangers and not self._refusing
            wait = max(LOOK_KNOWN_S if self._resting else LOOK_S, 5 * (time.thread_time() - begin))
            tidy = self._tidy_due is not None and self._now() >= self._tidy_due
        if tidy:
            self._tidy()
        return wait

    def _tidy(self) -> None:
        """Give back messages, and what was made of them: malloc would keep it."""
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
        """Take the monitor's events."""
        while not self._closing and int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event: Any = recv_monitor_message(self._monitor)
            try:
                self._take(int(event["event"]), int(event["value"]))
            except Exception:  # whatever it is: ZeroMQ stops for good when nobody takes its events
                log.exception("internal error; please report it")

    def _take(self, kind: int, value: int) -> None:
        if kind == _ACCEPTED:
            self._accepted(value)
        elif kind == _GONE:
            stranger = self._strangers.get(value)  # none if it had ended before it was looked at
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
        self._ended(descriptor)  # of an earlier connection, which another one of the same peer had replaced
        self._shut_here.discard(descriptor)
        address = self._at(descriptor, address_of)
        if address is None:
            return  # it has ended meanwhile
        now = self._now()
        self._strangers[descriptor] = Stranger(address=address, since=now, due=now + PATIENCE_S)
        if self._resting:  # another thread may have taken the event, and with it what would have woken this one
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
        """Accept what waits, and refuse it: else ZeroMQ tries again at once, and forever."""
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
        """Shut strangers that have taken too long or sent too much; see to the descriptors."""
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
            except OSError:  # somebody else had it
                if self._strangers:
                    self._shut(next(iter(self._strangers)), "there are no descriptors left")

    def _look_at_known(self) -> None:
        """Shut peers that go on and on without an end of a message, all of which ZeroMQ would keep."""
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
        """Return what a function says of a connection; None if it has ended, and the number is no socket any more."""
        try:
            os.dup2(descriptor, self._held, inheritable=False)  # so that it stays the same one meanwhile
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
        """Log a line, if there was none of its kind just now."""
        now = self._now()
        if now >= self._logged.get(kind, 0.0) + LOG_S:
            self._logged[kind] = now
            log.warning("%s", text)


def _max_strangers() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_STRANGERS if limit == resource.RLIM_INFINITY else max(4, min(MAX_STRANGERS, limit // 4))
