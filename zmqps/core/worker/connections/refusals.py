"""What a server's errors say of where it is that they come from."""

from __future__ import annotations

from zmqps.errors import (
    IdentityError,
    JobEndedError,
    JobError,
    PeerLostError,
    ProtocolError,
    PSError,
    StaleEpochError,
)


def is_stranger(error: PSError) -> bool:
    """Whether an error that answers a `Hello` shows that the ticket was for another server, which this one is not.

    The server that the coordinator means knows ticket, job and epoch, for it is told before its workers are.
    """
    return isinstance(error, IdentityError | StaleEpochError) or type(error) in (JobError, ProtocolError)


def may_move(error: PSError) -> bool:
    """Whether what a server says of no request in particular is what one says that has lost its shard, or its place."""
    lost = isinstance(error, PeerLostError) and error.role == "coordinator"
    return lost or isinstance(error, StaleEpochError | JobEndedError) or type(error) is JobError
