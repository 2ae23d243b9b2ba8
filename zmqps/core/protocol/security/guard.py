"""The job secret of a cluster: who may join jobs and end them, proved without sending it."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

from zmqps.core.protocol.messages import (
    Checkpoint,
    Drain,
    EndJob,
    Examine,
    Fetch,
    Hello,
    Message,
    Scale,
    Trace,
    Welcome,
)
from zmqps.core.protocol.security.keys import KEY_NBYTES, same
from zmqps.core.protocol.security.roles import row_of
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


def drain_guard(job_secret: bytes, server: str, nonce: bytes, stay: int = 0) -> bytes:
    """Return what proves the same of the sender of a `Drain`."""
    what = b"stay" if stay else b"drain"
    return _guard(job_secret, what, server.encode(), nonce) if job_secret else b""


def scale_guard(job_secret: bytes, servers: str, nonce: bytes) -> bytes:
    """Return what proves the same of the sender of a `Scale`."""
    return _guard(job_secret, b"scale", servers.encode(), nonce) if job_secret else b""


def examine_guard(job_secret: bytes, node: str, nonce: bytes) -> bytes:
    """Return what proves the same of the sender of an `Examine` that names a node."""
    return _guard(job_secret, b"examine", node.encode(), nonce) if job_secret else b""


def trace_guard(job_secret: bytes, what: str, nonce: bytes) -> bytes:
    """Return what proves the same of the sender of a `Trace` or `Fetch`; ``what`` is its `trace_subject`."""
    return _guard(job_secret, b"trace", what.encode(), nonce) if job_secret else b""


def trace_subject(message: Trace | Fetch) -> str:
    """Return what the guard of a message vouches for."""
    if isinstance(message, Trace):
        return f"{message.action} {message.job}"
    return f"{message.number} {message.who.hex()} {message.offset}"


#: How an order is proved, and by which commands.
_PROOFS: dict[type[Message], tuple[Callable[[bytes, Any], bytes], str]] = {
    EndJob: (lambda secret, order: end_guard(secret, order.job, order.nonce), "jobs end and zmqps down"),
    Checkpoint: (lambda secret, order: save_guard(secret, order.job, order.nonce), "checkpoint"),
    Drain: (lambda secret, order: drain_guard(secret, order.server, order.nonce, order.stay), "drain"),
    Scale: (lambda secret, order: scale_guard(secret, str(order.servers), order.nonce), "scale"),
    Examine: (lambda secret, order: examine_guard(secret, order.node, order.nonce), "stack"),
    **dict.fromkeys(
        (Trace, Fetch), (lambda secret, order: trace_guard(secret, trace_subject(order), order.nonce), "trace")
    ),
}


def check_order(job_secret: bytes, end_key: bytes, order: Message) -> None:
    """Raise `IdentityError` unless the sender of an order knows the job secret; where there is none, the end key."""
    prove, command = _PROOFS[type(order)]
    secret = job_secret or end_key
    guard: bytes = getattr(order, "guard")  # noqa: B009  (of all that are proved)
    if not secret or same(guard, prove(secret, order)):
        return
    row = row_of(order)
    does = row.does if row is not None else ""
    if not job_secret:
        raise IdentityError(
            f"only the user who runs the coordinator may {does}, by zmqps {command} --coordinator on its host; to do "
            "so from elsewhere, start the cluster with --job-secret FILE"
        )
    shown = "shows that it knows another one" if guard else "shows none"
    raise IdentityError(f"this cluster has a job secret, and who wants to {does} {shown}; {_ADVICE}")


def _guard(job_secret: bytes, *facts: bytes) -> bytes:
    text = b"".join(len(fact).to_bytes(4, "little") + fact for fact in facts)
    return hmac.digest(job_secret, text, "sha256")[:KEY_NBYTES]
