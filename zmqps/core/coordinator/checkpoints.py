"""Checkpoints of jobs: when there is to be one, what servers and workers do for it, and that it is published whole.

One is made at a time. Where a step is one for all, servers keep the version that all of them have at its end. Elsewhere
workers begin no push for a moment, so that there is a cut between pushes: until those under way are acknowledged, and
every server has said that it keeps what it has. A checkpoint that fails changes nothing: training goes on, and the one
before stays.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from zmqps.core.coordinator.files import Served
from zmqps.core.coordinator.membership import MemberInfo
from zmqps.core.coordinator.run import JobRun
from zmqps.core.protocol.events import Action, Log, Peer, Run, Send
from zmqps.core.protocol.messages import Checkpointed, Error, GoOn, Hold, Holding, Message, Save, Saved, Unsave
from zmqps.core.protocol.saving import FAILED, WRITTEN
from zmqps.errors import (
    CheckpointFailedError,
    ConfigurationError,
    JobError,
    LimitError,
    PSError,
    counted,
    listed,
    printable,
)

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: Workers let a cut be made for so long; one that is stopped, or computes in its own callback, may not answer.
HOLD_S = 10.0
#: A server that writes says so every second; one that has said nothing for so long is not waited for any more.
SILENT_S = 120.0
#: Checkpoints that wait for their turn.
MAX_WAITING = 64
#: How many workers that did not hold an error names.
MOST_NAMED = 8
MAX_WHY_CHARS = 300


class Store(Protocol):
    """Where checkpoints are; called from other threads."""

    #: Whether servers reach the files by way of the coordinator.
    serves: bool

    def serve(self, what: str, path: str, offset: int, nbytes: int, payload: Sequence[Buffer]) -> Served:
        """Do something with a file for a server."""

    def begin(self, job: str, version: int) -> str:
        """Make room for a checkpoint and return where servers are to write their parts."""

    def publish(self, path: str, manifest: Mapping[str, Any]) -> tuple[str, int, int]:
        """Let what was written be the newest checkpoint of its job; return where it is, its bytes, and its version."""

    def abandon(self, path: str) -> None:
        """Remove what was written of one that failed."""


@dataclass(frozen=True, slots=True)
class Cadence:
    """When jobs are saved without being asked: every so many seconds, or steps; None: never."""

    seconds: float | None = None
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Storing:
    """Tag of what the store does aside."""

    number: int
    what: str


@dataclass(slots=True, kw_only=True)
class Wish:
    """A checkpoint that is to be made."""

    job: str
    consistent: bool
    state: Mapping[str, Any] = field(default_factory=dict)
    #: Who asks for it (an incarnation, or the nonce of somebody who has not joined) by which request -> the connection
    askers: dict[tuple[bytes, int], Peer] = field(default_factory=dict)


class _Making:
    """The checkpoint that is being made."""

    def __init__(self, wish: Wish, run: JobRun, number: int, now: float) -> None:
        self.wish = wish
        self.run = run
        self.number = number
        self.begun_at = self.heard_at = now
        self.path = ""
        self.stage = "opened"
        self.holding: dict[bytes, MemberInfo] = {}  # workers that begin no push
        self.awaited: dict[bytes, MemberInfo] = {}  # those of them that have not said so yet
        self.version = 0
        self.manifest: dict[str, Any] = {}
        self.servers: dict[int, tuple[int, MemberInfo]] = {}  # by epoch of the copy: shard, and who has it
        self.kept: set[int] = set()
        self.written: dict[int, Mapping[str, Any]] = {}  # by shard
        self.nbytes: dict[int, int] = {}


class Checkpoints:
    """The checkpoints of a cluster's jobs.

    Parameters
    ----------
    runs
        The jobs by name; shared with the machine.
    members
        The members by incarnation; shared with the membership.
    store
        Where checkpoints are; None: nowhere.
    cadence
        When jobs are saved without being asked.
    """

    def __init__(
        self,
        runs: Mapping[str, JobRun],
        members: Mapping[bytes, MemberInfo],
        store: Store | None,
        cadence: Cadence,
    ) -> None:
        self._runs = runs
        self._members = members
        self._store = store
        self._cadence = cadence
        self._waiting: deque[Wish] = deque()
        self._making: _Making | None = None
        self._numbers = count(1)
        self._last: dict[str, tuple[float, int]] = {}  # by job: when the last one began, and at which clock
        self._done: dict[str, tuple[float, Mapping[str, Any]]] = {}  # by job: the newest and when, for the status
        self._failures: dict[str, str] = {}
        self._answers: OrderedDict[tuple[bytes, int], Message] = OrderedDict()  # to those who have not joined

    def begin_at(self, number: int) -> None:
        """Number those that are made from here on: of a life before, servers may have some in hand."""
        self._numbers = count(number)

    # --- who wants one ------------------------------------------------------------------------

    def ask(self, wish: Wish, now: float) -> list[Action]:
        """Somebody asks for a checkpoint; the answer comes when it is published, or has failed.

        Raises
        ------
        PSError
            There can be none.
        """
        for key, peer in wish.askers.items():
            if key in self._answers:  # it was lost
                return [Send(peer, self._answers[key])]
        if self._store is None:
            raise ConfigurationError(
                "this cluster was started without a place for checkpoints: start it with --checkpoint DIR"
            )
        run = self._runs.get(wish.job)
        if run is None or not run.startup.ready:
            raise JobError(f"the job {wish.job!r} is not being trained, so there is nothing to save yet")
        if run.lost_shard is not None:
            raise run.lost_shard.again()
        for other in [*self._waiting, *([self._making.wish] if self._making else [])]:
            if set(wish.askers) & set(other.askers):
                return []  # sent again
        if len(self._waiting) >= MAX_WAITING:
            raise LimitError(what="number of checkpoints that wait", got=len(self._waiting) + 1, limit=MAX_WAITING)
        self._waiting.append(wish)
        return self._next(now)

    def _next(self, now: float) -> list[Action]:
        while self._making is None and self._waiting and self._store is not None:
            wish = self._waiting.popleft()
            run = self._runs.get(wish.job)
            if run is None or not run.startup.ready or run.lost_shard is not None:
                error = JobError(f"the job {wish.job!r} has ended before its checkpoint began")
                return [*self._tell(wish, error), *self._next(now)]
            making = self._making = _Making(wish, run, next(self._numbers), now)
            clock = run.steps.clock
            self._last[run.name] = now, self._steps_of(run)
            return [Run(Storing(making.number, "begin"), partial(self._store.begin, run.name, clock))]
        return []

    # --- how it is made -----------------------------------------------------------------------

    def returned(self, tag: Storing, value: Any, now: float) -> list[Action]:
        """The store has done something, or failed at it."""
        making = self._making
        if making is None or tag.number != making.number:
            late = tag.what == "begin" and isinstance(value, str) and self._store is not None
            return [Run(Storing(0, "abandon"), partial(self._store.abandon, value))] if late and self._store else []
        if isinstance(value, Exception):
            return self._fail(str(value) if isinstance(value, PSError) else repr(value), now)
        if tag.what == "begin":
            making.path = value
            return self._hold(making, now) if self._needs_hold(making) else self._save(making, now)
        assert tag.what == "publish"
        path, nbytes, making.version = value
        return self._published(making, path, nbytes, now)

    def _needs_hold(self, making: _Making) -> bool:
        mode = making.run.mode
        return mode == "ssp" or (mode == "async" and making.wish.consistent)

    def _hold(self, making: _Making, now: float) -> list[Action]:
        workers = {w.incarnation: w for w in making.run.workers if w.incarnation in making.run.startup.told}
        making.stage, making.heard_at = "held", now
        making.holding, making.awaited = dict(workers), dict(workers)
        if not workers:
            return self._save(making, now)
        return [Send(worker.peer, Hold(making.number)) for worker in workers.values()]

    def holds(self, member: MemberInfo, message: Holding, now: float) -> list[Action]:
        """A worker has no push under way, and begins none."""
        making = self._making
        if making is None or message.number != making.number or making.stage != "held":
            return [Send(member.peer, GoOn(message.number))]
        making.awaited.pop(member.incarnation, None)
        return [] if making.awaited else self._save(making, now)

    def _save(self, making: _Making, now: float) -> list[Action]:
        """Let all servers keep what they have: in the synchronous mode, what they have at the end of the last step."""
        run = making.run
        exact = run.mode == "sync"
        making.stage, making.heard_at, making.version = "saved", now, run.steps.clock
        making.servers = {epoch: (shard, server) for shard, epoch, server in run.startup.primaries()}
        consistent = exact or bool(making.holding)
        making.manifest = {
            **run.saved(),
            "version": making.version,
            "consistent": consistent,
            "state": dict(making.wish.state),
        }
        return [
            Send(server.peer, Save(epoch, making.number, int(exact), making.version, making.path))
            for epoch, (_, server) in making.servers.items()
        ]

    def saved(self, server: MemberInfo, message: Saved, now: float) -> list[Action]:
        """A server says how far it is."""
        making = self._making
        if making is None or message.number != making.number or message.epoch not in making.servers:
            late = message.stage != FAILED
            return [Send(server.peer, Unsave(message.epoch, message.number))] if late else []
        making.heard_at = now
        nbytes = message.facts.get("nbytes", 0)
        making.nbytes[message.epoch] = nbytes if isinstance(nbytes, int) else 0
        if message.stage == FAILED:
            return self._fail(f"{server.title}: {printable(str(message.facts.get('why', ''))[:MAX_WHY_CHARS])}", now)
        actions: list[Action] = []
        making.kept.add(message.epoch)
        if len(making.kept) == len(making.servers):
            actions += self._let_go(making)
        if message.stage == WRITTEN:
            shard, _ = making.servers[message.epoch]
            making.written[shard] = message.facts
            if len(making.written) == len(making.servers) and making.stage == "saved":
                making.stage = "published"
                shards = [making.written[shard] for shard in sorted(making.written)]
                assert self._store is not None
                work = partial(self._store.publish, making.path, {**making.manifest, "shards": shards})
                actions.append(Run(Storing(making.number, "publish"), work))
        return actions

    def _let_go(self, making: _Making) -> list[Action]:
        told: list[Action] = [Send(worker.peer, GoOn(making.number)) for worker in making.holding.values()]
        making.holding, making.awaited = {}, {}
        return told

    def _published(self, making: _Making, path: str, nbytes: int, now: float) -> list[Action]:
        seconds, name = now - making.begun_at, making.run.name
        self._making = None
        self._failures.pop(name, None)
        facts = {"path": path, "version": making.version, "seconds": round(seconds, 3), "nbytes": nbytes}
        self._done[name] = now, facts
        told = [
            self._answer(who, peer, n, Checkpointed(n, path, making.version, seconds, nbytes))
            for (who, n), peer in making.wish.askers.items()
        ]
        text = f"job {name!r}: checkpoint of version {making.version}, {nbytes / 1e6:.1f} MB in {seconds:.2f} s: {path}"
        return [Log("info", text), *told, *self._next(now)]

    def _fail(self, why: str, now: float) -> list[Action]:
        making = self._making
        assert making is not None
        self._making = None
        error = CheckpointFailedError(job=making.run.name, why=why)
        self._failures[making.run.name] = why
        actions: list[Action] = [Log("error", str(error))]
        actions += self._let_go(making)
        actions += [Send(s.peer, Unsave(epoch, making.number)) for epoch, (_, s) in making.servers.items()]
        if making.path and self._store is not None:
            actions.append(Run(Storing(0, "abandon"), partial(self._store.abandon, making.path)))
        return [*actions, *self._tell(making.wish, error), *self._next(now)]

    def _tell(self, wish: Wish, error: PSError) -> list[Action]:
        return [self._answer(who, peer, n, Error.of(n, error)) for (who, n), peer in wish.askers.items()]

    def _answer(self, who: bytes, peer: Peer, request: int, message: Message) -> Action:
        if (member := self._members.get(who)) is not None:
            return member.answer(request, message)
        self._answers[who, request] = message
        while len(self._answers) > MAX_WAITING:
            self._answers.popitem(last=False)
        return Send(peer, message)

    # --- who goes, and time -------------------------------------------------------------------

    def gone(self, member: MemberInfo, now: float) -> list[Action]:
        """A member has gone: nobody waits for it, and a checkpoint that needs it fails."""
        for wish in [*self._waiting, *([self._making.wish] if self._making else [])]:
            for key in [key for key in wish.askers if key[0] == member.incarnation]:
                del wish.askers[key]
        making = self._making
        if making is None:
            return []
        if any(server is member for _, server in making.servers.values()):
            return self._fail(f"{member.title} has gone while it wrote its part", now)
        making.holding.pop(member.incarnation, None)
        if making.awaited.pop(member.incarnation, None) is not None and not making.awaited:
            return self._save(making, now)
        return []

    def ended(self, run: JobRun, now: float) -> list[Action]:
        """A job has ended."""
        self._last.pop(run.name, None)
        self._done.pop(run.name, None)
        self._failures.pop(run.name, None)
        if self._making is not None and self._making.run is run:
            return self._fail("the job has ended", now)
        return []

    def _steps_of(self, run: JobRun) -> int:
        """Return how many steps a job has made, as far as the coordinator knows: clocks, or pushes of its workers."""
        return run.steps.clock if run.mode != "async" else sum(worker.num_pushes for worker in run.workers)

    def _due_at(self, run: JobRun) -> float | None:
        if self._cadence.seconds is None or self._store is None or not self._wants(run):
            return None
        return self._last[run.name][0] + self._cadence.seconds if run.name in self._last else None

    def _wants(self, run: JobRun) -> bool:
        """Whether a job can be saved, and is not about to be."""
        waiting = any(wish.job == run.name for wish in self._waiting)
        making = self._making is not None and self._making.run is run
        return run.startup.ready and run.lost_shard is None and bool(run.members) and not waiting and not making

    def look(self, now: float) -> list[Action]:
        """Begin what is due by time or by steps; called after every event that may make it so."""
        actions: list[Action] = []
        if self._store is None or self._cadence == Cadence():
            return actions
        for run in self._runs.values():
            if not self._wants(run):
                continue
            if run.name not in self._last:
                self._last[run.name] = now, self._steps_of(run)
            begun_at, steps = self._last[run.name]
            by_time = self._cadence.seconds is not None and now >= begun_at + self._cadence.seconds
            by_steps = self._cadence.steps is not None and self._steps_of(run) >= steps + self._cadence.steps
            if by_time or by_steps:
                self._waiting.append(Wish(job=run.name, consistent=run.mode != "async"))
        return [*actions, *self._next(now)]

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        dues = [due for run in self._runs.values() if (due := self._due_at(run)) is not None]
        making = self._making
        if making is not None and making.stage in ("held", "saved"):
            dues.append(making.heard_at + (HOLD_S if making.stage == "held" else SILENT_S))
        return min(dues, default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Give up what takes too long, begin what is due."""
        making, actions = self._making, list[Action]()
        if making is not None and making.stage == "held" and now >= making.heard_at + HOLD_S:
            names = listed([worker.title for worker in making.awaited.values()], MOST_NAMED)
            actions = self._fail(f"{names} did not pause for it in {HOLD_S:g} s", now)
        elif making is not None and making.stage == "saved" and now >= making.heard_at + SILENT_S:
            silent = [s.title for shard, s in making.servers.values() if shard not in making.written]
            actions = self._fail(f"{listed(silent, MOST_NAMED)} said nothing of it for {SILENT_S:g} s", now)
        return [*actions, *self.look(now)]

    # --- what others may look at ---------------------------------------------------------------

    def status(self, run: JobRun, now: float) -> Mapping[str, Any]:
        """Return what the status shows of a job's checkpoints."""
        shown: dict[str, Any] = {}
        if (done := self._done.get(run.name)) is not None:
            made_at, facts = done
            shown["last"] = {**facts, "ago_s": round(now - made_at, 3)}
        if why := self._failures.get(run.name):
            shown["failed"] = why
        if self._making is not None and self._making.run is run:
            making = self._making
            stage = f"waiting for {counted(len(making.awaited), 'worker')} to pause" if making.awaited else making.stage
            shown["under_way"] = {
                "stage": stage,
                "since_s": round(now - making.begun_at, 3),
                "nbytes": sum(making.nbytes.values()),
            }
        return shown

    def validate(self) -> None:
        """Assert that what is being made is of a job that is there."""
        making = self._making
        if making is not None:
            assert self._runs.get(making.run.name) is making.run
            assert set(making.awaited) <= set(making.holding) <= set(making.run.members)
            assert making.kept <= set(making.servers)
        assert len(self._waiting) <= MAX_WAITING + len(self._runs)
