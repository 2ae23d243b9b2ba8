"""What may grow for a while: containers with a bound of their own, which are full after some jobs or connections."""

from __future__ import annotations

from collections.abc import Mapping

from zmqps.core.coordinator.jobs import MAX_ENDED
from zmqps.core.coordinator.members.membership import MAX_GONE, MAX_MEMBERS
from zmqps.core.coordinator.watching.history import MAX_SERIES
from zmqps.core.coordinator.watching.watching import MAX_EVENTS
from zmqps.core.protocol.message import PUSH_WINDOW
from zmqps.core.server.clients import MAX_BARRED
from zmqps.core.server.dense.slices import MAX_DONE_READERS
from zmqps.core.worker.layout.sent import MAX_HEADS
from zmqps.core.worker.statistics import MAX_EXACT
from zmqps.logs.handler import MOST_FACTS
from zmqps.net.door import MAX_RETURNING

#: Copies of shards on a server, and slices of each, of the one job that is there all the time.
COPIES, SLICES = 2, 16
#: Those who are there, beside those who have gone.
THERE = 64
#: Of objects in cycles so many may wait for Python's collector: its third generation comes seldom.
UNCOLLECTED = 1024
#: Of a line of the log.
FACTS = 8
#: Marks in backlogs of what has left, until somebody looks.
MARKS = 256
#: By class or attribute, as `tests.flat.walker.containers` names them: so many at most.
BOUNDED: Mapping[str, int] = {
    "membership.Membership.gone": MAX_GONE,
    "membership.Departure": MAX_GONE,
    "membership.MemberInfo": MAX_GONE + THERE,
    "membership.Hello": MAX_GONE + THERE,
    "roles.KeyHolder": MAX_GONE + THERE,
    "watching.CounterSample": MAX_GONE + THERE,
    "membership.Membership._barred": MAX_MEMBERS,
    "membership.Membership._barred_peers": MAX_MEMBERS,
    "clients.Clients._barred": MAX_BARRED,
    "clients.Clients._barred_peers": MAX_BARRED,
    "errors.EvictedError": MAX_BARRED,
    "errors.EvictedError.__notes__": MAX_BARRED,
    "errors.NotJoinedError": MAX_BARRED,
    "errors.NotJoinedError.__notes__": MAX_BARRED,
    "journal_mark.Contents._sums": MAX_MEMBERS + MAX_ENDED + MAX_GONE,
    "doors.Door": UNCOLLECTED,
    "doors.Doors._doors": UNCOLLECTED,
    "backlog.Backlog._marks": MARKS,
    "membership.Heartbeat.counters": THERE,
    "handler.Repeats._windows": MOST_FACTS,
    "handler._Window": MOST_FACTS,
    "handler._Bare": MOST_FACTS,
    "handler._Bare.facts": FACTS * MOST_FACTS,
    "zeromq.ZmqTransport._returning": MAX_RETURNING,
    "curve.Gate._keys_of": MAX_RETURNING + THERE,
    "jobs.EndedJobs.by_name": MAX_ENDED,
    "jobs.Ended": MAX_ENDED,
    "watching.Watching.events": MAX_EVENTS,
    "watching.Happened": MAX_EVENTS,
    "history.History.series": MAX_SERIES,
    "history.Series": MAX_SERIES,
    "history.Key": MAX_SERIES,
    "history.Series.tiers": 4 * MAX_SERIES,
    "history._Tier": 4 * MAX_SERIES,
    "ledger.Ledger.results": COPIES * PUSH_WINDOW,
    "slices.SliceState.readers": COPIES * SLICES * MAX_DONE_READERS,
    "slices.Pin": COPIES * SLICES * MAX_DONE_READERS,
    "snapshot.Snapshot": COPIES * SLICES * MAX_DONE_READERS,
    "sent.Sent.heads": COPIES * MAX_HEADS,
    "statistics.Tally.staleness": MAX_EXACT + THERE,
}


def bound_of(name: str) -> int:
    """Return how many there may be of what has a bound; 0: it has none, and should not grow."""
    return next((bound for known, bound in BOUNDED.items() if name.endswith(f".{known}")), 0)
