"""What is rare, and what a run of many seeds must have reached: each probe marks a branch, or two things at once.

A probe looks at the calls of one method of the core while seeds are run (`watching`). The core knows nothing of it, and
only methods that are seldom called have one, so seeds are no slower. A scenario that is changed so that something is
never tried any more fails no invariant; a probe that is never reached does say so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from zmqps.core.coordinator.kernel.run import JobKernel
from zmqps.core.coordinator.placement.drains import Drains
from zmqps.core.coordinator.placement.fallback import Fallback
from zmqps.core.coordinator.placement.replication import Replication
from zmqps.core.coordinator.placement.transitions import Handovers, Phase, Recuts
from zmqps.core.coordinator.run import JobRun
from zmqps.core.coordinator.saving.checkpoints import Checkpoints
from zmqps.core.coordinator.training.steps import Commits, Steps
from zmqps.core.protocol.events import Send
from zmqps.core.protocol.messages import Lead
from zmqps.core.server.replicas.backup import Backup
from zmqps.core.server.replicas.follower import FollowerFill
from zmqps.core.server.replicas.replication import ReplicaStreams
from zmqps.core.server.replicas.stream import Stream
from zmqps.core.server.tables.row_records import RowNews
from zmqps.core.worker.connections.link import Link
from zmqps.core.worker.layout.rollbacks import Rollbacks

#: Of all scenarios, so many seeds reach every probe: a run that is as long fails where one is missing. The rarest are
#: reached once in 1,000 to 2,000 seeds.
ENOUGH_SEEDS = 20_000


def _always(*_: Any, **__: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeProbe:
    """Something rare: a call of a method in some state, or with some result.

    Parameters
    ----------
    name
        What happens, in words.
    of, method
        What is called then.
    before
        Whether it is that, of the object and the arguments of the call before it begins. It changes nothing.
    after
        Whether it is that, of the object and what the call has returned; one that raises does not count.
    """

    name: str
    of: type
    method: str
    before: Callable[..., Any] = _always
    after: Callable[[Any, Any], Any] = _always


def _promotes(_: Replication, found: Any) -> bool:
    return any(
        isinstance(action, Send) and isinstance(action.message, Lead) and "rows" not in action.message.backups
        for action in found[0]
    )


def _is_anything(_: object, found: Any) -> bool:
    return bool(found)


def _has_begun(_: Fallback, found: Any) -> bool:
    return found is not None


def _waits_for_save(recuts: Recuts, *_: Any, may_cut: bool, **__: Any) -> bool:
    waits = recuts.active and not recuts.is_cutting and not may_cut
    return waits and all(copy.built for copy in recuts._coming)


def _waits_for_recut(checkpoints: Checkpoints) -> bool:
    cut = {name for name, run in checkpoints._runs.items() if run.replication.recuts.is_cutting}
    return any(wish.job in cut for wish in checkpoints.waiting)


def _evicts_in_fill(stream: Stream) -> bool:
    fills = any(follower._filling.begun and not follower.is_filled for follower in stream.followers.values())
    watched = [one for news in stream._news if isinstance(news, RowNews) for one in news._watched.values()]
    return fills and any(one.ids and one.table.counters["evicted"] for one in watched)


_LOSSES = (
    CodeProbe(
        name="a server is lost during a recut, and a backup is promoted",
        of=Replication, method="lose",
        before=lambda replication, *_: replication.recuts.active, after=_promotes,
    ),
    CodeProbe(
        name="a server is lost when leaders have been asked to yield for a recut",
        of=Recuts, method="lose", before=lambda recuts, *_: recuts.has_asked, after=_is_anything,
    ),
    CodeProbe(
        name="an heir is lost before it has taken over",
        of=Replication, method="lose",
        before=lambda replication, server, *_: any(
            copy.server is server for copy in replication._startup.copies.promoting.values()
        ),
    ),
    CodeProbe(
        name="a promotion while the mean of a step is measured",
        of=Steps, method="move", before=lambda steps, old, heir, told: told is not None and steps.commits.measuring,
    ),
    CodeProbe(
        name="a worker leaves before it brings its gradients to an heir again",
        of=Commits, method="leave", after=_is_anything,
    ),
    CodeProbe(name="a step is torn: an heir can never have its gradients", of=Commits, method="_tear"),
    CodeProbe(
        name="a zombie leader is deposed while answers wait for its backups",
        of=ReplicaStreams, method="_depose",
        before=lambda streams, tenant, _: streams.streams[tenant.assign.epoch].is_behind,
    ),
)  # fmt: skip
_MOVES = (
    CodeProbe(
        name="a handover is cancelled before its leader was asked",
        of=Handovers, method="_cancel", before=lambda _, handover, now: not handover.is_frozen,
    ),
    CodeProbe(
        name="a leader that was asked to yield is lost",
        of=Handovers, method="lose",
        before=lambda handovers, copy: any(h.is_frozen and copy is h.old for h in handovers.under_way.values()),
    ),
    CodeProbe(
        name="the new copy of a handover is lost after the leader has yielded",
        of=Handovers, method="lose",
        before=lambda handovers, copy: any(
            copy is h.new and h.phase is Phase.ADOPT for h in handovers.under_way.values()
        ),
    ),
    CodeProbe(
        name="a handover waits for a step that has begun",
        of=Handovers, method="yielded", before=lambda _, copy, message, now: message.busy,
        after=lambda handovers, _: any(handover.late for handover in handovers.under_way.values()),
    ),
    CodeProbe(
        name="a server that must leave hands a shard to the backup that there is",
        of=Handovers, method="_make_do",
        after=lambda handovers, _: any(not handover.made for handover in handovers.under_way.values()),
    ),
    CodeProbe(
        name="a server that drains is lost before it is empty",
        of=Drains, method="lost",
        before=lambda drains, server: any(d.server is server and d.told_at is None for d in drains.going.values()),
    ),
    CodeProbe(
        name="a recut waits for a step that began before it was held",
        of=Recuts, method="_wait_for_step",
    ),
    CodeProbe(name="a recut is put off", of=Recuts, method="_put_off"),
    CodeProbe(name="a recut waits for a save", of=Recuts, method="look", before=_waits_for_save),
    CodeProbe(name="a save waits for a recut", of=Checkpoints, method="_next_wish", before=_waits_for_recut),
)  # fmt: skip
_FALLBACKS = (
    CodeProbe(
        name="a fallback begins while a server drains",
        of=Fallback, method="begin",
        before=lambda fallback, lost, *_: any(c.server.leaving for c in [*lost, *fallback._startup.copies]),
        after=_has_begun,
    ),
    CodeProbe(
        name="a fallback begins during a recut",
        of=JobRun, method="_lose_copies",
        before=lambda run, *_: run.replication.recuts.active, after=lambda run, _: run.fallback.active,
    ),
    CodeProbe(
        name="a shard is lost again while it goes back",
        of=Fallback, method="begin",
        before=lambda fallback, lost, *_: any(copy.shard in fallback.shards for copy in lost), after=_has_begun,
    ),
    CodeProbe(
        name="a job goes back when a worker of it has arrived",
        of=Rollbacks, method="_all", before=lambda rollbacks, *_: rollbacks._pace.arrive is not None,
    ),
    CodeProbe(
        name="a checkpoint is begun again, for its cut was not one",
        of=Checkpoints, method="_again",
    ),
)  # fmt: skip
_COMEBACKS = (
    CodeProbe(
        name="a comeback while copies for a recut are made",
        of=Replication, method="restore_recut", before=lambda _, kept, *__: kept[0] and not kept[1],
    ),
    CodeProbe(
        name="a comeback when leaders have been asked to yield for a recut",
        of=Replication, method="restore_recut", before=lambda _, kept, *__: kept[1],
    ),
    CodeProbe(
        name="a comeback when a leader has been asked to yield",
        of=Handovers, method="restore", before=lambda _, kept, now: any(asked for *__, asked in kept),
    ),
    CodeProbe(
        name="a comeback during a promotion",
        of=Replication, method="restore", before=lambda _, kept, now: kept[0],
    ),
    CodeProbe(
        name="a comeback while shards go back",
        of=Fallback, method="restore", before=lambda _, kept, *__: kept[3],
    ),
    CodeProbe(
        name="a comeback with a step that servers have not confirmed",
        of=Steps, method="restore", before=lambda _, kept, *__: kept["commits"],
    ),
    CodeProbe(
        name="a comeback while the mean of a step is measured",
        of=Steps, method="restore", after=lambda steps, _: steps.commits.measuring,
    ),
)  # fmt: skip
_MEMBERS = (
    CodeProbe(
        name="a worker comes in the place of its life before while a step is open",
        of=JobKernel, method="succeed", before=lambda run, *_: bool(run.steps.trainees.waiting),
    ),
    CodeProbe(
        name="a spare takes a place while a step is open",
        of=JobKernel, method="_fill", before=lambda run, _: bool(run.steps.trainees.waiting), after=_is_anything,
    ),
    CodeProbe(
        name="an answer shows that a push before it was lost",
        of=Link, method="_note_overtaken", after=lambda link, _: link.resends.at_once,
    ),
)  # fmt: skip
_STREAMS = (
    CodeProbe(
        name="a backup lacks a record, and asks for it",
        of=Backup, method="take", after=lambda _, found: found is not None and found.again,
    ),
    CodeProbe(
        name="a backup is filled later, for want of memory",
        of=FollowerFill, method="next",
        after=lambda fill, found: found is None and fill._pieces is not None,
    ),
    CodeProbe(
        name="a table that evicts changes while a backup is filled from it",
        of=Stream, method="_tell", before=_evicts_in_fill,
    ),
)  # fmt: skip
#: All of them, by subject.
PROBES = (*_LOSSES, *_MOVES, *_FALLBACKS, *_COMEBACKS, *_MEMBERS, *_STREAMS)


@contextmanager
def watching(reached: Counter[str], probes: Sequence[CodeProbe] = PROBES) -> Iterator[None]:
    """Count how often each probe is reached meanwhile, by all machines that are made meanwhile.

    Parameters
    ----------
    reached
        By name of a probe; is added to.
    probes
        Which.
    """
    by_place: dict[tuple[type, str], list[CodeProbe]] = defaultdict(list)
    for probe in probes:
        by_place[probe.of, probe.method].append(probe)
    before = {(of, method): vars(of)[method] for of, method in by_place}
    try:
        for (of, method), its in by_place.items():
            setattr(of, method, _watched(before[of, method], its, reached))
        yield
    finally:
        for (of, method), function in before.items():
            setattr(of, method, function)


def _watched(function: Callable[..., Any], probes: Sequence[CodeProbe], reached: Counter[str]) -> Callable[..., Any]:
    @wraps(function)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen = [probe for probe in probes if probe.before(self, *args, **kwargs)]
        found = function(self, *args, **kwargs)
        for probe in seen:
            if probe.after(self, found):
                reached[probe.name] += 1
        return found

    return watched


def table(reached: Mapping[str, int]) -> str:
    """Return in how many runs each probe was reached, a line each."""
    return "\n".join(f"{reached.get(probe.name, 0):8,}  {probe.name}" for probe in PROBES)


def missed(reached: Mapping[str, int]) -> list[str]:
    """Return the names of those that never were."""
    return [probe.name for probe in PROBES if not reached.get(probe.name)]
