"""Which role may send what: one table of (role, message), checked by coordinator and servers before anything else.

Two roles count, and both must allow a message: the role in a member's `Hello` and, with keys, the role of the key that
opened its connection. The transport knows the key.
"""

from __future__ import annotations

from typing import NamedTuple

from zmqps.core.protocol import messages as m
from zmqps.errors import IdentityError, KeyRefusedError, ProtocolError

STRANGER, OBSERVER, WORKER, SERVER, OPERATOR = "stranger", "observer", "worker", "server", "operator"
#: The senders on connections that a server has opened itself.
COORDINATOR, BACKUP = "coordinator", "backup"

#: Role of a key -> roles of its connection. A node's key also has the operator's.
ALLOWS = {
    "node": (STRANGER, OBSERVER, WORKER, SERVER, OPERATOR),
    "worker": (STRANGER, OBSERVER, WORKER),
    "observer": (STRANGER, OBSERVER),
}
KEY_ROLES = tuple(ALLOWS)

_LOOKERS = frozenset({OBSERVER, WORKER})
_MEMBERS = _LOOKERS | {SERVER}
_ANYBODY = _MEMBERS | {STRANGER}
_NOBODY = frozenset[str]()


class Row(NamedTuple):
    """Which roles may send a message, to the coordinator and to a server.

    ``does`` is what it allows them to do: it follows "may" in errors and in docs/security.md. If a message may name its
    subject, ``names`` is that field: there is a row for messages that do, and one for others.
    """

    message: type[m.Message]
    does: str
    coordinator: frozenset[str] = _NOBODY
    server: frozenset[str] = _NOBODY
    names: str = ""


def _from(*roles: str) -> frozenset[str]:
    return frozenset(roles)


