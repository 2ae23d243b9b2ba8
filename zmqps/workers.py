"""`run`: a function in worker processes of this host, on a new cluster.

The function, its arguments and its results travel through pipes of `multiprocessing` between this process and the
children that it starts. Nothing else can write there; what the network brings is never unpickled.
"""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TypeVar

from zmqps import checks
from zmqps.errors import ConfigurationError, DeadlineError, NodeFailedError, listed
from zmqps.keys.security import Security
from zmqps.launch.cluster import START_TIMEOUT, LocalCluster
from zmqps.launch.leash import put_on
from zmqps.launch.processes import describe_exit, launched_for, worker_environment
from zmqps.launch.supervision import DRAIN_TIMEOUT_S
from zmqps.settings.server import Servers
from zmqps.worker import connect

T = TypeVar("T")

MOST_NAMED = 8

_spawn = multiprocessing.get_context("spawn")


def run(
    train: Callable[..., T],
    *args: Any,
    workers: int = 1,
    servers: int | Servers = 1,
    timeout: float | None = None,
    **options: Any,
) -> list[T]:
    """Train with a function in worker processes of this host; return what it returned in each, by rank.

    Starts a `LocalCluster` and the workers, and ends all of them. Each worker is a new process that imports the script,
    connects, calls ``train(worker, *args)`` and finishes. What it prints appears where this process prints.

    Parameters
    ----------
    train : callable
        Called with a connected `Worker` and ``args``. A function of a file, not a lambda or an inner function: each
        process imports it. In a script, call `run` below ``if __name__ == "__main__":``.
    *args
        More arguments of ``train``, the same for all workers. They are copied to each process, so load large data in
        ``train``.
    workers : int
        How many processes train. `Worker.rank` goes from 0 to ``workers - 1``.
    servers : int or Servers
        As of `LocalCluster`.
    timeout : float, optional
        Seconds until all workers must have returned; by default there is no limit.
    **options
        Other options of `LocalCluster`.

    Returns
    -------
    list
        The results of ``train``, by rank. They are copied from the workers' processes.

    Raises
    ------
    Exception
        The first one that a worker raised, with a note of its rank and traceback. No worker and no node is left, as
        after Ctrl-C.
    NodeFailedError
        A worker ended before ``train`` had returned, such as by a signal.
    DeadlineError
        Names the workers that have not returned.
    ConfigurationError
        ``train`` cannot be imported by another process, or this process is a worker itself.

    Examples
    --------
    >>> def train(worker, steps):
    ...     worker.init({"w": np.zeros(10, np.float32)}, optimizer=zmqps.optim.sgd(learning_rate=0.1))
    ...     for _ in range(steps):
    ...         worker.push(gradients(worker.pull()))
    ...     return worker.pull()["w"]
    >>> if __name__ == "__main__":
    ...     w, *_ = zmqps.run(train, 100, workers=4, servers=2)  # doctest: +SKIP
    """
    checks.whole("workers", workers, 1, 65535)
    seconds = float("inf") if timeout is None else checks.seconds("timeout", timeout)
    ends_at = time.monotonic() + seconds
    if "args" in options:
        raise ConfigurationError("run() has no option 'args'; arguments of train follow it: run(train, 100, workers=4)")
    known = ("train", *inspect.signature(LocalCluster).parameters)
    if wrong := [name for name in options if name not in known]:
        raise ConfigurationError(f"run() {checks.no_option(wrong[0], known)}")
    _check(train, args)
    with LocalCluster(servers, workers, **options) as cluster:
        team: list[_Started] = []
        try:
            for rank in range(workers):
                team.append(_Started(rank, _environment(cluster.address, rank, **options), train, args))
            return _results(team, ends_at, seconds)
        except BaseException:
            for worker in team:
                worker.process.terminate()
            raise
        finally:
            _end(team)


