"""A worker's requests to one shard's server: queued, in flight, and when to resend them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from zmqps.core.node.handshake import Handshake
from zmqps.core.node.timers import Alarm
from zmqps.core.protocol.arrays import STAYS, Array
from zmqps.core.protocol.encoding import CODING, RAW, Coding, named
from zmqps.core.protocol.events import Action, Peer, Send
from zmqps.core.protocol.message import PUSH_WINDOW, WINDOW_NBYTES, Part
from zmqps.core.protocol.messages import Ack, Message, Values, Welcome, Withdraw
from zmqps.core.protocol.messages import Load as LoadMessage
from zmqps.core.protocol.messages import Pull as PullMessage
from zmqps.core.protocol.messages import Push as PushMessage
from zmqps.core.worker.connections.wire import Wire
from zmqps.core.worker.transfer import (
    AnyTransfer,
    Cargo,
    Delay,
    LoadTransfer,
    Packer,
    PullTransfer,
    PushTransfer,
    Request,
    Source,
    Target,
    Transfer,
    batches,
)
from zmqps.errors import ProtocolError, PSError, counted

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: A request that a server lacked the memory for is resent after this long, then after twice as long each time,
RETRY_S = 0.1
SLOWEST_RETRY_S = 1.0
#: until it has been refused for this long; then the caller gets the error.
SHORT_S = 10.0
#: After this long without any answer a server is asked; then after twice as long each time, up to
PROBE_S = 3.0
SLOWEST_PROBE_S = 30.0
_NBYTES = attrgetter("nbytes")
#: Questions whose answers may be in flight; older ones are forgotten.
MAX_OUT = 16


class Outbox:
    """Requests that are not sent yet.

    Pushes are sent in the requested order, and so are pulls. A pull overtakes pushes, except earlier ones that touch
    one of its slices: it must read what they change.
    """

    def __init__(self) -> None:
        self._pushes: deque[Request] = deque()  # and loads
        self._pulls: deque[Request] = deque()
        self._last_push: dict[int, int] = {}  # slice -> number
        self.waiting = 0  # the number of requests

    def add(self, request: Request) -> None:
        """Queue a request, whose number is larger than those before it."""
        self.waiting += 1
        if isinstance(request.transfer, PullTransfer):
            for cargo in request.cargoes:
                request.behind = max(request.behind, self._last_push.get(cargo.slice.index, 0))
            self._pulls.append(request)
        else:
            for cargo in request.cargoes:
                self._last_push[cargo.slice.index] = request.number
            self._pushes.append(request)

    def peek(self) -> Request | None:
        """Return the next request to send; None: there is none."""
        if self._pulls and not (self._pushes and self._pushes[0].number <= self._pulls[0].behind):
            return self._pulls[0]
        return self._pushes[0] if self._pushes else None

    def pop(self, request: Request) -> None:
        """Remove the next request, as returned by `peek`."""
        self.waiting -= 1
        (self._pulls if isinstance(request.transfer, PullTransfer) else self._pushes).popleft()

    def drop(self, transfer: Transfer) -> None:
        """Forget the requests of a transfer."""
        if any(request.transfer is transfer for request in self):
            self._pushes = deque(request for request in self._pushes if request.transfer is not transfer)
            self._pulls = deque(request for request in self._pulls if request.transfer is not transfer)
            self.waiting = len(self._pushes) + len(self._pulls)

    def clear(self) -> None:
        """Forget everything."""
        self._pushes.clear()
        self._pulls.clear()
        self.waiting = 0

    def __bool__(self) -> bool:
        return self.waiting > 0

    def __iter__(self) -> Iterator[Request]:
        return chain(self._pushes, self._pulls)

    def validate(self) -> None:
        """Assert that the order of requests is kept, and that no pull waits for a later push."""
        assert self.waiting == len(self._pushes) + len(self._pulls)
        for queue in (self._pushes, self._pulls):
            last = 0
            for request in queue:
                assert last <= request.number
                last = request.number
        for pull in self._pulls:
            assert pull.behind < pull.number


class InFlight(dict[int, Request]):
    """Requests sent and not answered, by number, in the order in which they were first sent."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0  # of the window

    def take(self, number: int) -> Request | None:
        """Remove a request, which makes room for others; None if it was answered before."""
        request = self.pop(number, None)
        if request is not None:
            self.nbytes -= request.nbytes
        return request

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self.nbytes = 0


