"""Keys: proofs of a node's identity; an incarnation is only a name.

A *secret* is made by the node that opens a connection and known only to the other end. A *ticket* and a *proof* are
made by the coordinator: it sends them to a member together with the servers of its job, and each server gets the key of
both. So a server can check an unknown member, and a member the server, without a message between coordinator and
server.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

from zmqps.errors import ProtocolError

#: Bytes of a secret, a ticket, a proof and the key of a shard.
KEY_NBYTES = 16
#: The role in the ticket of the one worker that uploads the initial values; its `Hello` says worker.
LOADER = "loader"

#: Whether two secrets are equal, in constant time.
same = hmac.compare_digest


def shard_key(root: bytes, epoch: int, server: bytes) -> bytes:
    """Return the key of a server's shard of a job; ``root`` is the coordinator's own secret."""
    return _derive(root, b"shard", epoch.to_bytes(8, "little") + server)


def ticket_of(key: bytes, role: str, incarnation: bytes) -> bytes:
    """Return the ticket of a member for the server that has the shard of this key."""
    return _derive(key, b"ticket", role.encode() + incarnation)


def proof_of(key: bytes, role: str, incarnation: bytes) -> bytes:
    """Return the server's proof to a member that it is the server meant by the coordinator."""
    return _derive(key, b"proof", role.encode() + incarnation)


def claim_of(token: bytes, role: str, job: str, name: str) -> bytes:
    """Return the proof that a member has the same supervisor as others of this name; empty without a token."""
    return _derive(token, b"claim", "\0".join((role, job, name)).encode()) if token else b""


def process_of(token: bytes) -> bytes:
    """Return the identifier of a supervised process in its members' Hello, from its token; empty without one."""
    return _derive(token, b"process", b"") if token else b""


def key_of(text: str) -> bytes:
    """Return a key from its hex text; raise `ProtocolError` if it is malformed."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_NBYTES:
        raise ProtocolError(f"a ticket or proof is {KEY_NBYTES} bytes in hex")
    return key


def alias(name: bytes) -> str:
    """Return a short name for logs of a confidential value, such as a routing id."""
    return sha256(name).hexdigest()[:8]


def _derive(key: bytes, purpose: bytes, text: bytes) -> bytes:
    return hmac.digest(key, purpose + text, "sha256")[:KEY_NBYTES]
