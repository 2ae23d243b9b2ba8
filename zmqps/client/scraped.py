"""A worker serves metrics for Prometheus, on a separate thread, as long as it is open."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from zmqps.client.thread import SessionThread
from zmqps.core.node.measured import Counted, Measurements
from zmqps.errors import ClosedError
from zmqps.net.lane.arena import Arenas
from zmqps.net.lane.shm import LaneTransport
from zmqps.web.metrics import ASK_S, answering
from zmqps.web.server import WebPlace

TOKEN_VARIABLE = "ZMQPS_METRICS_TOKEN"

log = logging.getLogger("zmqps.worker")


class Scraped:
    """Answers scrapes with a worker's counts of its present life.

    Parameters
    ----------
    place
        The address; empty: none.
    role, job
        The worker's.
    pinned
        Returns how many bytes are page-locked for its GPUs.

    Attributes
    ----------
    address
        The address of the metrics; empty: none.
    thread
        The counting thread; a later life has another one.
    """

    def __init__(self, place: WebPlace, role: str, job: str, pinned: Callable[[], int] = int) -> None:
        self._pinned = pinned
        self.thread: Callable[[], SessionThread | None] = lambda: None
        self._role, self._job = role, job
        self._stack = ExitStack()
        self.address = self._stack.enter_context(answering(place, self._measure, role, log))

    def follow(self, thread: SessionThread) -> None:
        """Show the counts of this thread from now on, without keeping it alive."""
        self.thread = weakref.ref(thread)

    def _measure(self) -> Measurements:
        thread = self.thread()
        if thread is None:
            return Measurements([])
        try:
            counters = thread.ask(thread.counted, "a scrape", ASK_S)
        except ClosedError:
            return Measurements([])
        member = thread.machine.member
        counted = Counted(scope="worker", role=self._role, rank=member.rank, job=self._job, counters=counters)
        return Measurements([counted] if member.joined else [])

    def held(self, arenas: Arenas, lanes: Sequence[LaneTransport]) -> Callable[[], dict[str, int]]:
        """Return a function that reports memory that others read or lend, and the part of it page-locked for GPUs."""
        pinned = self._pinned  # it must keep nothing else alive

        def told() -> dict[str, int]:
            borrowed = lanes[0].borrowed_nbytes if lanes else 0
            return {"shared_nbytes": arenas.nbytes, "borrowed_nbytes": borrowed, "pinned_nbytes": pinned()}

        return told

    def close(self) -> None:
        """Stop answering; repeating is harmless."""
        self._stack.close()


def scraped(owner: object, address: str, role: str, job: str, pinned: Callable[[], int]) -> Scraped:
    """Return an object that answers scrapes at an address until it is closed, or its owner garbage-collected."""
    place = WebPlace(address, os.environ.get(TOKEN_VARIABLE) or None)
    answers = Scraped(place, role, job, pinned)
    weakref.finalize(owner, answers.close).atexit = False
    return answers
