"""The figures of nodes: the name of each in a heartbeat, and its name and unit in metrics.

A machine counts in plain numbers under short names. Only this table defines their meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Scope = Literal["worker", "server", "job", "coordinator"]
#: The label of figures that a server counts for each sparse table, as ``NAME.TABLE``.
TABLE = "table"

#: The bounds of histograms, by the name in heartbeats. Steps take from half a millisecond to minutes.
BOUNDS: dict[str, Sequence[float]] = {
    "step_seconds": tuple(0.0005 * 2**n for n in range(19)),
    "staleness": (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure."""

    name: str  # in a heartbeat, and in the status
    metric: str  # the name that Prometheus has it under: ``zmqps_<noun>_<unit>[_total]``
    kind: Kind  # whether it only grows, goes up and down, or has a count for each size
    help: str  # a sentence that explains it
    of: tuple[Scope, ...] = ()  # which nodes count it: some of `SCOPES`. If a heartbeat lacks it, it is 0
    labels: tuple[str, ...] = ()  # the labels of its series, besides the node


#: The counting scopes: a worker (or observer) and a server as a process, a server for each of its jobs, the
#: coordinator.
SCOPES: tuple[Scope, ...] = ("worker", "server", "job", "coordinator")
W: tuple[Scope, ...] = ("worker",)
S: tuple[Scope, ...] = ("server",)
J: tuple[Scope, ...] = ("job",)
WJ: tuple[Scope, ...] = ("worker", "job")
ALL: tuple[Scope, ...] = ("worker", "server", "coordinator")


def _counter(name: str, noun: str, of: tuple[Scope, ...], text: str, *labels: str) -> Figure:
    return Figure(name=name, metric=f"zmqps_{noun}_total", kind="counter", help=text, of=of, labels=labels)


def _gauge(name: str, noun: str, of: tuple[Scope, ...], text: str, *labels: str) -> Figure:
    return Figure(name=name, metric=f"zmqps_{noun}", kind="gauge", help=text, of=of, labels=labels)


def _histogram(name: str, noun: str, of: tuple[Scope, ...], text: str) -> Figure:
    return Figure(name=name, metric=f"zmqps_{noun}", kind="histogram", help=text, of=of)


#: A node's figures of itself or, on a server, of each job.
OF_NODES: tuple[Figure, ...] = (
    _counter("pushes", "pushes", WJ, "Pushes completed by a worker, or applied by a server."),
    _counter("pulls", "pulls", WJ, "Pulls completed by a worker, or answered by a server."),
    _counter("bytes_sent", "sent_bytes", W, "Payload bytes that a worker has sent to servers, resent ones included."),
    _counter("bytes_received", "received_bytes", W, "Payload bytes that a worker has received from servers."),
    _counter("pushed_nbytes", "pushed_bytes", J, "Payload bytes of the pushes that a server has received."),
    _counter("pulled_nbytes", "pulled_bytes", J, "Payload bytes of the values that a server has sent."),
    _counter("saved_nbytes", "codec_saved_bytes", W, "Bytes that codecs have saved."),
    _counter("retries", "retries", W, "Requests that a worker has resent."),
    _counter("duplicates", "duplicate_pushes", J, "Repeated pushes, which were not applied again."),
    _counter("nonfinite", "nonfinite_gradients", WJ, "Gradients refused for NaN or infinity."),
    _counter("dropped", "dropped_contributions", WJ, "Gradients that did not count: too late, or too stale."),
    _counter("late", "late_contributions", J, "Gradients that reached a server after their step was over."),
    _counter("refused", "refused_requests", ("server", "coordinator"), "Requests answered with an error."),
    _counter("apply_seconds", "apply_seconds", J, "Seconds that a server's update kernels have computed."),
    _counter("applies", "applies", J, "Calls of a server's update kernels."),
    _counter("logged", "log_calls", W, "Calls of worker.log."),
    _counter("log_dropped", "dropped_log_calls", W, "Calls of worker.log that did not reach the coordinator."),
    _counter("waiting_seconds", "waiting_seconds", W, "Seconds in which a worker had operations in flight."),
    _counter("awake_seconds", "awake_seconds", ALL, "Seconds that the node has run, without suspensions."),
    _counter("cpu_seconds", "cpu_seconds", ALL, "Processor time of the node's process, all threads."),
    _counter("loop_lag_seconds", "loop_lag_seconds", ALL, "Seconds by which the node's loop was late for its timers."),
    _counter("gc_pauses", "gc_pauses", ALL, "Runs of Python's collector in the node's process."),
    _counter("gc_pause_seconds", "gc_pause_seconds", ALL, "Seconds that Python's collector has stopped the node."),
    _gauge("loop_lag_max_s", "loop_lag_max_seconds", ALL, "The longest delay of the loop since the last heartbeat."),
    _gauge(
        "gc_pause_max_s",
        "gc_pause_max_seconds",
        ALL,
        "The longest pause of Python's collector since the last heartbeat.",
    ),
    _gauge("rss_nbytes", "resident_memory_bytes", ALL, "Memory that the node's process uses."),
    _gauge("free_nbytes", "available_memory_bytes", ALL, "Free memory of the node's host or container."),
    _gauge("memory_nbytes", "shards_memory_bytes", S, "Memory that a server may give to the shards of all jobs."),
    _gauge("in_flight_nbytes", "in_flight_bytes", W, "Bytes sent or requested and not yet answered."),
    _gauge("oldest_request_s", "oldest_request_seconds", W, "Age of a worker's oldest operation."),
    _gauge("clock", "clock_steps", W, "Steps that a worker has completed, or the step that it is in."),
    _gauge("parked", "parked_pulls", J, "Pulls that wait at a server for a version."),
    _gauge("oldest_parked_s", "oldest_parked_pull_seconds", J, "Age of the oldest of them."),
    _gauge("clients", "clients", S, "Workers, observers and servers that a server knows."),
    _gauge("version", "version_updates", J, "Steps that a server has committed to a synchronous job."),
    _gauge("arena_nbytes", "arena_bytes", J, "Memory of a shard: values and optimizer slots."),
    _gauge("slots_nbytes", "slot_bytes", J, "Memory of a shard's optimizer slots."),
    _gauge("spare_nbytes", "spare_bytes", J, "Memory for slices that are updated while others read them."),
    _gauge("stage_nbytes", "staged_bytes", J, "Memory of gradients that wait for their step to be complete."),
    _gauge("copies_nbytes", "read_copy_bytes", J, "Memory of the copies that treatments of stale gradients need."),
    _gauge("pinned_nbytes", "pinned_bytes", WJ, "Page-locked memory for arrays on GPUs."),
    _gauge("shared_nbytes", "shared_bytes", W, "Memory of a worker that servers of its host read in place."),
    _gauge("borrowed_nbytes", "borrowed_bytes", W, "Memory of servers that a worker's arrays refer to."),
    _gauge("backups", "backups", J, "Backups of a shard."),
    _gauge("unconfirmed_nbytes", "replication_lag_bytes", J, "Bytes of updates that backups have not confirmed."),
    _gauge("unconfirmed_s", "replication_lag_seconds", J, "Age of the oldest answer that waits for backups."),
    _gauge("rows", "table_rows", J, "Rows of a sparse table on a server.", TABLE),
    _gauge("row_nbytes", "table_bytes", J, "Memory of a sparse table on a server.", TABLE),
    _counter("rows_refused", "table_refused_rows", J, "New rows for which a table had no room.", TABLE),
    _counter("rows_expired", "table_expired_rows", J, "Rows that have expired.", TABLE),
    _histogram("step_seconds", "step_seconds", W, "Seconds from one step of a worker to the next."),
    _histogram("staleness", "staleness_updates", W, "Updates by others between a read and its push."),
)


