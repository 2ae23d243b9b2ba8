"""A node's membership with the coordinator: joining, heartbeats, and the coordinator's silence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from zmqps.core.node.handshake import Handshake
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import COORDINATOR, Action, Log, Send
from zmqps.core.protocol.messages.hello import SPARE
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.security.guard import join_guard
from zmqps.core.protocol.security.keys import claim_of
from zmqps.errors import CoordinatorRestartedError, NotJoinedError, PeerLostError, PSError

#: A goodbye is repeated after this long, this many times, unless it is answered: it may be lost with a connection.
GOODBYE_RETRY_S = 0.5
MAX_GOODBYES = 4
#: How often a waiting node logs what it waits for.
REMINDER_INTERVAL_S = 5.0
#: After this many missed heartbeats a node is called silent; it is lost only after its timeout.
SILENT_BEATS = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What a process got from its launcher; by default nothing: it was started by hand."""

    token: bytes = field(default=b"", repr=False)  # of the task that a supervisor restarts; empty: it does not
    life: int = 0  # how often that was restarted
    process: bytes = b""  # the supervised process with which this one ends; empty: there is none
    spare: bool = False  # a server beyond those that the cluster waits for
    index: int | None = None  # the number from its launcher; None: it was started by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity(Launched):
    """The identity of this process, for `Hello`."""

    role: str
    incarnation: bytes
    name: str
    host: str
    pid: int
    endpoint: str = ""
    job: str = ""
    secret: bytes = field(default=b"", repr=False)  # known only to the coordinator: proves the identity
    job_secret: bytes = field(default=b"", repr=False)  # of the cluster; empty without one
    end_key: bytes = field(default=b"", repr=False)  # its holder may end jobs if there is no job secret
    server_key: bytes = field(default=b"", repr=False)  # its holder may be a server; empty: any node that may join
    keyed: bool = False  # whether connections to this process need a key

    def hello(self, ticket: bytes = b"", epoch: int = 0) -> m.Hello:
        """Return the first message of a connection: to a server with a ticket, else to the coordinator."""
        hello = m.Hello(
            m.MAGIC, m.PROTOCOL_VERSION, self.role, self.incarnation, self.name, self.host, self.pid, self.endpoint,
            job=self.job, secret=ticket or self.secret, epoch=epoch, capabilities=(SPARE,) if self.spare else (),
        )  # fmt: skip
        if ticket:
            return hello
        if self.index is not None:
            hello = replace(hello, wish=self.index + 1)
        hello = replace(hello, process=self.process)
        if self.token:
            claim = claim_of(self.token, self.role, self.job, self.name)
            hello = replace(hello, claim=claim, life=self.life)
        secret = self.job_secret or self.server_key
        return replace(hello, guard=join_guard(secret, hello)) if secret else hello


class Standing(Enum):
    """The state of a node's membership.

    It is JOINING until it is welcomed, and then JOINED. Over a new connection it is UNSURE until the coordinator has
    sent anything: a coordinator that was away may not know the node, so nothing large is sent. If it was away the node
    identifies itself again: RETURNING. The coordinator is LOST when it has been silent for too long, and REPLACED if
    another one answers at its address. The node itself has LEFT.
    """

    JOINING = "joining"
    JOINED = "joined"
    UNSURE = "unsure"
    RETURNING = "returning"
    LOST = "lost"
    REPLACED = "replaced"
    LEFT = "left"


#: The coordinator may not know the other end of the connection.
UNSURE = (Standing.UNSURE, Standing.RETURNING)
#: The coordinator counts on the node.
HERE = (Standing.JOINED, Standing.UNSURE, Standing.RETURNING)
#: The coordinator is lost.
GONE = (Standing.LOST, Standing.REPLACED)


@dataclass(slots=True)
class ClusterFacts:
    """The coordinator's facts about the cluster, and about a worker's job."""

    num_workers: int = 0
    num_servers: int = 0
    is_chief: bool = False  # of the workers of its job
    terms: Sequence[float] = ()  # the numbers that were set there; none: the optimizer's own apply


@dataclass(slots=True)
class Goodbye:
    """A goodbye, until it is answered."""

    message: m.Leave
    due: float | None = None  # when to repeat it; None: no more
    num_said: int = 0


