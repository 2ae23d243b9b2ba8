"""Errors of nodes and the connections between them: who is late, gone, ended, broken, or not who it says."""

from __future__ import annotations

from zmqps.errors.base import PSError


class DeadlineError(PSError, TimeoutError):
    """A wait ended at its timeout.

    Nothing is known to be lost: a push that timed out may or may not have been applied, and is applied at most once.
    """

    code = 4
    text = "{operation} timed out after {seconds:.1f} s, waiting for {waiting_for}"
    operation: str
    seconds: float
    waiting_for: str


class ClosedError(PSError, RuntimeError):
    """The object was closed, or its worker has finished."""

    code = 5


class ForkedError(ClosedError):
    """What a process has opened was used in a forked child, which must not touch it."""

    code = 12
    text = "this {what} belongs to process {pid}, and this process is a fork of it; {advice}"
    what: str
    pid: int
    advice: str


class PeerLostError(PSError, ConnectionError):
    """A node gave no sign of life for longer than the heartbeat timeout."""

    code = 6
    text = "lost {name}: last sign of life {silent_s:.1f} s ago; {advice}"
    role: str
    name: str
    silent_s: float
    advice: str


class HostLeaderLostError(PSError, ConnectionError):
    """The worker that pushes for those of its host (``combine="host"``) ended while it did: the step may count or not.

    Another one does it from the next call on.
    """

    code = 19
    text = (
        "lost {leader}, which pushes for the workers of this host, while it did: the gradients of this step may count "
        "or not; go on with the next ones (push), or without (skip), and another worker of this host pushes for it"
    )
    leader: str


class CoordinatorRestartedError(PSError, ConnectionError):
    """The coordinator that this node had joined has ended, and another one answers at its address."""

    code = 14
    text = "the coordinator at {address} is a new one: the one that {node} had joined has ended with its jobs; {advice}"
    address: str
    node: str
    advice: str


class EvictedError(PSError, ConnectionError):
    """The coordinator presumed this node dead, and the others went on without it."""

    code = 7


class ShutdownError(PSError, ConnectionError):
    """The cluster is ending, so the request will not be answered."""

    code = 8


class NodeFailedError(PSError, RuntimeError):
    """A node that this process had started ended by itself."""

    code = 9
    text = "{name} ended with {how}; its last lines:\n{tail}"
    name: str
    how: str
    tail: str


class InternalError(PSError, RuntimeError):
    """A node did what it never should: a defect of zmqps.

    The exception behind it is its ``__cause__`` in the process where it happened, and in that node's log.
    """

    code = 10
    text = "internal error of {node}: {what}; please report it, with that node's log"
    node: str
    what: str


class IdentityError(PSError, PermissionError):
    """A node did not prove that it is who it says, or may ask for what it asks; nothing has changed."""

    code = 11


class WrongPeerError(IdentityError):
    """What listens at a server's endpoint is not that server; nothing was sent there."""

    code = 16
    text = (
        "what listens at the endpoint of {server} is not the server that the coordinator named ({why}); look what "
        "listens there, and which address the server advertises (zmqps server --advertise)"
    )
    server: str
    why: str


class KeyRefusedError(PSError, PermissionError):
    """A node and this process do not agree on keys, so no connection is made, now or later."""

    code = 18
    text = "{address} refuses this {role}: {why}"
    address: str
    role: str
    why: str
