"""walk: which functions of zmqps a push_pull runs through, from the user's call to the resolved future and back."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias, TypeVar

import click
import numpy as np

import zmqps
from bench.options import json_option, report
from bench.results import Row
from zmqps.core.coordinator.machine import CoordinatorMachine, CoordinatorOptions
from zmqps.core.protocol.events import Stop
from zmqps.core.server.extensions import ServerMachine
from zmqps.net.driver import Driver
from zmqps.net.identity import new_identity
from zmqps.net.lane.shm import LaneTransport
from zmqps.net.zeromq import ZmqTransport
from zmqps.nodes.server import ServerConfig, make_shard

PACKAGE = str(Path(zmqps.__file__).parent) + "/"
MODES = ("async", "sync")
#: Steps until buffers, plans and lanes are what they stay; and those that are looked at, of which the shortest
#: counts: now and then a socket announces what has been read already.
WARM_UP, LOOKS = 20, 40
#: A heartbeat is no part of a step.
NEVER_S = 3600.0
PATIENCE_S = 60.0
ENTRIES = ("SessionThread._make_calls", "ZmqTransport._drain")
ARRIVES = ("zmqps/net/driver.py", "Driver.deliver")
#: What a replicated push runs through, once the backup is filled.
CONFIRMS = ("zmqps/core/server/replicas/backup.py", "Backup.take")
#: The clock of the event loop, which asyncio calls in each turn: no more of the way than asyncio is.
OF_THE_LOOP = {"net/loops.py", "core/node/awake.py"}

T = TypeVar("T")
CallSoon: TypeAlias = Callable[[Callable[[], None]], object]


@dataclass(frozen=True, slots=True)
class Call:
    """A function of zmqps that was called, at a depth below the one that the loop, or the user, called."""

    depth: int
    file: str
    function: str


class Walk:
    """The calls of one step, in order: what a thread does before another goes on is in one piece."""

    def __init__(self, turns: Sequence[Sequence[Call]]) -> None:
        self.turns = turns
        self.calls = [call for turn in turns for call in turn]

    @property
    def files(self) -> list[str]:
        """The files, as they are first entered."""
        return list(dict.fromkeys(call.file for call in self.calls))

    @property
    def changes(self) -> int:
        """How often the next function called is one of another file."""
        return sum(one.file != other.file for one, other in pairwise(self.calls))


class Watcher:
    """Notes the calls of zmqps's functions in every thread that was started since it was made."""

    def __init__(self) -> None:
        self._turns: list[tuple[int, list[Call]]] | None = None
        self._local = threading.local()

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take what the interpreter says of a call."""
        turns, code = self._turns, frame.f_code
        if event != "call" or turns is None or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_filename.removeprefix(PACKAGE) in OF_THE_LOOP:
            return
        if getattr(self._local, "looks_away", False):
            return
        fresh = getattr(self._local, "of", None) is not turns
        # compiled code says nothing of its caller
        depth = self._depth(frame) if fresh or frame.f_back is not None else self._local.turn[-1].depth + 1
        if fresh or not depth:
            self._local.of, self._local.turn = turns, []
            turns.append((threading.get_ident(), self._local.turn))
        file = "zmqps/" + code.co_filename.removeprefix(PACKAGE)
        self._local.turn.append(Call(depth, file, code.co_qualname))

    @staticmethod
    def _depth(frame: FrameType) -> int:
        above, depth = frame.f_back, 0
        while above is not None and above.f_code.co_filename != asyncio.events.__file__:
            depth += above.f_code.co_filename.startswith(PACKAGE)
            above = above.f_back
        return depth

    @contextmanager
    def looking(self, settle: Callable[[], None]) -> Iterator[list[tuple[int, list[Call]]]]:
        """Note what happens meanwhile: for each turn its thread and calls, in the order in which they begin.

        ``settle`` waits until the other threads have done what they still do; what it calls is not noted.
        """
        self._turns = turns = list[tuple[int, list[Call]]]()
        try:
            yield turns
            self._local.looks_away = True
            settle()
        finally:
            self._turns, self._local.looks_away = None, False

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Watch this thread, and those that are started meanwhile."""
        before = sys.getprofile(), threading.getprofile()
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(before[0])
            threading.setprofile(before[1])  # type: ignore[arg-type]


@contextmanager
def nodes(*, workers: int, replicas: int = 0) -> Iterator[tuple[str, list[CallSoon]]]:
    """Run a coordinator and as many servers as shards have copies, each on a thread of its own.

    Yields the coordinator's address, and for each of them what runs something on its thread.
    """
    log = logging.getLogger("zmqps.bench")
    options = CoordinatorOptions(
        servers=1 + replicas,
        workers=workers,
        replicas=replicas,
        heartbeat_interval=NEVER_S,
        heartbeat_timeout=2 * NEVER_S,
    )

    def node(role: str, name: str) -> tuple[LaneTransport, Any]:
        transport = LaneTransport(ZmqTransport())
        endpoint = transport.bind("tcp://127.0.0.1:0")
        return transport, new_identity(role, name=name, endpoint=endpoint)

    def run(driver: Driver) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_until_complete, args=(driver.run(),))
        thread.start()
        return loop, thread

    transport, identity = node("coordinator", "coordinator")
    address = identity.endpoint
    coordinator = Driver(CoordinatorMachine(identity, options), transport, log)
    running = [run(coordinator)]
    for number in range(1 + replicas):
        transport, identity = node("server", f"server-{number}")
        build = partial(make_shard, ServerConfig(coordinator=address))
        running.append(run(Driver(ServerMachine(identity, address, build), transport, log)))
    try:
        yield address, [loop.call_soon_threadsafe for loop, _ in running]
    finally:
        with suppress(RuntimeError):  # its loop is closed: it has ended with its workers
            running[0][0].call_soon_threadsafe(coordinator.submit, Stop("the walk is over"))
        for loop, thread in running:
            thread.join(PATIENCE_S)
            loop.close()


