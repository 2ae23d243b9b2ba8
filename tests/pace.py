"""How long tests may wait on this machine, as busy as it is: measured once, for all processes of a run.

A test that passes does not wait for a limit, so limits are generous: a busy machine is no failure, and a hang is
still found. What has to pass before a test goes on, such as a heartbeat timeout, is stretched by less.
"""

from __future__ import annotations

import os
import time

#: Where the measured factor is handed on, to xdist's processes and to those that tests start.
VARIABLE = "PYTEST_PACE_OF_ZMQPS"
#: Seconds that `work` takes on the machine that the limits were written on, one of the slower ones of today.
USUAL_S = 0.025
#: Load may come when all is measured: eight busy processes beside a test on two cores take up to five times as long.
MARGIN = 4.0
#: No machine is so slow that a hang would have to be waited for longer.
MOST = 10.0


def work() -> int:
    """Compute for a moment, as an interpreter does."""
    total = 0
    for number in range(400_000):
        total += number & 3
    return total


def load() -> float:
    """Return how many have wanted a core in the last minute, for each core that there is."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def slowness() -> float:
    """Return how much longer than usual work takes here and now: by a trial, and by how many wait for a core."""
    began = time.perf_counter()
    work()
    trial = (time.perf_counter() - began) / USUAL_S
    return min(MOST, max(1.0, trial, load()))


SLOWNESS = float(os.environ.setdefault(VARIABLE, f"{slowness():.2f}"))


def now() -> float:
    """Return how much slower than usual this machine is: as measured at first, or by the load since then."""
    return min(MOST, max(SLOWNESS, load()))


def allow(seconds: float) -> float:
    """Return how long something may take here that takes a fraction of so many seconds on an idle machine."""
    return seconds * max(MARGIN, 2 * now())


def stretch(seconds: float) -> float:
    """Return how long to let pass what a test waits for in full, or how soon something has to be done.

    That is as it is written on an idle machine, and longer on a busy one.
    """
    return seconds * now()
