"""A worker's transfers: through the consistency gate, over the links to the servers, to their end."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from zmqps.core.node.member import GONE
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.events import COORDINATOR, Action, Landed, Log, Peer, Send
from zmqps.core.protocol.message import MAX_FACT_CHARS
from zmqps.core.protocol.wire import MAX_FRAMES
from zmqps.core.worker.connections.link import SHORT_S, Link
from zmqps.core.worker.connections.links import Links
from zmqps.core.worker.host import SessionHost, TransferHooks
from zmqps.core.worker.operations import Advance, Exchange, Operation
from zmqps.core.worker.pace import SHUT, Gate, Pace, Pause
from zmqps.core.worker.transfer import AnyTransfer, Cargo, LoadTransfer, PullTransfer, PushTransfer, Source
from zmqps.errors import (
    DeposedError,
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

#: A worker that has paused for a checkpoint continues by itself after this long: the coordinator has given up before.
PAUSE_S = 15.0
#: How often it repeats that it has paused, until it may continue: a broken connection may have lost either message.
AGAIN_S = 2.0


class Transfers:
    """The transfers of one session."""

    def __init__(self, host: SessionHost, links: Links, all_finite: Callable[[Sequence[Array]], bool]) -> None:
        self._links = links
        self.pace = Pace()
        self.hooks = TransferHooks()
        self.counts: Counter[str] = Counter()  # their results
        self._host = host
        self.all_finite = all_finite
        self.under_way: dict[AnyTransfer, Operation] = {}  # their operations
        self.ahead: PullTransfer | None = None  # in transfer although its operation is held: it ends no sooner
        self.answers: dict[type[m.Message], Callable[[Peer, Sequence[Link], Any, float], list[Action]]] = {
            m.Welcome: self._welcomed,
            m.Error: self._refused,
        }

    def waiting_for(self, transfer: AnyTransfer, now: float) -> str:
        """Return what a transfer waits for."""
        texts = [link.waiting_for(transfer, now) for link in self._links.by_shard]
        return "; ".join(text for text in texts if text) or "nobody"

    def forget(self, operation: Operation) -> list[Action]:
        """An operation has ended: forget it, and let servers forget the requests that are not awaited any more."""
        actions, transfer = list[Action](), operation.transfer
        if transfer is not None:
            self.drop(transfer)
            if transfer is self.ahead:
                self.ahead = None
            if isinstance(transfer, PullTransfer) and transfer.remaining:
                for link in self._links.by_shard:
                    actions += link.withdraw(transfer, self._host.now)
        if isinstance(operation, Advance):
            self.pace.forget(operation)
        if isinstance(operation, (Exchange, Advance)):
            self.pace.held.pop(operation, None)
        return actions

    def go_on(self, now: float) -> list[Action]:
        """Arrive if the step is complete, and start held operations, until the gate closes."""
        pace, actions = self.pace, list[Action]()
        while True:
            if pace.gate is Gate.COMPLETE:
                closing = pace.step.closing
                actions += self._arrive(now)
                if isinstance(closing, Advance):
                    actions += self._host.resolve(closing, None)
            elif pace.held and ((pace.gate not in SHUT and pace.paused is None) or self._host.member.standing in GONE):
                actions += self.begin(pace.held.popitem(last=False)[0], now)
            else:
                break
        if self.hooks.arrived and pace.held and pace.gate is Gate.ARRIVED and self.ahead is None:
            for arrived in self.hooks.arrived:
                actions += arrived(now)
        return actions if pace.paused is None else [*actions, *self._say_paused(now)]

    def pause(self, message: m.Hold, now: float) -> list[Action]:
        """Begin no push, and report when none is in flight; or continue, if this ends the pause."""
        if message.ends:
            pause = self.pace.paused
            return self.unpause(now) if pause is not None and message.number == pause.number else []
        self.pace.paused = Pause(message.number, now + PAUSE_S)
        return self._say_paused(now)

    def unpause(self, now: float) -> list[Action]:
        """Continue, whatever the pause was for."""
        self.pace.paused = None
        return self.go_on(now)

    def on_pause_due(self, now: float) -> list[Action]:
        """End an overdue pause, or repeat its message."""
        pause = self.pace.paused
        if pause is None or now < pause.due:
            return []
        if now >= pause.until:
            return self.unpause(now)
        pause.says_at = None
        return self._say_paused(now)

    def _say_paused(self, now: float) -> list[Action]:
        pause = self.pace.paused
        if pause is None or pause.says_at is not None or any(isinstance(push, PushTransfer) for push in self.under_way):
            return []
        pause.says_at = now + AGAIN_S
        self._links.commons.alarm.by(pause.due)
        return [Send(COORDINATOR, m.Holding(pause.number))]

    def validate(self) -> None:
        """Assert the invariants."""
        self.pace.validate()
        self._links.validate()
        if self.ahead is not None:
            assert self.pace.closed
            assert self.under_way[self.ahead] is next(iter(self.pace.held))
        transfers = []  # of all unanswered requests
        for link in self._links.by_shard:
            transfers += [request.transfer for request in link.queue]
            transfers += [request.transfer for request in link.in_flight.values()]
        assert not any(isinstance(transfer, PullTransfer) and transfer.done for transfer in transfers)
        for operation in self._host.operations:
            if (transfer := operation.transfer) is not None:
                assert not transfer.done
                assert self.under_way[transfer] is operation
                assert transfer.remaining == transfers.count(transfer)

    def begin(self, operation: Exchange | Advance, now: float) -> list[Action]:
        """Start a transfer, or hold it until the consistency gate is open."""
        pace, actions = self.pace, list[Action]()
        if pace.mode != "async" or pace.gate is not Gate.OPEN or pace.paused is not None:
            if self.hooks.dropping and any(drops(operation) for drops in self.hooks.dropping):
                return self._host.resolve(operation, None)
            if pace.gate is Gate.FAILED and pace.paused is None:
                actions += self._arrive(now)
            if pace.gate in SHUT or pace.paused is not None:
                if (lost := self._host.coordinator_lost(now)) is not None:  # the gate will not open any more
                    return actions + self._host.resolve(operation, lost)
                pace.held[operation] = None
                return actions
        if isinstance(operation, Advance):
            return actions if pace.close(operation) else actions + self._host.resolve(operation, None)
        push, pull = operation.push, operation.pull
        if push is None or push.done:  # as `awaits_values`, without a call
            assert pull is not None
            if (begun := operation.transfer) is not None:  # sent ahead of this
                return actions if begun.remaining else actions + self._complete(begun)
            if pace.step.unfinished.lacking is not None and pace.gate is Gate.OPEN and pace.brought:
                actions += pace.step.unfinished.warning(self._host.attached)
            return actions + self.start(operation, pull, now)
        if pace.mode == "async":
            actions += pace.step.unfinished.alone(push, self._host.attached) if push.expected else []
            push.target = pull.target if pull is not None and pull.cargoes is push.cargoes else push.target  # one trip
        return actions + self.start(operation, push, now)

    def _arrive(self, now: float) -> list[Action]:
        questions = self._host.questions
        return questions.ask(self.pace.arriving(next(questions.numbers)), now)

    def proceed(self, message: m.Proceed, now: float) -> list[Action]:
        """The coordinator lets this worker proceed, if it answers our arrival."""
        pace, actions = self.pace, list[Action]()
        if pace.arrive is None or message.request != pace.arrive.request:
            return actions
        if not message.counted:
            self.counts["dropped"] += 1
            said = f"step {pace.clock} was over before our gradients were complete: dropped"
            actions.append(Log("warning", said))
        self._host.questions.answered(message.request)
        after = pace.arrive.step + 1
        self.counts["left_out"] += message.left_out  # first: other threads look at the gate
        pace.proceed(message)
        for proceeded in self.hooks.proceeded:
            proceeded(now)
        if self.ahead is not None and pace.version != after:  # it reads another version
            actions += self.take_back_ahead(now)
        self.ahead = None
        return actions

    def take_back_ahead(self, now: float) -> list[Action]:
        """Take back the pull sent ahead, as if it had not been sent; its operation keeps waiting."""
        pull, self.ahead = self.ahead, None
        if pull is None:
            return []
        pull.target.forget(list(pull.target.versions))
        self.drop(pull)
        return [action for link in self._links.by_shard for action in link.withdraw(pull, now)]

    def wait(self, message: m.Message) -> list[Action]:
        """Process other answers to our arrival: what we wait for, or an error."""
        pace, actions = self.pace, list[Action]()
        if isinstance(message, m.Waiting):
            pace.awaited = printable(message.text)
        elif isinstance(message, m.Error):
            self._host.questions.answered(message.request)
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
        self.counts["dropped"] += 1
        return [Log("warning", "the step of our last gradients was over before it was complete: dropped")]

    def start(self, operation: Operation, transfer: AnyTransfer, now: float) -> list[Action]:
        """Queue the requests of an operation's transfer."""
        if isinstance(transfer, PushTransfer) and (error := self._nonfinite(transfer.source)) is not None:
            self.counts["nonfinite"] += 1
            return self._host.resolve(operation, error)
        operation.transfer = transfer
        self.under_way[transfer] = operation
        for starting in self.hooks.starting:
            starting(transfer)
        if self.pace.mode != "async" or self._host.member.cluster.terms:
            self.pace.start(transfer, self._host.member.cluster.terms)
        if isinstance(transfer, PullTransfer) and transfer.target.missing is not None and self.pace.mode == "sync":
            transfer.exact = True  # the reported version may be freed if a step is committed meanwhile
        for link, cargoes in zip(self._links.by_shard, transfer.cargoes, strict=True):
            if cargoes and (lost := link.server.lost) is not None:
                return self._host.resolve(operation, lost)
        if transfer.atomic:
            most = max(sum(len(cargo.extents) for cargo in cargoes) for cargoes in transfer.cargoes)
            if most > MAX_FRAMES:
                too_much = LimitError(what="pieces of a shard in an atomic push", got=most, limit=MAX_FRAMES)
                return self._host.resolve(operation, too_much)
        actions: list[Action] = []
        for link, cargoes in zip(self._links.by_shard, transfer.cargoes, strict=True):
            if cargoes:
                link.enqueue(transfer, cargoes)
                actions += link.pump(now)
        if not transfer.remaining:  # it has no arrays
            actions += self._complete(transfer)
        return actions

    def _nonfinite(self, source: Source) -> PSError | None:
        attached = self._host.attached
        if attached is None or attached.job.nonfinite != "reject" or source.checked:
            return None
        if source.nonfinite:
            names = [repr(name) for name in source.nonfinite]
            return NonFiniteGradientError(worker=self._host.member.title, parameters=listed(names, 5))
        # tables hold the same arrays, in fewer pieces, already converted
        as_sent, others = [table for table in source.tables if table.size] if source.tables else [], []
        for array, dtype in zip(source.arrays, attached.dtypes, strict=True) if source.tables is None else ():
            if array is not None and array.dtype == dtype:
                as_sent.append(array)
            elif array is not None:
                others.append((array, dtype))
        if self.all_finite(as_sent) and (not others or all(self.all_finite([_converted(*pair)]) for pair in others)):
            source.checked = True
            return None
        names = [
            repr(parameter.name)
            for parameter, array in zip(attached.job.parameters, source.arrays, strict=True)
            if array is not None and not np.isfinite(_converted(array, parameter.storage_dtype)).all()
        ]
        return NonFiniteGradientError(worker=self._host.member.title, parameters=listed(names, 5))

    def _complete(self, transfer: AnyTransfer) -> list[Action]:
        """All of a transfer is answered: complete its operation, or continue with the pull after a push."""
        if isinstance(transfer, PullTransfer) and self.pace.mode == "sync":
            target = transfer.target
            if len(set(target.versions.values())) > 1 and (outdated := target.outdated()):
                return self._read_again(transfer, outdated)
        if transfer is self.ahead:
            return []  # until its turn
        operation = self.under_way[transfer]
        if not isinstance(operation, Exchange):  # an init, which the coordinator answers, or the session's own
            self.drop(transfer)
            return [] if isinstance(transfer, LoadTransfer) else self._host.resolve(operation, None)
        if isinstance(transfer, PushTransfer) and transfer.attempt:
            self.pace.pushed(transfer)
        self.drop(transfer)
        self.counts["pulls"] += transfer.target is not None
        if isinstance(transfer, PushTransfer):
            self.counts["pushes"] += 1
            for pushed in self.hooks.pushed:
                pushed(transfer, operation, self._host.now)
            if operation.pull is not None and transfer.target is None:
                self.pace.held[operation] = None  # it waits for its values now
                return []
        return self._host.resolve(operation, None)

    def _read_again(self, pull: PullTransfer, outdated: tuple[Cargo, ...]) -> list[Action]:
        """A step was committed between two slices: read the older ones again, so that all have one version."""
        pull.version = max(pull.target.versions.values())
        pull.target.forget(outdated)
        actions: list[Action] = []
        for shard, link in enumerate(self._links.by_shard):
            link.enqueue(pull, tuple(cargo for cargo in outdated if cargo.slice.shard == shard))
            actions += link.pump(self._host.now)
        return actions

    def can_withdraw(self, operation: Operation) -> bool:
        """Whether a pending operation can end as if it had never been requested."""
        if operation in self.pace.held:
            return True
        transfer = operation.transfer
        if isinstance(transfer, PullTransfer):
            return True
        if not isinstance(transfer, PushTransfer):
            return False
        queued = sum(len(r.cargoes) for link in self._links.by_shard for r in link.queue if r.transfer is transfer)
        return queued == sum(map(len, transfer.cargoes))

    def drop(self, transfer: AnyTransfer) -> None:
        """Forget a transfer; its requests stay in flight until their answers free the window."""
        transfer.done = True
        self.under_way.pop(transfer).transfer = None
        if isinstance(transfer, PushTransfer) and transfer in self.pace.step.unacknowledged:
            self.pace.forget(transfer)
        if transfer.remaining:
            for link in self._links.by_shard:
                link.queue.drop(transfer)

    def lose_server(self, lost: m.Lost, now: float) -> list[Action]:
        """A server is lost: operations that need it fail."""
        links = [link for link in self._links.by_shard if link.server.rank == lost.rank]
        if lost.role != "server" or not links:
            return []
        advice = "the values of its shard are lost; begin the job again once a server has joined in its place"
        error = PeerLostError(
            role="server", name=links[0].server.title, silent_s=round(lost.silent_s, 3), advice=advice
        )
        return [Log("error", str(error), error=error.number), *self.fail_links(links, error)]

    def fail_links(self, links: Iterable[Link], error: PSError) -> list[Action]:
        """These links are lost: operations that need them fail."""
        return [action for link in links for action in self._fail_link(link, error)]

    def _fail_link(self, link: Link, error: PSError) -> list[Action]:
        actions: list[Action] = []
        for transfer in link.fail(error):
            if not transfer.done:
                actions += self._host.resolve(self.under_way[transfer], error)
        return actions

    def handle(self, peer: Peer, message: m.Message, now: float) -> list[Action]:
        """Process a server's message."""
        links = self._links.by_peer.get(peer)
        if links is None:
            return []
        if isinstance(message, (m.Ack, m.Values)):
            link = links[0] if len(links) == 1 else self._links.of_answer(peer, message.request)
            if link is None:
                return []
            try:
                transfer = link.on_answer(message, now)
            except ProtocolError as broken:
                return self._fail_link(link, broken)
            actions = link.pump(now)
            if transfer is not None:
                if (target := transfer.target) is not None and target.arrived:
                    actions.append(Landed(self.under_way[transfer], tuple(target.arrived)))
                    target.arrived.clear()
                if not transfer.remaining:
                    actions += self._complete(transfer)
            return actions
        take = self.answers.get(type(message))
        return [] if take is None else take(peer, links, message, now)

    def _welcomed(self, peer: Peer, links: Sequence[Link], message: m.Welcome, now: float) -> list[Action]:
        """Process the answer to a Hello."""
        welcomed = self._links.of_proof(peer, message.proof)
        if welcomed is not None:
            return welcomed.on_welcome(message, now)
        return self._mistaken(links, "it does not prove to be that one")

    def _mistaken(self, links: Sequence[Link], why: str) -> list[Action]:
        """Another process answers at a server's endpoint: operations that need this server fail."""
        # it has answered one of these
        fresh = [link for link in links if link.server.handshake.welcome is None] or links
        wrong = WrongPeerError(server=links[0].server.title, why=why)
        return [Log("error", str(wrong), error=wrong.number), *self.fail_links(fresh, wrong)]

    def _refused(self, peer: Peer, links: Sequence[Link], message: m.Error, now: float) -> list[Action]:
        """Process a server's error."""
        error = from_wire(message.code, message.text, message.facts)
        if isinstance(error, DeposedError):
            deposed = links[0] if len(links) == 1 else self._links.of_answer(peer, message.request)
            if deposed is not None:
                deposed.wait_for_move(message.request, now)
            return []
        if message.request == 0 and any(excuses(error) for excuses in self.hooks.excusing):
            return []
        if message.request == 0 and _is_stranger(error):
            return self._mistaken(links, f"it says: {error}"[:MAX_FACT_CHARS])
        if message.request == 0:
            return self.fail_links(links, error)
        if isinstance(error, NonFiniteGradientError):
            self.counts["nonfinite"] += 1
        link = links[0] if len(links) == 1 else self._links.of_answer(peer, message.request)
        if link is None:
            return []
        is_news = not link.later
        if isinstance(error, ServerMemoryError) and link.put_off(message.request, now):
            text = (
                f"{link.server.title} lacks the memory for {error.what} ({error.why}); asking again for {SHORT_S:g} s"
            )
            return [Log("warning", text, error=error.number)] if is_news else []
        request = link.free(message.request, now)
        actions = link.pump(now)
        if request is not None and request.seq:
            link.void(request.seq)
        if request is not None and request.transfer is self.ahead:
            actions += self.take_back_ahead(now)  # it learns it again in its turn
        elif request is not None and not request.transfer.done:
            actions += self._host.resolve(self.under_way[request.transfer], error)
        return actions


def _converted(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return a gradient in its wire dtype, which may hold less than its own."""
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False)


def _is_stranger(error: PSError) -> bool:
    """Whether an error that answers a `Hello` shows that the ticket was for another server than this one.

    The right server knows ticket, job and epoch, because it is informed before its workers are.
    """
    return isinstance(error, IdentityError | StaleEpochError) or type(error) in (JobError, ProtocolError)
