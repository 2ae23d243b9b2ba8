"""Errors of shards that change hands, and of servers that come and go."""

from __future__ import annotations

from zmqps.errors.base import PSError


class DeposedError(PSError, ConnectionError):
    """This copy of a shard does not answer for it: another one does, or will as soon as the coordinator says so."""

    code = 80
    text = (
        "this copy of a shard of the job {job!r} does not answer for it (generation {generation}): another server has "
        "taken over, or is about to; the coordinator tells which one, so wait for that"
    )
    job: str
    generation: int


class DrainError(PSError, RuntimeError):
    """A server that was to go has something that no other can take, so it stays; nothing has changed."""

    code = 81
    text = "{server} cannot be drained: {why}; {advice}"
    server: str
    why: str
    advice: str


class ScaleError(PSError, RuntimeError):
    """Jobs cannot lie on so many servers; training goes on, on those that there are."""

    code = 82
    text = "the cluster cannot have {servers} servers: {why}; {advice}"
    servers: int
    why: str
    advice: str
