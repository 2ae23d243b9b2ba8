"""Errors of what a peer has sent: bytes that docs/protocol.md does not know, or does not allow then."""

from __future__ import annotations

from zmqps.errors.base import PSError


class ProtocolError(PSError, ValueError):
    """The bytes received are not a message of docs/protocol.md.

    What to do next
    ---------------
    - Check that the address is that of a zmqps node, not of another program.
    - Check that all hosts have the same version (`zmqps --version`), and that no proxy between them changes the bytes.
    - If both are right, it is a defect of zmqps: please report it with the line of the log.
    """

    code = 20


class ProtocolVersionError(ProtocolError):
    """Both ends speak zmqps, but different versions of its protocol.

    What to do next
    ---------------
    - Install the same zmqps on every host; `zmqps doctor HOSTS` shows which one differs. Then start the cluster again.
    """

    code = 21
    text = "protocol version {theirs} is not supported here, only {ours}; install the same zmqps on every node"
    ours: int
    theirs: int


class CodecError(ProtocolError):
    """No codec of that name is installed on this node, its package cannot be used there, or it fails.

    A server imports the codecs that come with zmqps, and those that an installed package declares; it
    imports nothing else, whatever a peer sends.

    What to do next
    ---------------
    - Check the spelling; docs/codecs.md lists the codecs.
    - Install a custom codec on every worker and server, in a package that declares it in the
      entry-point group `zmqps.codecs`. Start the nodes again after the installation.
    - If a custom codec cannot encode or decode, the text has its exception. Try it in one process:
      docs/codecs.md#your-own-codec shows how.
    """

    code = 27


class LimitError(ProtocolError):
    """A size or count beyond what the receiver accepts, refused before anything was allocated.

    What to do next
    ---------------
    - Request less in one call: fewer or shorter names, smaller tensors, fewer ids. docs/protocol.md has the limits and
      their reasons.
    - If you never requested that size, the other end is not zmqps.
    """

    code = 22
    text = "{what} of {got} is beyond the limit of {limit}"
    what: str
    got: int
    limit: int


class NotJoinedError(ProtocolError):
    """A request from a peer without a handshake, or after its handshake was forgotten.

    What to do next
    ---------------
    - Connect again: the node at the other end is a new one, or has forgotten this member while it was silent.
    """

    code = 23


class StaleEpochError(ProtocolError):
    """The message was addressed under an older placement of the shards.

    This is harmless: shards have moved, and the sender learns where they are and retries there.

    What to do next
    ---------------
    - Usually nothing: workers retry by themselves. If a script gets it, connect again.
    """

    code = 24
    text = "message of epoch {theirs}, the placement is of epoch {ours}"
    ours: int
    theirs: int


class SliceRangeError(ProtocolError, IndexError):
    """No such slice on this shard, or a range that does not fall on parameter boundaries.

    What to do next
    ---------------
    - Check that all workers define the same model, and connect again.
    - If they do, please report it: it is a defect of zmqps.
    """

    code = 25


class LedgerError(ProtocolError):
    """A sequence number so old that the ledger no longer knows whether it was applied.

    The push is not applied, because it may have been applied before.

    What to do next
    ---------------
    - Connect again, and continue with the next gradients. It takes thousands of pushes in flight, so look for a
      worker that was stopped for long.
    """

    code = 26
