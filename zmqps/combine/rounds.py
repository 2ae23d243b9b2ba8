"""The rounds of a host group: what is pushed for its workers, by the leader, or by one of them alone."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from zmqps.client.connection import Connection
from zmqps.client.exchanges import Exchanges
from zmqps.client.requests import Requests
from zmqps.combine import meeting
from zmqps.combine.group import GroupMachine
from zmqps.combine.leader import Brought, Leader
from zmqps.combine.memory import Layout, MappedModels, SharedModel, average, counts_of
from zmqps.combine.messages import Fetched, FetchValues, RoundPushed
from zmqps.combine.values import NUM_PLACES
from zmqps.core.job.spec import MAX_COUNT, JobSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.worker.operations import Advance
from zmqps.errors import ClosedError, ConfigurationError
from zmqps.net.lane.arena import Arenas


class HostModels:
    """The memory of one job that this worker shares: its gradients, and as a leader sums and values."""

    def __init__(self, requests: Requests, arenas: Arenas) -> None:
        parameters = requests.job.parameters
        self.requests = requests
        self.arenas = arenas
        self.gradients_layout = Layout(parameters, buffers=False)
        self.values_layout = Layout(parameters, buffers=True)
        self.values = MappedModels(self.values_layout, NUM_PLACES)
        self.gradients = SharedModel(self.gradients_layout, arenas)
        self.counts: dict[int, int] = {}  # how many examples the gradients are the sum of
        self.examples = 0  # the largest `examples` of the step's pushes


def lead(me: Exchanges, models: HostModels, met: meeting.Met, path: Path) -> Leader:
    """Begin to lead the group; nothing of it refers to this worker, which may be dropped."""
    reference = weakref.ref(me)
    job, welcome = models.requests.job, me.member.connection.thread.machine.member.welcome
    assert welcome is not None
    places = [SharedModel(models.values_layout, models.arenas) for _ in range(NUM_PLACES)]
    sums = SharedModel(models.gradients_layout, models.arenas)

    def worker() -> Exchanges:
        found = reference()
        if found is None or found.member.connection.closed:
            raise ClosedError("the leader of this host's workers was closed")
        return found

    def push(step: int, brought: Sequence[Brought]) -> RoundPushed:
        one = worker()
        if job.mode != "async" and one.member.reads_at() != step:
            return RoundPushed(alone=True)
        advance = None if job.mode == "async" else Advance(0.0)
        connection = one.member.connection
        push_sums(one, brought, advance, connection.thread.time() + connection.seconds(None), sums.flat)
        return RoundPushed()

    def fetch(what: FetchValues) -> Fetched:
        one = worker()
        flat = places[what.place].flat
        out = {p.name: flat[number].reshape(p.shape) for number, p in enumerate(job.parameters)}
        step = one.member.reads_at() or 0 if job.mode == "bounded" else what.step
        pull = one.begin_pull(None, out, None, None, None, True, None)
        if job.mode != "sync":
            return Fetched(what.number, step, pull.result().version)
        if (one.member.reads_at() or 0) > step:
            # it may be of the step after, which is not over before the reader's push: the reader pulls by itself
            pull.cancel()
            return Fetched(what.number, -1)
        version = pull.result().version
        return Fetched(what.number, version, version)

    machine = GroupMachine(
        me.member.connection.thread.machine.title, job.mode, me.member.reads_at() or 0, welcome.heartbeat_interval,
        welcome.heartbeat_timeout, time.monotonic(),
    )  # fmt: skip
    return Leader(
        machine, met, path, layout=models.gradients_layout, push=push, fetch=fetch,
        places=[place.places for place in places],
    )  # fmt: skip


def push_sums(
    direct: Exchanges,
    brought: Sequence[Brought],
    advance: Advance | None,
    ends_at: float,
    sums: Mapping[int, Array] | None = None,
) -> None:
    """Push the mean of what was brought, as often as it counts, and end the worker's own step.

    A parameter's mean is over its contributors. So parameters that count equally often go together, as parts of
    one step.

    Parameters
    ----------
    direct
        The exchanges of the worker that pushes.
    brought
        Sums over examples.
    advance
        How the step ends; None: there are no steps.
    ends_at
        When to give up, by the worker's time.
    sums
        Memory for the means; None: that of the only contributor.
    """
    requests, connection = direct.member.requests, direct.member.connection
    assert requests is not None
    parameters = requests.job.parameters
    codecs = {one.bring.codec for one in brought if one.bring.counts}
    if len(codecs) > 1:
        raise ConfigurationError(
            f"the workers of this host push one step with different codecs ({', '.join(sorted(codecs))}): use one"
        )
    counted = [(one.flat, counts_of(one.bring.counts, one.flat)) for one in brought]
    together: dict[int, dict[str, Array]] = {}
    for number in sorted({number for _, counts in counted for number in counts}):
        summands = [flat[number] for flat, counts in counted if number in counts]
        count = sum(counts.get(number, 0) for _, counts in counted)
        if sums is None:
            mean = summands[0] if count == 1 else summands[0] / summands[0].dtype.type(count)
        else:
            mean = sums[number]
            average(mean, summands, count)
        together.setdefault(count, {})[parameters[number].name] = mean.reshape(parameters[number].shape)
    atomic = any(one.bring.atomic for one in brought)
    codec = next(iter(codecs), "") or None
    examples = min(sum(one.bring.examples for one in brought), MAX_COUNT)
    for_all = any(one.bring.for_all for one in brought)
    counts_all = requests.job.mean == "workers"
    for index, (count, grads) in enumerate(together.items()):
        last = index == len(together) - 1 and not (counts_all or for_all)
        ends = last and advance is not None
        direct.begin_push(grads, atomic, count, codec, ends, left(connection, ends_at)).result()
    if advance is not None and (not together or counts_all or for_all):
        end = Advance(0.0, skips=advance.skips, for_all=for_all, examples=examples)
        direct.member.submit(end, left(connection, ends_at)).result()


def left(connection: Connection, ends_at: float) -> float:
    """Return the seconds until then, by the worker's time."""
    return max(ends_at - connection.thread.time(), 0.001)


def check_combines(job: JobSpec) -> None:
    """Raise `ConfigurationError` where a job counts gradients of single workers."""
    if job.aggregate is not None:
        raise ConfigurationError(
            "combine='host' makes one gradient of all those of a host, and aggregate counts workers': "
            "leave out one of them"
        )
    if job.deterministic:
        raise ConfigurationError(
            "combine='host' sums the gradients of a host before those of others: deterministic "
            "training adds them in the order of ranks; leave out one of them"
        )
    if job.counts_steps:
        raise ConfigurationError(
            "with combine='host' a schedule with count='steps' would take every host's push for a worker's: use "
            "count='pushes', of which there is one a host and step"
        )
