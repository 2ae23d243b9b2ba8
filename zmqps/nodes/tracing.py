"""A trace of a running cluster: asked for and fetched from outside of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from zmqps import checks
from zmqps.core.node.inquiry import Inquiry
from zmqps.core.node.tracing import LONGEST_S, MAX_RING_NBYTES, TraceKey, Tracer
from zmqps.core.protocol.endpoints import check_endpoint
from zmqps.core.protocol.messages.hello import MAX_JOB_NAME_CHARS
from zmqps.core.protocol.messages.tracing import TraceState
from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.keys.keyring import Keys
from zmqps.net.identity import read_job_secret
from zmqps.nodes.endkey import find_end_key
from zmqps.nodes.inquiry import ask, run_blocking
from zmqps.trace.merge import Trace
from zmqps.trace.ring import assemble

#: For this long nodes record, and into this many bytes each: some 110,000 spans, seconds of many small messages.
SECONDS = 10.0
RING_NBYTES = 8 << 20
#: Besides the seconds of the trace itself, to request and to fetch it.
FETCH_S = 60.0
#: Of the seconds that it may take longer until the coordinator answers at all.
ANSWER_S = 5.0
#: One that does not answer for so long in the middle of a trace has ended; longer than a journaled one is away.
SILENT_S = 10.0


def begin(
    address: str,
    *,
    job: str = "",
    seconds: float = SECONDS,
    steps: int = 0,
    nbytes: int = RING_NBYTES,
    job_secret: Path | None = None,
    keys: Keys | None = None,
) -> int:
    """Let the nodes of the cluster at an address record; return how many were asked to.

    They end that by themselves.

    Parameters
    ----------
    address
        The coordinator's endpoint.
    job
        Whose workers; empty: those of all jobs. All servers record.
    seconds
        For how long.
    steps
        Or until each of the workers has pushed so often, if that is sooner; 0: for the seconds.
    nbytes
        Into so much memory of each node: the newest spans.
    job_secret, keys
        As for `zmqps.nodes.inquiry.end_job`: the right to end jobs is needed to trace them.

    Raises
    ------
    DeadlineError
        No coordinator answered.
    JobError, LimitError
        There is no such job, or a trace is running already.
    IdentityError, ConfigurationError
        As for `zmqps.nodes.inquiry.end_job`.
    """
    start = _start(job, seconds, steps, nbytes)
    tracer = _tracer(address, job_secret, start, fetch=False)
    run_blocking(ask(tracer, "trace start", ANSWER_S, keys))
    return len(tracer.nodes)


def recording(address: str, *, job_secret: Path | None = None, keys: Keys | None = None) -> bool:
    """Return whether all nodes of the running trace have begun to record; errors as for `fetch`."""
    tracer = _tracer(address, job_secret, None, fetch=False)
    run_blocking(ask(tracer, "trace", ANSWER_S, keys))
    return all(node.get("state") == TraceState.ON for node in tracer.nodes)


def fetch(
    address: str,
    *,
    stop: bool = True,
    job_secret: Path | None = None,
    keys: Keys | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Trace:
    """End the running trace, if it has not ended, and return it; with ``stop`` False wait for its end first.

    Raises
    ------
    DeadlineError, IdentityError, ConfigurationError
        As for `begin`.
    JobError
        There is no trace, or not any more.
    """
    tracer = _tracer(address, job_secret, None, stop=stop, progress=progress)
    run_blocking(_run(tracer, "trace stop", FETCH_S if stop else FETCH_S + LONGEST_S, keys))
    return _trace(tracer)


def record(
    address: str,
    *,
    job: str = "",
    seconds: float = SECONDS,
    steps: int = 0,
    nbytes: int = RING_NBYTES,
    job_secret: Path | None = None,
    keys: Keys | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Trace:
    """Let nodes record, wait for that, and return the trace; parameters and errors as for `begin` and `fetch`."""
    start = _start(job, seconds, steps, nbytes)
    tracer = _tracer(address, job_secret, start, progress=progress)
    run_blocking(_run(tracer, "trace", seconds + FETCH_S, keys))
    return _trace(tracer)


async def _run(tracer: Tracer, operation: str, timeout: float, keys: Keys | None) -> None:
    """Send a request that takes long, once the coordinator has answered a first one."""
    await ask(Inquiry(tracer.endpoint), operation, ANSWER_S, keys)
    await ask(tracer, operation, timeout, keys)


def _start(job: str, seconds: float, steps: int, nbytes: int) -> tuple[str, float, int, int]:
    if job:
        checks.name("a job's name", job, MAX_JOB_NAME_CHARS)
    checks.number("seconds", seconds, above=0)
    checks.whole("steps", steps, 0, (1 << 32) - 1)
    checks.whole("nbytes", nbytes, 1 << 10, MAX_RING_NBYTES)
    return job, float(seconds), steps, nbytes


def _tracer(
    address: str,
    job_secret: Path | None,
    start: tuple[str, float, int, int] | None,
    *,
    stop: bool = False,
    fetch: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Tracer:
    secret = read_job_secret(job_secret) or find_end_key(check_endpoint(address))
    nonce = secrets.token_bytes(KEY_NBYTES)
    return Tracer(address, TraceKey(secret, nonce), start, stop=stop, fetch=fetch, patience=SILENT_S, progress=progress)


def _trace(tracer: Tracer) -> Trace:
    trace = assemble(tracer.nodes, tracer.recordings.data)
    titles = {str(node.get("who")): f"{node.get('role')} {node.get('rank')}" for node in tracer.nodes}
    trace.notes += [f"{titles.get(who, who)} is not in it: {why}" for who, why in tracer.recordings.missing.items()]
    return trace
