"""What nodes count: each figure's name in a heartbeat, and under which name, in which unit, metrics show it.

A machine counts in plain numbers under short names. This table is the one place that says what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

#: The bounds of histograms, by the name in heartbeats. Steps take from half a millisecond to minutes.
BOUNDS: dict[str, Sequence[float]] = {
    "step_seconds": tuple(0.0005 * 2**n for n in range(19)),
    "staleness": (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes
    ----------
    name
        In a heartbeat, and in the status.
    metric
        The name that Prometheus has it under: ``zmqps_<noun>_<unit>[_total]``.
    kind
        Whether it only grows, goes up and down, or has a count for each size.
    help
        What it is, in a sentence.
    """

    name: str
    metric: str
    kind: Kind
    help: str


def _counter(name: str, noun: str, text: str) -> Figure:
    return Figure(name, f"zmqps_{noun}_total", "counter", text)


def _gauge(name: str, noun: str, text: str) -> Figure:
    return Figure(name, f"zmqps_{noun}", "gauge", text)


#: What workers, servers and observers count of themselves or, on a server, of each job.
OF_NODES: tuple[Figure, ...] = (
    _counter("pushes", "pushes", "Pushes completed by a worker, or applied by a server."),
    _counter("pulls", "pulls", "Pulls completed by a worker, or answered by a server."),
    _counter("bytes_sent", "sent_bytes", "Payload bytes that a worker has sent to servers, resent ones included."),
    _counter("bytes_received", "received_bytes", "Payload bytes that a worker has received from servers."),
    _counter("pushed_nbytes", "pushed_bytes", "Payload bytes of the pushes that a server has taken."),
    _counter("pulled_nbytes", "pulled_bytes", "Payload bytes of the values that a server has sent."),
    _counter("saved_nbytes", "codec_saved_bytes", "Bytes that did not travel because codecs made less of them."),
    _counter("retries", "retries", "Requests of a worker that were sent again."),
    _counter("duplicates", "duplicate_pushes", "Pushes that came again and were not applied again."),
    _counter("nonfinite", "nonfinite_gradients", "Gradients refused for NaN or infinity."),
    _counter("dropped", "dropped_contributions", "Gradients that did not count: too late, or too stale."),
    _counter("late", "late_contributions", "Gradients that reached a server after their step was over."),
    _counter("refused", "refused_requests", "Requests answered with an error."),
    _counter("apply_seconds", "apply_seconds", "Seconds that a server's update kernels have computed."),
    _counter("applies", "applies", "Calls of a server's update kernels."),
    _counter("waiting_seconds", "waiting_seconds", "Seconds for which a worker had operations under way."),
    _counter("cpu_seconds", "cpu_seconds", "Processor time of the node's process, all threads."),
    _counter("loop_lag_seconds", "loop_lag_seconds", "Seconds by which the node's loop was late for its timers."),
    _counter("gc_pauses", "gc_pauses", "Runs of Python's collector in the node's process."),
    _counter("gc_pause_seconds", "gc_pause_seconds", "Seconds that Python's collector has stopped the node."),
    _gauge("loop_lag_max_s", "loop_lag_max_seconds", "How late the loop was at most since the last heartbeat."),
    _gauge("gc_pause_max_s", "gc_pause_max_seconds", "The longest pause for the collector since the last heartbeat."),
    _gauge("rss_nbytes", "resident_memory_bytes", "Memory that the node's process has in use."),
    _gauge("in_flight_nbytes", "in_flight_bytes", "Bytes sent or asked for and not yet answered."),
    _gauge("oldest_request_s", "oldest_request_seconds", "Since when a worker's oldest operation is under way."),
    _gauge("clock", "clock_steps", "Steps that a worker has completed, or the step that it is in."),
    _gauge("parked", "parked_pulls", "Pulls that wait at a server for a version."),
    _gauge("clients", "clients", "Workers, observers and servers that a server knows."),
    _gauge("version", "version_updates", "Updates that the newest slice of a job has absorbed on a server."),
    _gauge("arena_nbytes", "arena_bytes", "Memory of a shard: values and optimizer slots."),
    _gauge("slots_nbytes", "slot_bytes", "Of that, optimizer slots."),
    _gauge("spare_nbytes", "spare_bytes", "Memory for slices that are updated while others read them."),
    _gauge("stage_nbytes", "staged_bytes", "Memory of gradients that wait for their step to be complete."),
    _gauge("copies_nbytes", "read_copy_bytes", "Memory of the copies that treatments of stale gradients need."),
    _gauge("pinned_nbytes", "pinned_bytes", "Page-locked memory for arrays on GPUs."),
    _gauge("shared_nbytes", "shared_bytes", "Memory of a worker that servers of its host read in place."),
    _gauge("borrowed_nbytes", "borrowed_bytes", "Memory of servers that a worker's arrays refer to."),
    _gauge("backups", "backups", "Copies of a shard that follow this one."),
    _gauge("unconfirmed_nbytes", "replication_lag_bytes", "Bytes of updates that backups have not confirmed."),
    _gauge("rows", "table_rows", "Rows of sparse tables."),
    _gauge("row_nbytes", "table_bytes", "Memory of sparse tables."),
    _counter("rows_refused", "table_refused_rows", "New rows for which a table had no room."),
    _counter("rows_expired", "table_expired_rows", "Rows removed because nobody had touched them for long."),
    Figure("step_seconds", "zmqps_step_seconds", "histogram", "Seconds from one step of a worker to the next."),
    Figure("staleness", "zmqps_staleness_updates", "histogram", "Updates by others between a read and its push."),
)

#: What the coordinator knows of jobs and members, by the name in `zmqps.core.coordinator.watching`.
OF_COORDINATOR: tuple[Figure, ...] = (
    _gauge("members", "members", "Nodes that have joined, by role."),
    _counter("lost", "lost_members", "Members that fell silent or vanished, by role."),
    _counter("heartbeats", "heartbeats", "Heartbeats that the coordinator has taken."),
    _counter("refused", "refused_requests", "Requests answered with an error."),
    _counter("awaited_seconds", "awaited_seconds", "Seconds that others waited for the worker that came last."),
    _counter("steps", "steps", "Steps of a job: synchronous ones committed, or the slowest worker's clock."),
    _gauge("silent_s", "silent_seconds", "Since when a member has not been heard."),
    _gauge("unfilled_waits", "waits", "Whom or what a job waits for at the moment: how many waits."),
    _gauge("step_wait_s", "step_wait_seconds", "For how long somebody has waited for the open step of a job."),
    _counter("checkpoints", "checkpoints", "Checkpoints published."),
    _gauge("checkpoint_seconds", "checkpoint_seconds", "How long the last checkpoint took."),
    _gauge("checkpoint_age_s", "checkpoint_age_seconds", "Since when there is the last checkpoint."),
    _gauge("value", "value", "What training scripts have logged last, by name."),
)

HISTOGRAMS = {figure.name for figure in OF_NODES if figure.kind == "histogram"}


def is_histogram(name: str, value: object) -> bool:
    """Whether this is what a node says of a known histogram: its sum, then its counts."""
    bounds = BOUNDS.get(name)
    if bounds is None or not isinstance(value, list | tuple) or len(value) != len(bounds) + 2:
        return False
    total, *counts = value
    return (
        type(total) in (int, float) and 0 <= total < 1e18 and all(type(n) is int and 0 <= n < 1 << 63 for n in counts)
    )