class Resends:
    """The requests in flight to be resent.

    `all` of them once the connection has broken, after the server's next welcome; `at_once`, in this order, those that
    the server turned out not to have (cleared by the code that sends them); and `Link.later`, each at its time.
    """

    __slots__ = ("all", "at_once")

    def __init__(self) -> None:
        self.all = False
        self.at_once: list[Request] = []

    @staticmethod
    def refused(delay: Delay, now: float) -> float | None:
        """Return when to resend a request that the server lacked the memory for; None: it has for too long."""
        since = delay.refused_at = now if delay.refused_at is None else delay.refused_at
        return None if now >= since + SHORT_S else now + min(RETRY_S + now - since, SLOWEST_RETRY_S)


class SilenceProbe:
    """When to ask a silent server, and what its answer proves.

    Messages over a connection arrive in order, however long that takes, or the connection breaks. The question is an
    empty pull, which a server answers at once. So when it is answered the server has had all earlier requests, and has
    answered them, except those that it keeps waiting or had no memory for. On a slow connection the question waits
    behind the messages in flight: nothing is resent only because it takes long.
    """

    def __init__(self) -> None:
        self.num_sent = 0  # messages sent
        self.heard_at = 0.0
        self.due: float | None = None  # when to ask; the link resets it at every answer
        self.wait_s = PROBE_S  # the silence before it
        self._out: dict[int, int] = {}  # question -> messages sent before it

    def __contains__(self, number: int) -> bool:
        """Whether this is a question whose answer may be in flight."""
        return number in self._out

    def ask(self, now: float, number: int) -> None:
        """Note that a question is sent."""
        if len(self._out) >= MAX_OUT:
            del self._out[next(iter(self._out))]
        self._out[number] = self.num_sent
        self.wait_s = min(2 * self.wait_s, SLOWEST_PROBE_S)
        self.due = now + self.wait_s

    def answered(self, number: int) -> int:
        """Return the number of messages sent before an answered question; 0 if it is unknown."""
        return self._out.pop(number, 0)


@dataclass(slots=True, eq=False, kw_only=True)
class ShardServer:
    """A shard's server, as named by the coordinator."""

    title: str  # in errors
    handshake: Handshake
    proof: bytes  # the answer that proves the server's identity
    epoch: int  # of its copy of the shard
    rank: int = 0
    lost: PSError | None = None  # why nothing is sent to it any more
    promised: str = ""  # how another one replaces it, if it was lost
    peer: Peer = field(init=False)

    def __post_init__(self) -> None:
        self.peer = self.handshake.peer


#: Makes a message of a request, from the epoch of the copy of the shard, the versions at which slices were last read,
#: and the encoder of gradients.
MessageOf = Callable[[Request, int, Sequence[int], Callable[[Request, Source], tuple[str, list[Array]]]], Message]


@dataclass(slots=True, eq=False, kw_only=True)
class LinkCommons:
    """What all links of a session share."""

    coding: Coding = CODING
    #: Request numbers: unique on a connection, even if its job changes.
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    alarm: Alarm = field(default_factory=Alarm)
    #: The encoders of requests about other things than parameters, by the types of their cargoes.
    messages: dict[type[Cargo], MessageOf] = field(default_factory=dict)
    #: Extensions informed of pushes: of each one sent, of those not known to be applied, and that the shard has another
    #: server, to which requests in flight are resent.
    sending: list[Callable[[Link, Request], None]] = field(default_factory=list)
    voiding: list[Callable[[Link, int], None]] = field(default_factory=list)
    moving: list[Callable[[Link], None]] = field(default_factory=list)


