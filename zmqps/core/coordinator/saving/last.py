"""The last checkpoint of a job: whether one is needed before it ends, how often it is tried, and what is said of it."""

from __future__ import annotations

from zmqps.core.coordinator.run import JobRun
from zmqps.core.coordinator.saving.making import Making, Wish
from zmqps.core.protocol.events import Log

#: So often it is tried: a server may have died meanwhile, or a worker did not pause.
TRIES = 3
#: It waits no longer for its turn, as while the shards are being cut anew.
WAITS_S = 600.0
TORN = "not all of its values are there any more"


def last_wish(run: JobRun, now: float) -> Wish | None:
    """Return the wish for the last checkpoint of a job; None where no step was made since the one before.

    How many pushes there were is known of synchronous jobs alone: others are always saved.
    """
    saved = run.fallback.good[-1].version if run.fallback.good else 0
    if run.is_whole and run.mode == "sync" and run.steps.clock == saved:
        return None
    consistent = run.mode != "async" or not len(run.workers)
    return Wish(job=run.name, consistent=consistent, tries=TRIES, begin_by=now + WAITS_S)


def unsaved(job: str, why: str) -> Log:
    """Say that a job ends without one."""
    return Log("error", f"job {job!r} ends without a last checkpoint: {why}", "checkpoint failed", job=job)


def try_again(making: Making) -> bool:
    """Take note that one has failed; return whether it is tried again, without a pause if that was not kept."""
    wish = making.wish
    if wish.tries < 2 or not making.run.is_whole:
        return False
    wish.tries, wish.pauses = wish.tries - 1, wish.pauses and making.cut.by is None
    return True
