"""Errors of shards that change hands, and of servers that come and go."""

from __future__ import annotations

from zmqps.errors.base import PSError


class DeposedError(PSError, ConnectionError):
    """This copy of a shard does not answer for it: another one does, or will as soon as the coordinator says so.

    What to do next
    ---------------
    - Nothing, as a rule: workers wait for the coordinator to say who answers now. If a script gets it, connect again.
    """

    code = 80
    text = (
        "this copy of a shard of the job {job!r} does not answer for it (generation {generation}): another server has "
        "taken over, or is about to; the coordinator tells which one, so wait for that"
    )
    job: str
    generation: int


class DrainError(PSError, RuntimeError):
    """A server that was to go has something that no other can take, so it stays; nothing has changed.

    What to do next
    ---------------
    - Do what the text says: mostly there has to be room on another server first. Start one (`zmqps server`), then drain
      again.
    - `zmqps status` shows what lies where.
    """

    code = 81
    text = "{server} cannot be drained: {why}; {advice}"
    server: str
    why: str
    advice: str


class ScaleError(PSError, RuntimeError):
    """Jobs cannot lie on so many servers; training goes on, on those that there are.

    What to do next
    ---------------
    - Do what the text says: start as many servers as there are to be, with room, then `zmqps scale --servers N` again.
    """

    code = 82
    text = "the cluster cannot have {servers} servers: {why}; {advice}"
    servers: int
    why: str
    advice: str
