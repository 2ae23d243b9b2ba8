"""Clients of our own making that speak ZeroMQ and zmqps, and say what no node would."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import zmq

from tests.pace import allow
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.messages import (
    MAGIC,
    PROTOCOL_VERSION,
    Error,
    Heartbeat,
    Hello,
    Init,
    Job,
    Message,
    Status,
    StatusRequest,
    Welcome,
)
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import PSError
from zmqps.keys.curve import secure_dealer
from zmqps.keys.keyring import find_keys

PATIENCE = allow(30.0)
#: Seconds between two signs of life of a member.
BEAT_S = 0.25


def hello(
    role: str,
    incarnation: bytes,
    job: str = "default",
    name: str | None = None,
    *,
    secret: bytes | None = None,
    epoch: int = 0,
) -> Hello:
    """Return the first message of somebody; where it has no secret, its incarnation has to do."""
    name, secret = name or f"{role}-fuzz", incarnation if secret is None else secret
    return Hello(
        MAGIC, PROTOCOL_VERSION, role, incarnation, name, "host", 1, "tcp://127.0.0.1:1", (), job, secret, epoch
    )


@contextmanager
def fuzzer(endpoint: str, identity: bytes) -> Iterator[zmq.Socket[bytes]]:
    """Open a socket of our own making to a node."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IDENTITY, identity)
    socket.setsockopt(zmq.SNDTIMEO, int(PATIENCE * 1000))
    socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE * 1000))
    try:
        socket.connect(endpoint)
        yield socket
    finally:
        socket.close(0)
        context.term()


class Stranger:
    """One connection with messages made by hand; whatever cannot be sent or read in time is given up.

    Parameters
    ----------
    endpoint
        Where to.
    identity
        Its routing id; random by default.
    deaf
        It never reads.
    """

    def __init__(self, endpoint: str, identity: bytes | None = None, *, deaf: bool = False) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        options = {
            zmq.LINGER: 0,
            zmq.SNDTIMEO: 1000,
            zmq.RCVTIMEO: 1000,
            zmq.SNDHWM: 1000,
            zmq.RCVHWM: 1 if deaf else 0,
        }
        if deaf:
            options[zmq.RCVBUF] = 4096
        for option, value in options.items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.IDENTITY, identity or b"s" + secrets.token_bytes(15))
        if (keys := find_keys(None, None, os.environ)) is not None:  # where the cluster has some, it has one of them
            secure_dealer(self._socket, keys, "observer")
        self._socket.connect(endpoint)
        self.num_sent = 0

    def send(self, message: Message) -> bool:
        """Send a message; False if it did not go within a second."""
        return self.send_frames(encode(message))

    def send_frames(self, frames: Sequence[Any]) -> bool:
        """Send frames as they are."""
        try:
            self._socket.send_multipart(frames)
        except zmq.ZMQError:
            return False
        self.num_sent += 1
        return True

    def receive(self, timeout: float = 1.0) -> Message | None:
        """Return the next message, None if there is none."""
        if not self._socket.poll(int(timeout * 1000)):
            return None
        try:
            return decode(self._socket.recv_multipart())
        except PSError:
            return None

    def ask(self, message: Message, *kinds: type[Message], attempts: int = 20) -> Message | None:
        """Send a message until one of these kinds comes back."""
        for _ in range(attempts):
            self.send(message)
            while (answer := self.receive(0.3)) is not None:
                if isinstance(answer, kinds):
                    return answer
        return None

    def drain(self) -> int:
        """Read what is there; return how many messages that were."""
        count = 0
        while self.receive(0.0) is not None:
            count += 1
        return count

    def close(self) -> None:
        """Vanish without a word."""
        self._socket.close(0)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Until:
    """Runs out when it is told to."""

    def __init__(self) -> None:
        self._told = threading.Event()

    def tell(self) -> None:
        """It is over."""
        self._told.set()

    def pause(self, seconds: float) -> bool:
        """Do nothing for a while; return whether to go on."""
        return not self._told.wait(seconds)

    def __bool__(self) -> bool:
        return not self._told.is_set()


