"""Whether a running cluster is well: what its coordinator says, and whether its nodes can be reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from zmqps.doctor.facts import Cluster, Findings, Reach
from zmqps.doctor.network import RESOLVE, is_loopback, unreachable
from zmqps.doctor.rows import Row, good, warning, wrong
from zmqps.errors import ago, counted, joined, printable, seconds

#: A node says something every second unless told otherwise; so much silence is not an accident.
SILENT_S = 3.0
#: Rows about departed members; a long-lived cluster has many.
MAX_GONE = 5


def judge(findings: Findings) -> Iterator[Row]:
    """Yield the rows of a running cluster, if one was named."""
    cluster = findings.cluster
    if cluster is None:
        return
    if cluster.problem:
        yield wrong(
            "coordinator", "status", cluster.problem, f"see whether it runs: zmqps coordinator at {cluster.address}"
        )
    elif cluster.status:
        yield from _status(cluster.status)
    failed: dict[tuple[str, str], list[Reach]] = {}
    for reach in cluster.reaches:
        if reach.problem:
            failed.setdefault((reach.target, reach.problem), []).append(reach)
    addresses = dict(nodes(cluster))
    for (target, problem), reaches in failed.items():
        yield unreachable(target, problem, reaches, addresses)
    reached = [reach for reach in cluster.reaches if not reach.problem]
    fine = [name for name in dict.fromkeys(r.target for r in reached) if name not in {target for target, _ in failed}]
    if fine:
        slowest = max(reach.latency_s for reach in reached)
        yield good(joined(fine), "reachable", f"from every host, within {seconds(slowest)}")


def nodes(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield the nodes that listen, by name, with the host in their endpoint."""
    for name, endpoint in endpoints(cluster):
        yield name, urlsplit(endpoint).hostname or endpoint


def endpoints(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield the nodes that listen at a TCP endpoint: the coordinator, and each server."""
    yield "coordinator", cluster.address
    for member in _members(cluster.status, "members"):
        endpoint = str(member.get("endpoint", "")).partition(" ")[0]
        if member.get("role") == "server" and endpoint.startswith("tcp://"):
            yield _name(member), endpoint


def _name(member: Mapping[str, Any]) -> str:
    return f"{member.get('role')} {member.get('rank')}"


def _unreached(member: Mapping[str, Any], waiting: Sequence[str]) -> str:
    """Return which servers a worker says that it cannot reach, and why, as its links have it.

    What the coordinator waits for has all of it; a status cuts counters off where they are long.
    """
    title = f"{_name(member)} ({member.get('name')}, {member.get('host')}, pid {member.get('pid')})"
    told = (line.partition(f"{title} cannot reach ")[2] for line in waiting)
    counters = member.get("counters")
    text = counters.get("unreached", "") if isinstance(counters, dict) else ""
    return next(filter(None, told), "") or (printable(text) if isinstance(text, str) else "")


def _seconds(member: Mapping[str, Any], key: str) -> float:
    value = member.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _members(status: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = status.get(key)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _status(status: Mapping[str, Any]) -> Iterator[Row]:
    members, gone = _members(status, "members"), _members(status, "gone")
    num = {role: sum(member.get("role") == role for member in members) for role in ("server", "worker")}
    nodes = f"{counted(num['server'], 'server')}, {counted(num['worker'], 'worker')}"
    yield good("coordinator", "status", f"{status.get('state')}, {nodes}")
    waiting = [str(text) for text in status.get("waiting") or ()]
    unreached = [(member, text) for member in members if (text := _unreached(member, waiting))]
    for member, text in unreached:
        opened = "open that port there, or give the server another address with --interface or --advertise"
        advice = RESOLVE if "does not resolve" in text else opened
        yield wrong(f"{_name(member)} on {member.get('host')}", "servers", f"cannot reach {text}", advice)
    for line in waiting:
        if not any(text in line for _, text in unreached):
            yield warning(
                "coordinator", "waiting", line, "start what is missing, or see its log for why it does not join"
            )
    hosts = {member.get("host") for member in members}
    for member in members:
        silent = _seconds(member, "silent_s")
        if silent > SILENT_S:
            found = f"no sign of life for {seconds(silent)}"
            yield warning(
                _name(member), "silence", found, f"see its log, and whether {member.get('host')} is reachable"
            )
        address = urlsplit(str(member.get("endpoint", "")).partition(" ")[0]).hostname or ""
        if member.get("role") == "server" and len(hosts) > 1 and is_loopback(address):
            found = f"says it is at {address}, where other hosts find themselves"
            yield wrong(_name(member), "address", found, "start it with --interface or --advertise")
    lost = [member for member in gone if member.get("how") == "lost"]
    for member in lost[-MAX_GONE:]:
        found = f"lost {ago(_seconds(member, 'ago_s'))}, was on {member.get('host')}"
        yield warning(
            _name(member), "lost", found, "see its log for why; the coordinator's says what became of the job"
        )
