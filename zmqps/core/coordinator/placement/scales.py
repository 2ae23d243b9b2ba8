"""How many servers jobs use, changed during training: shards are cut into pieces, which move and are joined.

The next action follows from where a job is now, so whatever happens meanwhile is not a special case: as long as
a piece belongs to several of the planned shards, all are cut; as long as the servers of such a shard lack some
of its pieces, they get copies of them, which follow their leaders as backups do; then each server puts together what
it has. So nothing that was acknowledged is on fewer servers than before at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zmqps.core.coordinator.journal import Changed, Plain, nothing
from zmqps.core.coordinator.members.membership import Fleet, MemberInfo
from zmqps.core.coordinator.placement.copies import ReplicaSet
from zmqps.core.coordinator.placement.drains import Drains
from zmqps.core.coordinator.placement.endings import MAX_ASKED, Endings
from zmqps.core.coordinator.placement.transitions import Homes
from zmqps.core.coordinator.run import JobRun
from zmqps.core.coordinator.saving.checkpoints import Checkpoints
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.recut import owners, pieces_of
from zmqps.core.protocol.events import Action, Log
from zmqps.core.protocol.messages import Draining, Scale
from zmqps.core.protocol.messages.resizing import DrainState
from zmqps.errors import PSError, ScaleError, counted, listed

#: So often it is looked whether what a job waits for, before it is cut, is over.
LOOK_S = 0.1
#: Jobs use no more servers.
MAX_SERVERS = 4096
#: Of what moves a text names so much.
MOST_NAMED = 6


@dataclass(frozen=True, slots=True)
class Plan:
    """The next action for a job: copy shards to more servers, cut it, or nothing."""

    spread: Mapping[int, Sequence[MemberInfo]] = field(
        default_factory=dict
    )  # by shard: servers that should have a copy
    cut: Placement | None = None  # how its shards should be cut then …
    homes: Homes = ()  # … and where they should be


def plan(run: JobRun, servers: Sequence[MemberInfo], replicas: int) -> Plan:
    """Return the next action that brings a job onto these servers, a shard each."""
    copies, now = run.startup.copies, run.startup.placement
    assert now is not None
    wanted = Placement.balance(now.keyspace, len(servers), now.slice_nbytes)
    if now.cuts == wanted.cuts:
        leaders = {server.incarnation for _, _, server in copies.leaders()}
        if len(leaders) == len(servers) and leaders <= {server.incarnation for server in servers}:
            return Plan()
    its = range(now.num_shards) if now.cuts == wanted.cuts else owners(now, wanted)
    if its is None:
        pieces = pieces_of(now, wanted)
        before = owners(pieces, now)
        assert before is not None
        return Plan(cut=pieces, homes=[copies.homes(shard or 0) for shard in before])
    homes = _homes(now, its, copies, servers, replicas)
    spread = {shard: homes[owner] for shard, owner in enumerate(its) if owner is not None}
    return Plan(spread, wanted, homes)


def _homes(
    pieces: Placement, its: Sequence[int | None], copies: ReplicaSet, servers: Sequence[MemberInfo], replicas: int
) -> list[list[MemberInfo]]:
    """Return the servers of each planned shard: those that have most of it, so that little has to move.

    Leaders are on a server each; backups on other hosts, where there are some, and spread over all servers.
    """
    weights: Counter[tuple[int, bytes]] = Counter()
    first: Counter[tuple[int, bytes]] = Counter()  # of leaders alone
    for copy in copies:
        owner = its[copy.shard]
        if owner is not None and copy.whole:
            where = owner, copy.server.incarnation
            weights[where] += pieces.weight(copy.shard)
            first[where] += 0 if copy.backup else pieces.weight(copy.shard)
    free = {server.incarnation: server for server in servers}
    homes: dict[int, MemberInfo] = {}
    for owner, who in sorted(weights, key=lambda key: (-weights[key], -first[key], key)):
        if owner not in homes and who in free:
            homes[owner] = free.pop(who)
    rest = list(free.values())
    found = [[homes[shard] if shard in homes else rest.pop(0)] for shard in range(len(servers))]
    leaders, loads = [home[0] for home in found], Counter[bytes]()
    for shard, home in enumerate(found):
        around = [*leaders[shard + 1 :], *leaders[:shard]]
        for _ in range(min(replicas, len(around))):
            hosts = {server.hello.host for server in home}
            best = min(
                (server for server in around if server not in home),
                key=lambda s: (s.hello.host in hosts, loads[s.incarnation], -weights[shard, s.incarnation]),
            )
            loads[best.incarnation] += 1
            home.append(best)
    return found


@dataclass(slots=True, kw_only=True)
class Scaling:
    """The request, until all jobs follow it."""

    servers: int
    shrinks: bool  # these are fewer than jobs have used
    most_before: int  # how many a new job was placed on at most
    since: float
    nonces: set[bytes] = field(default_factory=set)  # of the operators that asked for it
    why: str = ""  # why copies of some job cannot move; empty: they can
    look_due: float = 0.0  # when it is checked again at the latest


class Scales:
    """Spreads all jobs over another number of servers."""

    def __init__(
        self,
        fleet: Fleet,
        runs: Mapping[str, JobRun],
        checkpoints: Checkpoints,
        drains: Drains,
        endpoint: str,  # the coordinator's, for advice
        replicas: int,
        hold_s: float,  # how long workers may be held
        silence_s: float,  # a server that says nothing for so long may be lost, and none is let go meanwhile
        changed: Changed = nothing,
    ) -> None:
        self._fleet = fleet
        self._runs = runs
        self._checkpoints = checkpoints
        self._drains = drains
        self._endpoint = endpoint
        self._replicas = replicas
        self._hold_s = hold_s
        self._silence_s = silence_s
        self._changed = changed
        self.scaling: Scaling | None = None  # the request; None: all is as requested
        self._ended = Endings()

    @property
    def wanted(self) -> int | None:
        """The number of servers that jobs should use; None: no change is under way."""
        return None if self.scaling is None else self.scaling.servers

    # --- requests ------------------------------------------------------------------------------

    def ask(self, message: Scale, now: float) -> tuple[Draining, list[Action]]:
        """Spread jobs over that many servers, or report the progress.

        Raises `ScaleError`: it cannot be, and nothing has changed; or it could not be done.
        """
        if (ended := self._ended.answer(message.nonce, message.request)) is not None:
            return ended, []
        actions: list[Action] = []
        if self.wanted != message.servers:
            actions = self._begin(message.servers, now)
        self._changed()
        if self.scaling is not None and message.nonce and len(self.scaling.nonces) < MAX_ASKED:
            self.scaling.nonces.add(message.nonce)
        actions += self.look(now)
        if message.nonce in self._ended.by_nonce:
            answer, more = self.ask(message, now)
            return answer, [*actions, *more]
        return Draining(message.request, DrainState.GOING, self._text()), actions

    def ended(self, nonce: bytes) -> PSError | str | None:
        """Return how a request ended; None: it has not, as far as is known."""
        return self._ended.by_nonce.get(nonce)

    def _begin(self, servers: int, now: float) -> list[Action]:
        staying = len(self._fleet.staying)
        if not 1 <= servers <= MAX_SERVERS:
            raise self._error(servers, "that is not a number of servers", f"ask for 1 to {MAX_SERVERS:,}")
        if servers <= self._replicas:
            why = f"each shard needs {counted(self._replicas, 'backup')} on other servers"
            raise self._error(servers, why, f"ask for {self._replicas + 1} at least")
        for run in self._runs.values():
            job = run.startup.job
            if job is not None and job.stays_because:
                why = f"shards of job {run.name!r} cannot move, for {job.stays_because}"
                raise self._error(servers, why, "wait until that job has ended")
        if staying < servers:
            raise self._too_few(servers)
        instead = self._error(self.wanted, f"{servers} were asked for instead", "no action is needed")
        actions = self._end(instead, now)
        shown = counted(servers, "server")
        shrinks = servers < max(self._fleet.wanted, self._used)
        self.scaling = Scaling(servers=servers, shrinks=shrinks, most_before=self._fleet.most, since=now)
        self._fleet.wanted = self._fleet.most = servers
        self._drains.note_fleet()
        for run in self._runs.values():
            run.replication.recuts.longest_s = 0.0
        return [*actions, Log("info", f"spreading jobs over {shown}, of {staying} that are here")]

    @property
    def _used(self) -> int:
        """How many servers jobs use."""
        return sum(any(run.is_on(server) for run in self._runs.values()) for server in self._fleet)

    def _too_few(self, servers: int) -> ScaleError:
        missing = servers - len(self._fleet.staying)
        advice = f"start {missing} more (make server COORDINATOR={self._endpoint}), and ask again"
        return self._error(servers, f"there are only {len(self._fleet.staying)}", advice)

    def _error(self, servers: int | None, why: str, advice: str) -> ScaleError:
        return ScaleError(servers=servers or 0, why=why, advice=advice)

    # --- how it goes ---------------------------------------------------------------------------

    @property
    def _order(self) -> list[MemberInfo]:
        """The servers that stay, first those that jobs will use."""
        return sorted(self._fleet.staying, key=lambda server: (server.is_spare, server.rank))

    def look(self, now: float) -> list[Action]:
        """Do what can be done now; called after every event while there is anything to do."""
        if (scaling := self.scaling) is None:
            return []
        scaling.look_due = now + LOOK_S
        if len(self._fleet.staying) < scaling.servers:
            return self._end(self._too_few(scaling.servers), now)
        servers = self._order[: scaling.servers]
        actions: list[Action] = []
        # of one that is lost soon, a server that is too many now may be needed in its place
        done = not any(server.absent or server.seen_at < now - self._silence_s for server in servers)
        for run in self._runs.values():
            moved, is_done = self._move(scaling, run, servers, now)
            actions += moved
            done &= is_done
            if (error := run.replication.recuts.error) is not None:
                return [*actions, *self._give_up(f"{error}", now)]
            if scaling.why:
                return [*actions, *self._give_up(scaling.why, now)]
        return [*actions, *self._finish(scaling, now)] if done else actions

    def _move(
        self, scaling: Scaling, run: JobRun, servers: Sequence[MemberInfo], now: float
    ) -> tuple[list[Action], bool]:
        """Continue with one job; return whether it is placed as requested."""
        replication, recuts = run.replication, run.replication.recuts
        if run.startup.placement is None:
            return [], True
        if run.lost_shard is not None:  # servers that seem too many may be what a new one needs
            scaling.why = f"job {run.name!r} has failed"
        if not run.is_whole:
            return recuts.take_back(now), False
        may_cut = not self._checkpoints.is_saving(run)
        number = self._checkpoints.new_number
        actions = recuts.look(now, may_cut=may_cut, number=number, hold_s=self._hold_s)
        if recuts.active:
            return actions, False
        if any(server.absent for server in servers) or not replication.views.all_followed:
            return actions, False
        to_do = plan(run, servers, self._replicas)
        spread, scaling.why = replication.spread(to_do.spread, now, self._silence_s)
        actions += spread
        if to_do.cut is not None and replication.is_quiet:
            actions += recuts.begin(to_do.cut, to_do.homes, now)
            actions += recuts.look(now, may_cut=may_cut, number=number, hold_s=self._hold_s)
        return actions, to_do.cut is None and replication.is_quiet

    def _finish(self, scaling: Scaling, now: float) -> list[Action]:
        """All jobs are placed as requested: release surplus servers."""
        too_many = self._order[scaling.servers :] if scaling.shrinks else []
        longest = max((run.replication.recuts.longest_s for run in self._runs.values()), default=0.0)
        goes = f"; {listed([s.hello.name for s in too_many], MOST_NAMED)} may go" if too_many else ""
        text = f"jobs are on {counted(scaling.servers, 'server')}, after {now - scaling.since:.1f} s{goes}"
        text += f" (the longest pause of pushes {longest:.3f} s)" if longest else ""
        for run in self._runs.values():
            if run.startup.cut and run.fallback.is_outdated:
                self._checkpoints.soon(run.name)
        actions = self._end(text, now)
        for server in too_many:
            actions += self._drains.let_go(server, now)
        return actions

    def _give_up(self, why: str, now: float) -> list[Action]:
        return self._end(self._error(self.wanted, why, "ask again once that is mended"), now)

    def _end(self, how: ScaleError | str, now: float) -> list[Action]:
        if (scaling := self.scaling) is None:
            return []
        self._changed()
        if isinstance(how, PSError):  # a new job is not to wait for servers that are not there
            self._fleet.most = scaling.most_before
            self._fleet.wanted = max(1, min(self._fleet.most, len(self._fleet.staying)))
            self._drains.note_fleet()
        self.scaling = None
        actions: list[Action] = []
        for run in self._runs.values():
            if run.startup.placement is not None and run.is_whole:
                actions += [
                    *run.replication.recuts.take_back(now),
                    *run.replication.spread({}, now, self._silence_s)[0],
                ]
            run.replication.recuts.error = None
        self._ended.note(scaling.nonces, how)
        if isinstance(how, str):
            return [*actions, Log("info", how, "scaled")]
        return [*actions, Log("warning", str(how), "scaled", error=how.number)]

    def tidy(self, run: JobRun, now: float) -> list[Action]:
        """Give up copies too many of a job, which were kept as long as a server was silent; called now and then."""
        if self.scaling is not None or run.replication.handovers.under_way or not run.is_whole:
            return []
        return run.replication.spread({}, now, self._silence_s)[0]

    def stop(self, now: float) -> list[Action]:
        """The cluster ends: nothing is cut any more."""
        if self.scaling is None:
            return []
        return self._end(self._error(self.wanted, "the cluster ends", "start another cluster with that many"), now)

    def next_deadline(self) -> float | None:
        """Return the latest time for the next call of `look`."""
        return None if self.scaling is None else self.scaling.look_due

    # --- a coordinator that was away -----------------------------------------------------------

    def dump(self) -> Plain:
        """Return the requested number of servers and which clients wait for it; None if there is none."""
        ended = self._ended.dump()
        if self.scaling is None and not ended:
            return None
        one = self.scaling or Scaling(servers=0, shrinks=False, most_before=0, since=0.0)
        return [one.servers, one.shrinks, one.since, sorted(one.nonces), ended, self._fleet.most, one.most_before]

    def restore(self, kept: Plain, now: float) -> None:
        """Continue with what was kept."""
        servers, shrinks, since, nonces, ended, most, most_before = kept
        self._fleet.wanted = self._fleet.most = most
        if servers:
            self.scaling = Scaling(
                servers=servers, shrinks=shrinks, most_before=most_before, since=min(since, now), nonces=set(nonces)
            )
        self._ended.restore(ended)

    # --- what others may look at ---------------------------------------------------------------

    def _text(self) -> str:
        what = [f"job {run.name!r}: {text}" for run in self._runs.values() for text in self._texts_of(run)]
        return f"spreading jobs over {counted(self.wanted or 0, 'server')}: {listed(what, MOST_NAMED) or 'about to be'}"

    def _texts_of(self, run: JobRun) -> list[str]:
        replication = run.replication
        if replication.recuts.active:
            return [replication.recuts.text()]
        if run.startup.placement is not None and not run.is_whole:
            return ["it must start, or be complete again, first"]
        if not replication.views.all_followed:
            return ["its members must learn its placement first"]
        return list(run.startup.copies.filling())

    def texts(self) -> list[str]:
        """Return how far it is, if there is anything to do."""
        return [] if self.scaling is None else [self._text()]

    def status(self) -> Mapping[str, Any]:
        """Return the same as plain data, for the status."""
        return {} if self.scaling is None else {"servers": self.wanted, "text": self._text()}

    def validate(self) -> None:
        """Assert that shards are cut only while there is something to do."""
        self._ended.validate()
        assert self.scaling is not None or not any(run.replication.recuts.active for run in self._runs.values())
