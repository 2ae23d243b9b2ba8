"""A worker's transfers: through the consistency gate, over the links to the servers, to their end."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

import numpy as np

from zmqps.core.job.keyspace import Placement
from zmqps.core.node.handshake import LOOK_S, Handshake
from zmqps.core.node.member import Identity, Member
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import Coding
from zmqps.core.protocol.events import Action, Landed, Log, Looked, Peer, Send, server_peer
from zmqps.core.protocol.keys import key_of, same
from zmqps.core.protocol.limits import MAX_FACT_CHARS
from zmqps.core.protocol.messages import Ack, Error, Job, Leave, Lost, Message, Proceed, Values, Waiting, Welcome
from zmqps.core.protocol.wire import MAX_FRAMES
from zmqps.core.worker.link import SHORT_S, Link
from zmqps.core.worker.operations import Advance, Attached, Exchange, Operation
from zmqps.core.worker.pace import Pace
from zmqps.core.worker.plan import Cargo
from zmqps.core.worker.statistics import Tally
from zmqps.core.worker.transfer import Load, Pull, Push, Source
from zmqps.errors import (
    ConfigurationError,
    IdentityError,
    JobError,
    LimitError,
    NonFiniteGradientError,
    PeerLostError,
    ProtocolError,
    PSError,
    ServerMemoryError,
    StaleEpochError,
    WrongPeerError,
    from_wire,
    listed,
    printable,
)

#: Of the servers that cannot be reached so many are named.
MOST_UNREACHED = 4


class Host(Protocol):
    """What transfers need of the session they belong to."""

    now: float
    member: Member
    attached: Attached | None
    tally: Tally
    operations: dict[Operation, None]

    @property
    def title(self) -> str:
        """Who this worker is, for errors."""

    def resolve(self, operation: Operation, value: Any) -> list[Action]:
        """An operation is done."""

    def new_request(self) -> int:
        """Return the number of a request to the coordinator."""

    def ask(self, message: Any, now: float) -> list[Action]:
        """Send a request to the coordinator until it is answered."""

    def coordinator_lost(self, now: float) -> PSError | None:
        """Return the error for what only the coordinator can allow, if it is gone."""


class Transfers:
    """The transfers of one session.

    Parameters
    ----------
    host
        The session.
    all_finite
        Whether flat arrays hold neither NaN nor infinity.
    coding
        The door to the codecs.
    """

    def __init__(self, host: Host, all_finite: Callable[[Sequence[Array]], bool], coding: Coding) -> None:
        self.links: list[Link] = []
        self.pace = Pace()
        self._host = host
        self._all_finite = all_finite
        self._coding = coding
        self._asked: dict[Push | Pull | Load, Operation] = {}  # on whose behalf transfers are under way
        self._by_peer: dict[Peer, Link] = {}
        self._endpoints: dict[str, Peer] = {}  # connections to servers
        self._numbers = count(1)  # of requests to servers

    @property
    def counts(self) -> Counter[str]:
        """What the links have counted."""
        return sum((link.counts for link in self.links), Counter())

    @property
    def in_flight_nbytes(self) -> int:
        """Bytes sent or asked for and not yet answered."""
        return sum(link.in_flight_nbytes for link in self.links)

    def on_deadline(self, now: float) -> list[Action]:
        """Hellos and resends."""
        actions: list[Action] = []
        for link in self.links:
            due = link.next_deadline()
            if due is not None and now >= due:
                actions += link.on_deadline(now)
        return actions

    def title_of(self, peer: Peer) -> str:
        """Return how a server is called, by its connection; all others are the coordinator's."""
        link = self._by_peer.get(peer)
        return "the coordinator" if link is None else link.title

    def waiting_for(self, transfer: Push | Pull | Load, now: float) -> str:
        """Say what a transfer waits for."""
        texts = [link.waiting_for(transfer, now) for link in self.links]
        return "; ".join(text for text in texts if text) or "nobody"

    def operation(self, transfer: Push | Pull | Load) -> Operation | None:
        """Return on whose behalf a transfer is under way; None if it has ended."""
        return self._asked.get(transfer)

    def forget(self, operation: Operation) -> None:
        """An operation is done, well or not: forget it."""
        if operation.transfer is not None:
            self.drop(operation.transfer)
        if isinstance(operation, Advance):
            self.pace.forget(operation)
        if isinstance(operation, (Exchange, Advance)):
            self.pace.held.pop(operation, None)

    def go_on(self, now: float) -> list[Action]:
        """Arrive if the step is complete, and begin what is held, until something closes the gate."""
        pace, actions = self.pace, list[Action]()
        while True:
            if pace.complete:
                closing = pace.closing
                actions += self._arrive(now)
                if isinstance(closing, Advance):
                    actions += self._host.resolve(closing, None)
            elif pace.held and (not pace.closed or self._host.coordinator_lost(now) is not None):
                actions += self.begin(pace.held.popitem(last=False)[0], now)
            else:
                return actions

    def validate(self) -> None:
        """Assert the invariants."""
        self.pace.validate()
        requests = [request for link in self.links for request in [*link.queue, *link.in_flight.values()]]
        for link in self.links:
            link.validate()
        for operation in self._host.operations:
            if (transfer := operation.transfer) is not None:
                assert not transfer.done
                assert self._asked[transfer] is operation
                assert transfer.remaining == sum(request.transfer is transfer for request in requests)

    def begin(self, operation: Exchange | Advance, now: float) -> list[Action]:
        """Begin a transfer, or hold it until the consistency gate is open."""
        pace, actions = self.pace, list[Action]()
        if pace.mode != "async" or pace.arrive is not None:
            if pace.waits_again:
                actions += self._arrive(now)
            if pace.closed:
                if (lost := self._host.coordinator_lost(now)) is not None:  # nobody will open it
                    return actions + self._host.resolve(operation, lost)
                pace.held[operation] = None
                return actions
        if isinstance(operation, Advance):
            if pace.mode == "async" or not pace.brought:
                return self._host.resolve(operation, None)
            pace.closing = operation
            return actions
        push, pull = operation.push, operation.pull
        if push is None or push.done:
            assert pull is not None
            return self.start(operation, pull, now)
        if pull is not None and pace.mode == "async":
            push.target = pull.target  # both in one round trip
        return self.start(operation, push, now)

    def _arrive(self, now: float) -> list[Action]:
        return self._host.ask(self.pace.arriving(self._host.new_request()), now)

    def proceed(self, message: Message) -> list[Action]:
        """Take what the coordinator says to our arrival."""
        pace = self.pace
        if isinstance(message, Waiting):
            pace.awaited = printable(message.text)
            return []
        actions: list[Action] = []
        if isinstance(message, Proceed):
            if not message.counted:
                self._host.tally.dropped()
                actions.append(
                    Log("warning", f"step {pace.clock} was over before our gradients were complete: dropped")
                )
            pace.proceed(message)
        elif isinstance(message, Error):
            pace.failed()
            error = from_wire(message.code, message.text, message.facts)
            held, pace.held = list(pace.held), OrderedDict()
            for operation in held:
                actions += self._host.resolve(operation, error)
        return actions

    def resume(self, clock: int) -> list[Action]:
        """The others did not wait for this worker for a while."""
        if not self.pace.resume(clock):
            return []
        self._host.tally.dropped()
        return [Log("warning", "the step of our last gradients was over before it was complete: dropped")]

    def start(self, operation: Operation, transfer: Push | Pull | Load, now: float) -> list[Action]:
        """Queue the requests of a transfer on behalf of an operation."""
        operation.transfer = transfer
        self._asked[transfer] = operation
        if self.pace.mode != "async":
            self.pace.start(transfer)
        if isinstance(transfer, Pull) and transfer.target.missing is not None and self.pace.mode == "sync":
            transfer.exact = True  # what was told to be there cannot be read again if a step is committed meanwhile
        for link, cargoes in zip(self.links, transfer.cargoes, strict=True):
            if link.lost is not None and cargoes:
                return self._host.resolve(operation, link.lost)
        if isinstance(transfer, Push) and (error := self._nonfinite(transfer.source)) is not None:
            self._host.tally.refused()
            return self._host.resolve(operation, error)
        if transfer.atomic:
            most = max(sum(len(cargo.extents) for cargo in cargoes) for cargoes in transfer.cargoes)
            if most > MAX_FRAMES:
                too_much = LimitError(what="pieces of a shard in an atomic push", got=most, limit=MAX_FRAMES)
                return self._host.resolve(operation, too_much)
        actions: list[Action] = []
        for link, cargoes in zip(self.links, transfer.cargoes, strict=True):
            if cargoes:
                link.enqueue(transfer, cargoes)
                actions += link.pump(now)
        if not transfer.remaining:  # it is of no arrays
            actions += self._complete(transfer)
        return actions

    def _nonfinite(self, source: Source) -> PSError | None:
        attached = self._host.attached
        if attached is None or attached.job.nonfinite != "reject":
            return None
        if source.nonfinite:
            names = [repr(name) for name in source.nonfinite]
            return NonFiniteGradientError(worker=self._host.title, parameters=listed(names, 5))
        pairs = list(zip(source.arrays, attached.dtypes, strict=True))
        as_sent = [array for array, dtype in pairs if array is not None and array.dtype == dtype]
        others = [(array, dtype) for array, dtype in pairs if array is not None and array.dtype != dtype]
        if source.tables is not None:  # the same, in fewer pieces
            as_sent = list(source.tables)
        if self._all_finite(as_sent) and (not others or all(self._all_finite([_converted(*pair)]) for pair in others)):
            source.checked = True
            return None
        names = [
            repr(parameter.name)
            for parameter, array in zip(attached.job.parameters, source.arrays, strict=True)
            if array is not None and not np.isfinite(_converted(array, parameter.storage_dtype)).all()
        ]
        return NonFiniteGradientError(worker=self._host.title, parameters=listed(names, 5))

    def _complete(self, transfer: Push | Pull | Load) -> list[Action]:
        """All of a transfer is answered: resolve its operation, or go on with the pull behind a push."""
        if isinstance(transfer, Pull) and self.pace.mode == "sync" and (outdated := transfer.target.outdated()):
            return self._read_again(transfer, outdated)
        operation = self._asked[transfer]
        if isinstance(transfer, Push) and transfer.attempt:
            self.pace.pushed(transfer)
        self.drop(transfer)
        if isinstance(transfer, Load):
            return []  # the coordinator answers the init
        self._host.tally.completed(transfer)
        if isinstance(transfer, Push):
            attached = self._host.attached
            if attached is not None and attached.treatment is not None:
                if attached.treatment.drops(transfer.staleness):
                    self._host.tally.dropped()
            if isinstance(operation, Exchange) and operation.pull is not None and transfer.target is None:
                self.pace.held[operation] = None  # now for the values after it
                return []
        return self._host.resolve(operation, None)

    def _read_again(self, pull: Pull, outdated: tuple[Cargo, ...]) -> list[Action]:
        """A step was committed between two slices: read the older ones again, so that all are of one version."""
        pull.version = max(pull.target.versions.values())
        for cargo in outdated:
            pull.target.forget(cargo)
        actions: list[Action] = []
        for rank, link in enumerate(self.links):
            link.enqueue(pull, tuple(cargo for cargo in outdated if cargo.slice.shard == rank))
            actions += link.pump(self._host.now)
        return actions

    def can_withdraw(self, operation: Operation) -> bool:
        """Whether an operation that is not done can end as if it had never been asked for."""
        if operation in self.pace.held:
            return True
        transfer = operation.transfer
        if isinstance(transfer, Pull):
            return True
        if not isinstance(transfer, Push):
            return False
        queued = sum(len(r.cargoes) for link in self.links for r in link.queue if r.transfer is transfer)
        return queued == sum(map(len, transfer.cargoes))

    def drop(self, transfer: Push | Pull | Load) -> None:
        """Forget a transfer; what is in flight stays in flight: its answer makes room."""
        transfer.done = True
        self._asked.pop(transfer).transfer = None
        if isinstance(transfer, Push) and transfer.attempt:  # it belongs to a step
            self.pace.forget(transfer)
        if transfer.remaining:
            for link in self.links:
                link.queue.drop(transfer)

    def connect(self, identity: Identity, placement: Placement, message: Job, now: float) -> list[Action]:
        """Open the links to the servers of a job."""
        servers = message.placement.get("servers")
        if type(servers) is not list or len(servers) != placement.num_shards:
            raise ProtocolError("a job names one server a shard")
        for server in servers:
            keys = ("name", "endpoint", "ticket", "proof")
            if type(server) is not dict or any(type(server.get(key)) is not str for key in keys):
                raise ProtocolError("a server has a name and an endpoint, a ticket and a proof")
        endpoints = [server["endpoint"] for server in servers]
        if twice := [endpoint for endpoint in endpoints if endpoints.count(endpoint) > 1]:
            raise ConfigurationError(
                f"two servers of this job advertise {printable(twice[0])}; give each an address of its own: "
                "zmqps server --advertise HOST:PORT"
            )
        actions: list[Action] = []
        self.links = []
        for rank, server in enumerate(servers):
            endpoint = server["endpoint"]
            title = printable(f"server {rank} ({server['name']}, {endpoint.partition(' ')[0]})")
            is_open = endpoint in self._endpoints  # a second connection would take the first one's place
            peer = self._endpoints.setdefault(endpoint, server_peer(len(self._endpoints)))
            ticket, proof = key_of(server["ticket"]), key_of(server["proof"])
            handshake = Handshake(identity.hello(ticket, message.epoch), peer, endpoint)
            num_slices = len(placement.slices[rank])
            self.links.append(Link(title, handshake, proof, message.epoch, num_slices, self._numbers, self._coding))
            actions += handshake.on_deadline(now) if is_open else handshake.start(now)
        self._by_peer = {link.peer: link for link in self.links}
        return actions

    def lose_server(self, lost: Lost) -> list[Action]:
        """A server vanished: what needs it fails."""
        if lost.rank >= len(self.links):
            return []
        link = self.links[lost.rank]
        advice = "the values of its shard are gone; begin the job again once a server has joined in its place"
        error = PeerLostError(role="server", name=link.title, silent_s=round(lost.silent_s, 3), advice=advice)
        return [Log("error", str(error)), *self._fail_link(link, error)]

    @property
    def lost_server(self) -> PSError | None:
        """The error of a server that is lost, and with it a part of the job; None: all are there."""
        errors = (link.lost for link in self.links)
        return next((e for e in errors if isinstance(e, PeerLostError) and e.role == "server"), None)

    def connected(self, peer: Peer, now: float) -> list[Action]:
        """The connection to a server is there, perhaps again."""
        link = self._by_peer.get(peer)
        return [] if link is None else link.on_connected(now)

    def disconnected(self, peer: Peer, now: float) -> list[Action]:
        """The connection to a server has ended; it comes back by itself."""
        link = self._by_peer.get(peer)
        if link is not None:
            link.on_disconnected(now)
        return []

    def part(self, reason: str) -> list[Action]:
        """Say goodbye to the servers that know us."""
        known = [link for link in self.links if link.handshake.welcome is not None and link.lost is None]
        self.forget_servers()
        return [Send(link.peer, Leave(reason)) for link in known]

    def forget_servers(self) -> None:
        """Wait for no server any more: who ends now is not missed."""
        for link in self.links:
            link.handshake.stop()

    def looked(self, looked: Looked, now: float) -> list[Action]:
        """Say why a server does not answer, here and to the coordinator."""
        link = self._by_peer.get(looked.peer)
        if link is None or not link.handshake.looked(looked.why):
            return []
        self._host.member.report(now)
        silent_s, why = link.handshake.silence(now), link.handshake.why
        return [Log("warning", f"cannot reach {link.title} for {silent_s:.0f} s: {why}")]

    def unreached(self, now: float) -> Mapping[str, str]:
        """Return the servers that cannot be reached, for how long and why, as a counter for the status."""
        silent = [(link, link.handshake.silence(now), link.handshake.because) for link in self.links]
        texts = [f"{link.title} for {s:.0f} s{because}" for link, s, because in silent if s >= LOOK_S or because]
        return {"unreached": listed(texts, MOST_UNREACHED)} if texts else {}

    def unreachable(self, peer: Peer, error: PSError) -> list[Action]:
        """A server cannot be talked to."""
        link = self._by_peer.get(peer)
        return [] if link is None else self._fail_link(link, error)

    def _fail_link(self, link: Link, error: PSError) -> list[Action]:
        actions: list[Action] = []
        for transfer in link.fail(error):
            if not transfer.done:
                actions += self._host.resolve(self._asked[transfer], error)
        return actions

    def handle(self, peer: Peer, message: Message, now: float) -> list[Action]:
        """Take a server's message."""
        link = self._by_peer.get(peer)
        if link is None:
            return []
        if isinstance(message, Welcome):
            if not same(message.proof, link.proof):
                wrong = WrongPeerError(server=link.title, why="it does not prove to be that one")
                return [Log("error", str(wrong)), *self._fail_link(link, wrong)]
            return link.on_welcome(message, now)
        if isinstance(message, (Ack, Values)):
            try:
                transfer = link.on_answer(message, now)
            except ProtocolError as broken:
                return self._fail_link(link, broken)
            actions = link.pump(now)
            if transfer is not None:
                if (target := transfer.target) is not None and target.arrived:
                    actions.append(Landed(self._asked[transfer], tuple(target.arrived)))
                    target.arrived.clear()
                if not transfer.remaining:
                    actions += self._complete(transfer)
            return actions
        if isinstance(message, Error):
            error = from_wire(message.code, message.text, message.facts)
            if message.request == 0 and _is_stranger(error):
                wrong = WrongPeerError(server=link.title, why=f"it says: {error}"[:MAX_FACT_CHARS])
                return [Log("error", str(wrong)), *self._fail_link(link, wrong)]
            if message.request == 0:
                return self._fail_link(link, error)
            if isinstance(error, NonFiniteGradientError):
                self._host.tally.refused()
            is_news = not link.is_short
            if isinstance(error, ServerMemoryError) and link.put_off(message.request, now):
                text = f"{link.title} lacks the memory for {error.what} ({error.why}); asking again for {SHORT_S:g} s"
                return [Log("warning", text)] if is_news else []
            request = link.answered(message.request, now)
            actions = link.pump(now)
            if request is not None and not request.transfer.done:
                actions += self._host.resolve(self._asked[request.transfer], error)
            return actions
        return []


def _is_stranger(error: PSError) -> bool:
    """Whether an error that answers a `Hello` shows that the ticket was for another server, which this one is not.

    The server that the coordinator means knows ticket, job and epoch, for it is told before its workers are.
    """
    return isinstance(error, IdentityError | StaleEpochError) or type(error) in (JobError, ProtocolError)


def _converted(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return a gradient in the dtype it is sent in, which may hold less than its own."""
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False)