#: Every message that the coordinator or a server takes.
TABLE = (
    Row(m.StatusRequest, "ask for the status", _ANYBODY),
    Row(m.Watch, "watch the cluster", _ANYBODY),
    Row(m.Examine, "ask whether all nodes answer", _ANYBODY),
    Row(m.Exited, "report the end of a process whose token it shows", _ANYBODY),
    Row(m.Hello, "introduce itself", _ANYBODY, _ANYBODY),
    Row(m.Leave, "leave", _ANYBODY, _ANYBODY),
    Row(m.Farewell, "leave a coordinator that was away", _ANYBODY),
    Row(m.Heartbeat, "send heartbeats", _MEMBERS),
    Row(m.Probed, "answer a health check", _MEMBERS),
    Row(m.SpansRecorded, "report the progress of a recording", _MEMBERS),
    Row(m.Piece, "deliver its recording", _MEMBERS),
    Row(m.Init, "ask for its present job", _LOOKERS),
    Row(m.Withdraw, "withdraw its request", _LOOKERS, _LOOKERS),
    Row(m.Resumed, "resume with a returned coordinator", _LOOKERS),
    Row(m.Followed, "confirm a new placement", _LOOKERS),
    Row(m.Note, "log values of its job", _LOOKERS),
    Row(m.Pull, "pull values", server=_LOOKERS),
    Row(m.PullRows, "pull rows", server=_LOOKERS),
    Row(m.ScanRows, "read a table", server=_LOOKERS),
    Row(m.Init, "begin a job", _from(WORKER), names="job"),
    Row(m.Arrive, "end a step", _from(WORKER)),
    Row(m.Enter, "enter a barrier", _from(WORKER)),
    Row(m.Take, "take a range of a data set", _from(WORKER)),
    Row(m.SetRates, "set hyperparameters", _from(WORKER)),
    Row(m.Holding, "report that it has paused", _from(WORKER)),
    Row(m.Checkpoint, "save its own job", _from(WORKER)),
    Row(m.Push, "push", server=_from(WORKER)),
    Row(m.PushRows, "push rows", server=_from(WORKER)),
    Row(m.Load, "upload initial values", server=_from(WORKER)),
    Row(m.Ready, "report a built shard", _from(SERVER)),
    Row(m.Committed, "report an applied step", _from(SERVER)),
    Row(m.Measured, "report the size of a mean", _from(SERVER)),
    Row(m.Leading, "report that it leads a shard, and its backups", _from(SERVER)),
    Row(m.Yielded, "report that it no longer leads a shard", _from(SERVER)),
    Row(m.Discarded, "report a freed shard", _from(SERVER)),
    Row(m.Forgotten, "report a forgotten member", _from(SERVER)),
    Row(m.Saved, "report the progress of its part of a checkpoint", _from(SERVER)),
    Row(m.FileAsk, "use the coordinator's checkpoints", _from(SERVER)),
    Row(m.Drain, "ask to be drained", _from(SERVER)),
    Row(m.Error, "report a failure", _from(SERVER), _from(COORDINATOR, BACKUP)),
    Row(m.Replicate, "send a backup what was applied", server=_from(SERVER)),
    Row(m.Checkpoint, "save jobs", _from(OPERATOR), names="job"),
    Row(m.EndJob, "end jobs and the cluster", _from(OPERATOR)),
    Row(m.Drain, "drain servers", _from(OPERATOR), names="server"),
    Row(m.Scale, "change the number of servers", _from(OPERATOR)),
    Row(m.Examine, "see what the threads of a node are doing", _from(OPERATOR), names="node"),
    Row(m.Trace, "trace where time goes", _from(OPERATOR)),
    Row(m.Fetch, "fetch a trace", _from(OPERATOR), _from(COORDINATOR)),
    Row(m.Welcome, "accept it", server=_from(COORDINATOR, BACKUP)),
    Row(m.Replicated, "confirm what it received", server=_from(BACKUP)),
    Row(m.Left, "confirm that it has left", server=_from(COORDINATOR, BACKUP)),
    Row(m.Back, "report that it was away", server=_from(COORDINATOR)),
    Row(m.HeartbeatAck, "answer a heartbeat", server=_from(COORDINATOR)),
    Row(m.Probe, "check its health", server=_from(COORDINATOR)),
    Row(m.RecordSpans, "start a recording", server=_from(COORDINATOR)),
    Row(m.Clock, "compare clocks", server=_from(COORDINATOR)),
    Row(m.Assign, "assign a shard", server=_from(COORDINATOR)),
    Row(m.Commit, "commit a step", server=_from(COORDINATOR)),
    Row(m.Discard, "discard a shard", server=_from(COORDINATOR)),
    Row(m.Departed, "report a departed member", server=_from(COORDINATOR)),
    Row(m.Save, "have a shard saved", server=_from(COORDINATOR)),
    Row(m.Unsave, "abandon a checkpoint", server=_from(COORDINATOR)),
    Row(m.FileAnswer, "answer a request for a file", server=_from(COORDINATOR)),
    Row(m.Lead, "make it lead a shard, and name its backups", server=_from(COORDINATOR)),
    Row(m.Yield, "make it give up a shard", server=_from(COORDINATOR)),
    Row(m.Cut, "divide shards", server=_from(COORDINATOR)),
    Row(m.Draining, "report the progress of its drain", server=_from(COORDINATOR)),
    Row(m.Shutdown, "end it", server=_from(COORDINATOR)),
)  # fmt: skip
#: Messages to workers, observers and clients, and between processes of one job: neither the coordinator nor a server
#: takes them. A new message is listed here or in the table.
NOT_TAKEN = (
    m.Ack, m.Checkpointed, m.Examined, m.ExitNoted, m.Hold, m.Job, m.JobEnded, m.Lost,
    m.Noted, m.Proceed, m.Range, m.RatesSet, m.Recalled, m.Released, m.Status, m.Tensors, m.Tracing,
    m.Values, m.View, m.Waiting,
)  # fmt: skip
#: The field by which some messages name their subject.
NAMES = {row.message: row.names for row in TABLE if row.names}
#: Messages of operators: for these the transport reports the connection's key.
ORDERS = frozenset(row.message for row in TABLE if OPERATOR in row.coordinator)
_TO_COORDINATOR = {(row.message, bool(row.names)): row for row in TABLE if row.coordinator}
#: Role -> what a server takes from it.
TO_SERVER = {
    role: frozenset(row.message for row in TABLE if role in row.server)
    for role in (STRANGER, OBSERVER, WORKER, SERVER, COORDINATOR, BACKUP)
}