def on(call_soon: CallSoon, work: Callable[[], T]) -> T:
    """Return what some work returns in the thread of a loop."""
    done, found = threading.Event(), list[T]()
    call_soon(lambda: (found.append(work()), done.set())[0])
    if not done.wait(PATIENCE_S):
        raise RuntimeError("a node's thread does not answer")
    return found[0]


def walk(mode: str, *, replicas: int = 0, rows: bool = False) -> Walk:
    """Return the calls of one push_pull of a small parameter between a worker and a server.

    Parameters
    ----------
    mode
        ``async``, or ``sync``: then it is a whole step.
    replicas
        How many backups each shard has; there are as many servers more, and small parameters lie on the first.
    rows
        Push and pull some rows of a sparse table in the place of a dense parameter.
    """
    watcher, walks = Watcher(), list[Walk]()
    with watcher.everywhere(), nodes(workers=1, replicas=replicas) as (address, threads):
        with zmqps.connect(address, timeout=PATIENCE_S, transport="tcp") as worker:
            step = (_pushing_rows if rows else pushing)(worker, mode)
            for _ in range(WARM_UP):
                step()
            loop = worker._member.connection.thread._loop
            assert loop is not None
            threads.append(loop.call_soon_threadsafe)

            def settle() -> None:
                for call_soon in threads:
                    on(call_soon, lambda: None)

            for _ in range(LOOKS):
                with watcher.looking(settle) as turns:
                    step()
                user, *others = [calls for _, calls in turns]
                # polling an empty socket does no harm
                kept = [turn for turn in others if turn[0].function != "ZmqTransport._drain" or _delivers(turn)]
                walks.append(Walk([user, *kept]))
    if replicas:  # until the backup is filled, no push waits for it
        walks = [walk for walk in walks if any((call.file, call.function) == CONFIRMS for call in walk.calls)]
    # on a busy machine a look may begin in the middle of what a thread does
    whole = [walk for walk in walks if all(turn[0].function in ENTRIES for turn in walk.turns[1:])]
    return min(whole or walks, key=lambda walk: len(walk.calls))


def pushing(worker: zmqps.Worker, mode: str) -> Callable[[], object]:
    values = {"w": np.zeros(256, np.float32)}
    worker.init(values, optimizer=zmqps.optim.sgd(0.1), mode=mode)
    return partial(worker.push_pull, values)


def _pushing_rows(worker: zmqps.Worker, mode: str) -> Callable[[], object]:
    tables = {"rows": zmqps.table(16, optimizer=zmqps.optim.sgd(0.1))}
    worker.init({}, tables=tables, mode=mode)
    ids, grads = np.arange(16), np.zeros((16, 16), np.float32)
    return partial(worker.table("rows").push_pull, ids, grads, ids)


def _delivers(turn: Sequence[Call]) -> bool:
    return any((call.file, call.function) == ARRIVES for call in turn)


def measure(found: Walk, model: str, servers: int = 1) -> Row:
    """Return the figures of a walk; ``model`` says of what."""
    figures = {"calls": len(found.calls), "files": len(found.files), "changes": found.changes}
    return Row(case="walk", model=model, servers=servers, workers=1, extra=figures)


def show(found: Walk) -> None:
    """Print a walk, function by function; a line between two threads."""
    for turn in found.turns:
        file = ""
        for call in turn:
            click.echo(f"{call.file if call.file != file else '':38} {'  ' * call.depth}{call.function}")
            file = call.file
        click.echo("-" * 38)


@click.command("walk")
@click.option("--mode", type=click.Choice(MODES), default="async", show_default=True, help="Of the job.")
@click.option("--replicas", type=click.IntRange(0, 2), default=0, show_default=True, help="Backups of each shard.")
@click.option("--rows", is_flag=True, help="Push rows of a sparse table in the place of a dense parameter.")
@click.option("--show", "shown", is_flag=True, help="Print every function on the way.")
@json_option
def command(mode: str, replicas: int, rows: bool, shown: bool, json_path: Path | None) -> None:
    """Functions, files, and changes from file to file, on the way of one push_pull there and back.

    One small parameter, one worker, one server (with replicas as many more), each in a thread of this
    process; in the synchronous mode it is a whole step, the coordinator's part in it too. Code outside
    zmqps is not counted.
    """
    found = walk(mode, replicas=replicas, rows=rows)
    if shown:
        show(found)
    report(measure(found, f"{mode} rows" if rows else mode, 1 + replicas), json_path)
