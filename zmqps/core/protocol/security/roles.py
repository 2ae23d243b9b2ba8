"""Who may send what: one table of (role, message), by which coordinator and servers decide before they do anything.

Two roles count, and both must allow a message: the one that a member has said `Hello` with, and that of the key that
its connection was opened with, where there are keys. The transport says whose key that is.
"""

from __future__ import annotations

from typing import NamedTuple

from zmqps.core.protocol import messages as m
from zmqps.errors import IdentityError, KeyRefusedError, ProtocolError

STRANGER, OBSERVER, WORKER, SERVER, OPERATOR = "stranger", "observer", "worker", "server", "operator"
#: Of what a server hears over connections that it has opened itself.
COORDINATOR, BACKUP = "coordinator", "backup"

#: Role of a key -> what its connection may be. A node's is the operator's as well.
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
    """Who may send a message, to the coordinator and to a server.

    ``does`` is what they may do by it: it follows "may" in errors and in docs/security.md. Of a message that may name
    whose it is ``names`` is the field that does: there is a row for those that do, and one for the others.
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
    Row(m.Exited, "say that a process has ended whose token it shows", _ANYBODY),
    Row(m.Hello, "say who it is", _ANYBODY, _ANYBODY),
    Row(m.Leave, "leave", _ANYBODY, _ANYBODY),
    Row(m.Farewell, "leave a coordinator that was away", _ANYBODY),
    Row(m.Heartbeat, "give signs of life", _MEMBERS),
    Row(m.Probed, "answer whether it is well", _MEMBERS),
    Row(m.SpansRecorded, "tell how far it is with a recording", _MEMBERS),
    Row(m.Piece, "hand over what it has recorded", _MEMBERS),
    Row(m.Init, "ask for its job as it is", _LOOKERS),
    Row(m.Withdraw, "withdraw a request of its own", _LOOKERS, _LOOKERS),
    Row(m.Resumed, "go on with a coordinator that is back", _LOOKERS),
    Row(m.Followed, "say that it knows where shards are now", _LOOKERS),
    Row(m.Note, "log values of its job", _LOOKERS),
    Row(m.Pull, "pull values", server=_LOOKERS),
    Row(m.PullRows, "pull rows", server=_LOOKERS),
    Row(m.ScanRows, "read a table", server=_LOOKERS),
    Row(m.Init, "begin a job", _from(WORKER), names="job"),
    Row(m.Arrive, "end a step", _from(WORKER)),
    Row(m.Enter, "enter a barrier", _from(WORKER)),
    Row(m.Take, "take a range of a data set", _from(WORKER)),
    Row(m.SetRates, "set hyperparameters", _from(WORKER)),
    Row(m.Holding, "say that it has paused", _from(WORKER)),
    Row(m.Checkpoint, "save its own job", _from(WORKER)),
    Row(m.Push, "push", server=_from(WORKER)),
    Row(m.PushRows, "push rows", server=_from(WORKER)),
    Row(m.Load, "upload initial values", server=_from(WORKER)),
    Row(m.Ready, "say that a shard is built", _from(SERVER)),
    Row(m.Committed, "say that a step is applied", _from(SERVER)),
    Row(m.Measured, "say how large a mean is", _from(SERVER)),
    Row(m.Leading, "say that it leads a shard, with which backups", _from(SERVER)),
    Row(m.Yielded, "say that it leads a shard no more", _from(SERVER)),
    Row(m.Discarded, "say that a shard is freed", _from(SERVER)),
    Row(m.Forgotten, "say that a member is forgotten", _from(SERVER)),
    Row(m.Saved, "say how far its part of a checkpoint is", _from(SERVER)),
    Row(m.FileAsk, "use the coordinator's checkpoints", _from(SERVER)),
    Row(m.Drain, "ask to be drained itself", _from(SERVER)),
    Row(m.Error, "say what has failed", _from(SERVER), _from(COORDINATOR, BACKUP)),
    Row(m.Replicate, "tell a backup what was applied", server=_from(SERVER)),
    Row(m.Checkpoint, "save jobs", _from(OPERATOR), names="job"),
    Row(m.EndJob, "end jobs and the cluster", _from(OPERATOR)),
    Row(m.Drain, "drain servers", _from(OPERATOR), names="server"),
    Row(m.Scale, "change the number of servers", _from(OPERATOR)),
    Row(m.Examine, "see what the threads of a node are doing", _from(OPERATOR), names="node"),
    Row(m.Trace, "trace where time goes", _from(OPERATOR)),
    Row(m.Fetch, "fetch a trace", _from(OPERATOR), _from(COORDINATOR)),
    Row(m.Welcome, "take it in", server=_from(COORDINATOR, BACKUP)),
    Row(m.Replicated, "confirm what it was told", server=_from(BACKUP)),
    Row(m.Left, "confirm that it has left", server=_from(COORDINATOR, BACKUP)),
    Row(m.Back, "say that it was away", server=_from(COORDINATOR)),
    Row(m.HeartbeatAck, "answer a sign of life", server=_from(COORDINATOR)),
    Row(m.Probe, "ask whether it is well", server=_from(COORDINATOR)),
    Row(m.RecordSpans, "let it record", server=_from(COORDINATOR)),
    Row(m.Clock, "compare clocks", server=_from(COORDINATOR)),
    Row(m.Assign, "give it a shard", server=_from(COORDINATOR)),
    Row(m.Commit, "let it apply a step", server=_from(COORDINATOR)),
    Row(m.Discard, "let it free a shard", server=_from(COORDINATOR)),
    Row(m.Departed, "say that a member has gone", server=_from(COORDINATOR)),
    Row(m.Save, "let it save a shard", server=_from(COORDINATOR)),
    Row(m.Unsave, "give a checkpoint up", server=_from(COORDINATOR)),
    Row(m.FileAnswer, "answer about a file", server=_from(COORDINATOR)),
    Row(m.Lead, "let it lead a shard, with which backups", server=_from(COORDINATOR)),
    Row(m.Yield, "let it give up a shard", server=_from(COORDINATOR)),
    Row(m.Cut, "let it cut shards anew", server=_from(COORDINATOR)),
    Row(m.Draining, "say how far it is drained", server=_from(COORDINATOR)),
    Row(m.Shutdown, "end it", server=_from(COORDINATOR)),
)  # fmt: skip
#: What workers, observers and those who ask are told, and what processes of one job say to each other: neither the
#: coordinator nor a server takes it from anybody. A new message stands here or in the table.
NOT_TAKEN = (
    m.Ack, m.Checkpointed, m.Examined, m.ExitNoted, m.Hold, m.Job, m.JobEnded, m.Lost,
    m.Noted, m.Proceed, m.Range, m.RatesSet, m.Recalled, m.Released, m.Status, m.Tensors, m.Tracing,
    m.Values, m.View, m.Waiting,
)  # fmt: skip
#: The field by which some messages name whose they are.
NAMES = {row.message: row.names for row in TABLE if row.names}
#: What operators send: of these the transport says whose key the connection was opened with.
ORDERS = frozenset(row.message for row in TABLE if OPERATOR in row.coordinator)
_TO_COORDINATOR = {(row.message, bool(row.names)): row for row in TABLE if row.coordinator}
#: Role -> what a server takes from it.
TO_SERVER = {
    role: frozenset(row.message for row in TABLE if role in row.server)
    for role in (STRANGER, OBSERVER, WORKER, SERVER, COORDINATOR, BACKUP)
}


class KeyHolder(NamedTuple):
    """Whose key a connection was opened with: keys of one name are the same one's, a new one follows the old one."""

    role: str
    name: str

    def __str__(self) -> str:
        return f"the {self.role}'s key {self.name!r}"


