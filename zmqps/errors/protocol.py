"""Errors of what a peer has sent: bytes that docs/protocol.md does not know, or does not allow then."""

from __future__ import annotations

from zmqps.errors.base import PSError


class ProtocolError(PSError, ValueError):
    """The bytes received are not a message of docs/protocol.md."""

    code = 20


class ProtocolVersionError(ProtocolError):
    """Both ends speak zmqps, but different versions of its protocol."""

    code = 21
    text = "protocol version {theirs} is not supported here, only {ours}; install the same zmqps on every node"
    ours: int
    theirs: int


class LimitError(ProtocolError):
    """A size or count beyond what the receiver accepts, refused before anything was allocated."""

    code = 22
    text = "{what} of {got} is beyond the limit of {limit}"
    what: str
    got: int
    limit: int


class NotJoinedError(ProtocolError):
    """A request from a peer that has not shaken hands, or whose handshake was forgotten."""

    code = 23


class StaleEpochError(ProtocolError):
    """The message was addressed under an older placement of the shards."""

    code = 24
    text = "message of epoch {theirs}, the placement is of epoch {ours}"
    ours: int
    theirs: int


class SliceRangeError(ProtocolError, IndexError):
    """No such slice on this shard, or a range that does not fall on parameter boundaries."""

    code = 25


class LedgerError(ProtocolError):
    """A sequence number so old that the ledger no longer knows whether it was applied."""

    code = 26