class KeyHolder(NamedTuple):
    """The key that opened a connection: keys of one name belong to the same holder; a new one replaces the old one."""

    role: str
    name: str

    def __str__(self) -> str:
        return f"the {self.role}'s key {self.name!r}"


def row_of(message: m.Message) -> Row | None:
    """Return the row of a message to the coordinator; None: it takes that from no role."""
    names = NAMES.get(type(message))
    return _TO_COORDINATOR.get((type(message), names is not None and bool(getattr(message, names))))


def check_sender(message: m.Message, role: str, holder: KeyHolder | None, *, keyed: bool) -> Row:
    """Return the row of the table by which a coordinator takes a message.

    A `STRANGER` that sends a member's message has not joined: the caller answers that. The caller also checks an
    operator's proof, if there are no keys.

    Parameters
    ----------
    message
        The message.
    role
        The role in its sender's `Hello`; `STRANGER`: it sent none.
    holder
        The key that a member has joined with, or that a stranger's connection was opened with, if it may give orders;
        None: none, or one without meaning here.
    keyed
        Whether connections need a key.

    Raises
    ------
    IdentityError
        The role, or that of the key, does not allow it.
    ProtocolError
        The coordinator takes this message from no role.
    """
    row = row_of(message)
    if row is None:
        raise ProtocolError(f"the coordinator takes no {type(message).__name__}")
    allowed = row.coordinator
    if role == STRANGER and allowed.isdisjoint((STRANGER, OPERATOR)):
        return row
    if keyed and allowed.isdisjoint(ALLOWS.get(holder.role, ()) if holder else (STRANGER,)):
        takes = "; the cluster's owner can make one that does: zmqps keys token"
        if OPERATOR in allowed:
            takes = "; that takes a node's: run it with --keys DIR where the cluster's nodes have theirs"
        shown = str(holder) if holder else "a connection without one"
        raise IdentityError(f"this cluster has keys, and {shown} does not allow to {row.does}{takes}")
    if role not in allowed and role != STRANGER:  # with a node's key, or by a proof, it is an operator's
        raise _refusal(role, row.does, allowed)
    return row


def check_client(message: m.Message, role: str) -> None:
    """Raise unless a server takes a message from a role; see `check_sender`."""
    kind = type(message)
    if kind in TO_SERVER[role]:
        return
    row = next((row for row in TABLE if row.message is kind and row.server), None)
    if row is None:
        raise ProtocolError(f"a server does not take {kind.__name__}")
    raise _refusal(role, row.does, row.server)


def _refusal(role: str, does: str, allowed: frozenset[str]) -> IdentityError:
    one = "an" if role[0] in "aeiou" else "a"
    others = " or ".join(f"{'an' if other[0] in 'aeiou' else 'a'} {other}" for other in sorted(allowed))
    return IdentityError(f"{one} {role} may not {does}; that is for {others} (docs/security.md#roles)")


def check_role(holder: KeyHolder | None, role: str, *, keyed: bool) -> None:
    """Raise `IdentityError` unless a key may join in a role; ``keyed``: joining needs a key."""
    if holder is None:
        if keyed:
            raise IdentityError(f"this cluster has keys, and a {role} shows none; nothing has changed")
        return
    if role not in ALLOWS.get(holder.role, ()):
        raise IdentityError(
            f"{holder} does not allow to join as a {role}; the cluster's owner can make one that does: zmqps keys"
        )


def check_same(before: KeyHolder | None, holder: KeyHolder | None, title: str) -> None:
    """Raise `IdentityError` if a member that joined with one key comes back with another holder's."""
    if before != holder:
        raise IdentityError(f"{title} has joined with {before or 'no key'}; this Hello came with {holder or 'none'}")


def shut_out(role: str, why: str = "its key was revoked, or has expired") -> KeyRefusedError:
    """Return the error text for a key that is no longer valid."""
    return KeyRefusedError(address="the cluster", role=role, why=why)