def row_of(message: m.Message) -> Row | None:
    """Return the row of what is sent to the coordinator; None: it takes that from nobody."""
    names = NAMES.get(type(message))
    return _TO_COORDINATOR.get((type(message), names is not None and bool(getattr(message, names))))


def check_sender(message: m.Message, role: str, holder: KeyHolder | None, *, keyed: bool) -> Row:
    """Return the row of the table by which a coordinator listens to a message.

    A `STRANGER` that says what only members say has not joined: that is for the caller to tell it. So is whether an
    operator proves that it is one, where there are no keys.

    Parameters
    ----------
    message
        What was sent.
    role
        What its sender has said `Hello` as; `STRANGER`: it has not.
    holder
        Whose key a member has joined with, or a stranger's connection was opened with, if it may give orders; None:
        it shows none, or one that is of no account here.
    keyed
        Whether nobody connects without a key.

    Raises
    ------
    IdentityError
        The role, or that of the key, does not allow it.
    ProtocolError
        The coordinator takes this from nobody.
    """
    row = row_of(message)
    if row is None:
        raise ProtocolError(f"the coordinator takes no {type(message).__name__}")
    allowed = row.coordinator
    if role == STRANGER and allowed.isdisjoint((STRANGER, OPERATOR)):
        return row
    if keyed and allowed.isdisjoint(ALLOWS.get(holder.role, ()) if holder else (STRANGER,)):
        takes = "; whoever runs the cluster makes one that does: zmqps keys token"
        if OPERATOR in allowed:
            takes = "; that takes a node's: run it with --keys DIR where the cluster's nodes have theirs"
        shown = str(holder) if holder else "a connection without one"
        raise IdentityError(f"this cluster has keys, and {shown} does not allow to {row.does}{takes}")
    if role not in allowed and role != STRANGER:  # with a node's key, or by a proof, it is an operator's
        raise _refusal(role, row.does, allowed)
    return row


def check_client(message: m.Message, role: str) -> None:
    """Raise unless a server listens to a message that comes from a role; see `check_sender`."""
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
    """Raise `IdentityError` unless a key allows to join in a role; ``keyed``: nobody joins without a key."""
    if holder is None:
        if keyed:
            raise IdentityError(f"this cluster has keys, and a {role} shows none; nothing has changed")
        return
    if role not in ALLOWS.get(holder.role, ()):
        raise IdentityError(
            f"{holder} does not allow to join as a {role}; whoever runs the cluster makes one that does: zmqps keys"
        )


def check_same(before: KeyHolder | None, holder: KeyHolder | None, title: str) -> None:
    """Raise `IdentityError` if somebody who has joined with one key comes back with another one's."""
    if before != holder:
        raise IdentityError(f"{title} has joined with {before or 'no key'}; this Hello came with {holder or 'none'}")


def shut_out(role: str, why: str = "its key was revoked, or has expired") -> KeyRefusedError:
    """Return what somebody is told whose key opens nothing any more."""
    return KeyRefusedError(address="the cluster", role=role, why=why)
