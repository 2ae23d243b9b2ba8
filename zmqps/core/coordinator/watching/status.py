"""The coordinator's view of members as plain data, for ``zmqps status --json``; it always fits into a message.

The facts of one member are bounded, and so is the total: beyond it something is left out, which ``left_out`` names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from zmqps.core.coordinator.members.membership import Departure, MemberInfo
from zmqps.core.coordinator.members.reach import complaints
from zmqps.core.protocol.figures import GREATEST, is_histogram
from zmqps.errors import LimitError, counted, listed

if TYPE_CHECKING:
    from zmqps.core.coordinator.run import JobRun

#: How many of a member's counters are kept, and their bytes, for each job that it counts for.
MAX_COUNTERS = 64
MAX_COUNTERS_NBYTES = 4096
MAX_COUNTER_NAME_CHARS = 64
MAX_COUNTER_TEXT_CHARS = 200
NUMBERS = (int, float, bool)
#: A server has no more jobs than the coordinator accepts.
MAX_COUNTED_JOBS = 256
#: Bytes of the jobs in a status, and of the members; with the rest below `zmqps.core.protocol.wire.MAX_HEADER_NBYTES`.
MAX_JOBS_NBYTES = 5 << 19
MAX_MEMBERS_NBYTES = 7 << 19
#: The pause after a status of this many members (it takes a tenth of that to make and to send), except for as many as
#: fit into `BURST_S`.
SPACING_S = 100e-6
BURST_S = 1.0
#: Up to this many members are listed; of more only their number. The status must not delay training.
MAX_LISTED = 1024
#: The most waiting jobs in the log and the status.
MOST_WAITING = 32
#: A member's fields besides its texts: their names, and numbers.
MEMBER_NBYTES = 200
#: What is left out first of a job that exceeds its share.
_DISPENSABLE: tuple[tuple[str, Any], ...] = (
    ("story", []),
    ("data", []),
    ("lost", ""),
    ("servers", {}),
    ("copies", []),
    ("job", {}),
    ("waiting", []),
    ("steps", {}),
)
#: How many waits at barriers, and for data, the status and the log show.
MOST_WAITS = 8
#: The most spares to name.
MOST_IDLE = 8


def waiting(servers: Sequence[MemberInfo], wanted: int, jobs: Mapping[str, JobRun]) -> list[str]:
    """Return in words what a cluster waits for: absent servers, and the waits of its jobs, by name."""
    absent = wanted - len(servers)
    needs = [f"{absent} of {counted(wanted, 'server')}"] if absent > 0 else []
    needs += ["a worker's init"] if all(only_observed(run) for run in jobs.values()) else []
    texts = [f"waiting for {' and '.join(needs)}"] if needs else []
    of_jobs = (f"job {name!r}: {text}" for name, run in jobs.items() for text in job_waits(run, servers))
    texts += islice(of_jobs, MOST_WAITING)
    return [*texts, "other waits are left out"] if next(of_jobs, None) else texts


class Inquiries:
    """Bounds the rate of status requests so that others do not notice; each takes time per member."""

    def __init__(self) -> None:
        self._due = 0.0  # when all sent ones have been paid for

    def check(self, members: int, now: float) -> None:
        """Raise `LimitError` after too many requests; clients repeat theirs by themselves."""
        spacing = SPACING_S * (1 + members)
        self._due = max(self._due, now)
        if self._due > now + BURST_S:
            limit = 1 + int(BURST_S / spacing)
            raise LimitError(what="number of requests for the status at a time", got=limit + 1, limit=limit)
        self._due += spacing


def nbytes_of(value: Any) -> int:
    """Return the most bytes that plain data take in a message."""
    kind = type(value)
    if kind is str:
        return 5 + (len(value) if value.isascii() else 4 * len(value))
    if kind is dict:
        return 5 + sum([nbytes_of(name) + nbytes_of(item) for name, item in value.items()])
    if kind is list or kind is tuple:
        return 5 + sum(map(nbytes_of, value))
    return 9


def fit_jobs(statuses: Mapping[str, dict[str, Any]], left_out: list[str]) -> dict[str, dict[str, Any]]:
    """Return the statuses of jobs, without what exceeds a job's share."""
    share = MAX_JOBS_NBYTES // max(1, len(statuses))
    for name, status in statuses.items():
        nbytes = nbytes_of(status)
        for key, nothing in _DISPENSABLE:
            if nbytes > share:
                nbytes -= nbytes_of(status[key]) - nbytes_of(nothing)
                status[key] = nothing
                left_out.append(f"{key} of the job {name!r}")
    return dict(statuses)


