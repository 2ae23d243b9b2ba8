"""A coordinator's journaled state, key by key, and how it is restored.

==================  ====================================================================================
key                 journaled state
==================  ====================================================================================
``cluster``         the next epoch, and how the cluster is ending
``member/ID``       the facts in a member's `Hello`; a server's rank
``answers/ID``      the answers that it may request again
``noted/ID``        how much of what its script logs has arrived
``barred/ID``       why an incarnation may not come back
``job/NAME``        a job's members, with ranks; which count, were lost, have begun
``spec/NAME``       what is trained, and its placement
``start/NAME``      the progress of its start, and which members know the servers
``copies/NAME``     which server has which copy of which shard, promotions in progress, and what is missing since when
``views/NAME``      changes of the placement, and which members do not follow them yet
``fallback/NAME``   checkpoints to go back to, shards that do, and which members do not know it yet
``step/NAME``       the step, unconfirmed commits, clocks; which gradients of which workers counted
``data/NAME/SET``   which ranges of a data set are done, and which worker has which
``ended/NAME``      how a job has ended
``erase/ID``        what a server must erase, and has not confirmed
``recut/NAME``      a recut of the shards, and which members do not use its result yet
``drains``          which servers are draining, and the remaining number
``scale``           the requested number of servers for jobs, and which clients wait for it
==================  ====================================================================================

Requests waiting for an answer are not journaled: they are repeated. ``ID`` is an incarnation in hex. The name of a job
is preceded by its length, so that its slashes cannot be confused with the one before a data set's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Protocol

from zmqps.core.coordinator.jobs import EndedJobs, Epochs, Jobs
from zmqps.core.coordinator.journal import (
    OF_A_JOB,
    DirtyKeys,
    Plain,
    packed_error,
    set_key,
    split_key,
    split_set,
    unpacked_error,
)
from zmqps.core.coordinator.members.cluster_end import ClusterEnd
from zmqps.core.coordinator.members.erasures import Erasures
from zmqps.core.coordinator.members.membership import Fleet, MemberInfo, Membership
from zmqps.core.coordinator.placement.drains import Drains
from zmqps.core.coordinator.placement.scales import Scales
from zmqps.core.coordinator.run import JobRun
from zmqps.core.coordinator.saving.checkpoints import Checkpoints


class JournalHost(Protocol):
    """What is required of the machine."""

    membership: Membership
    servers: Fleet
    drains: Drains
    scales: Scales
    jobs: Jobs[JobRun]
    epochs: Epochs
    ended: EndedJobs
    erasures: Erasures
    cluster_end: ClusterEnd
    checkpoints: Checkpoints
    changes: DirtyKeys
    lives: int  # how often it has come back


def dump(machine: JournalHost, what: str, whose: str) -> Plain:
    """Return the present record of a key; None for none."""
    return _DUMPS[what](machine, whose)


def dump_all(machine: JournalHost) -> dict[tuple[str, str], Plain]:
    """Return all present records; tests compare them with what was written."""
    members = [who.hex() for who in machine.membership.members]
    keys = [("cluster", ""), ("drains", ""), ("scale", "")]
    keys += [(what, who) for who in members for what in ("member", "answers", "noted", "erase")]
    keys += [("barred", who.hex()) for who in machine.membership.barred]
    for name, run in machine.jobs.runs.items():
        keys += [(what, name) for what in OF_A_JOB]
        keys += [("data", set_key(name, data)) for data in run.data.names]
    keys += [("ended", name) for name in machine.ended.by_name]
    found = {key: dump(machine, *key) for key in keys}
    return {key: data for key, data in found.items() if data is not None}


def restore(machine: JournalHost, kept: Mapping[str, Plain], now: float) -> None:
    """Restore the journaled state: no member is connected yet, and all have time to come back."""
    records: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, data in kept.items():
        what, whose = split_key(key)
        records[what][whose] = data
    membership = machine.membership
    for who, data in records["barred"].items():
        membership.restore_barred(bytes.fromhex(who), data)
    for data in records["member"].values():
        membership.restore(data, machine.servers, now)
    for who, data in records["answers"].items():
        membership.members[bytes.fromhex(who)].answers.restore(data)
    for who, noted in records["noted"].items():
        membership.members[bytes.fromhex(who)].notes.number = noted
    machine.ended.restore(records["ended"], now)
    if (scale := records["scale"].get("")) is not None:
        machine.scales.restore(scale, now)
    if (drains := records["drains"].get("")) is not None:
        machine.drains.restore(drains, now)
    _restore_jobs(machine, records, now)
    for who, data in records["erase"].items():
        machine.erasures.restore(membership.members[bytes.fromhex(who)], data, now)
    _restore_cluster(machine, records["cluster"].get(""), now)


# --- the cluster ----------------------------------------------------------------------------------


def _dump_cluster(machine: JournalHost) -> Plain:
    return [machine.epochs.next, machine.cluster_end.dump(), list(machine.jobs.resumptions.used), machine.lives]


def _restore_cluster(machine: JournalHost, kept: Plain, now: float) -> None:
    if kept is not None:
        machine.epochs.next, ending, begun, machine.lives = kept
        machine.jobs.resumptions.used.update(dict.fromkeys(begun))
        machine.cluster_end.restore(ending, now)
    machine.lives += 1
    machine.checkpoints.numbers = count(machine.lives << 32)  # servers may have some of an earlier life in hand
    machine.changes.add("cluster")
    machine.cluster_end.note_idle(now)


# --- jobs -----------------------------------------------------------------------------------------


def _restore_jobs(machine: JournalHost, records: Mapping[str, Mapping[str, Plain]], now: float) -> None:
    members, runs = machine.membership.members, machine.jobs.runs
    for name, kept in records["job"].items():
        run = runs[name] = machine.jobs.named(name)
        _restore_job(run, kept, members, now)
        if name in records["spec"]:
            run.startup.restore(records["spec"][name], records["start"][name])
        if name in records["copies"]:
            copies, becoming = records["copies"][name]
            run.startup.copies.restore(copies, members)
            run.replication.restore(becoming, now)
        if name in records["views"]:
            run.replication.views.restore(records["views"][name], now)
        if name in records["recut"]:
            run.replication.restore_recut(records["recut"][name], members, now)
        if name in records["step"] and run.startup.job is not None:  # and it was placed
            run.steps.restore(records["step"][name], run.startup.job, run.startup.copies, now)
        if name in records["fallback"]:
            run.fallback.restore(records["fallback"][name], members, now)
    for whose, kept in records["data"].items():
        runs[split_set(whose)[0]].data.restore(kept)


def _dump_job(run: JobRun) -> Plain:
    rosters = [run.workers.dump(), run.observers.dump()]
    failed = b"" if run.lost_shard is None else packed_error(run.lost_shard)
    return [rosters, run.places.dump(), run.occupancy.dump(), failed, run.rates.dump()]


def _restore_job(run: JobRun, kept: Plain, everybody: Mapping[bytes, MemberInfo], now: float) -> None:
    run.data.resume(())  # parts of a checkpoint that no member has named yet are restored separately
    rosters, places, occupancy, failed, rates = kept
    for roster, held in zip((run.workers, run.observers), rosters, strict=True):
        roster.restore(held, everybody)
        run.members.update((member.incarnation, member) for member in roster)
    run.places.restore(places)
    run.rates.restore(rates)
    run.occupancy.restore(occupancy, now)
    if failed:
        run.lost_shard = unpacked_error(failed)


def _dump_copies(run: JobRun) -> Plain:
    copies = run.startup.copies
    return [copies.dump(), run.replication.dump()] if copies else None


def _of_run(take: Callable[[Any], Plain]) -> Callable[[JournalHost, str], Plain]:
    return lambda machine, name: take(machine.jobs.runs[name]) if name in machine.jobs.runs else None


def _noted(machine: JournalHost, who: str) -> Plain:
    member = machine.membership.members.get(bytes.fromhex(who))
    return member.notes.number or None if member is not None else None


def _data(machine: JournalHost, whose: str) -> Plain:
    job, name = split_set(whose)
    return machine.jobs.runs[job].data.dump(name) if job in machine.jobs.runs else None


_DUMPS: dict[str, Callable[[JournalHost, str], Plain]] = {
    "cluster": lambda machine, _: _dump_cluster(machine),
    "drains": lambda machine, _: machine.drains.dump(),
    "scale": lambda machine, _: machine.scales.dump(),
    "member": lambda machine, who: machine.membership.dump(bytes.fromhex(who)),
    "answers": lambda machine, who: machine.membership.dump_answers(bytes.fromhex(who)),
    "noted": _noted,
    "barred": lambda machine, who: machine.membership.dump_barred(bytes.fromhex(who)),
    "job": _of_run(_dump_job),
    "spec": _of_run(lambda run: run.startup.dump_spec()),
    "start": _of_run(lambda run: run.startup.dump()),
    "copies": _of_run(_dump_copies),
    "views": _of_run(lambda run: run.replication.views.dump()),
    "fallback": _of_run(lambda run: run.fallback.dump()),
    "recut": _of_run(lambda run: run.replication.recuts.dump()),
    "step": _of_run(lambda run: None if run.startup.placement is None else run.steps.kept.data),
    "data": _data,
    "ended": lambda machine, name: machine.ended.dump(name),
    "erase": lambda machine, who: machine.erasures.dump(bytes.fromhex(who)),
}
