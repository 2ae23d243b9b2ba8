"""The same-host lane: payloads through shared memory, everything else through another transport.

docs/lane.md specifies what is on the wire. In short: who opens a connection names a segment in its
`Hello`; the other side attaches to it and proves in its `Welcome` that it has read the secret in
there. From then on large array frames travel as positions in a ring, in an envelope around the
header. A frame that finds no room travels as before, so nothing ever waits for the lane.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zmqps.core.events import COORDINATOR, Peer, Reader
from zmqps.core.link import WINDOW_NBYTES
from zmqps.errors import ConfigurationError
from zmqps.net.ring import RingError
from zmqps.net.routes import choose
from zmqps.net.segment import Segment, SegmentError, sweep
from zmqps.net.transport import Deliver, Transport

#: What is in flight fits, with room for the odd end of the ring; so does the usual limit of a
#: container's shared memory, 64 MiB, for both rings.
RING_NBYTES = WINDOW_NBYTES + (4 << 20)
#: Frames below this stay in ZeroMQ's message.
MIN_NBYTES = 16 << 10
MAX_LANES = 1024
#: How often a server looks whose worker has gone.
REAP_S = 5.0

#: No msgpack begins like this, so who knows nothing of lanes refuses an envelope.
ENVELOPE_BYTE = 0xC1
ENVELOPE = struct.Struct("<BBHI8sQ")  # 0xC1, version, frames, 0, lane, base
ENTRY = struct.Struct("<QQ")  # position, bytes
VERSION = 1
PLAIN = (1 << 64) - 1  # as a position: the next ordinary frame
OFFER, PROOF, REFUSAL = "shm:", "shm-proof:", "shm-refused:"

log = logging.getLogger("zmqps.transport")


class Lane:
    """A segment shared with one peer, and the messages that go through it."""

    def __init__(self, segment: Segment, opened: bool) -> None:
        self.segment = segment
        self.opened = opened  # by us
        self.proven = False
        self.broken = False

    @property
    def active(self) -> bool:
        """Whether the peer can read what we put in."""
        if not self.proven and not self.opened:
            self.proven = self.segment.ready
        return self.proven and not self.broken

    def pack(self, frames: Sequence[Any]) -> tuple[list[Any], int]:
        """Put large frames into the ring; return what still has to travel, and how many there were.

        Raises
        ------
        RingError
            The peer has broken the ring.
        """
        writer = self.segment.writer
        base, entries, plain, num_put = writer.head, bytearray(), [], 0
        for frame in frames[1:]:
            nbytes = memoryview(frame).nbytes
            position = writer.put(frame) if nbytes >= MIN_NBYTES else None
            if position is None:
                plain.append(frame)
                entries += ENTRY.pack(PLAIN, nbytes)
            else:
                num_put += 1
                entries += ENTRY.pack(position, nbytes)
        envelope = ENVELOPE.pack(ENVELOPE_BYTE, VERSION, len(frames) - 1, 0, self.segment.id, base)
        return [b"".join((envelope, entries, frames[0])), *plain], num_put

    def unpack(self, frames: Sequence[Any]) -> list[Any]:
        """Return the message that was packed.

        Raises
        ------
        RingError
            It is none; says why.
        """
        first = memoryview(frames[0])
        if first.nbytes < ENVELOPE.size:
            raise RingError(f"an envelope of {first.nbytes} bytes")
        _, version, count, _, lane, base = ENVELOPE.unpack_from(first)
        if version != VERSION or lane != self.segment.id:
            raise RingError("an envelope of another lane")
        header_at = ENVELOPE.size + count * ENTRY.size
        if first.nbytes <= header_at:
            raise RingError(f"an envelope of {count} frames in {first.nbytes} bytes")
        entries = list(ENTRY.iter_unpack(first[ENVELOPE.size : header_at]))
        if sum(position == PLAIN for position, _ in entries) != len(frames) - 1:
            raise RingError(f"{len(frames) - 1} ordinary frames came with an envelope for others")
        shared = iter(self.segment.reader.take(base, [entry for entry in entries if entry[0] != PLAIN]))
        plain = iter(frames[1:])
        return [first[header_at:], *(next(plain if position == PLAIN else shared) for position, _ in entries)]


class LaneTransport:
    """Carries frames between the processes of one host through shared memory.

    Parameters
    ----------
    inner
        Carries everything else.
    transport
        How connections are opened here: one of `zmqps.net.routes.TRANSPORTS`.
    ring_nbytes
        Size of each of a lane's two rings.
    """

    def __init__(self, inner: Transport, transport: str = "auto", ring_nbytes: int = RING_NBYTES) -> None:
        self.counters: Counter[str] = Counter()
        self._inner = inner
        self._transport = transport
        self._ring_nbytes = ring_nbytes
        self._schemes: dict[Peer, str] = {}  # of the connections opened here
        self._offering: set[Peer] = set()
        self._lanes: dict[Peer, Lane] = {}
        self._answer = ""
        self._deliver: Deliver | None = None
        self._reaper: asyncio.TimerHandle | None = None

    def start(self, deliver: Deliver, delivered: Callable[[], None]) -> None:
        """Begin to deliver in the running loop."""
        if swept := sweep():
            log.info("removed %d shared-memory segments of processes that were killed", swept)
        self._deliver = deliver
        self._inner.start(self._receive, delivered)

    def bind(self, endpoint: str) -> str:
        """Accept connections; return the endpoint with its port filled in."""
        return self._inner.bind(endpoint)

    def connect(self, peer: Peer, endpoint: str) -> None:
        """Open a connection to one of the endpoints a peer advertises.

        Raises
        ------
        ConfigurationError
            The transport asked for does not lead there.
        """
        shared = False
        if peer != COORDINATOR:
            endpoint, shared = choose(endpoint, self._transport)
        self._drop(peer)
        self._inner.connect(peer, endpoint)
        self._schemes[peer] = endpoint.partition(":")[0]
        if shared:
            self._offering.add(peer)
        elif peer != COORDINATOR:
            log.info("%s: payloads over %s", peer.decode(), self._schemes[peer])

    # --- the handshake ------------------------------------------------------------------------

    def greeting(self, peer: Peer) -> tuple[str, ...]:
        """Return what to say about lanes in the Hello or Welcome that is about to be sent."""
        if peer not in self._schemes:
            answer, self._answer = self._answer, ""  # the Welcome follows its Hello at once
            return (answer,) if answer else ()
        if peer not in self._offering:
            return ()
        lane = self._lanes.get(peer)
        if lane is None:
            try:
                lane = self._lanes[peer] = Lane(Segment.create(self._ring_nbytes), opened=True)
            except SegmentError as error:
                self._do_without(peer, str(error))
                return ()
        return (OFFER + lane.segment.name,)

    def greeted(self, peer: Peer, capabilities: Sequence[str]) -> None:
        """Take what the peer's Hello or Welcome says about lanes.

        Raises
        ------
        ConfigurationError
            A lane must be, and cannot.
        """
        if peer not in self._schemes:
            name = _find(OFFER, capabilities)
            self._answer = self._accept(peer, name) if name else ""
        elif (lane := self._lanes.get(peer)) is not None:
            lane.segment.unlink()
            if hmac.compare_digest(_find(PROOF, capabilities).encode(), lane.segment.proof.encode()):
                if not lane.proven:
                    log.info("%s: payloads through shared memory, the rest over %s", peer.decode(), self._schemes[peer])
                lane.proven = True
                lane.segment.confirm()
                return
            self._do_without(peer, _find(REFUSAL, capabilities) or "it does not see this process's shared memory")

    def _accept(self, peer: Peer, name: str) -> str:
        """Attach to a segment; return the answer."""
        lane = self._lanes.get(peer)
        if lane is None or lane.segment.name != name:
            self._drop(peer)
            self._reap()
            if len(self._lanes) >= MAX_LANES:
                return REFUSAL + f"there are {MAX_LANES} lanes already"
            try:
                lane = self._lanes[peer] = Lane(Segment.attach(name), opened=False)
            except SegmentError as error:
                log.debug("no lane with peer %s: %s", peer.hex(), error)
                return REFUSAL + str(error)
            self._arm()
        return PROOF + lane.segment.proof

    def _do_without(self, peer: Peer, why: str) -> None:
        self._drop(peer)
        self._offering.discard(peer)
        if self._transport == "shm":
            raise ConfigurationError(f"transport='shm', but there is no lane to {peer.decode()}: {why[:200]}")
        log.info("%s: payloads over %s; no shared memory: %s", peer.decode(), self._schemes[peer], why[:200])

    # --- frames -------------------------------------------------------------------------------

    def send(self, peer: Peer, frames: Sequence[Any], readers: Sequence[list[Reader]]) -> bool:
        """Queue a message, its large frames through the lane if there is one."""
        lane = self._lanes.get(peer)
        num_large = sum(memoryview(frame).nbytes >= MIN_NBYTES for frame in frames[1:]) if lane is not None else 0
        if lane is None or not num_large or not lane.active:
            return self._inner.send(peer, frames, readers)
        writer = lane.segment.writer
        head = writer.head
        try:
            packed, num_put = lane.pack(frames)
        except RingError as error:
            log.warning("nothing more goes through the lane with %r: %s", peer, error)
            lane.broken = True  # what comes through it is still understood
            return self._inner.send(peer, frames, readers)
        self.counters["lane_frames"] += num_put
        self.counters["lane_overflows"] += num_large - num_put
        sent = self._inner.send(peer, packed, readers if len(packed) > 1 else ())
        if not sent:
            writer.head = head  # nobody will hear of them
        return sent

    def _receive(self, peer: Peer, frames: Sequence[Any]) -> None:
        assert self._deliver is not None
        lane = self._lanes.get(peer)
        if lane is None or not frames or bytes(memoryview(frames[0])[:1]) != b"\xc1":
            self._deliver(peer, frames)
            return
        try:
            frames = lane.unpack(frames)
        except RingError as error:
            self.counters["lane_refused"] += 1
            log.warning("a message of %r is not as its lane says: %s", peer, error)
        # one that was not unpacked is refused by the decoder, and its sender told
        self._deliver(peer, frames)
        del frames
        lane.segment.reader.free()

    # --- the end ------------------------------------------------------------------------------

    def facts(self) -> Mapping[str, Any]:
        """Return what the status shows: how the connections opened here carry their payloads."""
        proven = {peer for peer, lane in self._lanes.items() if lane.proven}
        schemes = {"shm" if peer in proven else scheme for peer, scheme in self._schemes.items() if peer != COORDINATOR}
        shown = {"transport": " ".join(sorted(schemes))} if schemes else {}
        return {**self._inner.facts(), **self.counters, **shown}

    def _arm(self) -> None:
        if self._reaper is None and any(not lane.opened for lane in self._lanes.values()):
            self._reaper = asyncio.get_running_loop().call_later(REAP_S, self._ring)

    def _ring(self) -> None:
        self._reaper = None
        self._reap()
        self._arm()

    def _reap(self) -> None:
        """Let go of lanes whose creator has gone, so that their memory is free."""
        for peer in [p for p, lane in self._lanes.items() if not lane.opened and lane.segment.orphaned]:
            self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        lane = self._lanes.pop(peer, None)
        if lane is not None:
            lane.segment.close()

    def close(self, linger: float) -> None:
        """Close everything, giving queued messages ``linger`` seconds to leave."""
        if self._reaper is not None:
            self._reaper.cancel()
        self._inner.close(linger)
        for peer in list(self._lanes):
            self._drop(peer)


def _find(prefix: str, capabilities: Sequence[str]) -> str:
    """Return what follows a prefix, or nothing."""
    return next((text[len(prefix) :] for text in capabilities if text.startswith(prefix)), "")
