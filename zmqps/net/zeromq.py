"""The ZeroMQ transport: one ROUTER that peers connect to, and a DEALER for each connection that this node opens."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import zmq

from zmqps.core.protocol.events import Disconnected, Peer, Reader, Unreachable
from zmqps.core.protocol.message import MAX_BACKLOG_NBYTES
from zmqps.core.protocol.security.roles import KeyHolder, shut_out
from zmqps.core.protocol.wire import MAX_FRAME_NBYTES, MAX_FRAMES, MAX_STRANGE_HEADER_NBYTES
from zmqps.keys.curve import CONTESTED_S, LAST_WORD_S, TAKEN, Gate
from zmqps.keys.keyring import Keys
from zmqps.net.backlog import LOOK_NBYTES, MARK_NBYTES, STUCK_S, Backlog, Backlogs, discard_frames, most_waits_for
from zmqps.net.connections import origin_of
from zmqps.net.dealer import Dealers
from zmqps.net.door import MAX_RETURNING, MAX_UNREAD_NBYTES, PATIENCE_S, TOO_MUCH, Door
from zmqps.net.sockets import SideDoor, bind_socket, descriptor_of, new_router
from zmqps.net.system.memory import RESERVE_S, Reserve, keep_freed_memory
from zmqps.net.transport import INBOUND, Deliver, Noticed, PutOff

#: Messages before timers and other callbacks of the loop get their turn, and seconds: new pages can take long.
BATCH, BATCH_S = 256, 0.1

#: Frames below this are copied into the message: cheaper than telling when they are free again.
COPY_NBYTES = 64 << 10

# plain integers: to combine the members of an enumeration costs more than the call that they are for
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
_DONTWAIT, _MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE)


def readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message is there; as a call of ZeroMQ it also lets the next one be announced."""
    return bool(int(socket.getsockopt(_EVENTS)) & _POLLIN)


def send_frames(
    socket: zmq.Socket[bytes], frames: Sequence[Any], *, track: bool, backlog: Backlog | None = None
) -> list[zmq.Frame]:
    """Queue a message; return the frames that ZeroMQ continues to read, if tracked.

    pyzmq's own `send_multipart` tracks the last frame only, and calls it done at once if it is a small one.
    """
    tracked = []
    last, total, mark = len(frames) - 1, 0, False  # the last frame leaves last, and so tells for all
    for i, frame in enumerate(frames):
        flags = _MORE if i < last else _DONTWAIT
        nbytes = len(frame) if type(frame) is bytes else memoryview(frame).nbytes
        total += nbytes
        if i == last:
            mark = backlog is not None and backlog.fresh + total > MARK_NBYTES
        if nbytes < COPY_NBYTES and not mark:
            socket.send(frame, flags)
            continue
        aliased = zmq.Frame(frame if nbytes >= COPY_NBYTES else bytes(frame), track=track or mark, copy=False)
        socket.send(aliased, flags, copy=False)
        if track or mark:
            tracked.append(aliased)
    if backlog is not None:
        backlog.nbytes, backlog.fresh = backlog.nbytes + total, backlog.fresh + total
        backlog.all.queued_nbytes += total
        if mark:
            backlog.mark(zmq.MessageTracker(tracked[-1]))
    return tracked


def receive_frames(socket: zmq.Socket[bytes]) -> list[memoryview] | None:
    """Return the frames of a message that is there, or of its rest; None if there are more than any message has."""
    frames = []
    for _ in range(1 + MAX_FRAMES):
        frame = socket.recv(_DONTWAIT, copy=False)
        frames.append(frame.buffer)
        if not frame.more:
            return frames
    return None


