"""The processors of a host: threads that share an update, and work of no haste that leaves them to others.

An update treats every element by itself, so blocks of it give the same bits as the whole, in whatever order they are
done. The kernels release the interpreter lock while they compute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from zmqps.core.protocol.arrays import Array
from zmqps.core.server.dense.rules import UpdateKernel
from zmqps.errors import InternalError

#: More than machines have cores to spare for one server.
MAX_APPLY_THREADS = 64
#: Bytes of one array in a block, at least: less is done by one thread sooner than by waking another.
MIN_BLOCK_NBYTES = 256 << 10
#: Blocks begin at a multiple of this, so that no two threads write to one cache line.
ALIGNMENT_NBYTES = 64


class ApplyThreads:
    """The thread that asks for an update, and additional ones.

    Parameters
    ----------
    num_threads
        How many in all; with 1 there are no others.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._others = ThreadPoolExecutor(num_threads - 1, "zmqps-apply") if num_threads > 1 else None
        if self._others is not None:
            _start(self._others, num_threads - 1)

    def over(self, kernel: UpdateKernel) -> UpdateKernel:
        """Return a kernel that does the same with all threads; small updates with the one that asks."""
        others = self._others
        if others is None:
            return kernel
        whole = not getattr(kernel, "allocates", True)  # alone it would have changed nothing

        def apply(w: Array, g: Array, out: Array, slots: tuple[Array, ...], step: int, *terms: Any) -> None:
            blocks = self._blocks(w)

            def update(block: slice) -> None:
                kernel(w[block], g[block], out[block], tuple(slot[block] for slot in slots), step, *terms)

            futures: list[Future[None]] = []
            errors: list[BaseException] = []
            begun = 0  # here
            try:
                for block in blocks[1:]:
                    futures.append(others.submit(update, block))
                begun = 1
                update(blocks[0])
            except Exception as error:
                errors.append(error)
            finally:
                wait(futures)  # even after an error, no thread may write behind the caller's back
            errors += [found for future in futures if (found := future.exception()) is not None]
            for first in errors[:1]:
                failed = len(errors) - (not begun)  # what could not be given to a thread is not a block that failed
                if failed < len(futures) + begun and whole:
                    what = f"{len(futures) + begun - failed} of {len(blocks)} blocks of an update were done: {first!r}"
                    raise InternalError(node="an apply thread", what=what) from first
                raise first

        return apply

    def _blocks(self, w: Array) -> list[slice]:
        number = max(1, min(self._num_threads, w.nbytes // MIN_BLOCK_NBYTES))
        unit = ALIGNMENT_NBYTES // w.itemsize
        size = -(-w.size // (number * unit)) * unit or 1
        return [slice(start, start + size) for start in range(0, max(w.size, 1), size)]


def _start(pool: ThreadPoolExecutor, num_threads: int) -> None:
    """Start all threads of a pool: later, in the middle of an update, there might be no memory for one."""
    together = threading.Barrier(num_threads)
    try:
        wait([pool.submit(together.wait) for _ in range(num_threads)])
    except BaseException:
        together.abort()  # those that wait for one that cannot be started
        raise


T = TypeVar("T")

#: Work that can wait rests while fewer processors than this are idle; but no longer than this at once, in seconds.
IDLE, LONGEST_REST_S = 0.5, 2.0


class Rests:
    """Lets others have the processors of this host between the parts of some work, where none is idle.

    Parameters
    ----------
    times
        It rests that many times as long as the part before has taken.
    """

    def __init__(self, times: float) -> None:
        self._times = times
        self._last = time.monotonic(), _idle_s()

    def after(self, began: float, *, wanted: bool = True) -> None:
        """Rest, if that is wanted and needed, after a part of the work that began then, as `time.monotonic` says."""
        if self.idle() < IDLE and wanted:
            time.sleep(min(self._times * (time.monotonic() - began), LONGEST_REST_S))

    def idle(self) -> float:
        """Return how many processors were idle on average since this was asked last."""
        (asked, before), self._last = self._last, (time.monotonic(), _idle_s())
        return (self._last[1] - before) / max(self._last[0] - asked, 1e-9)

    def paced(self, parts: Iterable[T]) -> Iterator[T]:
        """Yield the parts of some work, with rests behind them."""
        for part in parts:
            began = time.monotonic()
            yield part
            self.after(began)


def _idle_s() -> float:
    """Return how many seconds all processors together were idle."""
    import psutil

    times = psutil.cpu_times()
    return float(times.idle) + float(getattr(times, "iowait", 0.0))
