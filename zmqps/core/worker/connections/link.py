"""What a worker and one shard's server say to each other: what is queued, in flight, and when to send it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from math import inf
from typing import TYPE_CHECKING

from zmqps.core.node.handshake import Handshake
from zmqps.core.protocol.encoding import CODING, RAW, Coding, named
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.fields import Part
from zmqps.core.protocol.limits import PUSH_WINDOW, WINDOW_NBYTES
from zmqps.core.protocol.loans import STAYS
from zmqps.core.protocol.messages import Ack, Message, Values, Welcome, Withdraw
from zmqps.core.protocol.messages import Load as LoadMessage
from zmqps.core.protocol.messages import Pull as PullMessage
from zmqps.core.protocol.messages import Push as PushMessage
from zmqps.core.worker.alarm import Alarm
from zmqps.core.worker.connections.outbox import Outbox, Request
from zmqps.core.worker.connections.probe import PROBE_S, SilenceProbe
from zmqps.core.worker.connections.resends import SLOWEST_RETRY_S, Resends
from zmqps.core.worker.connections.wire import Wire
from zmqps.core.worker.layout.sent import MAX_HEADS, Sent
from zmqps.core.worker.packer import Packer
from zmqps.core.worker.plan import Cargo, batches
from zmqps.core.worker.rows import RowCargo, row_message
from zmqps.core.worker.transfer import LoadTransfer, PullTransfer, PushTransfer, Target, Transfer
from zmqps.errors import ProtocolError, PSError, counted

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer


class Link:
    """What is said to one server about one of its shards; links to others there share the connection.

    Requests leave in the order of the `Outbox` as long as the window has room; answers may come in any order. All that
    is in flight is sent again when the connection broke and the server has welcomed us over the new one. While it
    lives, only what the server turns out not to have: it is asked after a silence (`SilenceProbe`), at once where a
    later request was answered before a push, which servers answer in order. A pull that was answered without a push
    that had been asked for before it is asked again behind it.

    What a server lacked the memory for has changed nothing there, and is sent again a little later (`put_off`): whoever
    asks again from above cannot know which part was applied. So is what came to a shard that is about to move.

    Parameters
    ----------
    title
        The server's name in errors.
    handshake
        Of the connection.
    proof
        What only the server that the coordinator means can answer it with.
    epoch, num_slices
        Of the server's copy of the shard.
    numbers
        Of the requests: never one twice on a connection, even if the job on it is another one now.
    coding
        The door to the codecs.
    rank, shard
        The server's, and which of its job's.
    """

    def __init__(
        self,
        title: str,
        handshake: Handshake,
        proof: bytes,
        epoch: int,
        num_slices: int,
        numbers: Iterator[int] | None = None,
        coding: Coding = CODING,
        rank: int = 0,
        shard: int = 0,
    ) -> None:
        self.peer = handshake.peer
        self.shard = shard
        self.rank, self.title = rank, title
        self.handshake = handshake
        self.proof = proof
        self.lost: PSError | None = None
        self.in_flight: dict[int, Request] = {}
        self.in_flight_nbytes = 0
        self.queue = Outbox()
        self.counts: Counter[str] = Counter()
        self.heard_at = 0.0
        self.epoch, self.promised = epoch, ""  # the server was lost: where its shard will be
        self.sent = Sent()
        self.packer = Packer(coding)
        self._coding = coding
        self.versions = [0] * num_slices  # of each slice, when last read
        self._numbers = count(1) if numbers is None else numbers
        self._next_seq = 1
        self._num_sent = 0
        self.resends = Resends()
        self.probe = SilenceProbe()
        self.alarm = Alarm()  # shared by all links of a session
        self.wire = Wire()
        self._broken = False  # the connection, since the last Welcome

    def enqueue(self, transfer: PushTransfer | PullTransfer | LoadTransfer, cargoes: tuple[Cargo, ...]) -> None:
        """Queue the requests of one transfer."""
        source, target = transfer.source, transfer.target
        codec = RAW if source is None else source.codec
        # encoded they would travel; and whether something small goes raw must not depend on its neighbours
        ends = [(source, codec)] if target is None else [(source, codec), (target, target.codec)]
        in_place = min([end.in_place if text == RAW else 0 for end, text in ends if end is not None])
        groups = list(filter(None, [cargoes] if transfer.atomic or len(cargoes) == 1 else batches(cargoes, in_place)))
        for number, group in enumerate(groups):
            nbytes, head = 0 if in_place else sum([cargo.nbytes for cargo in group]), not number
            request = Request(transfer=transfer, cargoes=group, nbytes=nbytes, head=head, codec=codec)
            self.queue.add(request)
            transfer.remaining += 1

    def pump(self, now: float) -> list[Action]:
        """Send what the window has room for."""
        actions: list[Action] = []
        if self.handshake.welcome is None or self._broken or self.lost is not None:
            return actions
        if again := self.resends.at_once:
            actions += [self._again(request) for request in again if request.number in self.in_flight]
            again.clear()
        while self.queue.waiting and (request := self.queue.peek()) is not None:
            if request.transfer.done:
                self.queue.pop()
                continue
            if self.in_flight and self.in_flight_nbytes + request.nbytes > self.wire.window(request.nbytes):
                break
            if isinstance(request.transfer, PushTransfer):
                if self.in_flight:
                    oldest = next((r.seq for r in self.in_flight.values() if r.seq), self._next_seq)
                    if self._next_seq - oldest >= PUSH_WINDOW:
                        break  # a resend of the oldest must still be inside the server's ledger
                request.seq = self._next_seq
                self._next_seq += 1
                if request.head:
                    self.sent.heads.append(request.seq)
                    if len(self.sent.heads) >= MAX_HEADS:
                        self.sent.fold()
            self.queue.pop()
            request.number = next(self._numbers)
            counts = request.nbytes >= self.wire.sample_nbytes or self.queue.waiting or not self.wire.round_trip_s
            if counts and self.wire.since is None:  # one that is small and alone tells something once
                self.wire.begins(now)
            self.in_flight[request.number] = request
            self.in_flight_nbytes += request.nbytes
            if self.probe.due is None:
                self._rest(now)
            actions.append(self._send(request))
        return actions

    def _again(self, request: Request) -> Action:
        self.counts["retries"] += 1
        return self._send(request)

    def _send(self, request: Request) -> Action:
        self._num_sent += 1
        request.sent_as = self._num_sent
        message = self._message(request)
        request.sent_nbytes = sum([buffer.nbytes for buffer in getattr(message, "payload", ())])
        self.counts["bytes_sent"] += request.sent_nbytes
        return Send(self.peer, message)

    def _message(self, request: Request) -> Message:
        transfer, epoch = request.transfer, self.epoch
        if isinstance(request.cargoes[0], RowCargo):
            return row_message(request, epoch, self.versions, self.packer.pack)
        parts: list[Part] = [(c.slice.index, self.versions[c.slice.index], c.ranges) for c in request.cargoes]
        if isinstance(transfer, PullTransfer):
            codec = transfer.target.codec
            return PullMessage(request.number, epoch, transfer.version, int(transfer.exact), codec, parts)
        source, target = transfer.source, transfer.target
        if isinstance(transfer, LoadTransfer):
            return LoadMessage(request.number, epoch, parts, source.payload(request.cargoes))
        raw = request.codec == RAW and source.encoded is None
        codec, payload = (RAW, source.payload(request.cargoes)) if raw else self.packer.pack(request, source)
        reply, reply_codec = (0, RAW) if target is None else (1, target.codec)
        return PushMessage(
            request.number, request.seq, epoch, transfer.step, transfer.attempt, transfer.examples,
            reply, STAYS if source.stays else int(source.checked), codec, reply_codec, transfer.terms, parts, payload,
        )  # fmt: skip

    def on_connected(self, now: float) -> list[Action]:
        """The connection is there, perhaps again: say hello, for what was sent before may be lost."""
        if self.lost is not None:
            return []
        self._break()
        return self.handshake.again(now)

    def on_disconnected(self, now: float) -> None:
        """The connection has ended: nothing leaves until the server has welcomed us over the next one."""
        self._break()
        self.handshake.ended(now)

    def promise(self, how: str = "its backup takes over") -> None:
        """The server was lost, and another one will have the shard: wait for it."""
        self.promised = how

    def lose(self, floor: int, applied: Sequence[int]) -> int:
        """Return how many acknowledged pushes a new server does not know (`Sent.lose`)."""
        return self.sent.lose(floor, applied, self._next_seq)

    def withdraw(self, pull: Transfer, now: float) -> list[Action]:
        """Nobody waits for a pull any more: its requests make room, and the server, if it can be told, forgets them."""
        if not (numbers := [number for number, request in self.in_flight.items() if request.transfer is pull]):
            return []
        for number in numbers:
            self.in_flight_nbytes -= self.in_flight.pop(number).nbytes
        if not self.in_flight:
            self.probe.due = None
        told = numbers if self.handshake.welcome is not None and not self._broken and self.lost is None else ()
        return [*(Send(self.peer, Withdraw(number)) for number in told), *self.pump(now)]

    def forget(self) -> None:
        """Nothing that was asked for is awaited any more: all has ended, or is asked for anew."""
        self.queue.clear()
        self.in_flight.clear()
        self.in_flight_nbytes = 0
        self._break()

    def retarget(self, title: str, handshake: Handshake, proof: bytes, epoch: int, rank: int) -> None:
        """The shard has another server: all that is not answered is sent again there, once it welcomes us."""
        self.handshake.stop()
        self._break()
        self.peer, self.title, self.handshake, self.proof = handshake.peer, title, handshake, proof
        self.epoch, self.rank, self.wire = epoch, rank, Wire()
        self._broken = bool(self.in_flight)
        self.sent.mark(self._next_seq, (request.seq for request in self.in_flight.values()))
        self.lost, self.promised = None, ""

    def requests_of(self, transfer: Transfer) -> list[Request]:
        """Return what is not answered of a transfer."""
        return [request for request in [*self.queue, *self.in_flight.values()] if request.transfer is transfer]

    def _break(self) -> None:
        self._broken = self.handshake.welcome is not None or bool(self.in_flight)
        self.resends.clear()  # with all the others, then
        self.probe.due = None

    def on_welcome(self, welcome: Welcome, now: float) -> list[Action]:
        """The server knows us: begin to send, or to send again what a broken connection may have lost."""
        if self.handshake.is_down:  # that came over the one that has ended; the next one is not there
            return []
        self.wire.greeted(self.handshake, now)
        self.handshake.on_welcome(welcome)
        self.heard_at = now
        if self._broken:
            self._broken = False
            self._doubt(self._num_sent, everything=True)
            self._rest(now)
        return self.pump(now)

    def _doubt(self, num_sent: int, *, everything: bool = False) -> None:
        """Note to be sent again what the server has not answered of so many first messages: it has had them all."""
        for number, request in list(self.in_flight.items()):
            push = request.transfer
            if request.sent_as > num_sent:
                continue
            if push.done:  # given up: make room, never send it again
                if request.seq:
                    self.sent.void(request.seq)
                del self.in_flight[number]
                self.in_flight_nbytes -= request.nbytes
            elif isinstance(push, PushTransfer) and push.target is not None and not request.doubted and not everything:
                request.doubted = True  # its values may yet be copied, and leave later
            else:
                request.doubted = False
                self.resends.at_once.append(request)

    def on_answer(self, message: Ack | Values, now: float) -> PushTransfer | PullTransfer | LoadTransfer | None:
        """Take an answer; return its transfer if that is still of interest, and may be complete."""
        request = self.in_flight.get(message.request)
        if request is None or request.transfer.done:
            self.answered(message.request, now)
            return None
        if self._note_overtaken(request, now):
            return None
        transfer = request.transfer
        target = transfer.target
        if isinstance(message, Values):
            if target is None or len(message.versions) != len(request.cargoes):
                raise ProtocolError(f"{self.title} answered a {transfer.kind} with values of {message.versions}")
            self._land(request, target, message)
            for cargo, version in zip(request.cargoes, message.versions, strict=True):
                self.versions[cargo.slice.index] = version
        elif target is not None:
            raise ProtocolError(f"{self.title} answered a {transfer.kind} without values")
        self.answered(message.request, now)  # not before: what cannot be used fails with the rest of the link
        if isinstance(transfer, PushTransfer):
            transfer.staleness = max(transfer.staleness, max(message.staleness, default=0))
        transfer.remaining -= 1
        return transfer

    def awaits(self, number: int) -> bool:
        """Whether a request of this number left over this link and is not answered."""
        return number in self.in_flight or number in self.probe

    def _note_overtaken(self, request: Request, now: float) -> bool:
        """Note the pushes that an answer shows to be lost; return whether it is the answer to a pull without them."""
        pull = isinstance(request.transfer, PullTransfer)
        unseen = late = False
        for earlier in self.in_flight.values():  # in the order of sending, so this ends at once where nothing was lost
            if earlier is request:
                break
            push = earlier.transfer
            if push.done or isinstance(push, PullTransfer) or earlier.sent_as > request.sent_as:
                continue
            missed = pull and not request.slices.isdisjoint(earlier.slices)
            if earlier.retry_at is not None:  # it was refused, and its turn comes
                late |= missed
                continue
            # values leave when they have been copied, acknowledgements at once
            if missed or (isinstance(push, PushTransfer) and push.target is None):
                self.resends.at_once.append(earlier)
            unseen |= missed
        if late and self.put_off(request.number, now):
            return True
        if unseen:
            self.resends.at_once.append(request)
            self.heard_at = now
        return unseen

    @property
    def is_short(self) -> bool:
        """Whether the server lacks the memory for something that was asked of it."""
        return bool(self.resends)

    def put_off(self, number: int, now: float) -> bool:
        """Send a request again a little later, because the server lacks the memory for it; False if it has for long."""
        if (request := self.in_flight.get(number)) is None or request.transfer.done:
            return False
        if request.retry_at is not None or self._broken:
            return True  # said twice, or to be sent again with all others as soon as there is a connection
        if (at := self.resends.refused(request, now)) is None:
            return False
        self._send_later(request, at)
        self.heard_at = now
        self._rest(now)
        return True

    def wait_for_move(self, number: int, now: float) -> None:
        """The shard is to have another server; if it stays, nobody says so: this is sent again after a while."""
        if (request := self.in_flight.get(number)) is None:
            self.probe.answered(number)
        elif request.retry_at is None and not self._broken:
            self._send_later(request, now + SLOWEST_RETRY_S)
        self.heard_at = now
        self._rest(now)

    def _send_later(self, request: Request, at: float) -> None:
        self.resends.put_off(request, at)
        self.alarm.by(at)

    def _send_put_off(self, now: float) -> list[Action]:
        """Send again what was put off until now; what was given up meanwhile makes room."""
        actions: list[Action] = []
        for request in self.resends.take(now):
            if request.number not in self.in_flight:
                continue
            if request.transfer.done:
                self.answered(request.number, now)
            else:
                actions.append(self._again(request))
        return actions

    def answered(self, number: int, now: float) -> Request | None:
        """Take a request out of flight; None if it was answered before."""
        self.heard_at = now
        request = self.in_flight.pop(number, None)
        if request is not None:
            self.in_flight_nbytes -= request.nbytes
            if self.wire.since is not None:
                self.wire.answered(now, request, is_last=not self.in_flight)
        elif num_sent := self.probe.answered(number):
            self._doubt(num_sent)
            if self.in_flight:
                return None  # the silence goes on
        self._rest(now)
        return request

    def _land(self, request: Request, target: Target, message: Values) -> None:
        payload: Sequence[Buffer] = message.payload
        request.received_nbytes = nbytes = sum([memoryview(buffer).nbytes for buffer in payload])
        self.counts["bytes_received"] += nbytes
        codec = None if message.codec == RAW else named(message.codec)
        if codec is not None:
            payload = self._coding.decompress(codec, payload, ((target.size_of(c), c.dtype) for c in request.cargoes))
            self.packer.saved_nbytes += request.raw_nbytes - nbytes
        target.land(request.cargoes, payload, message.versions)

    def fail(self, error: PSError) -> list[PushTransfer | PullTransfer | LoadTransfer]:
        """The server is gone: return the transfers that now fail."""
        self.lost = error
        self.handshake.stop()
        failed = dict.fromkeys(request.transfer for request in [*self.in_flight.values(), *self.queue])
        self.forget()
        return list(failed)

    def waiting_for(self, transfer: Transfer, now: float) -> str:
        """Say what a transfer still waits for here, or nothing."""
        if self.promised:
            return f"{self.title}, which was lost: {self.promised}"
        if self.handshake.welcome is None:
            return f"{self.title} to accept the connection{self.handshake.because}"
        heard = f"last heard from {now - self.heard_at:.1f} s ago"
        if self._broken:
            return f"the connection to {self.title} to come back, {heard}{self.handshake.because}"
        if not (missing := sum(request.transfer is transfer for request in [*self.queue, *self.in_flight.values()])):
            return ""
        put_off = [request.refused_at for request in self.resends.of(transfer)]
        if any(at is not None for at in put_off):
            return f"{self.title} to have the memory for it"
        if put_off:
            return f"word where the shard of {self.title} is now"
        return f"{counted(missing, 'answer')} from {self.title}, {heard}"

    def _rest(self, now: float) -> None:
        """Something was answered, or is awaited from now on."""
        self.probe.wait_s = PROBE_S
        self.probe.due = now + PROBE_S if self.in_flight and not self._broken else None
        self.alarm.due = min(self.alarm.due, self.probe.due or inf)

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        dues = (self.probe.due, self.handshake.due, self.resends.due)
        return min([due for due in dues if due is not None], default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Say hello again, or what was put off; or ask a server that is silent."""
        if self.handshake.due is not None and now >= self.handshake.due:
            return self.handshake.on_deadline(now)
        if self.resends.due is not None and now >= self.resends.due:
            return [*self._send_put_off(now), *self.pump(now)]
        if self.probe.due is None or now < self.probe.due:
            return []
        number = next(self._numbers)
        self.probe.ask(now, number, self._num_sent)
        return [Send(self.peer, PullMessage(number, self.epoch, 0, 0, RAW, ()))]

    def validate(self) -> None:
        """Assert that the window holds."""
        self.queue.validate()
        assert self.in_flight_nbytes == sum([request.nbytes for request in self.in_flight.values()])
        assert self.in_flight_nbytes <= WINDOW_NBYTES or len(self.in_flight) == 1
        assert [*self.in_flight] == [request.number for request in self.in_flight.values()]
        assert (self.probe.due is not None) == (bool(self.in_flight) and not self._broken)
        self.resends.validate()
        assert not (self.resends and self._broken)
        assert self.handshake.is_over or self.handshake.due is not None or not self._broken, "nobody looks why"
