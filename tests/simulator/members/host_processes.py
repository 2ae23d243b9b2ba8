"""The processes of a simulated host, and what they have open (`tests.simulator.members.hosts`)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from zmqps.combine.group import GroupMachine
from zmqps.combine.messages import HostMessage
from zmqps.core.node.awake import AwakeClock


@dataclass(eq=False, slots=True, kw_only=True)
class Process:
    """A worker of the host."""

    number: int
    steps: int = 0  # that it has completed, or given up
    alive: bool = True
    clock: AwakeClock = field(default_factory=lambda: AwakeClock(0.0))
    stopped_until: float = 0.0
    stops: list[tuple[float, float]] = field(default_factory=list)  # from when until when
    connection: Connection | None = None
    leads: Group | None = None
    doing: str = ""  # "push" or "pull": what it waits for
    pushing: bool = False
    round: int = 0  # asynchronous
    heard_at: float = 0.0
    read: int = -1  # the last version


@dataclass(eq=False, slots=True, kw_only=True)
class Connection:
    """Of a process to a group; what was sent comes in order, or not at all once the other end is gone."""

    process: Process
    group: Group
    number: int
    closed: bool = False  # by the process
    dropped: bool = False  # by the leader
    up_at: float = 0.0  # when the last message that was sent comes
    heard_at: float = 0.0  # when the leader has heard the process last
    down_at: float = 0.0
    unread: deque[HostMessage] = field(default_factory=deque)  # on its way to the process, in its socket at the latest


@dataclass(eq=False, slots=True)
class Group:
    """A leader and the workers connected to it."""

    leader: Process
    machine: GroupMachine
    connections: dict[int, Connection] = field(default_factory=dict)
