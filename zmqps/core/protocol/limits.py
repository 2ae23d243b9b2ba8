"""Limits that both ends of a connection keep."""

from __future__ import annotations

#: A worker keeps fewer pushes than this unacknowledged at a server, which remembers as many results: a
#: push that is sent again is always among them.
PUSH_WINDOW = 4096
#: Bytes sent or asked for and not yet answered, a server: enough to keep both directions of a
#: connection busy, little enough that a slow server costs no memory.
WINDOW_NBYTES = 16 << 20
#: Bytes of answers that may wait for one peer to read them, besides one more message.
MAX_BACKLOG_NBYTES = 4 * WINDOW_NBYTES
#: Of all peers of a node: beyond it who does not read, or has most of it, is shut.
MAX_ALL_BACKLOGS_NBYTES = 64 * WINDOW_NBYTES
#: Steps whose gradients may wait at a server at the same time: the one being collected, and the next, whose first
#: gradients can overtake the commit on another connection. The coordinator lets nobody begin one beyond them.
OPEN_STEPS = 2
#: The name of a process's life, which it draws when it starts.
INCARNATION_NBYTES = 16
#: Of any text in a message.
MAX_TEXT_CHARS = 4096
#: An error has a handful of facts; of one that names hundreds of nodes the rest is cut off.
MAX_FACTS = 16
MAX_FACT_CHARS = 4096
#: Of bytes that travel in a header, which is no larger with them than what is decoded without a look at its cost.
MAX_BLOB_NBYTES = 48 << 10
