"""What of a coordinator's state is kept in its journal, key by key, and how it becomes a state again.

==================  ====================================================================================
key                 what is kept
==================  ====================================================================================
``cluster``         the next epoch, and how the cluster is ending
``member/WHO``      what a member has said in its `Hello`; a server's rank
``answers/WHO``     the answers that it may ask for again
``barred/WHO``      why an incarnation may not come back
``job/NAME``        who is there for a job, with ranks; who counts, was lost, has begun
``spec/NAME``       what is trained, and where it lies
``start/NAME``      how far its start is, and who was told where servers are
``step/NAME``       the step, commits that are not confirmed, clocks; what counted of whom
``data/NAME/SET``   which ranges of a data set are done, and who has which
``ended/NAME``      how a job has ended
``erase/WHO``       what a server is to forget, and has not confirmed
==================  ====================================================================================

What waits for an answer is not kept: who waits asks again. ``WHO`` is an incarnation in hex; a name of a job has no
slash that could be taken for the one before a data set's, for its length goes before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from zmqps.core.coordinator.ended import EndedJobs
from zmqps.core.coordinator.erasures import Erasures
from zmqps.core.coordinator.journal import Plain, set_key, split_key, split_set
from zmqps.core.coordinator.membership import Membership, Roster
from zmqps.core.coordinator.run import JobRun


class Host(Protocol):
    """What is needed of the machine."""

    membership: Membership
    servers: Roster
    runs: dict[str, JobRun]
    ended: EndedJobs
    erasures: Erasures

    def dump_cluster(self) -> Plain:
        """Return what is kept of the cluster as a whole."""

    def restore_cluster(self, kept: Plain, now: float) -> None:
        """Go on counting, and ending, where the cluster was."""

    def restore_jobs(self, records: Mapping[str, Mapping[str, Plain]], now: float) -> None:
        """Have the jobs that were kept."""


def dump(machine: Host, what: str, whose: str) -> Plain:
    """Return what there is to keep under a key now; None for nothing."""
    return _DUMPS[what](machine, whose)


def dump_all(machine: Host) -> dict[tuple[str, str], Plain]:
    """Return all that there is to keep; tests compare it with what was written."""
    members = [who.hex() for who in machine.membership.members]
    keys = [("cluster", "")]
    keys += [(what, who) for who in members for what in ("member", "answers", "erase")]
    keys += [("barred", who.hex()) for who in machine.membership.barred]
    for name, run in machine.runs.items():
        keys += [(what, name) for what in ("job", "spec", "start", "step")]
        keys += [("data", set_key(name, data)) for data in run.data.names]
    keys += [("ended", name) for name in machine.ended.by_name]
    found = {key: dump(machine, *key) for key in keys}
    return {key: data for key, data in found.items() if data is not None}


def restore(machine: Host, kept: Mapping[str, Plain], now: float) -> None:
    """Be what was kept: nobody is here yet, and all who were have time to come back."""
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
        membership.members[bytes.fromhex(who)].restore_answers(data)
    machine.ended.restore(records["ended"], now)
    machine.restore_jobs(records, now)
    for who, data in records["erase"].items():
        machine.erasures.restore(membership.members[bytes.fromhex(who)], data, now)
    machine.restore_cluster(records["cluster"].get(""), now)


def _of_run(take: Callable[[Any], Plain]) -> Callable[[Host, str], Plain]:
    return lambda machine, name: take(machine.runs[name]) if name in machine.runs else None


def _data(machine: Host, whose: str) -> Plain:
    job, name = split_set(whose)
    return machine.runs[job].data.dump(name) if job in machine.runs else None


_DUMPS: dict[str, Callable[[Host, str], Plain]] = {
    "cluster": lambda machine, _: machine.dump_cluster(),
    "member": lambda machine, who: machine.membership.dump(bytes.fromhex(who)),
    "answers": lambda machine, who: machine.membership.dump_answers(bytes.fromhex(who)),
    "barred": lambda machine, who: machine.membership.dump_barred(bytes.fromhex(who)),
    "job": _of_run(lambda run: run.dump()),
    "spec": _of_run(lambda run: run.startup.dump_spec()),
    "start": _of_run(lambda run: run.startup.dump()),
    "step": _of_run(lambda run: run.steps.dump()),
    "data": _data,
    "ended": lambda machine, name: machine.ended.dump(name),
    "erase": lambda machine, who: machine.erasures.dump(bytes.fromhex(who)),
}
