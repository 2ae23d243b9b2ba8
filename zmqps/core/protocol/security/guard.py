"""The job secret of a cluster: the permission to join and end jobs, proved without sending it."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from zmqps.core.protocol import messages as m
from zmqps.core.protocol.security.keys import KEY_NBYTES, same
from zmqps.core.protocol.security.roles import row_of
from zmqps.errors import IdentityError

Order = TypeVar("Order", bound=m.Message)

#: The advice in errors.
_ADVICE = (
    "give every process that joins the file it was started with: --job-secret FILE, ZMQPS_JOB_SECRET=FILE, or "
    "zmqps.connect(..., security=zmqps.Security(job_secret=...))"
)


def join_guard(job_secret: bytes, hello: m.Hello) -> bytes:
    """Return the proof that the sender of a `Hello` to the coordinator knows the job secret."""
    return _guard(job_secret, b"join", hello.role.encode(), hello.incarnation, hello.secret, hello.job.encode())


def check_join(job_secret: bytes, hello: m.Hello) -> None:
    """Raise `IdentityError` unless the sender of a `Hello` knows the job secret; without one any may join."""
    if job_secret and not same(hello.guard, join_guard(job_secret, hello)):
        how = "shows that it knows another one" if hello.guard else "shows none"
        raise IdentityError(f"this cluster has a job secret, and {hello.role} {hello.name} {how}; {_ADVICE}")


def check_server(server_key: bytes, hello: m.Hello) -> None:
    """Raise `IdentityError` unless a server knows the key of allowed servers; without one any may join."""
    if hello.role == "server" and server_key and not same(hello.guard, join_guard(server_key, hello)):
        raise IdentityError(
            f"this cluster takes servers of the user that started it alone, and server {hello.name} does not show that "
            "it is one; start it as that user, with the same TMPDIR, or start the cluster with --job-secret FILE"
        )


def welcome_guard(job_secret: bytes, hello: m.Hello) -> bytes:
    """Return the coordinator's proof to a member that it knows the job secret; empty without one."""
    return _guard(job_secret, b"welcome", hello.incarnation, hello.secret) if job_secret else b""


def check_welcome(job_secret: bytes, hello: m.Hello, welcome: m.Welcome) -> None:
    """Raise `IdentityError` unless the coordinator knows this member's job secret."""
    if job_secret and not same(welcome.proof, welcome_guard(job_secret, hello)):
        raise IdentityError(
            f"the coordinator ({welcome.name}) does not show that it knows the job secret of this {hello.role}; start "
            "it with the same --job-secret FILE, and check which process listens at its address"
        )


#: What the guard of each order covers, and the commands that send it.
_ORDERS: dict[type[m.Message], tuple[Callable[[Any], tuple[bytes, str]], str]] = {
    m.EndJob: (lambda order: (b"end", order.job), "jobs end and zmqps down"),
    m.Checkpoint: (lambda order: (b"save", order.job), "checkpoint"),
    m.Drain: (lambda order: (b"stay" if order.stay else b"drain", order.server), "drain"),
    m.Scale: (lambda order: (b"scale", str(order.servers)), "scale"),
    m.Examine: (lambda order: (b"examine", order.node), "stack"),
    m.Trace: (lambda order: (b"trace", f"{order.action} {order.job}"), "trace"),
    m.Fetch: (lambda order: (b"trace", f"{order.number} {order.who.hex()} {order.offset}"), "trace"),
}


def proved(secret: bytes, order: Order) -> Order:
    """Return an order with the proof, for its nonce, that its sender knows the job secret or end key, if it does."""
    return replace(order, guard=_order_guard(secret, order)) if secret else order


def _order_guard(secret: bytes, order: Any) -> bytes:
    what, subject = _ORDERS[type(order)][0](order)
    return _guard(secret, what, subject.encode(), order.nonce)


def check_order(job_secret: bytes, end_key: bytes, order: m.Message) -> None:
    """Raise `IdentityError` unless the sender of an order knows the job secret; without one, the end key."""
    command = _ORDERS[type(order)][1]
    secret = job_secret or end_key
    guard: bytes = getattr(order, "guard")  # noqa: B009  (all of these have one)
    if not secret or same(guard, _order_guard(secret, order)):
        return
    row = row_of(order)
    does = row.does if row is not None else ""
    if not job_secret:
        raise IdentityError(
            f"only the coordinator's own user may {does}, by zmqps {command} --coordinator on its host; to do "
            "so from elsewhere, start the cluster with --job-secret FILE"
        )
    shown = "shows that it knows another one" if guard else "shows none"
    raise IdentityError(f"this cluster has a job secret; to {does}, show it: this {command} {shown}; {_ADVICE}")


def _guard(job_secret: bytes, *facts: bytes) -> bytes:
    text = b"".join(len(fact).to_bytes(4, "little") + fact for fact in facts)
    return hmac.digest(job_secret, text, "sha256")[:KEY_NBYTES]