class Link:
    """The requests to one server about one of its shards; links to its other shards share the connection.

    Requests are sent in the order of the `Outbox` as long as the window has room; answers may arrive in any order. All
    requests in flight are resent when the connection broke and the server has welcomed us over the new one. While it
    lives, only those that the server turns out not to have: it is asked after a silence (`SilenceProbe`), and a push is
    resent at once if a later request was answered first, because servers answer in order. A pull that was answered
    without an earlier push is resent after it.

    A request that a server lacked the memory for has changed nothing there, and is resent a little later (`put_off`):
    the caller could not know which part was applied. So is a request to a shard about to move.
    """

    def __init__(
        self, server: ShardServer, num_slices: int, commons: LinkCommons | None = None, *, shard: int = 0
    ) -> None:
        self.shard = shard
        self.server = server
        self.queue = Outbox()
        self.in_flight = InFlight()
        self.resends = Resends()
        self.probe = SilenceProbe()
        self.wire = Wire()
        self.next_seq = 1  # of the next push
        self.versions = [0] * num_slices  # of each slice, when last read
        self.counts: Counter[str] = Counter()
        self._commons = commons or LinkCommons()
        self.packer = Packer(self._commons.coding)

    def enqueue(self, transfer: AnyTransfer, cargoes: tuple[Cargo, ...]) -> None:
        """Queue the requests of a transfer."""
        if not cargoes:
            return
        source, target = transfer.source, transfer.target
        codec = RAW if source is None else source.codec
        # encoded they would be sent; and whether a small one is sent raw must not depend on its neighbours
        raw = codec == RAW and (target is None or target.codec == RAW)
        in_place = source.in_place if raw and source is not None else 0
        if raw and target is not None:
            in_place = target.in_place if source is None else min(in_place, target.in_place)
        if transfer.atomic or len(cargoes) == 1:
            groups: Sequence[tuple[Cargo, ...]] = (cargoes,)
        else:
            groups = list(filter(None, batches(cargoes, in_place)))
        numbers = self._commons.numbers
        for group in groups:
            nbytes, head = 0 if in_place else sum(map(_NBYTES, group)), group is groups[0]
            self.queue.add(
                Request(transfer=transfer, cargoes=group, nbytes=nbytes, head=head, codec=codec, number=next(numbers))
            )
            transfer.remaining += 1

    def pump(self, now: float) -> list[Action]:
        """Send what fits into the window."""
        actions: list[Action] = []
        server, in_flight, queue, wire = self.server, self.in_flight, self.queue, self.wire
        if server.handshake.welcome is None or self.resends.all or server.lost is not None:
            return actions
        if again := self.resends.at_once:
            actions += [self._again(request) for request in again if request.number in in_flight]
            again.clear()
        while queue.waiting and (request := queue.peek()) is not None:
            if request.transfer.done:
                queue.pop(request)
                continue
            if in_flight and in_flight.nbytes + request.nbytes > wire.window(request.nbytes):
                break
            if isinstance(request.transfer, PushTransfer):
                next_seq = self.next_seq
                if in_flight:
                    oldest = next((r.seq for r in in_flight.values() if r.seq), next_seq)
                    if next_seq - oldest >= PUSH_WINDOW:
                        break  # a resend of the oldest must still be in the server's ledger
                request.seq, self.next_seq = next_seq, next_seq + 1
                for sending in self._commons.sending:
                    sending(self, request)
            queue.pop(request)
            counts = request.nbytes >= wire.sample_nbytes or queue.waiting or not wire.round_trip_s
            if counts and wire.since is None:  # a small one by itself gives one measurement
                wire.begins(now)
            in_flight[request.number] = request
            in_flight.nbytes += request.nbytes
            if self.probe.due is None:
                self._rest(now)
            actions.append(self._send(request))
        return actions

    def _again(self, request: Request) -> Action:
        self.counts["retries"] += 1
        return self._send(request)

    def _send(self, request: Request) -> Action:
        self.probe.num_sent += 1
        request.sent_as = self.probe.num_sent
        message, nbytes = self._message(request), 0
        for buffer in getattr(message, "payload", ()):
            nbytes += buffer.nbytes
        request.sent_nbytes = nbytes
        self.counts["bytes_sent"] += nbytes
        return Send(self.server.peer, message)

    def _message(self, request: Request) -> Message:
        transfer, epoch = request.transfer, self.server.epoch
        if (message_of := self._commons.messages.get(type(request.cargoes[0]))) is not None:
            return message_of(request, epoch, self.versions, self.packer.pack)
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
        """The connection is open, perhaps again: send Hello, because earlier messages may be lost."""
        if self.server.lost is not None:
            return []
        self._break()
        return self.server.handshake.again(now)

    def on_disconnected(self, now: float) -> None:
        """The connection has ended: nothing is sent until the server has welcomed us over the next one."""
        self._break()
        self.server.handshake.ended(now)

    def promise(self, how: str = "its backup takes over") -> None:
        """The server was lost, and another one will have the shard: wait for it."""
        self.server.promised = how

    def withdraw(self, pull: Transfer, now: float) -> list[Action]:
        """A pull was given up: free its window, and withdraw it at the server if possible."""
        if not (numbers := [number for number, request in self.in_flight.items() if request.transfer is pull]):
            return []
        for number in numbers:
            self.in_flight.take(number)
        if not self.in_flight:
            self.probe.due = None
        server = self.server
        told = numbers if server.handshake.welcome is not None and not self.resends.all and server.lost is None else ()
        return [*(Send(server.peer, Withdraw(number)) for number in told), *self.pump(now)]

    def forget(self) -> None:
        """No request is awaited any more: all have ended, or are repeated."""
        self.queue.clear()
        self.in_flight.clear()
        self._break()

    def retarget(self, server: ShardServer) -> None:
        """The shard has another server: all unanswered requests are resent to it, after its welcome."""
        self.server.handshake.stop()
        self._break()
        self.server, self.wire = server, Wire()
        self.resends.all = bool(self.in_flight)
        for moving in self._commons.moving:
            moving(self)

    def void(self, seq: int) -> None:
        """A push was refused, or given up: it was not acknowledged."""
        for voiding in self._commons.voiding:
            voiding(self, seq)

    @property
    def later(self) -> list[Request]:
        """Requests put off, to be resent at their times."""
        return [request for request in self.in_flight.values() if request.retry_at is not None]

    def requests_of(self, transfer: Transfer) -> list[Request]:
        """Return the unanswered requests of a transfer."""
        return [request for request in [*self.queue, *self.in_flight.values()] if request.transfer is transfer]

    def _break(self) -> None:
        self.resends.at_once.clear()
        for request in self.later:  # with all the others, then
            assert request.delay is not None
            request.delay.retry_at = None
        self.resends.all = self.server.handshake.welcome is not None or bool(self.in_flight)
        self.probe.due = None

    def on_welcome(self, welcome: Welcome, now: float) -> list[Action]:
        """The server has welcomed us: start to send, or resend what a broken connection may have lost."""
        handshake = self.server.handshake
        if handshake.is_down:  # the welcome is of the ended connection; the next one is not open
            return []
        self.wire.greeted(handshake, now)
        handshake.on_welcome(welcome)
        self.probe.heard_at = now
        if self.resends.all:
            self.resends.all = False
            self._resend_unanswered(self.probe.num_sent, everything=True)
            self._rest(now)
        return self.pump(now)

    def _resend_unanswered(self, num_sent: int, *, everything: bool = False) -> None:
        """Resend what the server has not answered of this many first messages, all of which it has had."""
        for number, request in list(self.in_flight.items()):
            push, doubted = request.transfer, request.delay is not None and request.delay.doubted
            if request.sent_as > num_sent:
                continue
            if push.done:  # given up: free the window, never resend it
                if request.seq:
                    self.void(request.seq)
                self.in_flight.take(number)
                continue
            # its values may still be copied, and leave later
            waits = isinstance(push, PushTransfer) and push.target is not None and not doubted and not everything
            if waits or doubted:
                request.delay = request.delay or Delay()
                request.delay.doubted = waits
            if not waits:
                self.resends.at_once.append(request)

    def on_answer(self, message: Ack | Values, now: float) -> AnyTransfer | None:
        """Process an answer; return its transfer if that is still awaited, and may be complete."""
        request = self.in_flight.get(message.request)
        if request is None or request.transfer.done:
            self.free(message.request, now)
            return None
        if self._note_overtaken(request, now):
            return None
        transfer, nbytes = request.transfer, 0
        target = transfer.target
        if isinstance(message, Values):
            if target is None or len(message.versions) != len(request.cargoes):
                raise ProtocolError(f"{self.server.title} answered a {transfer.kind} with values of {message.versions}")
            nbytes = self._land(request, target, message)
            for cargo, version in zip(request.cargoes, message.versions, strict=True):
                self.versions[cargo.slice.index] = version
        elif target is not None:
            raise ProtocolError(f"{self.server.title} answered a {transfer.kind} without values")
        # not before: an unusable answer fails with the rest of the link
        self.free(message.request, now, nbytes)
        if isinstance(transfer, PushTransfer):
            transfer.staleness = max(transfer.staleness, max(message.staleness, default=0))
        transfer.remaining -= 1
        return transfer

    def awaits(self, number: int) -> bool:
        """Whether a request of this number was sent over this link and is not answered."""
        return number in self.in_flight or number in self.probe

    def _note_overtaken(self, request: Request, now: float) -> bool:
        """Note pushes that an answer proves lost; return whether it answers a pull without them."""
        pull = isinstance(request.transfer, PullTransfer)
        unseen = late = False
        for earlier in self.in_flight.values():  # in sending order, so this ends at once if nothing was lost
            if earlier is request:
                break
            push = earlier.transfer
            if push.done or isinstance(push, PullTransfer) or earlier.sent_as > request.sent_as:
                continue
            missed = pull and not request.slices.isdisjoint(earlier.slices)
            if earlier.retry_at is not None:  # it was refused, and will be resent
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
            self.probe.heard_at = now
        return unseen

    def put_off(self, number: int, now: float) -> bool:
        """Resend a request a little later, because the server lacks the memory for it; False if it has for too long."""
        if (request := self.in_flight.get(number)) is None or request.transfer.done:
            return False
        delay = request.delay = request.delay or Delay()
        if delay.retry_at is not None or self.resends.all:
            return True  # refused twice, or to be resent with all others over the next connection
        if (at := self.resends.refused(delay, now)) is None:
            return False
        self._send_later(request, at)
        self.probe.heard_at = now
        self._rest(now)
        return True

    def wait_for_move(self, number: int, now: float) -> None:
        """The shard moves to another server; if the move fails, no message says so: resend this after a while."""
        if (request := self.in_flight.get(number)) is None:
            self.probe.answered(number)
        elif request.retry_at is None and not self.resends.all:
            self._send_later(request, now + SLOWEST_RETRY_S)
        self.probe.heard_at = now
        self._rest(now)

    def _send_later(self, request: Request, at: float) -> None:
        request.delay = request.delay or Delay()
        request.delay.retry_at = at
        self._commons.alarm.by(at)

    def _send_put_off(self, request: Request, now: float) -> list[Action]:
        """Resend requests whose time has come; those given up meanwhile free the window."""
        assert request.delay is not None
        request.delay.retry_at = None
        if request.transfer.done:
            self.free(request.number, now)
            return []
        return [self._again(request)]

    def free(self, number: int, now: float, nbytes: int = 0) -> Request | None:
        """Remove a request from flight, after an answer of this many bytes; None if it was answered before."""
        self.probe.heard_at = now
        request = self.in_flight.take(number)
        if request is not None:
            if self.wire.since is not None:
                self.wire.answered(now, (request.sent_nbytes, nbytes, request.nbytes), is_last=not self.in_flight)
        elif num_sent := self.probe.answered(number):
            self._resend_unanswered(num_sent)
            if self.in_flight:
                return None  # the silence continues
        self._rest(now)
        return request

    def _land(self, request: Request, target: Target, message: Values) -> int:
        """Copy values to their targets; return their bytes on the wire."""
        payload: Sequence[Buffer] = message.payload
        nbytes = sum([memoryview(buffer).nbytes for buffer in payload])
        self.counts["bytes_received"] += nbytes
        codec = None if message.codec == RAW else named(message.codec)
        if codec is not None:
            sizes = ((target.size_of(c), c.dtype) for c in request.cargoes)
            payload = self._commons.coding.decompress(codec, payload, sizes)
            self.packer.saved_nbytes += request.raw_nbytes - nbytes
        target.land(request.cargoes, payload, message.versions)
        return nbytes

    def fail(self, error: PSError) -> list[AnyTransfer]:
        """The server is lost: return the transfers that now fail."""
        self.server.lost = error
        self.server.handshake.stop()
        failed = dict.fromkeys(request.transfer for request in [*self.in_flight.values(), *self.queue])
        self.forget()
        return list(failed)

    def waiting_for(self, transfer: Transfer, now: float) -> str:
        """Return what a transfer still waits for here, or nothing."""
        title, handshake = self.server.title, self.server.handshake
        if self.server.promised:
            return f"{title}, which was lost: {self.server.promised}"
        if handshake.welcome is None:
            return f"{title} to accept the connection{handshake.because}"
        heard = f"last heard from {now - self.probe.heard_at:.1f} s ago"
        if self.resends.all:
            return f"the connection to {title} to come back, {heard}{handshake.because}"
        if not (missing := len(self.requests_of(transfer))):
            return ""
        put_off = [request.delay for request in self.later if request.transfer is transfer]
        if any(delay is not None and delay.refused_at is not None for delay in put_off):
            return f"{title} to have the memory for it"
        if put_off:
            return f"word where the shard of {title} is now"
        return f"{counted(missing, 'answer')} from {title}, {heard}"

    def _rest(self, now: float) -> None:
        """A request was answered, or is awaited from now on."""
        self.probe.wait_s = PROBE_S
        self.probe.due = now + PROBE_S if self.in_flight and not self.resends.all else None
        alarm = self._commons.alarm
        alarm.due = min(alarm.due, self.probe.due or inf)

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        dues = (self.probe.due, self.server.handshake.due, *(request.retry_at for request in self.later))
        return min([due for due in dues if due is not None], default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Repeat Hello, or requests that were put off; or ask a silent server."""
        server = self.server
        if server.handshake.due is not None and now >= server.handshake.due:
            return server.handshake.on_deadline(now)
        if later := [request for request in self.later if now >= (request.retry_at or now)]:
            return [*(action for request in later for action in self._send_put_off(request, now)), *self.pump(now)]
        if self.probe.due is None or now < self.probe.due:
            return []
        number = next(self._commons.numbers)
        self.probe.ask(now, number)
        return [Send(server.peer, PullMessage(number, server.epoch, 0, 0, RAW, ()))]

    def validate(self) -> None:
        """Assert that the window holds."""
        self.queue.validate()
        assert self.in_flight.nbytes == sum([request.nbytes for request in self.in_flight.values()])
        assert self.in_flight.nbytes <= WINDOW_NBYTES or len(self.in_flight) == 1
        assert [*self.in_flight] == [request.number for request in self.in_flight.values()]
        assert (self.probe.due is not None) == (bool(self.in_flight) and not self.resends.all)
        assert not (self.resends.all and self.later)
        handshake = self.server.handshake
        assert handshake.is_over or handshake.due is not None or not self.resends.all, "no timer would find out why"
