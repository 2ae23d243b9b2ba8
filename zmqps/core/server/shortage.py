"""A server's messages when memory is short."""

from __future__ import annotations

from zmqps.core.protocol.messages import Assign, Commit, Load, Message, Pull, PullRows, Push, PushRows, ScanRows
from zmqps.errors import ServerMemoryError

#: Characters of the allocator's message: the requested bytes, if it knows.
MAX_WHY_CHARS = 200
ASKED = {
    **{Push: "a push", PushRows: "a push of rows", Pull: "a pull", PullRows: "a pull of rows", ScanRows: "rows"},
    **{Load: "initial values", Assign: "a shard"},
}


def as_error(server: str, message: Message, error: MemoryError) -> ServerMemoryError:
    """Return the answer to a request for which a server lacked the memory."""
    what = f"step {message.step}" if isinstance(message, Commit) else ASKED.get(type(message), type(message).__name__)
    why = str(error)[:MAX_WHY_CHARS] or "the system gave none"
    answer = ServerMemoryError(server=server, what=what, why=why)
    answer.__cause__ = error
    return answer
