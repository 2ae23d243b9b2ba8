"""Shards without any copy left are loaded from a checkpoint, unattended, on the servers that remain.

In a job that applies each push on arrival, only those shards go back. In a synchronous job all shards go back to the
one version of the checkpoint, and with them the steps and the data sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

from zmqps.core.coordinator.journal import KeptDict, KeptRecord, KeptSet, Plain, unkept
from zmqps.core.coordinator.kernel.run import LOSS_ADVICE
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.placement.copies import Replica
from zmqps.core.coordinator.placement.replication import Replication
from zmqps.core.coordinator.placement.resumption import Resumption
from zmqps.core.coordinator.placement.startup import Startup
from zmqps.core.coordinator.placement.views import ViewChange
from zmqps.core.coordinator.training.steps import Steps
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages import ChangeKind, Lost
from zmqps.errors import (
    CheckpointError,
    CheckpointStorageError,
    JobError,
    PeerLostError,
    PSError,
    counted,
    listed,
    printable,
)

#: A server answers within milliseconds; one that did not may not have received it.
RETRY_S = 1.0
#: So long a server without a shard is waited for; then one that has a shard gets another one.
SHARE_S = 20.0
#: A server that has not loaded a shard after so long is not waited for any more.
STUCK_S = 600.0
#: Checkpoints of a job that are remembered; the oldest have been removed.
MAX_GOOD = 8
MAX_WHY_CHARS = 300


def torn(shard: int) -> PSError:
    """Return the error of a job whose step cannot be completed on one shard."""
    return JobError(
        f"the server of shard {shard} was lost in mid-step, and so was a worker that can no longer bring its gradients "
        "to the backup, while other shards have that step; begin the job again, from a checkpoint if there is one"
    )


class LostServer(NamedTuple):
    """A server that is lost, and its title."""

    rank: int
    name: str
    incarnation: bytes
    title: str


@dataclass(slots=True, kw_only=True)
class Missing(KeptRecord):
    """A shard of which no copy is left, until it is back at a checkpoint."""

    kept: ClassVar = dict.fromkeys(("generation", "lost", "home", "copy", "num_lost"), "fallback")

    changed: Callable[[str], None] = unkept

    generation: int  # of what loads it next
    lost: LostServer | None  # the server it was on; None: that is there, and the shard goes back with the others
    home: MemberInfo | None = None  # that server, then
    copy: Replica | None = None  # what is being loaded
    num_lost: int = 0  # pushes that members have said to be lost, of a time before that others have not answered
    since: float = 0.0
    not_before: float = 0.0


@dataclass(slots=True, kw_only=True)
class GoingBack(KeptRecord):
    """Shards that go back to a checkpoint, until all are there again."""

    kept: ClassVar = {"target": "fallback"}

    changed: Callable[[str], None] = unkept

    target: Resumption  # the checkpoint
    error: PSError  # what the job fails with if nothing can be loaded
    begun_at: float
    waits_since: float  # since when a server is waited for
    retry_due: float  # when what is not answered is sent again
    shards: dict[int, Missing] = field(default_factory=dict)
    why: str = ""  # what went wrong last
    unfit: set[tuple[bytes, int]] = field(default_factory=set)  # servers, by incarnation, that could not load a shard


class Rewinds(KeptRecord):
    """How often shards of one job went back, and what was lost the last time: steps, or acknowledged pushes.

    Steps the coordinator counts itself; of pushes each worker says how many of its own are lost.
    """

    kept: ClassVar = dict.fromkeys(("times", "_last"), "fallback")

    def __init__(self, startup: Startup, changed: Callable[[str], None] = unkept) -> None:
        self.changed = changed
        self._startup = startup
        self.times = 0
        self._last: dict[str, Any] = {}

    def close(self, change: ViewChange, now: float) -> list[Action]:
        """Say what was lost: all members have said it."""
        self._last = {
            "shards": list(change.shards),
            "path": change.restored["path"],
            "version": change.restored["version"],
            "lost": change.lost,
            "unit": "steps" if change.whole else "pushes",
            "exact": change.whole or not change.num_gone,
            "seconds": round(now - change.begun_at, 3),
            "at": now,
        }
        if change.whole:
            return []
        what = "1 push" if change.lost == 1 else f"{change.lost} pushes"
        where = f"shard{'s' * (len(change.shards) > 1)} {', '.join(map(str, change.shards))}"
        least = f", and what {counted(change.num_gone, 'worker')} pushed that left since" if change.num_gone else ""
        text = f"{what} that had been acknowledged after the checkpoint are lost from {where}{least}"
        return [self._startup.story.log("warning", text)]

    def dump(self) -> Plain:
        """Return what is kept of it."""
        return [self.times, {**self._last, "at": 0.0} if self._last else {}]

    def restore(self, kept: Plain, now: float) -> None:
        """Continue with what was kept."""
        self.times, self._last = kept
        if self._last:
            self._last["at"] = now

    def status(self, now: float) -> dict[str, Any]:
        """Return the state for the status."""
        if not self._last:
            return {"times": self.times}
        last = {name: value for name, value in self._last.items() if name != "at"}
        return {"times": self.times, "last": {**last, "ago_s": round(now - self._last["at"], 3)}}


class Fallback(KeptRecord):
    """Lets shards of one job go back to a checkpoint."""

    kept: ClassVar = dict.fromkeys(("good", "_going"), "fallback")

    def __init__(
        self,
        startup: Startup,
        steps: Steps,
        replication: Replication,
        members: Mapping[bytes, MemberInfo],
        timeout: float,  # how long servers for the shards are waited for; 0: nothing goes back, and the job fails
        rewind: Callable[[Resumption], list[Action]],  # data sets go back with all shards
        give_up: Callable[[PSError], list[Action]],  # a shard can be loaded nowhere
        changed: Callable[[str], None] = unkept,
    ) -> None:
        self.changed = changed
        #: The checkpoints that the job can go back to, the latest last.
        self.good: list[Resumption] = [startup.resumption] if startup.resumption is not None else []
        self._startup = startup
        self._steps = steps
        self._replication = replication
        self._timeout = timeout
        self._rewind = rewind
        self._give_up = give_up
        self._bad: set[str] = KeptSet(partial(changed, "fallback"))  # paths of checkpoints that cannot be used
        self._going: GoingBack | None = None
        self._rewinds = Rewinds(startup, changed)
        self._members = members

    @property
    def active(self) -> bool:
        """Whether shards are going back."""
        return self._going is not None

    @property
    def _under_way(self) -> GoingBack:
        assert self._going is not None
        return self._going

    @property
    def shards(self) -> list[int]:
        """Those that go back."""
        return [] if self._going is None else sorted(self._going.shards)

    @property
    def path(self) -> str:
        """The checkpoint that they go back to; empty where none does."""
        return "" if self._going is None else self._going.target.path

    @property
    def times(self) -> int:
        """How often shards went back."""
        return self._rewinds.times

    def keep(self, path: str, read_at: str, version: int, manifest: Mapping[str, Any]) -> None:
        """There is another checkpoint of the job; ``manifest`` is what the coordinator says of it."""
        job = self._startup.job
        if job is None or (self._whole and version > self._steps.clock):  # of lost steps
            return
        saved = Resumption(
            path=path, read_at=read_at, job=job, version=version, data=manifest["data"], state=manifest["state"],
            rates=tuple(manifest.get("run", {}).get("rates", ())), cut=self._startup.cut,
        )  # fmt: skip
        self.good = [*self.good, saved][-MAX_GOOD:]

    @property
    def is_outdated(self) -> bool:
        """Whether no checkpoint was made since the shards were last recut."""
        return self._latest is None or self._latest.cut != self._startup.cut

    def concerns(self, copy: Replica) -> bool:
        """Whether a copy is being loaded here."""
        back = None if self._going is None else self._going.shards.get(copy.shard)
        return back is not None and back.copy is copy

    @property
    def _whole(self) -> bool:
        """Whether all shards go back together."""
        return self._steps.is_sync

    @property
    def _latest(self) -> Resumption | None:
        """The latest checkpoint that can be used, as far as is known."""
        return next((saved for saved in reversed(self.good) if saved.path not in self._bad), None)

    # --- how it begins -------------------------------------------------------------------------

    def begin(
        self, lost: Sequence[Replica], error: PSError, servers: Sequence[MemberInfo], now: float
    ) -> list[Action] | None:
        """The last copies of shards are lost, or could not continue: go back; None: there is nothing to go back to."""
        target, fresh = self._latest if self._going is None else self._going.target, self._going is None
        if target is None or not self._timeout:
            return None
        if self._going is None:
            self._going = GoingBack(
                changed=self.changed, target=target, error=error, begun_at=now, waits_since=now,
                retry_due=now + RETRY_S, shards=KeptDict(partial(self.changed, "fallback")),
            )  # fmt: skip
        going = self._going
        going.waits_since = now
        shards = {copy.shard: copy for copy in lost}
        if self._whole and fresh:
            self._steps.suspend(f"{self._text(shards)}, and all shards go back with it")
            shards = {copy.shard: copy for copy in self._startup.copies if not copy.backup} | shards
        gone = {copy.epoch for copy in lost}
        for shard, copy in sorted(shards.items()):
            server, before = copy.server, going.shards.get(shard)
            if copy.epoch in gone:
                home, lost_one = None, LostServer(server.rank, server.hello.name, server.incarnation, server.title)
            else:
                home, lost_one = server, None
            lost_one = lost_one or (before.lost if before is not None else None)
            going.shards[shard] = Missing(
                changed=self.changed, generation=copy.generation + 1, lost=lost_one, home=home
            )
            going.shards[shard].num_lost = self._forget(shard) + (before.num_lost if before is not None else 0)
        released = self._replication.forget(shards)
        self._startup.held = self._text(going.shards)
        text = f"{self._text(shards)}, of version {target.version}"
        told = self._replication.views.announce(ChangeKind.REWOUND, sorted(going.shards), target.path)
        return [self._startup.story.log("warning", text, "fallback"), *released, *told, *self.fill(servers, now)]

    def _forget(self, shard: int) -> int:
        """No copy of a shard that is there counts any more; return what is known to be lost since it went back last."""
        copies = self._startup.copies
        for copy in [copy for copy in copies if copy.shard == shard]:
            self._startup.drop(copy, moved=True)
            self._steps.lose(copy.epoch)
        return self._replication.views.forget(ChangeKind.REWOUND, shard)

    def _text(self, shards: Iterable[int]) -> str:
        numbers = [str(shard) for shard in sorted(shards)]
        which = f"shard {numbers[0]} goes" if len(numbers) == 1 else f"shards {listed(numbers, 8)} go"
        return f"{which} back to the checkpoint {self._under_way.target.path}"

    # --- where shards are loaded ---------------------------------------------------------------

    def fill(self, servers: Sequence[MemberInfo], now: float) -> list[Action]:
        """Let servers load the shards, as far as there are any."""
        if (going := self._going) is None:
            return []
        new: list[Replica] = []
        for shard, back in sorted(going.shards.items(), key=lambda item: (item[1].home is None, item[0])):
            if back.copy is not None or now < back.not_before:
                continue
            server = self._choose(shard, back, servers, now)
            if server is None:
                continue
            back.copy = copy = self._startup.copies.add(shard, server)
            copy.generation, back.since = back.generation, now
            new.append(copy)
        if not new:
            return []
        text = f"the checkpoint {going.target.path} is loaded: {_where(new)}"
        return [self._startup.story.log("info", text), *self._assign(new)]

    def _assign(self, copies: Iterable[Replica]) -> list[Action]:
        target = self._under_way.target
        anew = target.cut != self._startup.cut
        return self._startup.assign(copies, {**target.source(), "ledgers": not self._whole, "anew": anew})

    def _choose(self, shard: int, back: Missing, servers: Sequence[MemberInfo], now: float) -> MemberInfo | None:
        """Return the server for a shard: the one it was on, one that has none, or after a while any."""
        fit = [server for server in servers if (server.incarnation, shard) not in self._under_way.unfit]
        leaders = (copy for copy in self._startup.copies if not copy.backup)
        loads = Counter(copy.server.incarnation for copy in leaders)
        free = [server for server in fit if not loads[server.incarnation]]
        if back.home in free:
            return back.home
        if not free and now < self._under_way.waits_since + min(SHARE_S, self._timeout / 2):
            return None
        return min(free or fit, key=lambda s: (loads[s.incarnation], s.rank != shard, s.rank), default=None)

    def failed(self, copy: Replica, error: PSError, now: float) -> list[Action]:
        """A server could not load a shard: another one is to, or another checkpoint."""
        going = self._under_way
        self._drop(copy)
        back = going.shards[copy.shard]
        going.why = printable(str(error))[:MAX_WHY_CHARS]
        if isinstance(error, CheckpointError) and not isinstance(error, CheckpointStorageError):
            return self._take_older(error, now)
        if isinstance(error, CheckpointStorageError):
            back.not_before = now + RETRY_S
        else:
            going.unfit.add((copy.server.incarnation, copy.shard))
        text = f"{copy.server.title} cannot load shard {copy.shard}: {going.why}"
        return [self._startup.story.log("warning", text)]

    def _drop(self, copy: Replica) -> None:
        """Load a shard again, here or elsewhere."""
        self._startup.drop(copy, moved=True)
        back = self._under_way.shards[copy.shard]
        back.copy = None
        back.generation += 1

    def _take_older(self, error: PSError, now: float) -> list[Action]:
        """The checkpoint cannot be used: begin again with the one before it."""
        going, bad = self._under_way, self._under_way.target
        self._bad.add(bad.path)
        for back in going.shards.values():
            if back.copy is not None:
                self._drop(back.copy)
        if (older := self._latest) is None:
            return self._fail(f"no checkpoint can be used: {error}", now)
        going.target = older
        self._startup.held = text = self._text(going.shards)
        if self._whole:
            self._steps.suspend(text)
        text = f"{bad.path} cannot be used ({going.why}): {text}, of version {older.version}"
        return [self._startup.story.log("error", text, error=error.number)]

    def ready(self, copy: Replica, loaded: bool, now: float) -> list[Action]:
        """A server has built a shard, or has loaded it."""
        copy.built = True
        if not loaded or copy.whole:
            return []
        copy.whole = True
        if not self._whole:
            return self._went_back((copy.shard,), now)
        going = self._under_way
        if all(back.copy is not None and back.copy.whole for back in going.shards.values()):
            return self._went_back(tuple(sorted(going.shards)), now)
        return []

    def _went_back(self, shards: tuple[int, ...], now: float) -> list[Action]:
        """Shards are loaded: send the members that know the job to them."""
        going, startup, copies = self._under_way, self._startup, self._startup.copies
        saved = going.target
        done = [going.shards.pop(shard) for shard in shards]
        lost, actions = sum(back.num_lost for back in done), list[Action]()
        if self._whole:
            lost = max(0, self._steps.clock - saved.version)
            self._steps.go_back(copies, saved.version)
            startup.resumption = saved
            actions += self._rewind(saved)
        else:
            self._steps.go_back(copies, None)
        startup.moved()
        where = _where(copy for copy in copies if copy.shard in shards)
        what = f"{counted(lost, 'step')} lost" if self._whole else "its workers say what is lost"
        text = f"job {self._startup.name!r} is back at version {saved.version} of {saved.path}: {where}; {what}"
        log, answers = Log("warning", text, "restored", job=self._startup.name), list[Action]()
        self._replication.degraded(shards, "it went back to a checkpoint", now)
        # first, for what is answered now is of what members go back to
        change, told = self._replication.views.begin(
            ChangeKind.REWOUND, shards, now, restored=saved.told(), begun_at=going.begun_at, lost=lost,
            whole=self._whole,
        )  # fmt: skip
        self._rewinds.times += 1
        told += self.followed(change, now)
        if not going.shards:
            startup.held, self._going = "", None
            answers = startup.answer()
        return [log, *told, *actions, *answers]

    def followed(self, change: ViewChange, now: float) -> list[Action]:
        """A member went back, or has left: report what was lost, if it was the last one."""
        if change.awaited:
            return []
        return self._rewinds.close(change, now)

    def makes_moot(self, member: MemberInfo) -> bool:
        """Whether a worker's message about steps may be about lost ones."""
        return self._whole and (self.active or self._replication.views.awaits(ChangeKind.REWOUND, member))

    def again(self, member: MemberInfo) -> list[Action]:
        """A member is back: say again what it may not have heard."""
        mine = [copy for copy in self._startup.copies.of(member) if self.concerns(copy) and not copy.whole]
        return self._assign(mine) if mine else []

    # --- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when `on_deadline` wants to be called."""
        return None if self._going is None else self._going.retry_due

    def on_deadline(self, servers: Sequence[MemberInfo], now: float) -> list[Action]:
        """Say again what is not answered; give up what takes too long."""
        if (going := self._going) is None or now < going.retry_due:
            return []
        loading = [back.copy for back in going.shards.values() if back.copy is not None]
        for copy in [copy for copy in loading if not copy.whole and now >= going.shards[copy.shard].since + STUCK_S]:
            going.unfit.add((copy.server.incarnation, copy.shard))
            self._drop(copy)
        actions = self.fill(servers, now)
        waiting = [shard for shard, back in going.shards.items() if back.copy is None]
        if not waiting:
            going.waits_since = now
        elif now >= going.waits_since + self._timeout:
            return [*actions, *self._fail(f"no server has loaded {self._missing()} in {self._timeout:g} s", now)]
        actions += self._assign([copy for copy in loading if not copy.built and self.concerns(copy)])
        going.retry_due = now + RETRY_S
        return actions

    def _missing(self) -> str:
        shards = [str(shard) for shard, back in sorted(self._under_way.shards.items()) if back.copy is None]
        return f"shard{'s' if len(shards) > 1 else ''} {listed(shards, 8)}"

    def _fail(self, what: str, now: float) -> list[Action]:
        """Nothing can be loaded: the job fails as one does that has no checkpoint."""
        going = self._under_way
        gone = [back.lost for back in going.shards.values() if back.lost is not None]
        why = f"; the last attempt: {going.why}" if going.why and going.why not in what else ""
        advice = f"{what}{why}; begin the job again from a checkpoint (--restore), with servers for all its shards"
        first = gone[0] if gone else None
        error = going.error if first is None else self._loss(first, advice, now)
        self._replication.views.clear()
        self._startup.held, self._going = "", None
        losses = [
            Lost("server", server.rank, server.name, server.incarnation, max(0.0, now - going.begun_at))
            for server in dict.fromkeys(gone)
        ]
        told = [Send(self._members[who].peer, lost) for lost in losses for who in self._replication.views.told]
        return [*self._give_up(error), *told]

    # --- a coordinator that was away -----------------------------------------------------------

    def dump(self) -> Plain:
        """Return what is kept of it; None if there is nothing to go back to."""
        shards = {} if self._going is None else self._going.shards
        if not self.good and not shards:
            return None
        back = [
            [
                shard, b.generation, None if b.lost is None else list(b.lost),
                None if b.home is None else b.home.incarnation, None if b.copy is None else b.copy.epoch, b.num_lost,
            ]
            for shard, b in sorted(shards.items())
        ]  # fmt: skip
        good = [saved.dump(brief=True) for saved in self.good]
        return [good, sorted(self._bad), self.path, back, self._rewinds.dump()]

    def restore(self, kept: Plain, members: Mapping[bytes, MemberInfo], now: float) -> None:
        """Continue with what was kept; servers have time again."""
        job = self._startup.job
        if job is None:
            return
        good, bad, target, back, rewinds = kept
        self.good = [Resumption.restored(saved, job) for saved in good]
        self._bad.update(bad)
        self._rewinds.restore(rewinds, now)
        if not back:
            return
        self._going = going = GoingBack(
            changed=self.changed, shards=KeptDict(partial(self.changed, "fallback")),
            target=next(saved for saved in self.good if saved.path == target), begun_at=now, waits_since=now,
            error=JobError("a part of the job is lost"), retry_due=now + RETRY_S,
        )  # fmt: skip
        copies = self._startup.copies.by_epoch
        for shard, generation, lost, home, epoch, num_lost in back:
            going.shards[shard] = Missing(
                changed=self.changed, generation=generation, lost=None if lost is None else LostServer(*lost),
                home=members.get(home), copy=None if epoch is None else copies[epoch], num_lost=num_lost, since=now,
            )  # fmt: skip
        gone = next((b.lost for b in going.shards.values() if b.lost is not None), None)
        if gone is not None:
            going.error = self._loss(gone, LOSS_ADVICE, now)
        self._startup.held = text = self._text(going.shards)
        if self._whole:
            self._steps.suspend(text)

    def _loss(self, server: LostServer, advice: str, now: float) -> PSError:
        silent_s = round(now - self._under_way.begun_at, 3)
        return PeerLostError(role="server", name=server.title, silent_s=silent_s, advice=advice)

    # --- what others may look at ---------------------------------------------------------------

    def texts(self) -> Iterator[str]:
        """Yield what goes back, and what it waits for."""
        if (going := self._going) is None:
            return
        text, why = self._text(going.shards), f" ({going.why})" if going.why else ""
        if any(back.copy is None for back in going.shards.values()):
            text += f"; no server is free for {self._missing()}{why}: start one with zmqps server --spare"
        else:
            copies = [back.copy for back in going.shards.values() if back.copy is not None and not back.copy.whole]
            text += f", which {listed([copy.server.title for copy in copies], 8)} loads"
        yield text

    def status(self, now: float) -> dict[str, Any]:
        """Return the state for the status."""
        return {**self._rewinds.status(now), "now": " ".join(self.texts())}

    def validate(self) -> None:
        """Assert the invariants."""
        assert (self._going is not None) == bool(self._startup.held)
        if self._going is None:
            return
        assert self._going.shards
        for shard, back in self._going.shards.items():
            if back.copy is not None:
                assert self._startup.copies.by_epoch[back.copy.epoch] is back.copy
                assert back.copy.shard == shard
                assert not back.copy.backup


def _where(copies: Iterable[Replica]) -> str:
    return ", ".join(f"shard {copy.shard} on {copy.server.title}" for copy in copies)
