"""No part of a coordinator knows anything of which nobody has said whether it is kept in the journal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.core.coordinator.test_remembered_copies import training
from tests.tables import for_each
from zmqps.core.protocol.messages import Arrive, Drain, Leave, Take

#: By class: what `zmqps.core.coordinator.remembered` keeps of it, itself or under another name; …
KEPT = {
    "CoordinatorMachine": "lives",
    "Membership": "members _barred",
    "MemberInfo": "hello incarnation rank origin answers leaving telling notes",
    "Roster": "_by_rank _claims",
    "Fleet": "_by_rank _claims wanted most",
    "Claims": "_last",
    "Erasures": "_awaited _moved",
    "ClusterEnd": "ending unsaved",
    "Jobs": "runs",
    "Resumptions": "used",
    "Epochs": "next",
    "EndedJobs": "by_name",
    "JobRun": "name lost_shard",
    "Places": "_all_joined _missed",
    "Attendance": "here spares num_finished _names",
    "Losses": "_lost _here _finished",
    "Occupancy": "training idle_since _before _left_alone _returned",
    "Startup": "resumption epoch cut job owner placement ready loader told returning",
    "ReplicaSet": "by_epoch coming unfit",
    "Replica": "shard epoch server backup generation built whole order",
    "Fallback": "good _bad _going _rewinds",
    "Rewinds": "times _last",
    "Shortages": "_noted",
    "Handovers": "under_way",
    "Handover": "old new made phase",
    "Drains": "going _ended",
    "Scales": "scaling _ended",
    "Recuts": "_recut",
    "_Drain": "server since nonces moved",
    "MemberViews": "_revision open",
    "ViewChange": "revision kind shards awaited restored lost whole num_gone",
    "Steps": "policy trainees commits _waits_for_all",
    "Trainee": "rank phase clock lag counted",
    "Commits": "leaders heirs measuring",
    "LeaderProgress": "unconfirmed",
    "Heir": "behind is_coming",
    "Numbers": "latest before",
    "Synchronous": "clock dropped _workers _left_out",
    "DataSets": "by_name _saved",
    "DataSet": "spec owner named_by lasts here data_pass taken num_done num_returned _next _returned",
}
#: … and what is not kept: parts and options that are there anyway, what follows from the rest, who waits and asks
#: again, when something is due, and what only the status shows.
NOT_KEPT = {
    "CoordinatorMachine": (
        "identity options changes is_back _kept membership servers counts started_at erasures cluster_end jobs runs "
        "checkpoints ended files drains scales probes traces notes _reminder_due _lose_due _inquiries "
        "_news telling openings watching wheel touched _reminder _moves epochs "
        "from_anybody from_members"
    ),
    "Membership": "timeout _nobody_before gone _by_silence _peers _barred_peers processes",
    "Processes": "_living _ended",
    "MemberInfo": "peer roster seen_at reported",
    "Resumptions": "_by_name",
    "Roster": "_expected _numbered _lowest _next _doubts",
    "Fleet": "_expected _numbered _lowest _next _doubts",
    "Claims": "_living _ranks",
    "Erasures": "_not_before _timer",
    "ClusterEnd": "_idle_timeout _members _anybody _due asked save is_saving close _timer",
    "NoteReceiver": "history num_taken num_lost",
    "Jobs": ("ended _changes _options _membership _erasures _cluster_end _new_run resumptions closing saver touched"),
    "EndedJobs": "_answers",
    "JobRun": (
        "members workers observers _options _servers occupancy places attendance spares losses steps startup "
        "replication barriers data waits fallback rates _changes from_members of_copies "
        "moving not_followed data_sets story"
    ),
    "Places": "attendance spares losses chief _members _workers _startup _dismiss",
    "Occupancy": "_name _members _workers _lease is_closing",
    "Startup": (
        "story num_servers num_workers options _begin _count _new_copies given_up _rows _wire _optimizer "
        "_cuts copies parked _requests held cutting"
    ),
    "ReplicaSet": "_root _new_epoch revision retry_due",
    "Replica": "moved yielded",
    "Fallback": "_startup _steps _replication _timeout _rewind _give_up _members",
    "Rewinds": "_startup",
    "Replication": "views handovers recuts shortages replicas _startup _steps _num_retries",
    "Shortages": "_startup replicas",
    "Handovers": "_startup _steps _shortages stuck",
    "Handover": "not_before held_at frozen_at again_at numbers late",
    "Drains": "_fleet _runs _erasures _checkpoints",
    "Scales": "_fleet _runs _checkpoints _drains _endpoint _replicas _hold_s _silence_s",
    "Recuts": "error longest_s _startup _steps _members _views _shortages _not_before",
    "_Drain": "told_at",
    "MemberViews": "_members _startup",
    "ViewChange": "due begun_at",
    "Steps": "kept _rule _rates _granted _members _attendance pauses delays",
    "Trainees": "waiting num_training",
    "Trainee": "request paused_for unheard",
    "Commits": "torn retry_due _replicated",
    "LeaderProgress": "copy squares",
    "Pauses": "suspended holding closed",
    "Synchronous": "aggregate on_straggler pending lateness _num_live _open _late",
    "DataSets": "_of _members _counts _pause _resume",
    "DataSet": "waiting",
    "Barriers": "by_name _members _awaited _of _pause _resume",
    "Spares": "_members",
    "Checkpoints": ("_runs _store cadence _hold_s _chains waiting _making numbers _saves on_unsaved _on_touch _timer"),
}


def attributes(thing: object) -> set[str]:
    """Return the names of what a part knows, but of what marks that something has changed."""
    found = {name for owner in type(thing).__mro__ for name in getattr(owner, "__slots__", ())}
    return (set(vars(thing)) if hasattr(thing, "__dict__") else found) - {"changed", "_changed"}


def parts() -> Iterator[Any]:
    """Yield the parts of a coordinator in the middle of everything."""
    kept = training(mode="sync")
    kept.take("w0", Take(2, "examples", 40, 10, 1, (), ()))
    kept.take("w1", Arrive(2, 0, (1,)))
    kept.promoted(kept.take("s1", Leave("closed")))
    kept.join("s3")
    kept.take("s0", Drain(1, "", 0))
    machine, run = kept.machine, kept.run()
    yield from (
        machine,
        machine.membership,
        machine.servers,
        machine.servers._claims,
        machine.erasures,
        run.workers,
        machine.epochs,
        machine.jobs.resumptions,
    )
    yield from (machine.drains, *machine.drains.going.values(), machine.scales, run.replication.recuts)
    yield from (*machine.membership.members.values(), machine.membership.processes)
    yield from (machine.cluster_end, machine.jobs, machine.ended, machine.checkpoints, machine.notes)
    yield from (run, run.places, run.attendance, run.losses, run.occupancy, run.startup, run.replication, run.steps)
    yield from (run.startup.copies, *run.startup.copies, run.replication.views, *run.replication.views.open.values())
    yield from (run.replication.shortages, run.replication.handovers, *run.replication.handovers.under_way.values())
    yield from (run.fallback, run.fallback._rewinds, run.steps.policy, run.steps.commits, run.steps.pauses)
    yield from (run.steps.trainees, *run.steps.trainees.values(), *run.steps.commits.leaders.values())
    yield from (*run.steps.commits.heirs.values(), run.rates)
    yield from (run.data, *run.data.by_name.values(), run.barriers, run.spares)


@for_each("kind", sorted({*KEPT, *NOT_KEPT}))
def test_of_everything_it_is_said_whether_it_is_kept(kind: str) -> None:
    found = [attributes(part) for part in parts() if type(part).__name__ == kind]
    assert found, f"no {kind} is looked at"
    kept, other = set(KEPT.get(kind, "").split()), set(NOT_KEPT.get(kind, "").split())
    assert not kept & other
    new = set().union(*found) - kept - other
    assert not new, f"is {kind}.{', '.join(sorted(new))} kept? docs/where.md says how to let it be; enter it here"
    assert not (kept | other) - set().union(*found), "these are gone"