def members_status(
    members: Sequence[MemberInfo], gone: Sequence[Departure], now: float, left_out: list[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return present and departed members; first names that do not fit are left out, then counters."""
    there = [
        (member, {**_describe(member), "silent_s": round(now - member.seen_at, 3), "counters": {}})
        for member in members[:MAX_LISTED]
    ]
    parted = [
        (
            departure.member,
            {
                **_describe(departure.member),
                "how": departure.how,
                "ago_s": round(now - departure.at, 3),
                "last_seen_ago_s": round(now - departure.member.seen_at, 3),
                "counters": {},
            },
        )
        for departure in gone
    ]
    room = MAX_MEMBERS_NBYTES
    listed: list[list[dict[str, Any]]] = []
    kept: list[tuple[MemberInfo, dict[str, Any]]] = []
    for what, rows, all_ in (("members", there, members), ("of members that left", parted, gone)):
        number = 0
        for member, _ in rows:
            room -= MEMBER_NBYTES + nbytes_of((member.hello.name, member.hello.host, member.hello.endpoint, member.job))
            if room < 0:
                break
            number += 1
        room = max(0, room)
        if number < len(all_):
            left_out.append(f"{len(all_) - number} of {len(all_)} {what}")
        listed.append([row for _, row in rows[:number]])
        kept += rows[:number]
    silent = 0
    for member, row in kept:
        if member.reported.nbytes <= room:
            row["counters"] = json.loads(member.reported.counters)
            room -= member.reported.nbytes
        else:
            silent += 1
    if silent:
        left_out.append(f"the counters of {counted(silent, 'member')}")
    return listed[0], listed[1]


def _describe(member: MemberInfo) -> dict[str, Any]:
    hello = member.hello
    facts = {"role": hello.role, "rank": member.rank, "name": hello.name, "host": hello.host, "pid": hello.pid}
    return {**facts, "endpoint": hello.endpoint, "job": member.job}


def presentable(counters: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return a member's counters for the status, numbers and short texts, and their bytes."""
    shown: dict[str, Any] = {}
    nbytes = 5
    for name, value in islice(counters.items(), MAX_COUNTERS):
        kind = type(value)
        if kind is str:
            value = value[:MAX_COUNTER_TEXT_CHARS]
        elif kind is list and is_histogram(name, value):
            pass
        elif kind not in NUMBERS or not math.isfinite(value):
            continue
        name = name[:MAX_COUNTER_NAME_CHARS]
        more = nbytes_of(name) + nbytes_of(value)
        if nbytes + more <= MAX_COUNTERS_NBYTES:
            shown[name] = value
            nbytes += more
    return shown, nbytes


def packed(counters: Mapping[str, Any]) -> tuple[str, int]:
    """Return the same as one string of JSON.

    It is kept for as long as a member is remembered. Hundreds of small objects of each would be scattered over memory
    that was used for much else, and would keep all of that from being returned to the system.
    """
    shown, nbytes = presentable(counters)
    return json.dumps(shown), nbytes


def by_epoch(counters: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return a server's counters of each job, by the job's epoch."""
    jobs = counters.get("jobs")
    items = islice(jobs.items(), MAX_COUNTED_JOBS) if isinstance(jobs, dict) else ()
    return {epoch[:MAX_COUNTER_NAME_CHARS]: presentable(of)[0] for epoch, of in items if isinstance(of, dict)}


def job_waits(run: JobRun, servers: Sequence[MemberInfo]) -> list[str]:
    """Return in words what a job waits for: a few of many waits."""
    missing, startup = run.num_missing, run.startup
    unreached = list(complaints([*run.workers, *run.observers]))
    unreached += run.fallback.texts()
    if startup.ready:
        barriers, waits_for = run.barriers.by_name, run.barriers.waiting_for
        texts = [f"barrier {b.name!r} waits for {waits_for(b, missing)}" for b in islice(barriers.values(), MOST_WAITS)]
        if len(barriers) > MOST_WAITS:
            texts.append(f"{len(barriers) - MOST_WAITS} more barriers are waited at")
        step = run.steps.waiting_for(missing)
        texts += [f"step waits for {step}"] if step else []
        texts += [f"{who.title} waits for {say()}" for who, _, say in islice(run.data.waiters(), MOST_WAITS)]
        return unreached + texts
    if startup.parked:
        return [*unreached, f"init waits for {startup.waiting_for(servers)}"]
    if startup.job is None:
        return [] if only_observed(run) else ["waiting for a worker's init"]
    return unreached


def job_status(run: JobRun, servers: Sequence[MemberInfo], now: float) -> dict[str, Any]:
    job = run.startup.status()
    return {
        "state": run.state if run.lost_shard is None else f"{run.state}: {run.lost_shard}",
        "mode": job.get("mode", ""),
        "epoch": run.startup.epoch,
        "workers": run.num_workers,
        "chief": "" if run.places.chief is None else run.places.chief.title,
        "observers": len(run.observers),
        "lost": run.losses.text,
        "idle": listed([_idle(run, w) for w in run.workers if w.incarnation not in run.attendance], MOST_IDLE),
        "idle_s": 0.0 if (idle := run.occupancy.idle_since) is None else round(now - idle, 3),
        "waiting": job_waits(run, servers),
        "story": run.story.status(now),
        "job": dict(job),
        "steps": run.steps.status(run.num_missing, now),
        "replicas": run.replication.status(now),
        "fallback": run.fallback.status(now),
        "data": run.data.status(),
        "copies": [
            {"shard": copy.shard, "server": f"server {copy.server.rank}", "backup": copy.backup}
            for copy in sorted(run.startup.copies, key=lambda copy: (copy.shard, copy.backup))
        ],
        "servers": {server.hello.name: counters_of(run, server) for server in servers},
    }


def only_observed(run: JobRun) -> bool:
    """Whether no member has begun a job, or is meant to: as in the job where the tasks of ``zmqps run`` meet."""
    return run.startup.job is None and not run.workers


def _idle(run: JobRun, worker: MemberInfo) -> str:
    return f"{'spare ' * (worker.incarnation in run.attendance.spares)}{worker.title}"


def counters_of(run: JobRun, server: MemberInfo) -> dict[str, Any]:
    """Return a server's counters of a job: sums over its copies; the newest version, the longest wait."""
    total: dict[str, Any] = {}
    for copy in run.startup.copies.of(server):
        for name, value in server.reported.by_epoch.get(str(copy.epoch), {}).items():
            before = total.get(name, value)
            if name not in total or type(value) is not type(before) or type(value) is str:
                total[name] = value
            elif type(value) is bool:
                total[name] = before and value
            else:
                total[name] = max(before, value) if name in GREATEST else before + value
    return total