def _known(name: str, noun: str, text: str, *labels: str) -> Figure:
    kind: Kind = "counter" if noun.endswith("_total") else "gauge"
    return Figure(name=name, metric=f"zmqps_{noun}", kind=kind, help=text, labels=labels)


#: The coordinator's figures of jobs and members, by the name in `zmqps.core.coordinator.watching.measured`.
OF_COORDINATOR: tuple[Figure, ...] = (
    _known("members", "members", "Nodes that have joined.", "role", "job"),
    _known("wanted_servers", "wanted_servers", "Expected servers."),
    _known("heartbeats", "heartbeats_total", "Heartbeats that the coordinator has received."),
    _known("lost", "lost_members_total", "Lost members."),
    _known("happened", "events_total", "Events of the cluster, by kind.", "kind"),
    _known("silent_s", "silent_seconds", "Seconds since a member's last sign of life.", "role", "rank", "job"),
    _known(
        "awaited_s", "awaited_seconds_total", "Seconds that the others waited for this worker alone.",
        "role", "rank", "job",
    ),
    _known("steps", "steps", "Progress of a job: its clock or, without one, its workers' pushes.", "job"),
    _known("waits", "waits", "Number of things that a job waits for.", "job"),
    _known("step_wait_s", "step_wait_seconds", "How long workers have waited for a job's open step.", "job"),
    _known("checkpoint_s", "checkpoint_seconds", "How long the last checkpoint took.", "job"),
    _known("checkpoint_nbytes", "checkpoint_bytes", "Size of the last checkpoint.", "job"),
    _known("checkpoint_age_s", "checkpoint_age_seconds", "Age of the last checkpoint.", "job"),
    _known("checkpoint_failed", "checkpoint_failed", "Whether the newest attempt to save a job failed: 1 or 0.", "job"),
    _known("value", "value", "The last value that a training script has logged.", "name", "role", "rank", "job"),
)  # fmt: skip

#: Of several copies, or jobs, the maximum counts; all other figures are summed.
GREATEST = {"version", "oldest_parked_s", "unconfirmed_s"}


def is_histogram(name: str, value: object) -> bool:
    """Whether this is a node's value of a known histogram: its sum, then its counts."""
    bounds = BOUNDS.get(name)
    if bounds is None or not isinstance(value, list | tuple) or len(value) != len(bounds) + 2:
        return False
    total, *counts = value
    return (
        type(total) in (int, float) and 0 <= total < 1e18 and all(type(n) is int and 0 <= n < 1 << 63 for n in counts)
    )
