"""The same-host lane: payloads through shared memory, everything else through another transport.

docs/lane.md specifies what is on the wire. In short: the side that opens a connection names a segment in its
`Hello`; the other side attaches to it and proves in its `Welcome` that it has read the secret in
there. From then on large array frames travel as positions in a ring, in an envelope around the
header; those in an arena (`zmqps.net.lane.arena`) stay there, and travel as references. A frame
that finds no room travels as before, so nothing ever waits for the lane.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from zmqps.core.protocol.arrays import Bytes
from zmqps.core.protocol.events import COORDINATOR, Peer, Reader
from zmqps.core.protocol.message import WINDOW_NBYTES
from zmqps.core.protocol.security.roles import KeyHolder
from zmqps.errors import ConfigurationError
from zmqps.net.lane.arena import Arenas
from zmqps.net.lane.lending import LaneLoan
from zmqps.net.lane.private import Private
from zmqps.net.lane.ring import RingError
from zmqps.net.lane.segment import Segment, SegmentError, sweep
from zmqps.net.routes import choose
from zmqps.net.transport import Deliver, Noticed, Transport

#: What is in flight fits, with room for the odd end of the ring; so does the usual limit of a
#: container's shared memory, 64 MiB, for both rings.
RING_NBYTES = WINDOW_NBYTES + (4 << 20)
#: A message whose frames are all smaller stays in ZeroMQ; of any other all frames go this way.
MIN_NBYTES = 16 << 10
MAX_LANES = 1024
#: How often a server looks for lanes whose worker has ended.
REAP_S = 2.0

#: No msgpack begins like this, so a node without lanes refuses an envelope.
ENVELOPE_BYTE = 0xC1
ENVELOPE = struct.Struct("<BBHI8sQQ")  # 0xC1, version, frames, slot and lane, base, loan (0: none)
ENTRY = struct.Struct("<QQQ")  # arena (0: the ring), position, bytes
VERSION = 2
PLAIN = (1 << 64) - 1  # as an arena: the next ordinary frame
OFFER, PROOF, REFUSAL = "shm:", "shm-proof:", "shm-refused:"

log = logging.getLogger("zmqps.transport")


class Packed(NamedTuple):
    """A message on its way through a lane."""

    frames: list[Any]
    readers: Sequence[list[Reader]]  # of those frames
    counts: Counter[str]
    loan: LaneLoan | None
    borrowers: Sequence[list[Reader]]  # of the frames that are lent


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

    def pack(self, frames: Sequence[Any], arenas: Arenas, readers: Sequence[list[Reader]]) -> Packed:
        """Put the frames into the ring, or refer to them; return what still has to travel.

        Parameters
        ----------
        frames
            The message.
        arenas
            Frames in this arena may be read in place.
        readers
            Of each frame but the first, which must not change until the other side says so; none: it need not wait.

        Raises
        ------
        RingError
            The peer has broken the ring.
        """
        writer, lender = self.segment.writer, self.segment.lender
        base, entries, plain, loan = writer.head, bytearray(), [], None
        lent, exact = bool(readers), len(readers) == len(frames) - 1
        borrowers, others = ([], []) if exact else (list(readers), list(readers))
        counts = Counter(lane_frames=0, lane_references=0, lane_overflows=0)
        for i, frame in enumerate(frames[1:]):
            nbytes = memoryview(frame).nbytes
            number, position = PLAIN, 0
            found = arenas.find(frame) if nbytes >= MIN_NBYTES else None
            known = lender.refer(found[0]) if found is not None else None
            if known is not None and lent and loan is None:
                loan = None if self.opened else lender.lend()  # one side makes all loans
            if found is not None and known is not None and (loan is not None or not lent):
                number, position = known, found[1]
                counts["lane_references"] += 1
                if exact:  # else a loan would keep what was copied as well: any number of versions, if it never ends
                    borrowers.append(readers[i])
            elif (put := writer.put(frame)) is not None:
                number, position = 0, put
                counts["lane_frames"] += 1
            else:
                counts["lane_overflows"] += 1
            if number == PLAIN:
                plain.append(frame)
                if exact:
                    others.append(readers[i])
            entries += ENTRY.pack(number, position, nbytes)
        slot, of_loan = (0, 0) if loan is None else (loan.slot, loan.number)
        envelope = ENVELOPE.pack(ENVELOPE_BYTE, VERSION, len(frames) - 1, slot, self.segment.id, base, of_loan)
        return Packed([b"".join((envelope, entries, frames[0])), *plain], others, counts, loan, borrowers)

    def unpack(self, frames: Sequence[Any]) -> list[Any]:
        """Return the message that was packed.

        Raises
        ------
        RingError
            It is not a packed message; says why.
        """
        first = memoryview(frames[0])
        if first.nbytes < ENVELOPE.size:
            raise RingError(f"an envelope of {first.nbytes} bytes")
        _, version, count, slot, lane, base, loan = ENVELOPE.unpack_from(first)
        if version != VERSION or lane != self.segment.id:
            raise RingError("an envelope of another lane")
        header_at = ENVELOPE.size + count * ENTRY.size
        if first.nbytes <= header_at:
            raise RingError(f"an envelope of {count} frames in {first.nbytes} bytes")
        entries = list(ENTRY.iter_unpack(first[ENVELOPE.size : header_at]))
        if sum(arena == PLAIN for arena, _, _ in entries) != len(frames) - 1:
            raise RingError(f"{len(frames) - 1} ordinary frames came with an envelope for others")
        borrower, referred = self.segment.borrower, [entry for entry in entries if 0 < entry[0] < PLAIN]
        borrower.check_loan(slot, loan, referred)
        taken = self.segment.reader.take(base, [(at, nbytes) for arena, at, nbytes in entries if arena == 0])
        shared, borrowed, plain = iter(taken), iter(borrower.take(slot, loan, referred)), iter(frames[1:])
        del taken
        sources = {PLAIN: plain, 0: shared}
        return [first[header_at:], *(next(sources.get(arena, borrowed)) for arena, _, _ in entries)]


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
    arenas
        Memory of this process that the other side may read in place.
    """

    def __init__(
        self,
        inner: Transport,
        transport: str = "auto",
        ring_nbytes: int = RING_NBYTES,
        arenas: Arenas | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.arenas = Arenas() if arenas is None else arenas
        self._inner = inner
        self._transport = transport
        self._ring_nbytes = ring_nbytes
        self._schemes: dict[Peer, str] = {}  # of the connections opened here
        self._offering: set[Peer] = set()
        self._lanes: dict[Peer, Lane] = {}
        self._retired: list[Lane] = []  # replaced, but their loans are still being read
        self._asked: tuple[Peer, str] = b"", ""  # a peer and the lane that it offers
        self._deliver: Deliver | None = None
        self._reaper: asyncio.TimerHandle | None = None

    def start(self, deliver: Deliver, delivered: Callable[[], None], noticed: Noticed) -> None:
        """Begin to deliver in the running loop; a lane outlives the connections that it goes with."""
        _sweep()
        self._deliver = deliver
        self._inner.start(self._receive, delivered, noticed)

    def hand_to(self, deliver: Deliver) -> None:
        """Deliver messages here from now on, as a recorder does that forwards them."""
        self._deliver = deliver

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

    def disconnect(self, peer: Peer) -> None:
        """Close a connection that was opened here, and its lane; values in it stay until garbage-collected."""
        self._inner.disconnect(peer)
        self._drop(peer)
        self._offering.discard(peer)
        self._schemes.pop(peer, None)

    # --- the handshake ------------------------------------------------------------------------

    def greeting(self, peer: Peer) -> tuple[str, ...]:
        """Return what to say about lanes in the Hello or Welcome that is about to be sent."""
        self._inner.greeting(peer)
        if peer not in self._schemes:
            (asker, name), self._asked = self._asked, (b"", "")  # the Welcome follows its Hello at once
            return (self._accept(peer, name),) if name and asker == peer else ()
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
            self._asked = peer, _find(OFFER, capabilities)  # nothing is opened for one that is not welcome
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
            if len(self._lanes) + len(self._retired) >= MAX_LANES:
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
        if lane is None or all(memoryview(frame).nbytes < MIN_NBYTES for frame in frames[1:]) or not lane.active:
            return self._inner.send(peer, frames, readers)
        writer = lane.segment.writer
        head = writer.head
        try:
            # without readers there are no loans: a worker leaves the arrays of a push alone until the answer
            packed = lane.pack(frames, self.arenas, readers)
        except RingError as error:
            log.warning("nothing more goes through the lane with %r: %s", peer, error)
            lane.broken = True  # what comes through it is still understood
            return self._inner.send(peer, frames, readers)
        self.counters.update(packed.counts)
        sent = self._inner.send(peer, packed.frames, packed.readers if len(packed.frames) > 1 else ())
        if packed.loan is not None and sent:
            for watchers in packed.borrowers:
                watchers.append(packed.loan)
        elif packed.loan is not None:
            packed.loan.cancel()
        if not sent:
            writer.head = head  # the peer will not hear of them
        return sent

    def _receive(self, peer: Peer, frames: Sequence[Any]) -> None:
        assert self._deliver is not None
        lane = self._lanes.get(peer)
        if lane is not None:
            lane.segment.borrower.attend()
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

    @property
    def borrowed_nbytes(self) -> int:
        """Bytes of others' memory that is looked at here; may be asked in any thread."""
        return sum(sum(list(lane.segment.borrower.held.values())) for lane in list(self._lanes.values()))

    @property
    def in_place(self) -> bool:
        """Whether all servers connected to here have shown their memory; may be asked in any thread."""
        lanes = [self._lanes.get(peer) for peer in list(self._schemes) if peer != COORDINATOR]
        return bool(lanes) and all(lane is not None and lane.active and lane.segment.borrower.knows for lane in lanes)

    def private(self, memory: Bytes, hold: Any) -> Private | None:
        """Return a private mapping of another process's memory (`Borrower.private`); may be asked in any thread."""
        borrowers = (lane.segment.borrower for lane in list(self._lanes.values()))
        return next((found for each in borrowers if (found := each.private(memory, hold)) is not None), None)

    def make_room(self) -> None:
        """Give back what can be given back."""
        self._inner.make_room()

    def origin(self, peer: Peer) -> str | None:
        """Return the address of the other host that a peer's `Hello` came from."""
        return self._inner.origin(peer)

    def holder(self, peer: Peer) -> KeyHolder | None:
        """Return whose key the peer has shown whose message is being delivered; None where there are no keys."""
        return self._inner.holder(peer)

    def facts(self) -> Mapping[str, Any]:
        """Return what the status shows: how the connections opened here carry their payloads."""
        proven = {peer for peer, lane in self._lanes.items() if lane.proven}
        schemes = {"shm" if peer in proven else scheme for peer, scheme in self._schemes.items() if peer != COORDINATOR}
        shown = {"transport": " ".join(sorted(schemes))} if schemes else {}
        return {**self._inner.facts(), **self.counters, **shown}

    def _arm(self) -> None:
        if self._reaper is None and (self._retired or any(not lane.opened for lane in self._lanes.values())):
            self._reaper = asyncio.get_running_loop().call_later(REAP_S, self._ring)

    def _ring(self) -> None:
        self._reaper = None
        self._reap()
        self._arm()

    def _reap(self) -> None:
        """Release lanes whose creator has ended, and let others release arenas, so that their memory is free."""
        accepted = {peer: lane for peer, lane in self._lanes.items() if not lane.opened}
        for peer, lane in accepted.items():
            if lane.segment.orphaned:
                self._drop(peer)
            else:
                lane.segment.lender.withdraw()
        retired, self._retired = self._retired, []
        for lane in retired:
            self._retire(lane)

    def _drop(self, peer: Peer) -> None:
        lane = self._lanes.pop(peer, None)
        if lane is not None:
            self._retire(lane)

    def _retire(self, lane: Lane) -> None:
        """Close a lane, unless the other side still reads what was lent."""
        lender = lane.segment.lender
        if not lane.opened and lender.num_loans:
            if not lane.segment.orphaned:
                self._retired.append(lane)
                return
            lender.close()
        lane.segment.close()

    def close(self, linger: float) -> None:
        """Close everything, giving queued messages ``linger`` seconds to leave."""
        if self._reaper is not None:
            self._reaper.cancel()
        self._inner.close(linger)
        for lane in [*self._lanes.values(), *self._retired]:
            lane.segment.close()
        self._lanes.clear()
        self._retired.clear()
        _sweep()  # a launcher kills its workers before the servers end, which may be the last on this host


def _sweep() -> None:
    if swept := sweep():
        log.info("removed %d shared-memory segments of processes that were killed", swept)


def _find(prefix: str, capabilities: Sequence[str]) -> str:
    """Return what follows a prefix, or nothing."""
    return next((text[len(prefix) :] for text in capabilities if text.startswith(prefix)), "")
