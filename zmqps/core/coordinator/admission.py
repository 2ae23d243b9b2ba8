"""Who may join a cluster, and who may save and end its jobs."""

from __future__ import annotations

from zmqps.core.node.member import Identity
from zmqps.core.protocol.guard import (
    check_drain,
    check_end,
    check_examine,
    check_join,
    check_save,
    check_scale,
    check_server,
    check_trace,
)
from zmqps.core.protocol.hello import check_hello, check_job
from zmqps.core.protocol.messages import Checkpoint, Drain, EndJob, Examine, Fetch, Hello, Scale, Trace
from zmqps.core.protocol.roles import KeyHolder, check_operator, check_role


def check_admission(identity: Identity, hello: Hello, holder: KeyHolder | None) -> None:
    """Raise unless somebody may join this coordinator's cluster, by its key and by what it knows.

    Raises
    ------
    IdentityError
        Its key does not allow its role, or it does not know the job secret, or as a server the servers' key.
    ProtocolError
        Its `Hello` is not one of ours.
    """
    check_hello(hello, ("worker", "server", "observer"))
    check_role(holder, hello.role, keyed=identity.keyed)
    check_join(identity.job_secret, hello)
    check_server(identity.server_key, hello)
    if hello.role != "server":
        check_job(hello)


def check_ending(identity: Identity, message: EndJob, holder: KeyHolder | None) -> None:
    """Raise `IdentityError` unless somebody may end a job: with keys, who has a node's; else who knows a secret."""
    check_operator(holder, "end jobs", keyed=identity.keyed)
    check_end(identity.job_secret, b"" if identity.keyed else identity.end_key, message)


def check_saving(identity: Identity, message: Checkpoint, holder: KeyHolder | None) -> None:
    """Raise `IdentityError` unless somebody who has not joined may save a job; as `check_ending`."""
    check_operator(holder, "save jobs", keyed=identity.keyed)
    check_save(identity.job_secret, b"" if identity.keyed else identity.end_key, message)


def check_draining(identity: Identity, message: Drain, holder: KeyHolder | None) -> None:
    """Raise `IdentityError` unless somebody who has not joined may drain a server; as `check_ending`."""
    check_operator(holder, "drain servers", keyed=identity.keyed)
    check_drain(identity.job_secret, b"" if identity.keyed else identity.end_key, message)


def check_scaling(identity: Identity, message: Scale, holder: KeyHolder | None) -> None:
    """Raise `IdentityError` unless the sender may change the number of servers; as `check_ending`."""
    check_operator(holder, "change the number of servers", keyed=identity.keyed)
    check_scale(identity.job_secret, b"" if identity.keyed else identity.end_key, message)


def check_examining(identity: Identity, message: Examine, holder: KeyHolder | None) -> None:
    """Raise `IdentityError` unless the sender may see what a node's threads are doing; as `check_ending`."""
    check_operator(holder, "see what the threads of a node are doing", keyed=identity.keyed)
    check_examine(identity.job_secret, b"" if identity.keyed else identity.end_key, message)


def check_tracing(identity: Identity, message: Trace | Fetch, holder: KeyHolder | None) -> None:
    """Raise `IdentityError` unless the sender may let nodes record, and have that; as `check_ending`."""
    check_operator(holder, "trace where time goes", keyed=identity.keyed)
    check_trace(identity.job_secret, b"" if identity.keyed else identity.end_key, message)