def _check(train: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if launched := launched_for():
        raise ConfigurationError(
            f"this process is worker {launched[1]} of a cluster: call train(zmqps.connect()) here, without zmqps.run"
        )
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # a worker imports the script
        raise ConfigurationError(
            'each worker imports this script: call zmqps.run below `if __name__ == "__main__":`, which a worker skips'
        )
    main = sys.modules["__main__"]
    of = getattr(checks.function("train", train), "__module__", None)
    if of == "__main__" and not (getattr(main, "__file__", None) and os.path.exists(str(main.__file__))):
        raise ConfigurationError(
            "each worker is a process that imports train: define it in a file, and import it here "
            "(from train import train)"
        )
    try:
        ForkingPickler.dumps((train, args))
    except Exception as error:
        raise ConfigurationError(
            "each worker is a process that imports train and gets its arguments: train must be a function of a module, "
            f"not a lambda or an inner function, and its arguments must be data: {error}"
        ) from None


def _environment(address: str, rank: int, *, security: Security | None = None, **others: Any) -> dict[str, str]:
    """Return what a worker has in its environment, by which `zmqps.connect` finds the cluster."""
    shown = security or Security()
    env = worker_environment(address, rank, None if shown.job_secret is None else Path(shown.job_secret))
    return env if shown.keys is None else env | {"ZMQPS_KEYS": str(Path(shown.keys).absolute())}


class _Started:
    """A worker's process, and the pipe by which it answers."""

    def __init__(self, rank: int, env: dict[str, str], train: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.rank = rank
        self.answers, theirs = _spawn.Pipe(duplex=False)
        self.process = _spawn.Process(target=_work, args=(os.getpid(), rank, env, theirs, train, args))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # in the child, until it has its own group
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def result(self) -> Any:
        """Return what ``train`` has returned, or raise the error; when there is an answer, or the process has ended."""
        well, answer = self._answer()
        if well:
            return answer
        error, note = answer
        error.add_note(note)
        raise error

    def _answer(self) -> tuple[bool, Any]:
        with contextlib.suppress(EOFError, ConnectionError):
            if self.answers.poll():
                answer: tuple[bool, Any] = self.answers.recv()
                return answer
        self.process.join()
        how = f"{describe_exit(self.process.exitcode or 0)} before train had returned"
        raise NodeFailedError(name=f"worker {self.rank}", how=how, tail="  (where this process prints)")


def _work(
    parent: int,
    rank: int,
    env: dict[str, str],
    answers: Connection,
    train: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    """Be a worker: on a leash, and in a separate process group, so that Ctrl-C reaches the parent alone."""
    put_on(parent)
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ.update(env)
    try:
        with connect(timeout=START_TIMEOUT) as worker:
            result = train(worker, *args)
            if not worker._member.connection.closed:
                worker.finish()
        answers.send((True, result))
    except Exception as error:
        own = error.__traceback__
        trace = "".join(traceback.format_exception(error.with_traceback(own and own.tb_next))).rstrip()
        answers.send((False, (_portable(error), f"raised in worker {rank}:\n{trace}")))


def _portable(error: Exception) -> Exception:
    """Return an error that can be copied to another process: itself, or else one with its text."""
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _results(team: list[_Started], ends_at: float, seconds: float) -> list[Any]:
    """Wait for all workers' results; raise the first error."""
    results: dict[int, Any] = {}
    while waiting := [worker for worker in team if worker.rank not in results]:
        of: dict[Any, _Started] = {worker.answers: worker for worker in waiting}
        of |= {worker.process.sentinel: worker for worker in waiting}
        left = None if seconds == float("inf") else max(0.0, ends_at - time.monotonic())
        ready = {of[handle].rank for handle in wait(list(of), left)}
        if not ready:
            missing = listed([f"worker {worker.rank}" for worker in waiting], MOST_NAMED)
            raise DeadlineError(operation="zmqps.run", seconds=seconds, waiting_for=missing)
        for rank in sorted(ready):
            results[rank] = team[rank].result()
    return [results[worker.rank] for worker in team]


def _end(team: list[_Started]) -> None:
    """Wait a while for workers to end, then end them and what they have started."""
    ends_at = time.monotonic() + DRAIN_TIMEOUT_S
    for worker in team:
        wait([worker.process.sentinel], max(0.0, ends_at - time.monotonic()))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid or 0, signal.SIGKILL)
        worker.process.kill()  # one without its own group yet
        worker.process.join()
        worker.process.close()
        worker.answers.close()
