"""A node's membership with the coordinator: join, keep saying so, notice when nobody answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zmqps.core.node.handshake import Handshake
from zmqps.core.node.tracing import NodeTracing
from zmqps.core.protocol.events import COORDINATOR, Action, Log, Send
from zmqps.core.protocol.messages import (
    MAGIC,
    PROTOCOL_VERSION,
    Back,
    Error,
    Farewell,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Leave,
    Left,
    Message,
    Probe,
    Probed,
    Welcome,
)
from zmqps.core.protocol.messages.hello import SPARE
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.security.guard import join_guard
from zmqps.core.protocol.security.keys import claim_of
from zmqps.errors import CoordinatorRestartedError, NotJoinedError, PeerLostError, PSError

#: A goodbye is said again after so long, so many times, unless it is answered: it may be lost with a connection.
GOODBYE_RETRY_S = 0.5
MAX_GOODBYES = 4
#: How often a node that waits says for whom.
REMINDER_INTERVAL_S = 5.0
#: After so many heartbeats without an answer a coordinator that may be away for longer is called so.
AWAY_BEATS = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this process is, for `Hello`."""

    role: str
    incarnation: bytes
    name: str
    host: str
    pid: int
    endpoint: str = ""
    job: str = ""
    secret: bytes = field(default=b"", repr=False)  # known to the coordinator alone: who shows it is this process
    job_secret: bytes = field(default=b"", repr=False)  # of the cluster; empty where it has none
    end_key: bytes = field(default=b"", repr=False)  # who knows it may end jobs where there is no job secret
    server_key: bytes = field(default=b"", repr=False)  # who knows it may be a server; empty: anybody who may join
    keyed: bool = False  # whether nobody connects to this process without a key
    token: bytes = field(default=b"", repr=False)  # of the task that a supervisor starts again; empty: it does not
    life: int = 0  # how often that has been started again
    process: bytes = b""  # the one that a supervisor has started and with which this one ends; empty: there is none
    spare: bool = False  # a server beyond those that the cluster waits for
    index: int | None = None  # the number that its launcher has given it; None: it was started by hand

    def hello(self, ticket: bytes = b"", epoch: int = 0) -> Hello:
        """Return the first message of a connection: to a server with a ticket, else to the coordinator."""
        hello = Hello(
            MAGIC, PROTOCOL_VERSION, self.role, self.incarnation, self.name, self.host, self.pid, self.endpoint,
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


class Member:
    """The coordinator as seen by a server, worker or observer.

    Parameters
    ----------
    identity
        Who joins.
    endpoint
        The coordinator's endpoint.
    counters
        Called for each heartbeat; what it returns is shown in the status.
    """

    def __init__(self, identity: Identity, endpoint: str, counters: Callable[[], Mapping[str, Any]]) -> None:
        self.identity = identity
        self.handshake = Handshake(identity.hello(), COORDINATOR, endpoint)
        self.rank = -1
        self.num_workers = 0
        self.is_chief = False  # of the workers of its job
        self.terms: Sequence[float] = ()  # the numbers that were set there
        self.num_servers = 0
        self.lost = False
        self.restarted = False  # another coordinator answers at the address of the one that is lost
        self.left = False
        #: Whether the connection is a new one over which the coordinator has said nothing yet: perhaps it was away, and
        #: does not know who is behind it. Until then nothing large is sent.
        self.unsure = False
        self.heard_at = 0.0
        self.due: float | None = None  # when `on_deadline` is to be called
        self.tracing = NodeTracing(counters)
        self._counters = counters
        self._reminder_due: float | None = None
        self._heartbeat_due: float | None = None
        self._goodbye: Leave | None = None
        self._goodbye_due: float | None = None
        self._num_goodbyes = 0
        self._returning = False  # the coordinator was away, and is told again who this is
        self._away_since: float | None = None  # … as has been said; None: it is not away
        self._away_due = 0.0  # when that is said again

    @property
    def title(self) -> str:
        """Who this node is, for errors."""
        identity = self.identity
        return f"{identity.role} {self.rank} ({identity.name}, {identity.host}, pid {identity.pid})"

    @property
    def welcome(self) -> Welcome | None:
        """The coordinator's answer, once it has come."""
        return self.handshake.welcome

    @property
    def joined(self) -> bool:
        """Whether the coordinator counts on us."""
        return self.welcome is not None and not self.lost and not self.left

    @property
    def known(self) -> bool:
        """Whether the coordinator knows us, and so answers."""
        return self.welcome is not None and not self.lost

    @property
    def patience(self) -> float:
        """For how many seconds the coordinator may be silent before it is lost."""
        return 0.0 if self.welcome is None else max(self.welcome.heartbeat_timeout, self.welcome.patience)

    @property
    def may_return(self) -> bool:
        """Whether the coordinator keeps a journal, from which it goes on if it is started again."""
        return self.welcome is not None and self.welcome.patience > 0

    def is_patient(self, now: float) -> bool:
        """Whether a coordinator that does not answer may still come back."""
        return self.may_return and not self.lost and self.silence(now) <= self.patience

    def start(self, now: float) -> list[Action]:
        """Begin to join."""
        self.heard_at = now
        self._reminder_due = now + REMINDER_INTERVAL_S
        actions = self.handshake.start(now)
        self._set_due()
        return actions

    def on_message(self, message: Message, now: float) -> list[Action]:
        """Take a message of the coordinator; any is a sign of life."""
        self.heard_at = now
        if isinstance(message, Back):
            return self._on_back(message, now)
        if isinstance(message, Welcome) and self._returning:
            if self.welcome is None or message.incarnation != self.welcome.incarnation:
                self._restart()
                return []
            self._returning = False
            self.handshake.on_welcome(message)
            self.rank = message.rank
            self._set_due()
        elif isinstance(message, Welcome) and self.welcome is None:
            self.handshake.on_welcome(message)
            self.rank = message.rank
            self.num_workers, self.num_servers = message.num_workers, message.num_servers
            self._reminder_due = None
            self._heartbeat_due = now + message.heartbeat_interval
            self._set_due()
            return [Log("info", f"joined as {self.identity.role} {self.rank} at {self.handshake.endpoint}")]
        if self._returning:
            return []  # said before it had gone
        traced = self.tracing.take(message, now) if self.joined else None
        if traced is not None:
            self._set_due()
        if self.unsure and self._heartbeat_due is not None:
            self._heartbeat_due = now  # with all there is to say
            self._set_due()
        self.unsure = False
        if isinstance(message, HeartbeatAck):
            self.num_workers, self.is_chief = message.num_workers, bool(message.chief)
            self.terms = message.terms
        if isinstance(message, Error) and message.code == NotJoinedError.code and self.welcome and not self.left:
            self._restart()  # the one that has welcomed us would know us
        if isinstance(message, Left):
            self._goodbye_due = None
            self._set_due()
        answers = [*(traced or ()), *self._noted_back(now)]
        if isinstance(message, Probe) and self.joined:
            answers.append(Send(COORDINATOR, Probed(message.number, message.stacks)))
        return answers

    def _on_back(self, message: Back, now: float) -> list[Action]:
        """The coordinator was away: say again who this is, or goodbye, if it is the one that was joined."""
        another = self.welcome is not None and message.incarnation != self.welcome.incarnation
        if self.left:
            if another or self._goodbye is None or self._goodbye_due is None:
                return []
            who = self.identity
            return [Send(COORDINATOR, Farewell(who.incarnation, who.secret, self._goodbye.reason))]
        if self.welcome is None or self.lost or self._returning:
            return []
        if another:
            self._restart()
            return []
        self._returning = self.unsure = True
        actions = self.handshake.again(now)
        self._set_due()
        return actions

    def _restart(self) -> None:
        """Another coordinator answers."""
        self.lost = self.restarted = True
        self._returning = self.unsure = False
        self.handshake.due = self._heartbeat_due = None
        self._set_due()

    def _noted_back(self, now: float) -> list[Action]:
        if self._away_since is None:
            return []
        away, self._away_since = now - self._away_since, None
        return [Log("info", f"the coordinator at {self.handshake.endpoint} is back after {away:.1f} s")]

    def on_connected(self, now: float) -> list[Action]:
        """The connection is there, perhaps again: say what may have been lost with the one before it."""
        actions: list[Action] = []
        if self._goodbye_due is not None:
            actions = self._say_goodbye(now)
        elif self.welcome is None and not self.left:
            actions = self.handshake.again(now)
        elif self.welcome is not None and self._heartbeat_due is not None:
            self._heartbeat_due = now + self.welcome.heartbeat_interval
            self.unsure = self.may_return  # little is taken of those that a coordinator does not know yet
            counters = {} if self.unsure else dict(self._counters())
            actions = self.handshake.again(now) if self._returning else [Send(COORDINATOR, Heartbeat(counters))]
        self._set_due()
        return actions

    def looked(self, why: str, now: float) -> list[Action]:
        """Say why the coordinator does not answer, when that becomes known."""
        if not self.handshake.looked(why):
            return []
        where, waited = self.handshake.endpoint, self.silence(now)
        return [Log("warning", f"no answer from the coordinator at {where} for {waited:.0f} s: {self.handshake.why}")]

    def report(self, now: float) -> None:
        """Let the coordinator have the counters soon."""
        if self._heartbeat_due is not None:
            self._heartbeat_due = now
            self._set_due()

    def leave(self, reason: DepartureCause, now: float) -> list[Action]:
        """Say goodbye, also to a coordinator that has not answered yet: it may know us anyway."""
        if self.left:
            return []
        known = self.joined
        self.abandon()
        if self.lost:
            return []
        self._goodbye = Leave(reason)
        # the last word on what it has done, which the status keeps showing
        counters: list[Action] = [Send(COORDINATOR, Heartbeat(dict(self._counters())))] if known else []
        goodbye = self._say_goodbye(now)
        self._set_due()
        return [*counters, *goodbye]

    def abandon(self) -> None:
        """Forget the coordinator, without a goodbye."""
        self.left = True
        self._returning = self.unsure = False
        self.handshake.stop()
        self._reminder_due = self._heartbeat_due = None
        self._set_due()

    def _say_goodbye(self, now: float) -> list[Action]:
        assert self._goodbye is not None
        self._num_goodbyes += 1
        goes_on = self._num_goodbyes < MAX_GOODBYES or self.is_patient(now)
        self._goodbye_due = now + GOODBYE_RETRY_S if goes_on else None
        return [Send(COORDINATOR, self._goodbye)]

    def silence(self, now: float) -> float:
        """Return for how many seconds the coordinator has not been heard."""
        return now - self.heard_at

    def loss(self, advice: str, now: float) -> PSError:
        """Return the error of those who need the coordinator, which is lost."""
        if self.restarted:
            return CoordinatorRestartedError(address=self.handshake.endpoint, node=self.title, advice=advice)
        name = f"the coordinator at {self.handshake.endpoint}"
        return PeerLostError(role="coordinator", name=name, silent_s=round(self.silence(now), 3), advice=advice)

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        return self.due

    def _set_due(self) -> None:
        if self.lost or self.left:
            self.tracing.end()
        dues = (self.handshake.due, self._reminder_due, self._heartbeat_due, self._goodbye_due, self.tracing.due)
        self.due = min((due for due in dues if due is not None), default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Repeat Hello or Leave, remind of whom we wait for, send heartbeats, notice silence (``lost``)."""
        actions: list[Action] = []
        if self.handshake.due is not None and now >= self.handshake.due:
            actions += self.handshake.on_deadline(now)
        if self._reminder_due is not None and now >= self._reminder_due:
            self._reminder_due = now + REMINDER_INTERVAL_S
            where, waited = self.handshake.endpoint, self.silence(now)
            text = f"waiting for the coordinator at {where}, {waited:.0f} s so far{self.handshake.because}"
            actions.append(Log("warning", text))
        if self._heartbeat_due is not None and now >= self._heartbeat_due and self.welcome is not None:
            self._heartbeat_due = now + self.welcome.heartbeat_interval
            actions.append(Send(COORDINATOR, Heartbeat({} if self.unsure else dict(self._counters()))))
            if self.silence(now) > self.patience:
                self.lost = True
                self.handshake.due = self._heartbeat_due = None
            elif self.may_return and self.silence(now) > AWAY_BEATS * self.welcome.heartbeat_interval:
                actions += self._say_away(now)
        if self._goodbye_due is not None and now >= self._goodbye_due:
            actions += self._say_goodbye(now)
        actions += self.tracing.on_deadline(now)
        self._set_due()
        return actions

    def _say_away(self, now: float) -> list[Action]:
        """Say, now and then, whom this node waits for, for how long yet, and what ends it."""
        if self._away_since is None:
            self._away_since, self._away_due = self.heard_at, now
        if now < self._away_due:
            return []
        self._away_due = now + REMINDER_INTERVAL_S
        where, silent = self.handshake.endpoint, self.silence(now)
        text = f"the coordinator at {where} has been away for {silent:.0f} s; started again there, it goes on from its "
        return [Log("warning", f"{text}journal: waiting for it for {self.patience - silent:.0f} s more")]
