"""Every wire message by its kind, the number behind its name on the wire; this is where all are imported from.

Each is an `immutable` class in the module of its subject. The annotations are the schema: `zmqps.core.protocol.wire`
checks every field of a received message against them before any machine sees it, so the machines may rely on types and
sizes, never on meaning. docs/protocol.md explains each message and which node answers it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from zmqps.core.protocol.message import Message as Message
from zmqps.core.protocol.messages.jobs import Assign as Assign
from zmqps.core.protocol.messages.jobs import Discard as Discard
from zmqps.core.protocol.messages.jobs import Discarded as Discarded
from zmqps.core.protocol.messages.jobs import EndJob as EndJob
from zmqps.core.protocol.messages.jobs import Init as Init
from zmqps.core.protocol.messages.jobs import Job as Job
from zmqps.core.protocol.messages.jobs import JobEnded as JobEnded
from zmqps.core.protocol.messages.jobs import Ready as Ready
from zmqps.core.protocol.messages.membership import Back as Back
from zmqps.core.protocol.messages.membership import Departed as Departed
from zmqps.core.protocol.messages.membership import Error as Error
from zmqps.core.protocol.messages.membership import Exited as Exited
from zmqps.core.protocol.messages.membership import ExitNoted as ExitNoted
from zmqps.core.protocol.messages.membership import Farewell as Farewell
from zmqps.core.protocol.messages.membership import Forgotten as Forgotten
from zmqps.core.protocol.messages.membership import Heartbeat as Heartbeat
from zmqps.core.protocol.messages.membership import HeartbeatAck as HeartbeatAck
from zmqps.core.protocol.messages.membership import Hello as Hello
from zmqps.core.protocol.messages.membership import Leave as Leave
from zmqps.core.protocol.messages.membership import Left as Left
from zmqps.core.protocol.messages.membership import Lost as Lost
from zmqps.core.protocol.messages.membership import Resumed as Resumed
from zmqps.core.protocol.messages.membership import Shutdown as Shutdown
from zmqps.core.protocol.messages.membership import Welcome as Welcome
from zmqps.core.protocol.messages.moving import ChangeKind as ChangeKind
from zmqps.core.protocol.messages.moving import Followed as Followed
from zmqps.core.protocol.messages.moving import Recalled as Recalled
from zmqps.core.protocol.messages.moving import View as View
from zmqps.core.protocol.messages.notes import Note as Note
from zmqps.core.protocol.messages.notes import Noted as Noted
from zmqps.core.protocol.messages.notes import checked_entries as checked_entries
from zmqps.core.protocol.messages.replication import Lead as Lead
from zmqps.core.protocol.messages.replication import Leading as Leading
from zmqps.core.protocol.messages.replication import Replicate as Replicate
from zmqps.core.protocol.messages.replication import Replicated as Replicated
from zmqps.core.protocol.messages.resizing import Cut as Cut
from zmqps.core.protocol.messages.resizing import Drain as Drain
from zmqps.core.protocol.messages.resizing import Draining as Draining
from zmqps.core.protocol.messages.resizing import DrainState as DrainState
from zmqps.core.protocol.messages.resizing import Scale as Scale
from zmqps.core.protocol.messages.resizing import Yield as Yield
from zmqps.core.protocol.messages.resizing import Yielded as Yielded
from zmqps.core.protocol.messages.rows import PullRows as PullRows
from zmqps.core.protocol.messages.rows import PushRows as PushRows
from zmqps.core.protocol.messages.rows import ScanRows as ScanRows
from zmqps.core.protocol.messages.saving import Checkpoint as Checkpoint
from zmqps.core.protocol.messages.saving import Checkpointed as Checkpointed
from zmqps.core.protocol.messages.saving import FileAnswer as FileAnswer
from zmqps.core.protocol.messages.saving import FileAsk as FileAsk
from zmqps.core.protocol.messages.saving import Hold as Hold
from zmqps.core.protocol.messages.saving import Holding as Holding
from zmqps.core.protocol.messages.saving import Save as Save
from zmqps.core.protocol.messages.saving import Saved as Saved
from zmqps.core.protocol.messages.saving import SaveStage as SaveStage
from zmqps.core.protocol.messages.saving import Unsave as Unsave
from zmqps.core.protocol.messages.steps import Arrive as Arrive
from zmqps.core.protocol.messages.steps import Commit as Commit
from zmqps.core.protocol.messages.steps import Committed as Committed
from zmqps.core.protocol.messages.steps import Enter as Enter
from zmqps.core.protocol.messages.steps import Proceed as Proceed
from zmqps.core.protocol.messages.steps import Range as Range
from zmqps.core.protocol.messages.steps import Released as Released
from zmqps.core.protocol.messages.steps import Take as Take
from zmqps.core.protocol.messages.steps import Waiting as Waiting
from zmqps.core.protocol.messages.steps import Withdraw as Withdraw
from zmqps.core.protocol.messages.tracing import Clock as Clock
from zmqps.core.protocol.messages.tracing import Fetch as Fetch
from zmqps.core.protocol.messages.tracing import Piece as Piece
from zmqps.core.protocol.messages.tracing import RecordSpans as RecordSpans
from zmqps.core.protocol.messages.tracing import SpansRecorded as SpansRecorded
from zmqps.core.protocol.messages.tracing import Trace as Trace
from zmqps.core.protocol.messages.tracing import TraceAction as TraceAction
from zmqps.core.protocol.messages.tracing import TraceState as TraceState
from zmqps.core.protocol.messages.tracing import Tracing as Tracing
from zmqps.core.protocol.messages.training import Ack as Ack
from zmqps.core.protocol.messages.training import Load as Load
from zmqps.core.protocol.messages.training import Pull as Pull
from zmqps.core.protocol.messages.training import Push as Push
from zmqps.core.protocol.messages.training import Tensors as Tensors
from zmqps.core.protocol.messages.training import Values as Values
from zmqps.core.protocol.messages.watching import Examine as Examine
from zmqps.core.protocol.messages.watching import Examined as Examined
from zmqps.core.protocol.messages.watching import Probe as Probe
from zmqps.core.protocol.messages.watching import Probed as Probed
from zmqps.core.protocol.messages.watching import Status as Status
from zmqps.core.protocol.messages.watching import StatusRequest as StatusRequest
from zmqps.core.protocol.messages.watching import Watch as Watch
from zmqps.core.protocol.terms import Measured as Measured
from zmqps.core.protocol.terms import RatesSet as RatesSet
from zmqps.core.protocol.terms import SetRates as SetRates

if TYPE_CHECKING:
    from zmqps.core.protocol.message import Buffer as Buffer

PROTOCOL_VERSION = 8
MAGIC = "zmqps"

#: States that messages carry; each is checked by the name of its class.
STATES: tuple[type[IntEnum], ...] = (ChangeKind, DrainState, SaveStage, TraceAction, TraceState)
# Not Message.__subclasses__(): slots=True makes each class twice, and the first one lingers there.
BY_KIND: dict[int, type[Message]] = {
    cls.kind: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Message) and hasattr(cls, "kind")
}