class ZmqTransport:
    """Moves frames through ZeroMQ sockets inside an asyncio loop.

    ZeroMQ signals readiness on an edge-triggered descriptor: once it fires, the sockets are
    drained until they are empty, and again after every send, which may have swallowed the edge.

    Parameters
    ----------
    io_threads
        How many threads of ZeroMQ read and write sockets; connections are spread over them.
    arrays
        Whether peers that connect here send arrays; if not, frames are limited to a header's size.
    keys
        Encrypt connections, and decide which peers may open one; None: no encryption, and any peer may.
    role
        The role whose key this end shows when it connects: a server's, worker's, observer's, or an ``operator``'s.
    """

    def __init__(
        self, io_threads: int = 1, *, arrays: bool = True, keys: Keys | None = None, role: str = "operator"
    ) -> None:
        keep_freed_memory()
        self._arrays = arrays
        #: Returns the bytes of the largest array message that a peer may send; asked in the loop's thread.
        self.largest_nbytes: Callable[[], int] = lambda: MAX_FRAMES * MAX_FRAME_NBYTES if arrays else 0
        self.counters: Counter[str] = Counter()
        self._context = zmq.Context(io_threads=io_threads)
        self._keys = keys
        self._reserve: Reserve | None = None  # of a node that takes arrays
        self._gate: Gate | None = None  # with keys: which peers may connect here
        self._router: zmq.Socket[bytes] | None = None
        self._dealers = Dealers(self._context, role, keys, self._add, self._remove)
        self._sockets: list[tuple[Peer, zmq.Socket[bytes]]] = []
        self._door: Door | None = None
        self._side_door: SideDoor | None = None  # for peers on this host
        self._known: dict[Peer, None] = {}  # peers that were welcomed and are connected
        self._doubted: set[Peer] = set()  # those whose next message the door wants to see
        self._returning: OrderedDict[Peer, None] = OrderedDict()  # peers whose connection broke
        self._current: tuple[Peer, int] = b"", -1  # the unknown peer whose message is being read, and its connection
        self._backlogs = Backlogs()  # one for each known peer, one for all others
        self._put_off = PutOff()
        self._overlong: set[zmq.Socket[bytes]] = set()  # the rest of a message is being thrown away here
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deliver: Deliver = lambda peer, frames: None
        self._delivered: Callable[[], None] = lambda: None
        self._tell: Noticed = lambda event: None
        self._scheduled = False
        self._to_drain: dict[zmq.Socket[bytes], Peer] = {}  # where a message may be
        self._drained: zmq.Socket[bytes] | None = None  # the one that is being drained

    def start(self, deliver: Deliver, delivered: Callable[[], None], noticed: Noticed) -> None:
        """Begin to deliver in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._deliver, self._delivered, self._tell = deliver, delivered, noticed
        self._dealers.start(self._loop, noticed, self._schedule)
        for peer, socket in self._sockets:
            self._watch(peer, socket)

    def bind(self, endpoint: str) -> str:
        """Accept connections on an endpoint such as ``tcp://127.0.0.1:0``; may be called for several.

        Raises
        ------
        AddressInUseError
            Names the port and, if known, the process that holds it.
        ConfigurationError
            The endpoint is invalid, or names an interface this host does not have.
        """
        bound = bind_socket(self._router or self._new_router(), endpoint)
        if bound.startswith("ipc:"):
            assert self._router is not None
            self._side_door = SideDoor(self._router, bound)
        return bound

    def _mind_side_door(self, scarce: bool) -> None:
        if self._side_door is not None and self._loop is not None:
            self._side_door.shut() if scarce else self._side_door.open(self._loop)

    def _new_router(self) -> zmq.Socket[bytes]:
        if self._keys is not None:
            self._gate = Gate(self._context, self._keys, lambda: self._soon(self._look_at_keys))
        self._router = router = new_router(self._context, patience_s=PATIENCE_S, arrays=self._arrays)
        if self._gate is not None:
            self._gate.secure(router)
        self._reserve = Reserve() if self._arrays else None
        zmq.Frame(b"", track=True, copy=False)  # pyzmq's thread starts now, not in the middle of a large answer
        if sys.platform == "linux":  # elsewhere the kernel does not tell what has come over a connection
            self._door = Door(
                router,
                gone=lambda peer: self._soon(self._later, peer),
                ask=lambda: self._soon(self._later, b""),
                doubt=lambda peer: self._soon(self._doubt, peer),
                scarce=lambda scarce: self._soon(self._mind_side_door, scarce),
                keyed=self._gate is not None,
            )
            self._set_bound()
        self._add(b"", router)
        return router

    def connect(self, peer: Peer, endpoint: str) -> None:
        """Open a connection in the background; it comes back by itself when it breaks. Raises as `Dealer` does."""
        self._dealers.open(peer, endpoint)

    def disconnect(self, peer: Peer) -> None:
        """Close a connection that was opened here."""
        self._dealers.hang_up(peer)

    def _add(self, peer: Peer, socket: zmq.Socket[bytes]) -> None:
        self._sockets.append((peer, socket))
        if self._loop is not None:
            self._watch(peer, socket)

    def _remove(self, peer: Peer, socket: zmq.Socket[bytes]) -> None:
        self._sockets.remove((peer, socket))
        self._to_drain.pop(socket, None)
        self._overlong.discard(socket)
        if self._loop is not None:
            self._loop.remove_reader(socket.FD)

    def _watch(self, peer: Peer, socket: zmq.Socket[bytes]) -> None:
        assert self._loop is not None
        self._loop.add_reader(socket.FD, self._drain, peer, socket)
        self._schedule()

    def send(self, peer: Peer, frames: Sequence[Any], readers: Sequence[list[Reader]]) -> bool:
        """Queue a message; large frames are not copied and stay in use until their reader is done."""
        socket, backlog = self._dealers.sockets.get(peer), None
        if socket is None and peer.startswith(INBOUND) and self._router is not None:
            socket, frames = self._router, [peer[len(INBOUND) :], *frames]
            backlog = self._backlogs.get(peer) or self._backlogs[b""]
        if socket is None or (
            backlog is not None and backlog.nbytes > MAX_BACKLOG_NBYTES and self._stuck(peer, backlog)
        ):
            self.counters["undeliverable"] += 1
            return False
        try:
            tracked = send_frames(socket, frames, track=bool(readers), backlog=backlog)
        except zmq.ZMQError:  # not connected, or its queue is full: the sender will try again
            self.counters["undeliverable"] += 1
            return False
        finally:  # the send may have swallowed the edge that announced a message
            if socket is not self._drained and (self._drained is not None or self._scheduled or readable(socket)):
                self._to_drain[socket] = b"" if socket is self._router else peer
                self._drain_soon()
        if self._backlogs.queued_nbytes > LOOK_NBYTES and self._door is not None and self._loop is not None:
            self._backlogs.relieve(self._door, self._loop.time())
        if tracked and readers:
            tracker = zmq.MessageTracker(*tracked)
            for watchers in readers:
                watchers.append(tracker)
        return True

    def _stuck(self, peer: Peer, backlog: Backlog) -> bool:
        """Return whether a peer has too much to read already; one that reads nothing at all is shut."""
        assert self._loop is not None
        now = self._loop.time()
        if not backlog.is_full(now, MAX_BACKLOG_NBYTES):
            return False
        if self._door is not None:
            backlog.note(self._door.confirmed(peer), now)
            assert backlog.stuck_since is not None
            if peer not in self._backlogs:
                self._door.shut(self._current[1], "it does not read what it has asked for")
            elif now >= backlog.stuck_since + STUCK_S:
                self._door.expel(peer, "it does not read what it has asked for")
        return True

    def make_room(self) -> None:
        """Let the reserve be used, and disconnect the peer that makes this node hold most by not reading it."""
        if self._reserve is not None and self._loop is not None and self._door is not None:
            if self._reserve.give():
                self._loop.call_later(RESERVE_S, self._reserve.take)
            if (peer := most_waits_for(self._backlogs)) is not None:
                self._door.expel(peer, "memory is short here, and it has not read what it has asked for")

    def _schedule(self) -> None:
        """Drain all soon, whether an edge announces it or not."""
        self._to_drain.update((socket, peer) for peer, socket in self._sockets)
        self._drain_soon()

    def _drain_soon(self) -> None:
        if not self._scheduled and self._drained is None and self._loop is not None:
            self._loop.call_soon(self._drain)
            self._scheduled = True  # not before: without memory nothing was scheduled

    def _drain(self, announced_of: Peer = b"", announced: zmq.Socket[bytes] | None = None) -> None:
        """Deliver what is there, of each socket a few messages before the others get their turn."""
        if announced is not None:
            self._to_drain[announced] = announced_of
            if self._scheduled:
                return  # or each edge in a flood would begin another chain of drains that schedule themselves
        self._scheduled = False
        budget, waiting, until = BATCH, self._to_drain, time.monotonic() + BATCH_S
        try:
            while budget > 0 and waiting:
                socket, peer = next(iter(waiting.items()))
                self._drained = socket
                for _ in range(16):
                    if socket.closed or not readable(socket):  # cheaper than the exception of a vain receive
                        waiting.pop(socket, None)  # not before: no edge announces what is there already
                        break
                    budget -= 1
                    if not self._take(peer, socket):
                        budget = 0
                        break
                if len(waiting) > 1 and waiting.pop(socket, None) is not None:
                    waiting[socket] = peer  # the others get their turn first
                budget = budget if time.monotonic() < until else 0
            self._delivered()
            if self._put_off.due and self._loop is not None:
                for peer in self._put_off.take(self._loop.time(), all_taken=not waiting):
                    self._see_to(peer)
        finally:
            self._drained = None
            if waiting:
                self._drain_soon()

    def _take(self, peer: Peer, socket: zmq.Socket[bytes]) -> bool:
        """Deliver a message; return False where the rest of one that is being thrown away has not ended yet."""
        if self._overlong and socket in self._overlong:
            if done := discard_frames(socket):
                self._catch_up(socket)
            return done
        name = None
        try:
            if not peer:
                name = socket.recv(_DONTWAIT, copy=False)
                peer = INBOUND + name.bytes
                if self._gate is not None and not self._gate.passes(peer, name):
                    self._turn_away(peer, name, socket)
                    return True
                if peer not in self._known and not self._let_in(peer, name, socket):
                    return True
            frames = receive_frames(socket)
            if frames is None:
                self._refuse(peer, socket)
            elif frames[0].nbytes:
                self._deliver(peer, frames)
            elif name is not None:  # an empty message: a connection that is new
                self._know(peer, descriptor_of(name))
        except MemoryError:  # then it is lost on the way
            self.counters["out_of_memory"] += 1
            self.make_room()
            if socket.getsockopt(zmq.RCVMORE):
                self._fall_behind(socket)
        return True

    # --- known peers ---------------------------------------------------------------------------

    def _let_in(self, peer: Peer, name: zmq.Frame, socket: zmq.Socket[bytes]) -> bool:
        """Whether to continue with a message that does not come from a known peer; what is short is delivered here."""
        if peer in self._doubted:
            self._trust(peer)
            return True
        descriptor = descriptor_of(name)
        if descriptor < 0:  # not a zmqps peer: its connection cannot be identified
            self.counters["strangers_refused"] += 1
            if socket.recv(_DONTWAIT, copy=False).more:
                self._fall_behind(socket)
            return False
        if peer in self._returning:
            self._know(peer, descriptor)
            return True
        self._current = peer, descriptor
        listens = self._door is None or self._door.heard(peer, descriptor)
        frame = socket.recv(_DONTWAIT, copy=False)
        if frame.more or len(frame) > MAX_STRANGE_HEADER_NBYTES:
            self.counters["strangers_refused"] += 1
            if self._door is not None:
                self._door.shut(descriptor, TOO_MUCH)
            if frame.more:
                self._fall_behind(socket)
        elif len(frame) and listens:
            self._deliver(peer, [frame.buffer])
        self._current = b"", -1
        return False

    def _know(self, peer: Peer, descriptor: int) -> None:
        if self._door is not None and not self._door.admit(peer, descriptor):
            return  # the last of what it has said is read after its end
        if self._gate is not None:
            self._gate.bind(peer)
        self._returning.pop(peer, None)
        self._known[peer] = None
        self._backlogs.add(peer)  # of another connection nothing is left to be read
        if self._door is None and len(self._known) > MAX_RETURNING:  # without a door, departures go unnoticed
            self._forget(next(iter(self._known)))

    def _doubt(self, peer: Peer) -> None:
        """Handle a peer that has sent much."""
        self._set_bound()
        if peer in self._known:
            del self._known[peer]  # so that its next message is seen, and those of others cost nothing
            self._doubted.add(peer)

    def _trust(self, peer: Peer) -> None:
        if peer in self._doubted and self._door is not None:
            self._doubted.discard(peer)
            self._known[peer] = None
            self._door.trust(peer)

    def _set_bound(self) -> None:
        if self._door is not None:
            self._door.max_unread_nbytes = MAX_UNREAD_NBYTES + 2 * self.largest_nbytes()

    def _forget(self, peer: Peer) -> None:
        del self._known[peer]
        self._backlogs.pop(peer, None)
        self._returning[peer] = None
        if len(self._returning) > MAX_RETURNING:
            forgotten, _ = self._returning.popitem(last=False)
            if self._gate is not None:
                self._gate.forget(forgotten)

    def _turn_away(self, peer: Peer, name: zmq.Frame, socket: zmq.Socket[bytes]) -> None:
        """Drop a message whose sender's key is not the one that joined under its name, or is an old one."""
        self.counters["keys_refused"] += 1
        if self._door is not None:
            self._door.shut(descriptor_of(name), "its key is not valid, or not the one that has joined under its name")
        if self._door is not None and self._gate is not None and self._gate.knows(peer):
            # ZeroMQ has given its name away and leaves its connection open but unheard: it has to reconnect, and
            # once more when the other peer has left
            self._door.expel(peer, TAKEN)
            asyncio.get_running_loop().call_later(CONTESTED_S, self._door.expel, peer, TAKEN)
        if socket.getsockopt(zmq.RCVMORE):
            self._fall_behind(socket)

    def _look_at_keys(self) -> None:
        """Some keys have become invalid: end the connections that were opened with them."""
        for peer, role, why, returns in self._gate.outdated() if self._gate is not None else ():
            if not returns:
                self._tell(Unreachable(peer, shut_out(role, why)))
            if self._door is not None and self._loop is not None:  # it has a moment to read why
                self._loop.call_later(0.0 if returns else LAST_WORD_S, self._door.expel, peer, why)

    def holder(self, peer: Peer) -> KeyHolder | None:
        """Return whose key the peer has shown whose message is being delivered; None where there are no keys."""
        return None if self._gate is None else self._gate.holder(peer)

    def _soon(self, do: Callable[..., None], *arguments: Any) -> None:
        """Do something in the loop's thread; what the door calls from its own."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(do, *arguments)

    def _later(self, peer: Peer) -> None:
        """A peer's connection has ended, or strangers (b"") have sent too much: see to it when all was taken."""
        assert self._loop is not None
        self._put_off.add(peer, self._loop.time())
        self._schedule()

    def _see_to(self, peer: Peer) -> None:
        if not peer and self._door is not None:
            self._door.judge()
            return
        self._trust(peer)
        if peer not in self._known or self._door is None or self._door.is_here(peer):
            return  # it has come back already
        self._forget(peer)
        self._tell(Disconnected(peer))

    def _refuse(self, peer: Peer, socket: zmq.Socket[bytes]) -> None:
        """Drop a message of too many frames, and disconnect its sender."""
        self.counters["overlong"] += 1
        self._fall_behind(socket)
        if self._door is not None:
            self._door.expel(peer, f"it sent a message of more than {MAX_FRAMES} frames")

    def _fall_behind(self, socket: zmq.Socket[bytes]) -> None:
        """Begin to throw away the rest of a message."""
        self._overlong.add(socket)
        if self._door is not None:
            self._door.fall_behind()

    def _catch_up(self, socket: zmq.Socket[bytes]) -> None:
        """The rest of a message has been thrown away."""
        self._overlong.discard(socket)
        if self._door is not None:
            self._door.catch_up(behind=bool(self._overlong))

    def greeting(self, peer: Peer) -> tuple[str, ...]:
        """Negotiate nothing; a welcomed peer is known from now on."""
        self._trust(peer)
        self._set_bound()
        if peer.startswith(INBOUND) and peer not in self._known:
            self._know(peer, self._current[1] if self._current[0] == peer else -1)
        return ()

    def greeted(self, peer: Peer, capabilities: Sequence[str]) -> None:
        """Nothing was negotiated."""

    def origin(self, peer: Peer) -> str | None:
        """Return the address of another host that a stranger's message comes from."""
        return origin_of(self._current[1]) if self._current[0] == peer else ""

    def facts(self) -> Mapping[str, Any]:
        """Nothing but the counters."""
        self._set_bound()  # as often as heartbeats are
        return {**self.counters, **(self._door.counters if self._door is not None else {})}

    def close(self, linger: float) -> None:
        """Close the sockets and end the context; queued messages get ``linger`` seconds."""
        if self._door is not None:
            self._door.close()
        for peer, socket in self._sockets:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(socket.FD)
            if not peer:
                socket.close(int(linger * 1000))
        self._dealers.close(linger)
        self._sockets.clear()
        self._router = None
        self._context.term()
