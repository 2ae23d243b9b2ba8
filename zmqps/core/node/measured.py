"""A node's answer to a request for figures: its own and, of the coordinator, those of all members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zmqps.core.protocol.figures import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The counts of one node, about itself or (a server) about one job.

    Attributes
    ----------
    scope
        Which figures of `zmqps.core.protocol.figures.OF_NODES` these are.
    role, rank, job
        Whose; a rank, not a life, so that their number is bounded. None: the coordinator has no rank.
    counters
        By name, as in a heartbeat; or the same in JSON, parsed when shown.
    """

    scope: Scope
    role: str
    rank: int | None
    job: str
    counters: Mapping[str, Any] | str

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its series."""
        labels = {"role": self.role}
        if self.rank is not None:
            labels["rank"] = str(self.rank)
        return {**labels, "job": self.job} if self.job else labels


@dataclass(frozen=True, slots=True)
class Known:
    """A figure of `zmqps.core.protocol.figures.OF_COORDINATOR`, with its labels."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measurements:
    """All figures of a node."""

    counted: list[Counted]
    known: list[Known] = field(default_factory=list)