class Member:
    """A member of the job by the rules, with a ticket for each server; it beats until it is closed.

    Where the cluster has a job secret it is refused, and has no job and no tickets.

    Parameters
    ----------
    coordinator
        Where to join.
    role
        ``observer`` or ``worker``.
    """

    def __init__(self, coordinator: str, role: str = "observer") -> None:
        self.role, self.incarnation = role, secrets.token_bytes(16)
        self.slices: list[dict[int, int]] = []  # for each server the sizes of its slices, by their index
        self._tickets: list[bytes] = []
        self._stranger = Stranger(coordinator)
        self._until = Until()
        welcome = self._stranger.ask(hello(role, self.incarnation), Welcome, Error)
        assert welcome is not None, "no answer"
        self.epochs: list[int] = []  # for each server that of its shard
        if isinstance(welcome, Welcome):
            self.take_job()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def take_job(self) -> None:
        """Take the job if there is one."""
        answer = self._stranger.ask(Init(1, {}), Job, Error, attempts=2)
        if not isinstance(answer, Job):
            return
        job = JobSpec.from_wire(answer.job)
        placement = Placement.from_wire(KeySpace(job.parameters), dict(answer.placement))
        self.slices = [{slice_.index: slice_.size for slice_ in slices} for slices in placement.slices]
        self._tickets = [bytes.fromhex(server["ticket"]) for server in answer.placement["servers"]]
        self.epochs = [server["epoch"] for server in answer.placement["servers"]]

    @property
    def epoch(self) -> int:
        """Of the first server's shard; 0: there is no job."""
        return self.epochs[0] if self.epochs else 0

    def hello(self, server: int) -> Hello:
        """Return what it says to a server."""
        ticket, epoch = (self._tickets[server], self.epochs[server]) if self._tickets else (self.incarnation, 0)
        return hello(self.role, self.incarnation, secret=ticket, epoch=epoch)

    def _beat(self) -> None:
        while self._until.pause(BEAT_S):
            self._stranger.send(Heartbeat({}))
            self._stranger.drain()

    def close(self) -> None:
        """Vanish without a word."""
        self._until.tell()
        self._thread.join()
        self._stranger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a stranger can learn about a cluster: it asked for all of it, but for ``insider``.

    Attributes
    ----------
    coordinator
        Its endpoint.
    servers
        The TCP endpoints of the servers, by rank.
    local
        Their endpoints on this host.
    incarnations
        What they tell whoever says hello.
    epoch
        Of the job, and of the first server's shard; 0: there is none yet.
    slices
        For each server the sizes of its slices, by their index.
    insider
        Incarnations of honest workers, as if a stranger had overheard them.
    member
        An observer of the job: anybody may become one.
    """

    coordinator: str
    servers: Sequence[str]
    local: Sequence[str]
    incarnations: Sequence[bytes]
    epoch: int
    slices: Sequence[Mapping[int, int]]
    insider: Sequence[bytes]
    member: Member

    def epoch_at(self, server: int) -> int:
        """Return the epoch of a server's shard."""
        epochs = self.member.epochs
        return epochs[server] if epochs else self.epoch


def scout(coordinator: str, insider: Sequence[bytes] = ()) -> Target:
    """Ask a cluster for all that it tells a stranger."""
    with Stranger(coordinator) as stranger:
        answer = stranger.ask(StatusRequest(1), Status)
        assert isinstance(answer, Status), "no status"
        status = answer.status
    members = sorted((m for m in status["members"] if m["role"] == "server"), key=lambda m: m["rank"])
    endpoints = [member["endpoint"].split() for member in members]
    member = Member(coordinator)
    incarnations = []
    for rank, (tcp, *_) in enumerate(endpoints):
        with Stranger(tcp) as stranger:
            welcome = stranger.ask(member.hello(rank), Welcome, attempts=2)
            incarnations.append(welcome.incarnation if isinstance(welcome, Welcome) else bytes(16))
    return Target(
        coordinator=coordinator,
        servers=[tcp for tcp, *_ in endpoints],
        local=[others[0] if others else tcp for tcp, *others in endpoints],
        incarnations=incarnations,
        epoch=member.epoch,
        slices=member.slices,
        insider=insider,
        member=member,
    )
