"""A member's connection to the leader of its host group."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading

from zmqps.combine.meeting import Met
from zmqps.combine.messages import (
    MAX_NBYTES,
    Alive,
    HostMessage,
    HostWaiting,
    Joined,
    JoinGroup,
    Pushing,
    decode,
    encode,
)
from zmqps.errors import ProtocolError
from zmqps.net.loops import AwakeSelector, Deadline

#: Seconds between signs of life until the leader has said how many.
INTERVAL_S = 1.0


class LeaderGoneError(Exception):
    """The leader has left, or is silent; ``pushing``: it may have pushed what it was given."""

    def __init__(self, *, pushing: bool) -> None:
        super().__init__()
        self.pushing = pushing


class Membership:
    """Asks the leader, one question at a time, and says that this process lives.

    Parameters
    ----------
    met
        With the connection.
    title
        This process's identity.
    pid
        Its process.
    step
        Of its next gradients.
    timeout
        Seconds of silence after which the leader is taken for lost, until it has said how many.
    """

    def __init__(self, met: Met, title: str, pid: int, step: int, timeout: float) -> None:
        self.met = met
        self.step = step  # asynchronous: the next round
        self.leader = "the leader of this host's workers"
        self.waiting = self.leader
        self._pushing = False
        self._interval, self._timeout = INTERVAL_S, timeout
        self._answers: queue.SimpleQueue[HostMessage | None] = queue.SimpleQueue()  # a few for each question
        self._closed = False
        met.connection.settimeout(INTERVAL_S)
        self.tell(JoinGroup(title, pid, step))
        self._thread = threading.Thread(target=self._main, name="zmqps-host-member", daemon=True)
        self._thread.start()

    def tell(self, message: HostMessage) -> None:
        """Say something that is not answered, or not yet."""
        with contextlib.suppress(OSError):  # the thread notices
            self.met.connection.send(encode(message))

    def ask(self, message: HostMessage | None, timeout: float) -> HostMessage | None:
        """Ask, and return the answer; None: none came in that many seconds.

        Raises
        ------
        LeaderGoneError
            The leader is.
        """
        self._pushing = False
        if message is not None:
            self.tell(message)
        deadline = Deadline(timeout)
        while True:
            wait_s = deadline.wait_s()
            try:
                answer = self._answers.get(timeout=wait_s)
            except queue.Empty:
                if wait_s:
                    continue
                return None
            if answer is None:
                self._answers.put(None)  # for the next caller
                raise LeaderGoneError(pushing=self._pushing)
            if isinstance(answer, HostWaiting):
                self.waiting = answer.text
            elif isinstance(answer, Pushing):
                self._pushing, self.waiting = True, "the servers' acknowledgements of this host's push"
            else:
                return answer

    def close(self) -> None:
        """Leave the group."""
        self._closed = True
        with contextlib.suppress(OSError):
            self.met.connection.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def disown(self) -> None:
        """Close, in a forked child, what is the parent's."""
        self.met.connection.close()

    def _main(self) -> None:
        with AwakeSelector() as selector:
            selector.register(self.met.connection, selectors.EVENT_READ)
            with contextlib.suppress(OSError, ProtocolError):
                self._listen(selector)
        self._read_rest()
        self.met.connection.close()
        self._answers.put(None)

    def _read_rest(self) -> None:
        """Let the leader say nothing more, and take what it has said by now.

        One that was asleep may push just now what it was brought, and has said so first: that is read here, or could
        not be sent, and then this member is left out.
        """
        connection = self.met.connection
        with contextlib.suppress(OSError, ProtocolError):
            connection.shutdown(socket.SHUT_RDWR)  # from here on the leader's messages are refused
            while data := connection.recv(MAX_NBYTES + 1):
                self._take(decode(data))

    def _take(self, message: HostMessage) -> None:
        if isinstance(message, Joined):
            self._interval, self._timeout, self.step = message.interval, message.timeout, message.step
            self.leader = message.name
        if not isinstance(message, Alive):
            self._answers.put(message)

    def _listen(self, selector: AwakeSelector) -> None:
        """Take what the leader says, until it leaves or is silent."""
        connection = self.met.connection
        heard_at = beat_at = selector.time()
        while not self._closed:
            if selector.select(self._interval / 2):
                data = connection.recv(MAX_NBYTES + 1)
                if not data:
                    return
                heard_at = selector.time()
                self._take(decode(data))
            elif selector.time() - heard_at > self._timeout:
                return
            if selector.time() - beat_at >= self._interval / 2:
                beat_at = selector.time()
                self.tell(Alive())
