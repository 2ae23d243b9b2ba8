"""What the coordinator is asked from outside the cluster: for its status, for the end of a job, how its nodes are."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from zmqps import checks
from zmqps.core.node.inquiry import Inquiry, RepeatedQuestion
from zmqps.core.protocol.endpoints import check_endpoint
from zmqps.core.protocol.messages import Checkpoint, Checkpointed, Drain, EndJob, Examine, Exited, Scale, Watch
from zmqps.core.protocol.messages.hello import MAX_JOB_NAME_CHARS, MAX_NAME_CHARS
from zmqps.core.protocol.security.guard import proved
from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.errors import DeadlineError
from zmqps.keys.keyring import Keys
from zmqps.net import loops
from zmqps.net.driver import Driver
from zmqps.net.identity import read_job_secret
from zmqps.net.loops import Deadline
from zmqps.net.zeromq import ZmqTransport
from zmqps.nodes.endkey import find_end_key

T = TypeVar("T")

#: A coordinator that does not answer for so long has ended.
GONE_S = 1.0
#: Whether one answers at all is looked at for so long, before it is asked for what takes longer.
ANSWER_S = 5.0

log = logging.getLogger("zmqps.inquiry")


async def inquire(
    address: str,
    *,
    timeout: float,
    until: Callable[[Mapping[str, Any]], bool] = lambda status: True,
    keys: Keys | None = None,
) -> dict[str, Any]:
    """Ask the coordinator for its status until it is satisfactory.

    Parameters
    ----------
    address
        The coordinator's endpoint.
    timeout
        Seconds to wait for that.
    until
        Whether a status is satisfactory; by default the first one is.
    keys
        What to show; None: the cluster has none.

    Raises
    ------
    DeadlineError
        It did not answer, or no status was satisfactory.
    """
    machine = Inquiry(address, until)
    await ask(machine, "status", timeout, keys)
    assert machine.status is not None
    return dict(machine.status)


async def ask(machine: RepeatedQuestion, operation: str, timeout: float, keys: Keys | None) -> None:
    """Repeat a request until it is answered; raise the refusal, or `DeadlineError`."""
    check_endpoint(machine.endpoint)
    try:
        async with asyncio.timeout(timeout):
            await Driver(machine, ZmqTransport(keys=keys), log).run()
    except TimeoutError:
        why = f" ({machine.why})" if machine.why else ""
        waited = f"the coordinator at {machine.endpoint} {machine.awaited}{why}"
        raise DeadlineError(operation=operation, seconds=timeout, waiting_for=waited) from None
    if machine.error is not None:
        raise machine.error.again()


async def _run_long(machine: Inquiry, operation: str, timeout: float, keys: Keys | None) -> None:
    """Send a request that may take long, once the coordinator has answered a first one."""
    await ask(Inquiry(machine.endpoint), operation, min(timeout, ANSWER_S), keys)
    await ask(machine, operation, timeout, keys)


def end_job(
    address: str, job: str, *, timeout: float = 5.0, job_secret: Path | None = None, keys: Keys | None = None
) -> str:
    """End a job of the cluster at an address; return what the coordinator says to it.

    It is saved before, where the cluster has a place for checkpoints: the time that this takes is not counted. Then its
    members are informed, and its memory on the servers is freed. A job that had ended before is not an error.

    Raises
    ------
    DeadlineError
        No coordinator answered.
    IdentityError
        The cluster has keys, and this is not a node's; or a job secret, and this is not it; or neither, and its
        coordinator is another user's, or on another host.
    JobError
        There is no job of that name; says which there are.
    ConfigurationError
        ``address`` is not an endpoint, or ``job_secret`` is not a file with a secret.
    """
    name, nonce = checks.name("a job's name", job, MAX_JOB_NAME_CHARS), secrets.token_bytes(KEY_NBYTES)
    while True:
        try:
            return _end(address, name, "jobs end", timeout, job_secret, keys, nonce)
        except DeadlineError as error:
            try:
                jobs = ask_status(address, timeout=timeout, keys=keys)["jobs"]
            except DeadlineError:  # no coordinator is there; the caller did not ask for the status
                raise error from None
            if name in jobs and not _saves(jobs):  # one job is saved after the other
                raise


def end_cluster(
    address: str, *, timeout: float = 20.0, job_secret: Path | None = None, keys: Keys | None = None
) -> None:
    """End the cluster at an address, with all its jobs; return when its coordinator does not answer any more.

    Its jobs are saved before, where it has a place for checkpoints: the time that this takes is not counted.

    Raises
    ------
    DeadlineError
        No coordinator answered, or it still does.
    IdentityError, ConfigurationError
        As for `end_job`.
    """
    deadline = Deadline(timeout)
    _end(address, "", "down", timeout, job_secret, keys, secrets.token_bytes(KEY_NBYTES))
    while left := deadline.wait_s(GONE_S):
        try:
            status = ask_status(address, timeout=left, keys=keys)
            if _saves(status["jobs"]):
                deadline = Deadline(timeout)
            # the connection may have ended before the coordinator has heard it
            _end(address, "", "down", left, job_secret, keys, secrets.token_bytes(KEY_NBYTES))
        except DeadlineError:
            return
    waited = f"the coordinator at {address} to end, as requested"
    raise DeadlineError(operation="down", seconds=timeout, waiting_for=waited)


def _saves(jobs: Mapping[str, Any]) -> bool:
    return any("under_way" in job["checkpoint"] for job in jobs.values())


def _end(
    address: str, job: str, operation: str, timeout: float, job_secret: Path | None, keys: Keys | None, nonce: bytes
) -> str:
    secret = read_job_secret(job_secret) or find_end_key(check_endpoint(address))
    machine = Inquiry(address, question=proved(secret, EndJob(1, job, nonce)))
    run_blocking(_run_long(machine, operation, timeout, keys))
    return machine.text


def save_job(
    address: str,
    job: str,
    *,
    consistent: bool = False,
    timeout: float = 600.0,
    job_secret: Path | None = None,
    keys: Keys | None = None,
) -> Checkpointed:
    """Save a job of the cluster at an address; return where the checkpoint is, once it is whole.

    Raises
    ------
    DeadlineError
        No coordinator answered, or it is not complete yet; it may yet be.
    IdentityError, ConfigurationError
        As for `end_job`; or the cluster was started without a place for checkpoints.
    JobError
        There is no such job, or it is not being trained.
    CheckpointFailedError
        It could not be made.
    """
    nonce, name = secrets.token_bytes(KEY_NBYTES), checks.name("a job's name", job, MAX_JOB_NAME_CHARS)
    secret = read_job_secret(job_secret) or find_end_key(check_endpoint(address))
    question = proved(secret, Checkpoint(1, name, int(consistent), {}, nonce))
    machine = Inquiry(address, question=question)
    run_blocking(_run_long(machine, "checkpoint", timeout, keys))
    assert machine.made is not None
    return machine.made


def drain_server(
    address: str,
    server: str,
    *,
    stay: bool = False,
    timeout: float = 600.0,
    progress: Callable[[str], None] = lambda text: None,
    job_secret: Path | None = None,
    keys: Keys | None = None,
) -> str:
    """Let a server of the cluster at an address hand over all that it has, and end; return how that went.

    Parameters
    ----------
    server
        Its name, or its number in the status.
    stay
        Cancel a drain.
    timeout
        Seconds to wait; it continues after that.
    progress
        Called with how far it is, when that has changed.

    Raises
    ------
    DeadlineError
        No coordinator answered, or it takes longer.
    DrainError
        No other server can take what it has, so it stays; or it was lost meanwhile.
    JobError
        There is no such server.
    IdentityError, ConfigurationError
        As for `end_job`.
    """
    nonce, name = secrets.token_bytes(KEY_NBYTES), checks.name("a server's name", server, MAX_NAME_CHARS)
    secret = read_job_secret(job_secret) or find_end_key(check_endpoint(address))
    question = proved(secret, Drain(1, name, int(stay), nonce))
    machine = Inquiry(address, question=question, progress=progress)
    run_blocking(_run_long(machine, "drain", timeout, keys))
    return machine.text


def scale_servers(
    address: str,
    servers: int,
    *,
    timeout: float = 600.0,
    progress: Callable[[str], None] = lambda text: None,
    job_secret: Path | None = None,
    keys: Keys | None = None,
) -> str:
    """Spread the jobs of the cluster at an address over that many of its servers; return the result.

    Parameters
    ----------
    servers
        How many: of those that are there. Servers beyond them hand over what they have, and end.
    timeout, progress
        As for `drain_server`.

    Raises
    ------
    DeadlineError
        No coordinator answered, or it takes longer.
    ScaleError
        There are too few servers, or it cannot be done.
    IdentityError, ConfigurationError
        As for `end_job`.
    """
    nonce, number = secrets.token_bytes(KEY_NBYTES), checks.whole("servers", servers, 1, 4096)
    secret = read_job_secret(job_secret) or find_end_key(check_endpoint(address))
    question = proved(secret, Scale(1, number, nonce))
    machine = Inquiry(address, question=question, progress=progress)
    run_blocking(_run_long(machine, "scale", timeout, keys))
    return machine.text


async def report_exit(
    address: str, token: bytes, how: str, *, timeout: float, keys: Keys | None = None
) -> Sequence[str]:
    """Tell the coordinator at an address that the process with a token has ended; return the members lost with it.

    Parameters
    ----------
    token
        The secret that its supervisor gave the process.
    how
        How it ended, in words.

    Raises
    ------
    DeadlineError, KeyRefusedError, ConfigurationError
        As for `ask_status`.
    """
    machine = Inquiry(address, question=Exited(1, token, how))
    await ask(machine, "report of an exit", timeout, keys)
    return machine.lost


def ask_status(address: str, *, timeout: float = 5.0, keys: Keys | None = None) -> dict[str, Any]:
    """Return the status of the cluster at an address, as ``zmqps status --json`` prints it.

    Raises
    ------
    DeadlineError
        No coordinator answered.
    KeyRefusedError
        It refuses the keys, or requires some and this process has none.
    ConfigurationError
        ``address`` is not an endpoint.
    """
    return run_blocking(inquire(address, timeout=timeout, keys=keys))


def ask_health(address: str, *, timeout: float = 5.0, keys: Keys | None = None) -> dict[str, Any]:
    """Let every node of the cluster at an address answer; return how soon each did, and which did not.

    Returns
    -------
    dict
        ``nodes``: for each its ``role``, ``rank``, ``job``, ``name``, ``host``, ``pid``, ``state`` (``answered``,
        ``silent``, ``gone``), ``seen_s``, and if it has answered ``latency_s`` and ``lag_s``; ``seconds`` that it took,
        and ``lag_s`` by which the coordinator's own loop was late.

    Raises
    ------
    DeadlineError
        No coordinator answered. It takes 2 s where a node does not.
    KeyRefusedError, ConfigurationError
        As for `ask_status`.
    """
    return run_blocking(examine(address, timeout=timeout, keys=keys))


def ask_stacks(
    address: str, node: str, *, timeout: float = 5.0, job_secret: Path | None = None, keys: Keys | None = None
) -> dict[str, Any]:
    """Return what the threads of a node are doing, as `ask_health` has it of that node alone; ``stacks`` are lines.

    Parameters
    ----------
    node
        ``worker-2``, ``server-0``, ``coordinator``, or what the node calls itself in the status; where several jobs
        have such a node ``job/worker-2``.

    Raises
    ------
    JobError
        There is no such node, or there are several.
    DeadlineError, IdentityError, ConfigurationError
        As for `end_job`.
    """
    return run_blocking(examine(address, node, timeout=timeout, job_secret=job_secret, keys=keys))


async def examine(
    address: str,
    node: str = "",
    *,
    timeout: float = 5.0,
    job_secret: Path | None = None,
    keys: Keys | None = None,
) -> dict[str, Any]:
    """Do what `ask_health` and `ask_stacks` do, in a loop that runs already."""
    question = Examine(1)
    if node:
        checks.name("a node's name", node, MAX_JOB_NAME_CHARS + 1 + MAX_NAME_CHARS)
        secret = read_job_secret(job_secret) or find_end_key(check_endpoint(address))
        question = proved(secret, Examine(1, node, secrets.token_bytes(KEY_NBYTES)))
    machine = Inquiry(address, question=question)
    await ask(machine, "stack" if node else "health", timeout, keys)
    assert machine.findings is not None
    return dict(machine.findings)


def ask_view(
    address: str,
    *,
    span: float = 300.0,
    points: int = 300,
    every: float = 0.0,
    job: str = "",
    node: str = "",
    timeout: float = 5.0,
    keys: Keys | None = None,
) -> dict[str, Any]:
    """Return a view of the cluster at an address: its status, figures over time, events, and waits.

    Parameters
    ----------
    span
        Seconds to look back.
    points
        Of each series at most that many.
    every
        Only points of series that cover that many seconds each; 0: the finest that reach back so far.
    job, node
        Of which; empty: all.

    Raises
    ------
    DeadlineError, KeyRefusedError, ConfigurationError
        As for `ask_status`.
    """
    machine = Inquiry(address, question=Watch(1, span, points, every, job, node))
    run_blocking(ask(machine, "watch", timeout, keys))
    assert machine.status is not None
    return dict(machine.status)


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where the calling thread runs a loop already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return loops.run(work)
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(loops.run, work).result()
