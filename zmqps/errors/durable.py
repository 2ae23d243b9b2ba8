"""Errors of shards that change hands, and of servers that come and go."""

from __future__ import annotations

from zmqps.errors.base import PSError


class DeposedError(PSError, ConnectionError):
    """This replica does not lead its shard: another one does, or is about to.

    What to do next
    ---------------
    - Usually nothing: workers wait until the coordinator names the new leader. If a script gets it, connect again.
    """

    code = 80
    text = (
        "this copy of a shard of the job {job!r} does not lead it (generation {generation}): another server has taken "
        "over, or is about to; wait until the coordinator names it"
    )
    job: str
    generation: int


class DrainError(PSError, RuntimeError):
    """A server cannot be drained, because no other server can take its shards. It stays; nothing has changed.

    What to do next
    ---------------
    - Do what the text says: usually start another server (`zmqps server`), then drain
      again.
    - `zmqps status` shows where each shard is.
    """

    code = 81
    text = "{server} cannot be drained: {why}; {advice}"
    server: str
    why: str
    advice: str


class ScaleError(PSError, RuntimeError):
    """The jobs cannot be placed on that many servers; training continues on the present ones.

    What to do next
    ---------------
    - Do what the text says: start enough servers with enough room, then run `zmqps scale --servers N` again.
    """

    code = 82
    text = "the cluster cannot have {servers} servers: {why}; {advice}"
    servers: int
    why: str
    advice: str
