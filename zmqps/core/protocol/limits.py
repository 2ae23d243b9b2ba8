"""Limits that both ends of a connection enforce."""

from __future__ import annotations

#: A worker has fewer unacknowledged pushes than this at a server, which remembers as many results: a resent push is
#: always among them.
PUSH_WINDOW = 4096
#: Bytes sent or requested and not yet answered, per server: enough to keep both directions of a connection busy, and
#: little enough that a slow server costs no memory.
WINDOW_NBYTES = 16 << 20
#: Bytes of answers that may wait for one peer to read them, besides one more message.
MAX_BACKLOG_NBYTES = 4 * WINDOW_NBYTES
#: Of all peers of a node: beyond it a peer that does not read, or has the most to read, is shut.
MAX_ALL_BACKLOGS_NBYTES = 64 * WINDOW_NBYTES
#: Steps whose gradients may wait at a server at the same time: the one being collected, and the next, whose first
#: gradients can overtake the commit on another connection. The coordinator lets no worker begin one beyond them.
OPEN_STEPS = 2
#: The identifier of a process's life, drawn when it starts.
INCARNATION_NBYTES = 16
#: Of any text in a message.
MAX_TEXT_CHARS = 4096
#: An error has a handful of facts; if it names hundreds of nodes the rest is cut off.
MAX_FACTS = 16
MAX_FACT_CHARS = 4096
#: Of bytes in a header, so that the header stays below the size that is decoded without a check of its cost.
MAX_BLOB_NBYTES = 48 << 10
