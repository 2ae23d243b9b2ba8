"""Honest training whose values are known exactly, in processes of their own.

Worker ``i`` pushes whole numbers to parameters of its own and to a shared one, with plain descent and a rate of 1. In
asynchronous mode its own parameters are minus what it has pushed and had acknowledged, after each step. In synchronous
mode the shared parameter is minus three times the version, whoever contributes: the first worker pushes 2, the
second 4, others 3, and any mean of these with both in it is 3.

``python -m tests.attack.training ADDRESS MODE INDEX TALLY`` trains until it is told to stop. What it has done stands in
a file that others map, so it is known of a worker that was killed, too.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.pace import allow

#: Elements of each parameter; two servers share them in slices of 32 KiB.
SIZE = 20_000
SLICE_NBYTES = 32 << 10
#: Workers that train from the beginning; others come and are killed.
CORE = 2
MAX_WORKERS = 3
#: What each of them pushes to the shared parameter, and to its own.
SHARED, OWN = (2, 4, 3), 6
#: Seconds that a step takes at least, as if a gradient had to be computed: an attacker on another machine
#: would take nothing of this one's processors, and one on this machine takes what training leaves.
STEP_S = 0.012
#: Seconds that any step may take before the training counts as broken.
PATIENCE = allow(60.0)
NAMES = ("begun", "acknowledged", "wrong", "failed", "stop", "longest_us", "incarnation_hi", "incarnation_lo", "ready")


class Tally:
    """Numbers that processes share through a file: one row a worker."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8 * len(NAMES) * MAX_WORKERS))
        self.path = path
        self._rows = np.memmap(path, np.int64, "r+", shape=(MAX_WORKERS, len(NAMES)))

    def get(self, index: int, name: str) -> int:
        """Return a number of a worker."""
        return int(self._rows[index, NAMES.index(name)])

    def set(self, index: int, name: str, value: int) -> None:
        """Write a number of a worker."""
        self._rows[index, NAMES.index(name)] = value

    def clear(self, index: int) -> None:
        """Forget a worker."""
        self._rows[index] = 0

    def incarnation(self, index: int) -> bytes:
        """Return the incarnation of a worker."""
        words = self._rows[index, [NAMES.index("incarnation_hi"), NAMES.index("incarnation_lo")]]
        return words.astype("<i8").tobytes()


def parameters() -> dict[str, np.ndarray]:
    """Return the initial values."""
    return {name: np.zeros(SIZE, np.float32) for name in ("shared", *(f"own{i}" for i in range(MAX_WORKERS)))}


def gradients(mode: str, index: int) -> dict[str, np.ndarray]:
    """Return what a worker pushes in each step; a synchronous step is over when all parameters were pushed."""
    amounts = {"shared": SHARED[index], f"own{index}": OWN}
    names = parameters() if mode == "sync" else amounts
    return {name: np.full(SIZE, amounts.get(name, 0), np.float32) for name in names}


def is_right(mode: str, index: int, acknowledged: int, pulled: Mapping[str, Any], version: int) -> bool:
    """Whether what a worker has pulled after a step is what was pushed."""
    if mode == "sync":
        return bool((pulled["shared"] == -3.0 * version).all())
    # what others pushed in its place before it was killed is only known at the end
    return index >= CORE or bool((pulled[f"own{index}"] == -float(OWN) * acknowledged).all())


def train(address: str, mode: str, index: int, tally: Tally) -> None:
    """Push and pull until told to stop."""
    import zmqps

    with zmqps.connect(address, name=f"honest-{index}", timeout=PATIENCE) as worker:
        worker.init(
            parameters(),
            optimizer=zmqps.optim.sgd(1.0),
            mode=mode,
            timeout=PATIENCE,
        )
        incarnation = np.frombuffer(worker._member.connection.thread.machine.member.identity.incarnation, "<i8")
        tally.set(index, "incarnation_hi", incarnation[0])
        tally.set(index, "incarnation_lo", incarnation[1])
        gradient, names = gradients(mode, index), ["shared", f"own{index}"]
        acknowledged = 0
        began = time.monotonic()
        while not 0 < tally.get(index, "stop") <= acknowledged:
            tally.set(index, "begun", acknowledged + 1)
            worker.push(gradient, timeout=PATIENCE)
            acknowledged += 1
            tally.set(index, "acknowledged", acknowledged)
            pulled = worker.pull(names, timeout=PATIENCE)
            if not is_right(mode, index, acknowledged, pulled, pulled.version):
                tally.set(index, "wrong", tally.get(index, "wrong") + 1)
            took = time.monotonic() - began
            tally.set(index, "longest_us", max(tally.get(index, "longest_us"), int(took * 1e6)))
            time.sleep(max(0.0, STEP_S - took))  # the gradient is computed
            began = time.monotonic()
            tally.set(index, "ready", 1)


def main(address: str, mode: str, index: str, path: str) -> None:
    """Train; write why not where it fails."""
    tally = Tally(Path(path))
    try:
        train(address, mode, int(index), tally)
    except BaseException:
        tally.set(int(index), "failed", 1)
        traceback.print_exc()
        raise SystemExit(1) from None


if __name__ == "__main__":
    main(*sys.argv[1:])
