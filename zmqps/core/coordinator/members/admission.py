"""The door of a coordinator: who may join, and whose messages are heard."""

from __future__ import annotations

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.node.member import Identity
from zmqps.core.protocol.events import Received
from zmqps.core.protocol.messages import Hello
from zmqps.core.protocol.messages.hello import check_hello, check_job
from zmqps.core.protocol.security.guard import check_join, check_order, check_server
from zmqps.core.protocol.security.roles import OPERATOR, STRANGER, KeyHolder, check_role, check_sender


def check_admission(identity: Identity, hello: Hello, holder: KeyHolder | None) -> None:
    """Raise unless somebody may join this coordinator's cluster, by its key and by what it knows.

    Raises `IdentityError`: its key does not allow its role, or it does not know the job secret, or as a server the
    servers' key; `ProtocolError`: its `Hello` is not one of ours.
    """
    check_hello(hello, ("worker", "server", "observer"))
    check_role(holder, hello.role, keyed=identity.keyed)
    check_join(identity.job_secret, hello)
    check_server(identity.server_key, hello)
    if hello.role != "server":
        check_job(hello)


def check_message(identity: Identity, event: Received, member: MemberInfo | None) -> None:
    """Raise unless a coordinator listens to a message of a member, or of a stranger, before anything is done about it.

    With keys the sender of an order has a node's, else it knows the job secret or, on the coordinator's host, the
    end key.

    Raises `IdentityError`: its role, or its key, does not allow it; or it does not prove that it is an operator;
    `ProtocolError`: a coordinator takes this from nobody.
    """
    role, holder = (STRANGER, event.holder) if member is None else (member.hello.role, member.origin.holder)
    row = check_sender(event.message, role, holder, keyed=identity.keyed)
    if OPERATOR in row.coordinator:
        check_order(identity.job_secret, b"" if identity.keyed else identity.end_key, event.message)
