"""Every wire message by its kind, the number behind its name on the wire; this is where all are imported from.

Each is an `immutable` class in the module of its subject. The annotations are the schema: `zmqps.core.protocol.wire`
checks every field of a received message against them before anybody sees it, so the machines may rely on types and
sizes, never on meaning. docs/protocol.md explains each message and who answers what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zmqps.core.protocol.message import Message
from zmqps.core.protocol.messages.jobs import Assign, Discard, Discarded, EndJob, Init, Job, JobEnded, Ready
from zmqps.core.protocol.messages.membership import (
    Back,
    Departed,
    Error,
    Exited,
    ExitNoted,
    Farewell,
    Forgotten,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Leave,
    Left,
    Lost,
    Resumed,
    Shutdown,
    Welcome,
)
from zmqps.core.protocol.messages.moving import Followed, GoBack, Moved, Recalled, Recut
from zmqps.core.protocol.messages.notes import Note, Noted
from zmqps.core.protocol.messages.replication import Promote, Promoted, Replicas, Replicate, Replicated, Replicating
from zmqps.core.protocol.messages.resizing import Cut, Drain, Draining, Scale, Yield, Yielded
from zmqps.core.protocol.messages.rows import PullRows, PushRows, ScanRows
from zmqps.core.protocol.messages.saving import (
    Checkpoint,
    Checkpointed,
    FileAnswer,
    FileAsk,
    GoOn,
    Hold,
    Holding,
    Save,
    Saved,
    Unsave,
)
from zmqps.core.protocol.messages.steps import (
    Arrive,
    Commit,
    Committed,
    Enter,
    Proceed,
    Range,
    Released,
    Take,
    Waiting,
    Withdraw,
)
from zmqps.core.protocol.messages.tracing import Clock, Fetch, Piece, RecordSpans, SpansRecorded, Trace, Tracing
from zmqps.core.protocol.messages.training import Ack, Load, Pull, Push, Tensors, Values
from zmqps.core.protocol.messages.watching import Examine, Examined, Probe, Probed, Status, StatusRequest, Watch
from zmqps.core.protocol.terms import Measured, RatesSet, SetRates

if TYPE_CHECKING:
    from zmqps.core.protocol.message import Buffer as Buffer

__all__ = [
    "BY_KIND",
    "MAGIC",
    "PROTOCOL_VERSION",
    "Ack",
    "Arrive",
    "Assign",
    "Back",
    "Checkpoint",
    "Checkpointed",
    "Clock",
    "Commit",
    "Committed",
    "Cut",
    "Departed",
    "Discard",
    "Discarded",
    "Drain",
    "Draining",
    "EndJob",
    "Enter",
    "Error",
    "Examine",
    "Examined",
    "ExitNoted",
    "Exited",
    "Farewell",
    "Fetch",
    "FileAnswer",
    "FileAsk",
    "Followed",
    "Forgotten",
    "GoBack",
    "GoOn",
    "Heartbeat",
    "HeartbeatAck",
    "Hello",
    "Hold",
    "Holding",
    "Init",
    "Job",
    "JobEnded",
    "Leave",
    "Left",
    "Load",
    "Lost",
    "Measured",
    "Message",
    "Moved",
    "Note",
    "Noted",
    "Piece",
    "Probe",
    "Probed",
    "Proceed",
    "Promote",
    "Promoted",
    "Pull",
    "PullRows",
    "Push",
    "PushRows",
    "Range",
    "RatesSet",
    "Ready",
    "Recalled",
    "RecordSpans",
    "Recut",
    "Released",
    "Replicas",
    "Replicate",
    "Replicated",
    "Replicating",
    "Resumed",
    "Save",
    "Saved",
    "Scale",
    "ScanRows",
    "SetRates",
    "Shutdown",
    "SpansRecorded",
    "Status",
    "StatusRequest",
    "Take",
    "Tensors",
    "Trace",
    "Tracing",
    "Unsave",
    "Values",
    "Waiting",
    "Watch",
    "Welcome",
    "Withdraw",
    "Yield",
    "Yielded",
]

PROTOCOL_VERSION = 6
MAGIC = "zmqps"

# Not Message.__subclasses__(): slots=True makes each class twice, and the first one lingers there.
BY_KIND: dict[int, type[Message]] = {
    cls.kind: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Message) and hasattr(cls, "kind")
}
