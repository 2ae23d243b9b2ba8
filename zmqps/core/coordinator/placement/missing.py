"""Shards of which no copy is left: what is known of each, and what is said where nothing can be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.placement.copies import Replica
from zmqps.errors import JobError, PSError

ADVICE = (
    "the values of its shard are gone, and there is no checkpoint of it to go back to; begin the job again once a "
    "server has joined in its place. With --checkpoint DIR --checkpoint-every 5min it goes back to the last one by "
    "itself, with --replicas 1 it loses nothing"
)


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
class Missing:
    """One of them, until it is back at a checkpoint."""

    generation: int  # of what loads it next
    lost: LostServer | None  # the server it was on; None: that is there, and the shard goes back with the others
    home: MemberInfo | None = None  # that server, then
    copy: Replica | None = None  # what is being loaded
    num_lost: int = 0  # pushes that members have said to be lost, of a time before that others have not answered
    since: float = 0.0
    not_before: float = 0.0
