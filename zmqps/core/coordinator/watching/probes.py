"""Health checks, for any client, and thread stacks of a node, for clients that may end jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.members.naming import find_named
from zmqps.core.coordinator.watching.status import Inquiries
from zmqps.core.node.timers import Wheel
from zmqps.core.protocol.events import Action, Peer, Send
from zmqps.core.protocol.messages import Examine, Examined, Probe, Probed
from zmqps.core.protocol.messages.watching import COORDINATOR_NODE, MAX_STACKS_NBYTES
from zmqps.errors import LimitError

#: Seconds that a node has to answer: a later loop does not send heartbeats in time, either.
PROBE_S = 2.0
#: Examinations at a time; clients beyond them repeat their request by themselves.
MOST_EXAMINATIONS = 8
#: This many nodes are listed: first the silent ones, then the slowest.
MOST_LISTED = 1024


class ProbeOutcome(StrEnum):
    """The result of a probed node."""

    ANSWERED, SILENT, GONE = "answered", "silent", "gone"


@dataclass(slots=True, eq=False, kw_only=True)
class _Examination:
    """An examination in progress."""

    number: int
    asker: tuple[Peer, int]  # the client and its request
    stacks: bool
    began_at: float
    awaited: dict[bytes, MemberInfo]  # by incarnation
    nodes: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


class Probes:
    """The examinations in progress."""

    def __init__(self, members: Mapping[bytes, MemberInfo], wheel: Wheel) -> None:
        self._timer = wheel.timer("examinations", self.next_deadline, self.on_deadline)
        self._members = members
        self._open: dict[int, _Examination] = {}
        self._number = 0
        self._inquiries = Inquiries()

    def examine(self, peer: Peer, message: Examine, now: float) -> list[Action]:
        """Probe nodes; a repeated request does nothing more.

        Raises `JobError`: there is no node of that name; `AmbiguousNodeError`: there are several; `LimitError`: there
        are too many requests.
        """
        asker = peer, message.request
        if any(one.asker == asker for one in self._open.values()):
            return []
        if message.node == COORDINATOR_NODE:
            return [Send(peer, Examined(message.request, {"seconds": 0.0, "nodes": []}, own=1))]
        if len(self._open) >= MOST_EXAMINATIONS:
            what = "number of examinations at a time"
            raise LimitError(what=what, got=len(self._open) + 1, limit=MOST_EXAMINATIONS)
        named = find_named(message.node, self._members.values()) if message.node else None
        awaited = dict(self._members) if named is None else {named.incarnation: named}
        self._inquiries.check(len(awaited), now)
        self._number += 1
        self._timer.touch()
        stacks = named is not None
        one = self._open[self._number] = _Examination(
            number=self._number, asker=asker, stacks=stacks, began_at=now, awaited=awaited
        )
        probe = Probe(one.number, int(stacks))
        sent: list[Action] = [Send(member.peer, probe) for member in awaited.values() if not member.absent]
        return [*sent, *self._ended_if_all(one, now)]

    def probed(self, member: MemberInfo, message: Probed, now: float) -> list[Action]:
        """A member has answered; a late or unrequested answer is ignored."""
        one = self._open.get(message.number)
        if one is None or one.awaited.pop(member.incarnation, None) is None:
            return []
        told = {"seen_s": 0.0, "latency_s": now - one.began_at, "lag_s": message.lag_s}
        one.nodes.append({**_who(member), "state": ProbeOutcome.ANSWERED, **told})
        if one.stacks:
            one.lines = _bounded(message.lines)
        return self._ended_if_all(one, now)

    def next_deadline(self) -> float | None:
        return min((one.began_at + PROBE_S for one in self._open.values()), default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Name the nodes that have not answered in time."""
        over = [one for one in self._open.values() if now >= one.began_at + PROBE_S]
        return [action for one in over for action in self._end(one, now)]

    def validate(self) -> None:
        assert len(self._open) <= MOST_EXAMINATIONS
        for number, one in self._open.items():
            assert number == one.number <= self._number
            assert one.awaited, "an examination of which all have answered is over"
            assert not one.stacks or len(one.awaited) == 1

    def _ended_if_all(self, one: _Examination, now: float) -> list[Action]:
        return [] if one.awaited else self._end(one, now)

    def _end(self, one: _Examination, now: float) -> list[Action]:
        del self._open[one.number]
        self._timer.touch()
        for who, member in one.awaited.items():
            state = ProbeOutcome.SILENT if who in self._members else ProbeOutcome.GONE
            one.nodes.append({**_who(member), "state": state, "seen_s": round(now - member.seen_at, 3)})
        one.nodes.sort(key=_worst_first)
        findings: dict[str, Any] = {
            "seconds": now - one.began_at,
            "nodes": one.nodes[:MOST_LISTED],
            "left_out": max(0, len(one.nodes) - MOST_LISTED),
        }
        if one.stacks:
            findings["stacks"] = one.lines
        peer, request = one.asker
        return [Send(peer, Examined(request, findings))]


def _who(member: MemberInfo) -> dict[str, Any]:
    hello = member.hello
    facts = {"role": hello.role, "rank": member.rank, "job": member.job, "name": hello.name}
    return {**facts, "host": hello.host, "pid": hello.pid}


def _worst_first(node: Mapping[str, Any]) -> tuple[bool, float, str, int]:
    answered = node["state"] == ProbeOutcome.ANSWERED
    return answered, -node["latency_s"] if answered else -node["seen_s"], node["role"], node["rank"]


def _bounded(lines: Any) -> list[str]:
    """Return as many lines as a process may send."""
    kept, left = list[str](), MAX_STACKS_NBYTES
    for line in lines:
        left -= len(line.encode(errors="replace")) + 1
        if left < 0:
            break
        kept.append(line)
    return kept