@dataclass(slots=True)
class Absence:
    """A coordinator that is away, as was reported: ``since`` when, and when the report is ``due`` again."""

    since: float
    due: float


class MemberPart(ABC):
    """An extension of a member with its own ``due``."""

    due: float | None = None

    @abstractmethod
    def on_deadline(self, now: float) -> list[Action]:
        """Do what is due."""

    @abstractmethod
    def end(self) -> None:
        """The coordinator is lost, or the node has left."""


@dataclass(slots=True)
class MemberHooks:
    """A member's handlers by message type (others are ignored), and its extensions."""

    takes: dict[type[m.Message], Callable[[Any, float], list[Action]]]
    parts: list[MemberPart] = field(default_factory=list)


class Member:
    """The coordinator as seen by a server, worker or observer; ``counters`` returns the contents of heartbeats."""

    def __init__(self, identity: Identity, endpoint: str, counters: Callable[[], Mapping[str, Any]]) -> None:
        self.identity = identity
        self.handshake = Handshake(identity.hello(), COORDINATOR, endpoint)
        self.rank = -1
        self.cluster = ClusterFacts()
        self.standing = Standing.JOINING
        self.heard_at = 0.0
        self.due: float | None = None  # when to call `on_deadline`
        self.hooks = MemberHooks(
            {
                m.Back: self._on_back,
                m.Welcome: self._on_welcome,
                m.HeartbeatAck: self._on_beat,
                m.Error: self._on_error,
                m.Left: self._on_left,
                m.Probe: self._on_probe,
            }
        )
        self.counters = counters
        self._beat_due: float | None = None  # the next heartbeat; before the welcome: the next line about waiting
        self._goodbye: Goodbye | None = None
        self._absence: Absence | None = None

    @property
    def title(self) -> str:
        """This node's identity, for errors."""
        identity = self.identity
        return f"{identity.role} {self.rank} ({identity.name}, {identity.host}, pid {identity.pid})"

    @property
    def welcome(self) -> m.Welcome | None:
        """The coordinator's answer, once it has come."""
        return self.handshake.welcome

    @property
    def joined(self) -> bool:
        """Whether the coordinator counts on this node."""
        return self.standing in HERE

    @property
    def known(self) -> bool:
        """Whether the coordinator knows this node, and so answers."""
        return self.welcome is not None and not self.lost

    @property
    def lost(self) -> bool:
        """Whether the coordinator is lost."""
        return self.standing in GONE

    @property
    def restarted(self) -> bool:
        """Whether another coordinator answers at the lost one's address."""
        return self.standing is Standing.REPLACED

    @property
    def left(self) -> bool:
        """Whether this node has left."""
        return self.standing is Standing.LEFT

    @property
    def unsure(self) -> bool:
        """Whether the coordinator may not know this node, so that nothing large is sent."""
        return self.standing in UNSURE

    @property
    def patience(self) -> float:
        """For how many seconds the coordinator may be silent before it is lost."""
        return 0.0 if self.welcome is None else max(self.welcome.heartbeat_timeout, self.welcome.patience)

    @property
    def may_return(self) -> bool:
        """Whether the coordinator has a journal, from which it resumes after a restart."""
        return self.welcome is not None and self.welcome.patience > 0

    def is_patient(self, now: float) -> bool:
        """Whether a silent coordinator may still come back."""
        return self.may_return and not self.lost and self.silence(now) <= self.patience

    def start(self, now: float) -> list[Action]:
        """Start to join."""
        self.heard_at = now
        self._beat_due = now + REMINDER_INTERVAL_S
        actions = self.handshake.start(now)
        self.set_due()
        return actions

    def on_message(self, message: m.Message, now: float) -> list[Action]:
        """Process a message of the coordinator; any is a sign of life."""
        self.heard_at = now
        take = self.hooks.takes.get(type(message))
        if take is None and self.standing is Standing.JOINED and self._absence is None:
            return []  # as most messages of a step
        if isinstance(message, m.Back | m.Welcome):
            assert take is not None
            return take(message, now)
        if self.standing is Standing.RETURNING:
            return []  # sent before it ended
        actions = self._heard(now)
        return actions if take is None else [*take(message, now), *actions]

    def _heard(self, now: float) -> list[Action]:
        """The coordinator knows the other end of the connection: it has sent something."""
        if self.standing is Standing.UNSURE:
            self.standing = Standing.JOINED
            self._beat_due = now  # with everything
            self.set_due()
        if self._absence is None:
            return []
        away, self._absence = now - self._absence.since, None
        return [Log("info", f"the coordinator at {self.handshake.endpoint} is back after {away:.1f} s")]

    def _on_welcome(self, message: m.Welcome, now: float) -> list[Action]:
        if self.standing is Standing.RETURNING:
            if self.welcome is None or message.incarnation != self.welcome.incarnation:
                self._restart()
                return []
            self.standing = Standing.UNSURE
        elif self.welcome is not None:
            return self._heard(now)
        is_first = self.welcome is None
        self.handshake.on_welcome(message)
        self.rank = message.rank
        if not is_first:
            self.set_due()
            return self._heard(now)
        self.cluster.num_workers, self.cluster.num_servers = message.num_workers, message.num_servers
        if self.standing is not Standing.JOINING:
            return []
        self.standing = Standing.JOINED
        self._beat_due = now + message.heartbeat_interval
        self.set_due()
        return [Log("info", f"joined as {self.identity.role} {self.rank} at {self.handshake.endpoint}")]

    def _on_back(self, message: m.Back, now: float) -> list[Action]:
        """The coordinator was away: identify this node again, or say goodbye, if it is the one that was joined."""
        another = self.welcome is not None and message.incarnation != self.welcome.incarnation
        if self.left:
            if another or self._goodbye is None or self._goodbye.due is None:
                return []
            who = self.identity
            return [Send(COORDINATOR, m.Farewell(who.incarnation, who.secret, self._goodbye.message.reason))]
        if self.standing not in (Standing.JOINED, Standing.UNSURE):
            return []
        if another:
            self._restart()
            return []
        self.standing = Standing.RETURNING
        actions = self.handshake.again(now)
        self.set_due()
        return actions

    def _on_beat(self, message: m.HeartbeatAck, now: float) -> list[Action]:
        cluster = self.cluster
        cluster.num_workers, cluster.is_chief, cluster.terms = message.num_workers, bool(message.chief), message.terms
        return []

    def _on_error(self, message: m.Error, now: float) -> list[Action]:
        if message.code == NotJoinedError.code and self.welcome is not None and not self.left:
            self._restart()  # the one that welcomed us would know us
        return []

    def _on_left(self, message: m.Left, now: float) -> list[Action]:
        if self._goodbye is not None:
            self._goodbye.due = None
            self.set_due()
        return []

    def _on_probe(self, message: m.Probe, now: float) -> list[Action]:
        return [Send(COORDINATOR, m.Probed(message.number, message.stacks))] if self.joined else []

    def _restart(self) -> None:
        """Another coordinator answers."""
        self.standing = Standing.REPLACED
        self.handshake.due = self._beat_due = None
        self.set_due()

    def on_connected(self, now: float) -> list[Action]:
        """The connection is open, perhaps again: repeat what may have been lost with the previous one."""
        actions: list[Action] = []
        if self._goodbye is not None and self._goodbye.due is not None:
            actions = self._say_goodbye(self._goodbye, now)
        elif self.standing in (Standing.JOINING, Standing.RETURNING):
            actions = self.handshake.again(now)
        elif self.standing in HERE and self.welcome is not None:
            self.standing = Standing.UNSURE if self.may_return else Standing.JOINED
            # little is taken from nodes that a coordinator does not know yet
            actions = [Send(COORDINATOR, m.Heartbeat({} if self.may_return else dict(self.counters())))]
        if self.standing in HERE and self.welcome is not None:
            self._beat_due = now + self.welcome.heartbeat_interval
        self.set_due()
        return actions

    def looked(self, why: str, now: float) -> list[Action]:
        """Report why the coordinator does not answer, when that becomes known."""
        if not self.handshake.looked(why):
            return []
        where, waited = self.handshake.endpoint, self.silence(now)
        return [Log("warning", f"no answer from the coordinator at {where} for {waited:.0f} s: {self.handshake.why}")]

    def report(self, now: float) -> None:
        """Send the counters to the coordinator soon."""
        if self.joined:
            self._beat_due = now
            self.set_due()

    def leave(self, reason: DepartureCause, now: float) -> list[Action]:
        """Say goodbye, also to a coordinator that has not answered yet: it may know this node."""
        if self.left:
            return []
        known = self.joined
        self.abandon()
        if self.lost:
            return []
        self._goodbye = Goodbye(m.Leave(reason))
        # its final counters, which the status keeps showing
        counters: list[Action] = [Send(COORDINATOR, m.Heartbeat(dict(self.counters())))] if known else []
        goodbye = self._say_goodbye(self._goodbye, now)
        self.set_due()
        return [*counters, *goodbye]

    def abandon(self) -> None:
        """Forget the coordinator, without a goodbye."""
        if not self.lost:
            self.standing = Standing.LEFT
        self.handshake.stop()
        self._beat_due = None
        self.set_due()

    def _say_goodbye(self, goodbye: Goodbye, now: float) -> list[Action]:
        goodbye.num_said += 1
        goes_on = goodbye.num_said < MAX_GOODBYES or self.is_patient(now)
        goodbye.due = now + GOODBYE_RETRY_S if goes_on else None
        return [Send(COORDINATOR, goodbye.message)]

    def silence(self, now: float) -> float:
        """Return the seconds since the coordinator was last heard."""
        return now - self.heard_at

    def loss(self, advice: str, now: float) -> PSError:
        """Return the error for operations that need the lost coordinator."""
        if self.restarted:
            return CoordinatorRestartedError(address=self.handshake.endpoint, node=self.title, advice=advice)
        name = f"the coordinator at {self.handshake.endpoint}"
        return PeerLostError(role="coordinator", name=name, silent_s=round(self.silence(now), 3), advice=advice)

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        return self.due

    def set_due(self) -> None:
        """A deadline may be earlier, or later."""
        if self.lost or self.left:
            for part in self.hooks.parts:
                part.end()
        goodbye_due = None if self._goodbye is None else self._goodbye.due
        dues = (self.handshake.due, self._beat_due, goodbye_due, *(part.due for part in self.hooks.parts))
        self.due = min((due for due in dues if due is not None), default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Repeat Hello or Leave, log what this node waits for, send heartbeats, notice silence (``lost``)."""
        actions: list[Action] = []
        if self.handshake.due is not None and now >= self.handshake.due:
            actions += self.handshake.on_deadline(now)
        if self._beat_due is not None and now >= self._beat_due:
            actions += self._remind(now) if self.welcome is None else self._beat(self.welcome.heartbeat_interval, now)
        if self._goodbye is not None and self._goodbye.due is not None and now >= self._goodbye.due:
            actions += self._say_goodbye(self._goodbye, now)
        for part in self.hooks.parts:
            actions += part.on_deadline(now)
        self.set_due()
        return actions

    def _remind(self, now: float) -> list[Action]:
        """Log what this node waits for."""
        self._beat_due = now + REMINDER_INTERVAL_S
        where, waited = self.handshake.endpoint, self.silence(now)
        text = f"waiting for the coordinator at {where}, {waited:.0f} s so far{self.handshake.because}"
        return [Log("warning", text)]

    def _beat(self, interval_s: float, now: float) -> list[Action]:
        """Send a heartbeat, and check whether the coordinator answers any."""
        self._beat_due = now + interval_s
        beat = Send(COORDINATOR, m.Heartbeat({} if self.unsure else dict(self.counters())))
        if self.silence(now) > self.patience:
            self.standing = Standing.LOST
            self.handshake.due = self._beat_due = None
        elif self.may_return and self.silence(now) > SILENT_BEATS * interval_s:
            return [beat, *self._say_away(now)]
        return [beat]

    def _say_away(self, now: float) -> list[Action]:
        """Log, now and then, what this node waits for, how much longer, and what ends it."""
        if self._absence is None:
            self._absence = Absence(self.heard_at, now)
        if now < self._absence.due:
            return []
        self._absence.due = now + REMINDER_INTERVAL_S
        where, silent = self.handshake.endpoint, self.silence(now)
        text = f"the coordinator at {where} has been away for {silent:.0f} s; restarted there, it continues from its "
        return [Log("warning", f"{text}journal: waiting for it for {self.patience - silent:.0f} s more")]
