"""Keys: how nodes prove who they are, while an incarnation only says it.

A *secret* is made by the node that opens a connection and known to the other end alone. A *ticket* and a *proof*
are made by the coordinator: it names them to a member together with the servers of its job, and tells each server the
key of which both are made. So a server checks a member it has never heard of, and a member the server, without a
message between coordinator and server.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

from zmqps.errors import ProtocolError

#: Bytes of a secret, a ticket, a proof and the key of a shard.
KEY_NBYTES = 16
#: The role that a ticket states of the one worker that uploads the initial values; its `Hello` says worker.
LOADER = "loader"

#: Whether two secrets are equal, in a time that does not tell how much of them is.
same = hmac.compare_digest


def shard_key(root: bytes, epoch: int, server: bytes) -> bytes:
    """Return the key of a server's shard of a job; ``root`` is the coordinator's own secret."""
    return _derive(root, b"shard", epoch.to_bytes(8, "little") + server)


def ticket_of(key: bytes, role: str, incarnation: bytes) -> bytes:
    """Return what a member shows to the server that has the shard of this key."""
    return _derive(key, b"ticket", role.encode() + incarnation)


def proof_of(key: bytes, role: str, incarnation: bytes) -> bytes:
    """Return what a server answers a member, to show that it is the one that the coordinator means."""
    return _derive(key, b"proof", role.encode() + incarnation)


def claim_of(token: bytes, role: str, job: str, name: str) -> bytes:
    """Return what shows that a member is started by whoever has started others of this name; empty without a token."""
    return _derive(token, b"claim", "\0".join((role, job, name)).encode()) if token else b""


def process_of(token: bytes) -> bytes:
    """Return what members say of the process that a supervisor has started with this token; empty without one."""
    return _derive(token, b"process", b"") if token else b""


def key_of(text: str) -> bytes:
    """Return the key that a hex text says; raise `ProtocolError` if it says none."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_NBYTES:
        raise ProtocolError(f"a ticket or proof is {KEY_NBYTES} bytes in hex")
    return key


def alias(name: bytes) -> str:
    """Return a short name for logs of something that not everybody may learn, such as a routing id."""
    return sha256(name).hexdigest()[:8]


def _derive(key: bytes, purpose: bytes, text: bytes) -> bytes:
    return hmac.digest(key, purpose + text, "sha256")[:KEY_NBYTES]
