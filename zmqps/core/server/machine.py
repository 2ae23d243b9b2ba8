"""The server's machine: joins, gets a shard assigned, answers workers."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.node.member import Identity, Member
from zmqps.core.node.throttle import Throttle
from zmqps.core.protocol import exits
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import RAW, check_for_values, choose, named
from zmqps.core.protocol.events import (
    COORDINATOR,
    Action,
    Exit,
    Log,
    Peer,
    Reader,
    Received,
    Returned,
    Run,
    Send,
    Stop,
    Undecodable,
)
from zmqps.core.protocol.hello import check_hello
from zmqps.core.protocol.messages import (
    PROTOCOL_VERSION,
    Ack,
    Assign,
    Commit,
    Committed,
    Error,
    Hello,
    Leave,
    Left,
    Load,
    Lost,
    Message,
    Pull,
    Push,
    Ready,
    Shutdown,
    Values,
    Welcome,
)
from zmqps.core.server.ledger import Ledger
from zmqps.core.server.peers import Peers
from zmqps.core.server.shard import Shard
from zmqps.errors import (
    EvictedError,
    JobError,
    LimitError,
    NotJoinedError,
    ProtocolError,
    PSError,
    StaleEpochError,
)

#: A worker is a few hundred bytes and a ledger here; more than this is no LAN job but an attack.
MAX_PEERS = 4096
#: Incarnations that may not come back; the coordinator keeps its own word, this one is a courtesy.
MAX_EVICTED = 4096
#: Pulls that wait for a version, all workers together.
MAX_PARKED = 1 << 16


@dataclass(slots=True)
class Client:
    """A worker or observer that has shaken hands."""

    hello: Hello
    ledger: Ledger = field(default_factory=Ledger)
    name: str = field(init=False)  # how errors and logs call it
    reader: bytes = field(init=False)  # who reads, for the copies of a treatment; an observer pushes nothing

    def __post_init__(self) -> None:
        self.name = f"{self.hello.name} ({self.hello.host}, pid {self.hello.pid})"
        self.reader = self.hello.incarnation if self.hello.role == "worker" else b""


class ServerMachine:
    """A server process without its sockets.

    Parameters
    ----------
    identity
        Who this server is; ``endpoint`` is where workers reach it.
    coordinator
        The coordinator's endpoint.
    make_shard
        Builds the shard: ``make_shard(job, placement, index)``. An error it raises is reported to
        the coordinator, and by it to the worker that started the job.
    """

    def __init__(
        self,
        identity: Identity,
        coordinator: str,
        make_shard: Callable[[JobSpec, Placement, int], Shard],
    ) -> None:
        self.member = Member(identity, coordinator, self.counters)
        self.shard: Shard | None = None
        self.epoch = 0
        self._make_shard = make_shard
        self._clients: dict[bytes, Client] = {}  # by incarnation: a ledger outlives its connection
        self._peers = Peers(2 * MAX_PEERS)
        self._evicted: OrderedDict[bytes, None] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._parked: dict[tuple[Peer, int], Pull] = {}  # pulls of a version that is not there yet
        self._assigned: Assign | None = None
        self._ending = False
        self._throttle = Throttle()
        self._now = 0.0  # of the event being handled

    @property
    def title(self) -> str:
        """Who this server is, for errors."""
        return self.member.title

    def start(self, now: float) -> list[Action]:
        """Begin to join."""
        identity = self.member.identity
        return [Log("info", f"server {identity.name} at {identity.endpoint}"), *self.member.start(now)]

    def counters(self) -> Mapping[str, Any]:
        """Return the counters shown in the status."""
        shard = self.shard
        return {
            **self._counts,
            **({**shard.counters, **shard.memory.counters()} if shard else {}),
            "clients": len(self._clients),
            "parked": len(self._parked),
            "loaded": bool(shard and shard.loaded),
            "arena_nbytes": shard.arena_nbytes if shard else 0,
            "copies_nbytes": shard.copies.nbytes if shard and shard.copies else 0,
            "stage_nbytes": shard.stage.nbytes if shard and shard.stage else 0,
            "version": shard.version if shard else 0,
        }

    def handle(self, event: Received | Undecodable | Returned | Stop, now: float) -> list[Action]:
        """Take an event; every failure becomes an `Error` to its sender, never an exception."""
        self._now = now
        if isinstance(event, Stop):
            return [*self.member.leave("closed", now), Exit(exits.OK, event.reason)]
        if isinstance(event, Undecodable):
            return self._refuse(event.peer, 0, event.error)
        if isinstance(event, Returned):
            return self._built(event.tag, event.value)
        message = event.message
        try:
            if event.peer == COORDINATOR:
                return self._from_coordinator(message, now)
            return self._from_client(event.peer, message)
        except PSError as error:
            number = message.epoch if isinstance(message, Assign) else getattr(message, "request", 0)
            return self._refuse(event.peer, number, error)

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        return self.member.due

    def on_deadline(self, now: float) -> list[Action]:
        """Heartbeats, and the end when the coordinator is gone."""
        actions = self.member.on_deadline(now)
        if self.member.lost and not self._ending:
            self._ending = True
            text = f"lost the coordinator: last sign of life {self.member.silence(now):.1f} s ago"
            actions += [Log("error", text), Exit(exits.COORDINATOR_LOST, text)]
        return actions

    def validate(self) -> None:
        """Assert the invariants."""
        assert len(self._clients) <= MAX_PEERS
        self._peers.validate({*self._clients, *self._evicted})
        for client in self._clients.values():
            client.ledger.validate()
        if self.shard is not None:
            self.shard.validate()

    # --- the coordinator -----------------------------------------------------------------------

    def _from_coordinator(self, message: Message, now: float) -> list[Action]:
        actions = self.member.on_message(message, now)
        if isinstance(message, Assign):
            actions += self._assign(message)
        elif isinstance(message, Commit):
            actions += self._commit(message)
        elif isinstance(message, Lost):
            if message.role != "server":
                self._clients.pop(message.incarnation, None)
                self._drop_copies(message.incarnation)
                self._drop_parked(message.incarnation)
                self._evicted[message.incarnation] = None
                while len(self._evicted) > MAX_EVICTED:
                    self._forget(self._evicted.popitem(last=False)[0])
        elif isinstance(message, Shutdown):
            actions += [*self.member.leave("finished", now), Exit(exits.OK, message.reason)]
        elif isinstance(message, Error):
            evicted = message.code == EvictedError.code
            actions += [Log("error", message.text), Exit(exits.EVICTED if evicted else exits.FAILED, message.text)]
        return actions

    def _assign(self, message: Assign) -> list[Action]:
        if self._assigned is not None and message.epoch <= self._assigned.epoch:
            return self._report_ready()  # a repeated Assign
        job = JobSpec.from_wire(message.job)
        placement = Placement.from_wire(KeySpace(job.parameters), message.placement)
        if message.shard >= placement.num_shards:
            raise ProtocolError(f"shard {message.shard} of {placement.num_shards}")
        self._assigned, self.shard = message, None
        build = Run(message, partial(self._make_shard, job, placement, message.shard))
        return [build, *self._unpark()]  # what waited for the job that was given up is refused

    def _built(self, assign: Assign, shard: Shard | Exception) -> list[Action]:
        if assign is not self._assigned:
            return []  # of a job that was given up meanwhile
        if isinstance(shard, Exception):
            self._assigned = None  # asked again, because our answer was lost, it fails again
            return self._refuse(COORDINATOR, assign.epoch, self._build_error(assign.shard, shard))
        self.shard = shard
        self.epoch = assign.epoch
        text = f"shard {shard.index} of {shard.placement.num_shards}: "
        text += f"{shard.placement.nbytes(shard.index) / 1e6:.1f} MB in {len(shard.slices)} slices"
        return [Log("info", text), *self._report_ready()]

    def _build_error(self, number: int, error: Exception) -> PSError:
        name = self.member.identity.name
        if isinstance(error, PSError):
            return error
        if isinstance(error, MemoryError):
            return JobError(f"{name} has not the memory for shard {number} ({error}); start more servers")
        return JobError(f"{name} cannot build shard {number}: {error!r}")

    def _report_ready(self) -> list[Action]:
        return [Send(COORDINATOR, Ready(self.epoch, int(self.shard.loaded)))] if self.shard is not None else []

    def _commit(self, message: Commit) -> list[Action]:
        shard = self._ready_shard(message.epoch)
        if shard.stage is None:
            raise ProtocolError("this job is not synchronous, there is nothing to commit")
        if message.step > shard.version:
            raise ProtocolError(f"commit of step {message.step}, but this shard is at {shard.version}")
        if message.step == shard.version:  # else the coordinator has not had our answer
            shard.commit(message.step, message.contributors)
        return [Send(COORDINATOR, Committed(message.epoch, message.step)), *self._unpark()]

    # --- workers -------------------------------------------------------------------------------

    def _from_client(self, peer: Peer, message: Message) -> list[Action]:
        if isinstance(message, Hello):
            return self._welcome(peer, message)
        incarnation = self._peers.find(peer)
        if incarnation is None:
            raise NotJoinedError(f"{type(message).__name__} before Hello")
        if incarnation in self._evicted:
            raise EvictedError("the coordinator took this worker for dead; connect again as a new worker")
        client = self._clients[incarnation]
        if isinstance(message, Push):
            reply = self._push(peer, client, message)
            return [reply, *self._unpark()] if self._parked else [reply]
        if isinstance(message, Pull):
            return self._pull(peer, message)
        if isinstance(message, Load):
            if client.hello.role != "worker":
                raise NotJoinedError("an observer may pull, not load")
            shard = self._shard(message.epoch)
            already = shard.loaded
            shard.load(message.parts, message.payload)
            ack: list[Action] = [Send(peer, Ack(message.request, (), ()))]
            return ack if already or not shard.loaded else [*ack, *self._report_ready()]
        if isinstance(message, Leave):
            self._forget(incarnation)
            return [Send(peer, Left())]
        raise ProtocolError(f"a server does not take {type(message).__name__}")

    def _welcome(self, peer: Peer, hello: Hello) -> list[Action]:
        check_hello(hello, ("worker", "observer"))
        if hello.incarnation in self._evicted:
            raise EvictedError(f"{hello.name} was taken for dead; connect again as a new worker")
        if hello.incarnation not in self._clients:
            if len(self._clients) >= MAX_PEERS:
                raise LimitError(what="number of workers", got=len(self._clients) + 1, limit=MAX_PEERS)
            self._clients[hello.incarnation] = Client(hello)
        self._peers.add(peer, hello.incarnation)
        identity, member = self.member.identity, self.member
        welcome = Welcome(
            PROTOCOL_VERSION, identity.incarnation, identity.name, max(0, member.rank), 0.0, 0.0,
            member.num_workers, member.num_servers,
        )  # fmt: skip
        return [Send(peer, welcome)]

    def _push(self, peer: Peer, client: Client, message: Push) -> Action:
        shard = self._ready_shard(message.epoch)
        if client.hello.role != "worker":
            raise NotJoinedError("an observer may pull, not push")
        result = client.ledger.recall(message.seq)
        if message.reply and shard.stage is not None:
            raise ProtocolError("a synchronous push is not applied before the commit; pull after it")
        if message.reply and message.reply_codec != RAW:
            check_for_values(message.reply_codec)  # before anything is applied
        if result is None:
            checked, payload = bool(message.checked), message.payload
            codec = None if message.codec == RAW else named(message.codec)
            if codec is not None:
                payload = shard.decode(codec, message.parts, payload, checked=checked)
            if shard.stage is None:
                applied = shard.push(message.parts, payload, client.name, checked=checked, reader=client.reader)
            else:
                contributor, examples = (client.hello.incarnation, message.attempt), max(1, message.examples)
                applied = shard.collect(
                    message.parts, payload, contributor, message.step, examples, client.name, checked=checked
                )
            versions, staleness = zip(*applied, strict=True) if applied else ((), ())
            result = versions, staleness
            client.ledger.record(message.seq, result)
            self._counts["pushes"] += 1
            for buffer in message.payload:
                self._counts["pushed_nbytes"] += memoryview(buffer).nbytes
        else:
            self._counts["duplicates"] += 1
        if not message.reply:
            return Send(peer, Ack(message.request, *result))
        found = shard.pull(message.parts, None, client.reader)
        return self._send_values(peer, shard, message, message.reply_codec, result[1], found)

    def _pull(self, peer: Peer, message: Pull) -> list[Action]:
        shard = self._ready_shard(message.epoch)
        check_for_values(message.codec)
        if shard.available(message.parts, message.version, exact=bool(message.exact)):
            return [self._values(peer, shard, message)]
        if len(self._parked) >= MAX_PARKED:
            raise LimitError(what="number of waiting pulls", got=len(self._parked) + 1, limit=MAX_PARKED)
        self._parked[peer, message.request] = message
        return []

    def _unpark(self) -> list[Action]:
        """Answer the pulls whose version has come."""
        actions: list[Action] = []
        for (peer, request), message in list(self._parked.items()):
            try:
                shard = self._ready_shard(message.epoch)
                if not shard.available(message.parts, message.version, exact=bool(message.exact)):
                    continue
                actions.append(self._values(peer, shard, message))
            except PSError as error:
                actions += self._refuse(peer, request, error)
            del self._parked[peer, request]
        return actions

    def _values(self, peer: Peer, shard: Shard, message: Pull) -> Action:
        self._counts["pulls"] += 1
        client = self._clients.get(self._peers.find(peer) or b"")
        found = shard.pull(message.parts, message.version if message.exact else None, client.reader if client else b"")
        return self._send_values(peer, shard, message, message.codec, (), found)

    def _send_values(
        self,
        peer: Peer,
        shard: Shard,
        message: Push | Pull,
        codec_text: str,
        staleness: Sequence[int],
        found: tuple[list[list[Array]], tuple[int, ...], list[list[Reader]]],
    ) -> Action:
        """Answer with values."""
        parts, versions, readers = found
        nbytes = sum([array.nbytes for pieces in parts for array in pieces])
        codec = None if codec_text == RAW else choose(codec_text, nbytes)
        # the same of a version for everybody, however often and in whatever order they ask
        seed = versions[0] << 32 | message.parts[0][0] if versions else 0
        out = shard.memory.send(codec, parts, seed, readers)
        for array in out.payload:
            self._counts["pulled_nbytes"] += array.nbytes
        text = RAW if codec is None else codec.spec
        return Send(peer, Values(message.request, text, versions, staleness, out.payload), out.readers, out.after)

    def _drop_copies(self, incarnation: bytes) -> None:
        if self.shard is not None and self.shard.copies is not None:
            self.shard.copies.forget(incarnation)

    def _shard(self, epoch: int) -> Shard:
        if self.shard is None:
            raise JobError("this server has no shard yet; call worker.init(...) first")
        if epoch != self.epoch:
            raise StaleEpochError(ours=self.epoch, theirs=epoch)
        return self.shard

    def _ready_shard(self, epoch: int) -> Shard:
        shard = self._shard(epoch)
        if not shard.loaded:
            raise JobError("this shard has no initial values yet; wait for worker.init(...) to return")
        return shard

    def _drop_parked(self, incarnation: bytes) -> None:
        for key in [key for key in self._parked if self._peers.find(key[0]) == incarnation]:
            del self._parked[key]

    def _forget(self, incarnation: bytes) -> None:
        self._clients.pop(incarnation, None)
        self._drop_copies(incarnation)
        self._drop_parked(incarnation)
        self._peers.forget(incarnation)

    def _refuse(self, peer: Peer, request: int, error: PSError) -> list[Action]:
        self._counts["refused"] += 1
        client = self._clients.get(self._peers.find(peer) or b"")
        who = client.name if client else "the coordinator" if peer == COORDINATOR else f"peer {peer.hex()}"
        line = self._throttle.admit(f"refused a request of {who}: {error}", self._now)
        answer = Send(peer, Error(request, error.code, str(error), error.facts()))
        return [Log("warning", line), answer] if line else [answer]
