"""The job secret of a cluster: who may join jobs and end them, proved without sending it."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from functools import partial

from zmqps.core.protocol.keys import KEY_NBYTES, same
from zmqps.core.protocol.messages import Checkpoint, Drain, EndJob, Examine, Fetch, Hello, Scale, Trace, Welcome
from zmqps.errors import IdentityError

#: What to do about it, in errors.
_ADVICE = (
    "give every process that joins the file it was started with: --job-secret FILE, ZMQPS_JOB_SECRET=FILE, or "
    "zmqps.connect(..., job_secret=...)"
)


def join_guard(job_secret: bytes, hello: Hello) -> bytes:
    """Return what proves that the sender of a `Hello` to the coordinator knows the job secret."""
    return _guard(job_secret, b"join", hello.role.encode(), hello.incarnation, hello.secret, hello.job.encode())


def check_join(job_secret: bytes, hello: Hello) -> None:
    """Raise `IdentityError` unless the sender of a `Hello` knows the job secret; anybody does where there is none."""
    if job_secret and not same(hello.guard, join_guard(job_secret, hello)):
        how = "shows that it knows another one" if hello.guard else "shows none"
        raise IdentityError(f"this cluster has a job secret, and {hello.role} {hello.name} {how}; {_ADVICE}")


def check_server(server_key: bytes, hello: Hello) -> None:
    """Raise `IdentityError` unless a server knows the key of those that may be one; anybody may where there is none."""
    if hello.role == "server" and server_key and not same(hello.guard, join_guard(server_key, hello)):
        raise IdentityError(
            f"this cluster takes servers of the user that started it alone, and server {hello.name} does not show that "
            "it is one; start it as that user, with the same TMPDIR, or start the cluster with --job-secret FILE"
        )


def welcome_guard(job_secret: bytes, hello: Hello) -> bytes:
    """Return what a coordinator answers a member, to show that it knows the job secret; empty where there is none."""
    return _guard(job_secret, b"welcome", hello.incarnation, hello.secret) if job_secret else b""


def check_welcome(job_secret: bytes, hello: Hello, welcome: Welcome) -> None:
    """Raise `IdentityError` unless the coordinator knows the job secret that this member has been given."""
    if job_secret and not same(welcome.proof, welcome_guard(job_secret, hello)):
        raise IdentityError(
            f"the coordinator ({welcome.name}) does not show that it knows the job secret of this {hello.role}; start "
            "it with the same --job-secret FILE, and look who listens at its address"
        )


def end_guard(job_secret: bytes, job: str, nonce: bytes) -> bytes:
    """Return what proves that the sender of an `EndJob` knows the job secret or end key; empty where it knows none."""
    return _guard(job_secret, b"end", job.encode(), nonce) if job_secret else b""


def save_guard(job_secret: bytes, job: str, nonce: bytes) -> bytes:
    """Return what proves the same of the sender of a `Checkpoint`."""
    return _guard(job_secret, b"save", job.encode(), nonce) if job_secret else b""


def check_end(job_secret: bytes, end_key: bytes, message: EndJob) -> None:
    """Raise `IdentityError` unless the sender of an `EndJob` knows the job secret; where there is none, the end key."""
    how = "by zmqps jobs end and zmqps down --coordinator"
    _check_order(job_secret, end_key, message, message.job, end_guard, "end a job or the cluster", how)


def check_save(job_secret: bytes, end_key: bytes, message: Checkpoint) -> None:
    """Raise `IdentityError` unless the sender of a `Checkpoint` who has not joined knows one of them."""
    how = "by zmqps checkpoint --coordinator"
    _check_order(job_secret, end_key, message, message.job, save_guard, "save a job", how)


def drain_guard(job_secret: bytes, server: str, nonce: bytes, stay: int = 0) -> bytes:
    """Return what proves the same of the sender of a `Drain`."""
    what = b"stay" if stay else b"drain"
    return _guard(job_secret, what, server.encode(), nonce) if job_secret else b""


def check_drain(job_secret: bytes, end_key: bytes, message: Drain) -> None:
    """Raise `IdentityError` unless the sender of a `Drain` who has not joined knows one of them."""
    how = "by zmqps drain --coordinator"
    guard = partial(drain_guard, stay=message.stay)
    _check_order(job_secret, end_key, message, message.server, guard, "drain a server", how)


def scale_guard(job_secret: bytes, servers: str, nonce: bytes) -> bytes:
    """Return what proves the same of the sender of a `Scale`."""
    return _guard(job_secret, b"scale", servers.encode(), nonce) if job_secret else b""


def check_scale(job_secret: bytes, end_key: bytes, message: Scale) -> None:
    """Raise `IdentityError` unless the sender of a `Scale` knows one of them."""
    what, how = "change the number of servers", "by zmqps scale --coordinator"
    _check_order(job_secret, end_key, message, str(message.servers), scale_guard, what, how)


def examine_guard(job_secret: bytes, node: str, nonce: bytes) -> bytes:
    """Return what proves the same of the sender of an `Examine` that names a node."""
    return _guard(job_secret, b"examine", node.encode(), nonce) if job_secret else b""


def check_examine(job_secret: bytes, end_key: bytes, message: Examine) -> None:
    """Raise `IdentityError` unless the sender of an `Examine` that names a node knows one of them."""
    what, how = "see what the threads of a node are doing", "by zmqps stack --coordinator"
    _check_order(job_secret, end_key, message, message.node, examine_guard, what, how)


def trace_guard(job_secret: bytes, what: str, nonce: bytes) -> bytes:
    """Return what proves the same of the sender of a `Trace` or `Fetch`; ``what`` is its `trace_subject`."""
    return _guard(job_secret, b"trace", what.encode(), nonce) if job_secret else b""


def trace_subject(message: Trace | Fetch) -> str:
    """Return what the guard of a message vouches for."""
    if isinstance(message, Trace):
        return f"{message.action} {message.job}"
    return f"{message.number} {message.who.hex()} {message.offset}"


def check_trace(job_secret: bytes, end_key: bytes, message: Trace | Fetch) -> None:
    """Raise `IdentityError` unless the sender of a `Trace` or `Fetch` knows one of them."""
    what, how = "trace where time goes", "by zmqps trace --coordinator"
    _check_order(job_secret, end_key, message, trace_subject(message), trace_guard, what, how)


def _check_order(
    job_secret: bytes,
    end_key: bytes,
    message: EndJob | Checkpoint | Drain | Scale | Examine | Trace | Fetch,
    subject: str,
    guard: Callable[[bytes, str, bytes], bytes],
    what: str,
    how: str,
) -> None:
    secret = job_secret or end_key
    if not secret or same(message.guard, guard(secret, subject, message.nonce)):
        return
    if not job_secret:
        raise IdentityError(
            f"only the user who runs the coordinator may {what}, {how} on its host; to do so from elsewhere, start "
            "the cluster with --job-secret FILE"
        )
    shown = "shows that it knows another one" if message.guard else "shows none"
    raise IdentityError(f"this cluster has a job secret, and who wants to {what} {shown}; {_ADVICE}")


def _guard(job_secret: bytes, *facts: bytes) -> bytes:
    text = b"".join(len(fact).to_bytes(4, "little") + fact for fact in facts)
    return hmac.digest(job_secret, text, "sha256")[:KEY_NBYTES]
