"""A real cluster with honest training beside an attacker, and what became of both."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

import zmqps
from tests.attack import bound, training
from tests.attack.nodes import MAX_ARENAS, Held, held_by_all, lines_with, logged_nbytes, most
from tests.attack.training import CORE, Tally
from tests.pace import allow, stretch
from zmqps import keys
from zmqps.logs.handler import WINDOW_S
from zmqps.net.driver import ASIDE_THREADS

#: How it begins what is said of the speed.
SLOW = ("half the speed", "not recovered")
#: What stands in what is said of what nodes keep.
KEEPS = " keeps "
#: What stands in a log only if a node has a defect.
DEFECTS = ("internal error", "Exception in callback", "Traceback")
#: How the line begins that attackers try to put into the logs.
FORGED_LINE = "2026-01-01 00:00:00 zmqps"
#: Seconds between two looks at the counters.
LOOK_S = 0.1
#: Seconds without a sign of life after which a node is lost.
HEARTBEAT_TIMEOUT = 5.0
START_TIMEOUT = allow(60.0)
#: Seconds that an attacker takes to notice that it is over.
END_TIMEOUT = 5.0
#: What a node may hold more while one attacker is there, who is a member and has a thousand other connections.
WORST_NBYTES = bound.member_nbytes() + bound.unread_nbytes(1) + bound.strangers_nbytes(1000)
#: Memory may stay larger by that factor; of descriptors, threads and files nothing may stay.
KEPT_FACTOR = 1.1
#: So often an attack is made where it leaves memory behind.
MEMORY_ROUNDS = 3
#: A thread of the log is there for so long, in seconds, where something repeats.
LOG_THREAD_S = WINDOW_S + 1.0
#: After so many steps a worker has all that it needs to train.
FIRST_STEPS = 20
#: So many answers later a server has all that it needs to serve.
WARM_READS = 10
#: So many steps later all have heard that they are to stop.
LAST_STEPS = 50
#: Bytes of log that an attack of a few seconds may write.
MAX_LOGGED_NBYTES = 1 << 20


class Trainer:
    """A process that trains honestly."""

    def __init__(self, arena: Arena, index: int) -> None:
        self.index = index
        self.log = arena.directory / f"honest-{index}.txt"
        command = [sys.executable, "-m", "tests.attack.training", arena.cluster.address, arena.mode, str(index)]
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                [*command, str(arena.tally.path)], stdout=file, stderr=file, stdin=subprocess.DEVNULL
            )

    @property
    def error(self) -> str:
        """The last line that it has written."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


class Attack:
    """An attacker at work.

    Parameters
    ----------
    process
        Its process.
    log
        What it writes to its standard error.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        #: What it has done, as far as it has said so; ``attacker`` says what is wrong with itself.
        self.counts: dict[str, Any] = {}

    def await_start(self) -> None:
        """Wait until it knows its target."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self.counts["attacker"] = self._log.read_text()[-300:]

    def look(self) -> int:
        """Ask how many things it has done by now."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
            self.counts.update(json.loads(self._process.stdout.readline() or b"{}"))
        return sum(count for count in self.counts.values() if isinstance(count, int))

    def end(self) -> None:
        """Let it come to an end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT)
            self.counts.update(json.loads(self._process.stdout.readline() or b"{}"))
        except subprocess.TimeoutExpired:  # it is at nothing but itself; it has been given up
            self.counts["not ended"] = 1


@dataclass(slots=True)
class Outcome:
    """What one attack has done."""

    attack: str
    mode: str
    tries: int = 1  # an attack that only seemed to slow training down was tried again
    rounds: int = 1  # one that left something behind was run again beside the same training: a leak leaves it twice
    before: float = 0.0  # steps a second
    during: float = 0.0
    after: float = 0.0
    recovered_s: float | None = None  # how long after the attack a whole second went at 0.9 of the speed
    stall_s: float = 0.0  # the longest time without a step during the attack
    rss_before: int = 0  # of the node that grew most
    rss_peak: int = 0
    rss_after: int = 0
    node: str = ""  # which node that is
    held_before: Mapping[str, Held] = field(default_factory=dict)
    held_after: Mapping[str, Held] = field(default_factory=dict)
    logged: int = 0
    counts: Mapping[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)  # invariants that did not hold


def limits(interval: float, timeout: float) -> zmqps.Limits:
    """Return the times between signs of life, and of silence after which a node is lost."""
    return zmqps.Limits(
        heartbeat_interval=interval, heartbeat_timeout=stretch(timeout), slice_size=training.SLICE_NBYTES
    )


class Arena:
    """A cluster of two servers and two honest workers.

    Parameters
    ----------
    mode
        ``async`` or ``sync``.
    begun
        Whether the workers are there from the beginning; else `begin` starts them.
    expected
        How many workers count; another one is a spare.
    descriptors
        How many the nodes may have open, as by ``ulimit -n``; None: as many as this process.
    keyed
        Whether the cluster has keys, and a place for checkpoints; attackers then have an observer's key.
    more
        Returns what else the cluster is told, given a directory of its own.
    options
        Of `zmqps.LocalCluster`.
    """

    def __init__(
        self, mode: str, *, begun: bool = True, expected: int = CORE, descriptors: int | None = None,
        keyed: bool = False, more: Callable[[Path], Mapping[str, Any]] = lambda directory: {}, **options: Any,
    ) -> None:  # fmt: skip
        self.mode = mode
        self._keyed = keyed
        self._expected = expected
        self._descriptors = descriptors
        self._begun = begun
        self._options = {"limits": limits(0.5, HEARTBEAT_TIMEOUT), **options}
        self._more = more
        self.noticed: list[str] = []  # what was wrong of what a fault has looked at
        self.counted: Counter[str] = Counter()  # and how much it has done
        self._stack = ExitStack()
        self.trainers: dict[int, Trainer] = {}
        self.past = 0  # pushes that killed workers had acknowledged
        self.unsure = 0  # and such that nobody knows of
        self.num_killed = 0
        self.victims_failed: list[str] = []  # what those said that ended by themselves
        self.held: list[dict[str, Held]] = []  # at each look of the last watch
        self.cluster: zmqps.LocalCluster

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zmqps-attack-")))
            self.tally = Tally(self.directory / "tally")
            if self._keyed:
                self._options |= {
                    "security": zmqps.Security(keys=self.keys),
                    "saving": zmqps.Saving(checkpoint=self.checkpoints, at_end=False),
                }
                keys.create(self.keys)
                os.environ["ZMQPS_KEYS"] = str(self.keys)  # for the honest
                stack.callback(os.environ.pop, "ZMQPS_KEYS", None)
            cluster = zmqps.LocalCluster(
                zmqps.Servers(2, kernels="numpy"),
                workers=self._expected,
                timeout=START_TIMEOUT,
                directory=self.directory / "logs",
                **{**self._options, **self._more(self.directory)},
            )
            with inheriting(self._descriptors):
                self.cluster = stack.enter_context(cluster)
            stack.callback(self._end_trainers)
            if self._begun:
                self.begin()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    @property
    def keys(self) -> Path:
        """Where the keys of its nodes are."""
        return self.directory / "keys"

    @property
    def checkpoints(self) -> Path:
        """Where its checkpoints are."""
        return self.directory / "checkpoints"

    # --- honest workers ------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the workers that train from the beginning."""
        for index in range(CORE):
            self.start(index)

    def start(self, index: int) -> Trainer:
        """Start an honest worker."""
        trainer = self.trainers[index] = Trainer(self, index)
        return trainer

    def wait_until_trained(self, steps: int = FIRST_STEPS) -> None:
        """Wait until both workers have done so many steps."""
        self.wait_for(lambda: min(self.steps) >= steps)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something is true."""
        ends_at = time.monotonic() + START_TIMEOUT
        while not condition():
            time.sleep(LOOK_S)
            if time.monotonic() > ends_at or self.dead:
                raise TimeoutError(f"no training: {self.dead or self.steps}")

    @property
    def steps(self) -> list[int]:
        """Steps done by each of the workers that train from the beginning."""
        return [self.tally.get(index, "acknowledged") for index in range(CORE)]

    @property
    def num_steps(self) -> float:
        """Steps done by the workers that train from the beginning."""
        return sum(self.steps)

    def warm_up(self) -> None:
        """Let all that a node needs in its life be used once: threads, shared memory, a reader of whole shards."""
        self.wait_until_trained()
        with self.attacked("reader") as reader:
            self.wait_for(lambda: reader.look() > WARM_READS or bool(self.dead))
            newcomer(self)
        self.wait_until_trained(FIRST_STEPS + min(self.steps))

    @property
    def dead(self) -> list[str]:
        """What the honest workers say that have failed, and which nodes have ended."""
        core = {i: trainer for i, trainer in self.trainers.items() if i < CORE}
        found = [f"worker {i}: {trainer.error}" for i, trainer in core.items() if self._has_failed(i, trainer)]
        ended = [p.name for p in self.cluster._nodes.processes if p.ended]
        return found + [f"{name} has ended" for name in ended]

    def _has_failed(self, index: int, trainer: Trainer) -> bool:
        ended = trainer.process.poll()
        return ended is not None and (ended != 0 or not self.tally.get(index, "stop"))

    def stop_training(self) -> None:
        """Let the honest workers come to an end, synchronous ones at the same step; after that nothing moves."""
        last = max(self.tally.get(index, "begun") for index in range(CORE)) + LAST_STEPS
        for index in self.trainers:
            self.tally.set(index, "stop", last if self.mode == "sync" else 1)
        for trainer in self.trainers.values():
            try:
                trainer.process.wait(training.PATIENCE)
            except subprocess.TimeoutExpired:
                trainer.process.kill()
                trainer.process.wait()

    def _end_trainers(self) -> None:
        for trainer in self.trainers.values():
            trainer.process.kill()
            trainer.process.wait()

    def wrong_values(self) -> list[str]:
        """Say what of the values is not what was acknowledged; training goes on."""
        return [
            f"worker {index} has read wrong values {self.tally.get(index, 'wrong')} times"
            for index in range(training.MAX_WORKERS)
            if self.tally.get(index, "wrong")
        ]

    def replace_victim(self) -> None:
        """Kill the worker that is there to be killed, if it is there, and start another one."""
        self.end_victim()
        self.tally.clear(CORE)
        self.start(CORE)

    def end_victim(self) -> None:
        """Kill the worker that is there to be killed, and note what it had done."""
        trainer = self.trainers.pop(CORE, None)
        if trainer is not None:
            if trainer.process.poll() is not None:
                self.victims_failed.append(trainer.error)
            trainer.process.kill()
            trainer.process.wait()
            acknowledged = self.tally.get(CORE, "acknowledged")
            self.past += acknowledged
            self.unsure += self.tally.get(CORE, "begun") > acknowledged
            self.num_killed += 1

    # --- attackers -----------------------------------------------------------------------------

    @contextmanager
    def attacked(self, name: str) -> Iterator[Attack]:
        """Let an attacker work meanwhile."""
        insider = [self.tally.incarnation(index).hex() for index in range(CORE)]
        command = [sys.executable, "-m", "tests.attack.attackers", name, self.cluster.address, *insider]
        log, environment = self.directory / f"{name}.txt", dict(os.environ)
        if self._keyed:
            del environment["ZMQPS_KEYS"]
            environment["ZMQPS_TOKEN"] = keys.token(self.keys, "observer", self.cluster.address)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment}
        with log.open("ab") as file, subprocess.Popen(command, stderr=file, bufsize=0, **pipes) as process:
            attack = Attack(process, log)
            try:
                attack.await_start()
                yield attack
                attack.end()
            finally:
                process.kill()

    def watch(self, seconds: float, peaks: dict[str, int]) -> list[tuple[float, float]]:
        """Look at the steps and the memory for a while; return (time, steps)."""
        looks = []
        self.held = []
        ends_at = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            looks.append((now, self.num_steps))
            self.held.append(held_by_all(self.cluster.pids))
            for name, held in self.held[-1].items():
                peaks[name] = max(peaks.get(name, 0), held.rss)
            if now >= ends_at:
                return looks
            time.sleep(LOOK_S)


@contextmanager
def inheriting(descriptors: int | None) -> Iterator[None]:
    """Let processes that are started meanwhile have so many descriptors; None: as many as this one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft if descriptors is None else descriptors, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def speed(looks: Sequence[tuple[float, float]]) -> float:
    """Return the steps a second of all workers together, halved: of one."""
    (t0, n0), (t1, n1) = looks[0], looks[-1]
    return (n1 - n0) / CORE / (t1 - t0) if t1 > t0 else 0.0


def longest_stall(looks: Sequence[tuple[float, float]]) -> float:
    """Return the longest time in which no step was done."""
    longest, since, last = 0.0, looks[0][0], looks[0][1]
    for now, steps in looks:
        if steps != last:
            since, last = now, steps
        longest = max(longest, now - since)
    return longest


def recovery(looks: Sequence[tuple[float, float]], wanted: float) -> float | None:
    """Return when a whole second went at a speed, counted from the beginning; None: never."""
    for i, (start, n0) in enumerate(looks):
        for end, n1 in looks[i:]:
            if end - start >= 1.0:
                if (n1 - n0) / CORE / (end - start) >= wanted:
                    return end - looks[0][0]
                break
    return None


def try_attack(name: str, mode: str, *, timed: bool = True, attack: Mapping[str, Any], **options: Any) -> Outcome:
    """Run one attack on a fresh cluster and say what became of it.

    Parameters
    ----------
    name, mode
        What it is called, and ``async`` or ``sync``.
    timed
        Whether the speed counts.
    attack
        What else `attack_once` is told.
    options
        Of `Arena`.
    """
    with Arena(mode, **options) as arena:
        arena.warm_up()
        out = attack_beside(arena, name, timed=timed, **attack)
        out.broken += last_look(arena)
    return out


def attack_beside(arena: Arena, name: str, **told: Any) -> Outcome:
    """Let an attacker work beside training that is warm, and goes on; see `attack_once`.

    What the first attack of a kind leaves behind may be what its first use takes, as a thread's room in malloc: then it
    comes again, twice at most, and must leave nothing: a leak leaves it each time. A pool of threads grows by one at a
    time, up to its size: so often it comes where it leaves threads alone.
    """
    out = attack_once(arena, name, **told)
    for rounds in range(2, 2 + ASIDE_THREADS):
        only_kept = all(KEEPS in text for text in out.broken)
        if not out.broken or not only_kept or (rounds > MEMORY_ROUNDS and not are_threads(out.broken)):
            break
        out = attack_once(arena, name, **told)
        out.rounds = rounds
    return out


def attack_once(
    arena: Arena,
    name: str,
    *,
    timed: bool = True,
    attacker: str = "",
    fault: Callable[[Arena], AbstractContextManager[None]] = lambda arena: nullcontext(),
    before_s: float = 2.0,
    during_s: float = 5.0,
    after_s: float = 5.0,
) -> Outcome:
    """Let an attacker work for some seconds, and say what became of it.

    Parameters
    ----------
    arena, name
        Where, and what it is called.
    timed
        Whether the speed counts. Where others use the machine it cannot; then there only have to be steps.
    attacker
        Who attacks; by default the one of that name.
    fault
        What the cluster suffers meanwhile.
    before_s, during_s, after_s
        How long to look.
    """
    out = Outcome(name, arena.mode)
    peaks: dict[str, int] = {}
    looks = arena.watch(before_s, peaks)
    out.before, out.held_before = speed(looks), most(arena.held)
    logged = logged_nbytes(arena.directory / "logs")
    with arena.attacked(attacker or name) as attack, fault(arena):
        looks = arena.watch(during_s, peaks)
        out.broken += [] if arena.dead else [f"meanwhile {text}" for text in newcomer(arena)]
    out.during, out.stall_s, out.counts = speed(looks), longest_stall(looks), {**attack.counts, **arena.counted}
    out.broken += arena.noticed
    looks = arena.watch(1.0, peaks)
    ends_at = time.monotonic() + after_s - 1.0
    grown = ["not seen yet"]
    while time.monotonic() < ends_at + LOG_THREAD_S * are_threads(grown):  # all is as before as soon as it can be seen
        out.recovered_s = recovery(looks, (0.9 if timed else 0.0) * out.before)
        out.held_after = held_by_all(arena.cluster.pids)
        grown = growth(out.held_before, out.held_after)
        if out.recovered_s is not None and not grown:
            break
        looks += arena.watch(0.5, peaks)
    out.after = speed(looks[len(looks) // 2 :])
    out.logged = logged_nbytes(arena.directory / "logs") - logged
    out.node = max(peaks, key=lambda node: peaks[node] - out.held_before[node].rss)
    out.rss_before, out.rss_peak = out.held_before[out.node].rss, peaks[out.node]
    out.rss_after = out.held_after[out.node].rss
    judge(out, arena, timed=timed)
    return out


def judge(out: Outcome, arena: Arena, *, timed: bool) -> None:
    """Note which invariants did not hold."""
    out.broken += arena.dead
    out.broken += arena.wrong_values()
    if timed and out.during < 0.5 * min(out.before, out.after):  # before and after it nobody attacked
        out.broken.append(f"{SLOW[0]}: {out.before:.0f} to {out.during:.0f} to {out.after:.0f} steps/s")
    if timed and out.recovered_s is None:
        out.broken.append(f"{SLOW[1]}: {out.after:.0f} steps/s")
    if min(out.during, out.after) <= 0:
        out.broken.append(f"training stands still: {out.before:.0f} to {out.during:.0f} to {out.after:.0f} steps/s")
    out.broken += growth(out.held_before, out.held_after)
    logs = arena.directory / "logs"
    out.broken += [line for line in lines_with(logs, *DEFECTS)][:3]
    if out.rss_peak > out.rss_before + WORST_NBYTES:
        out.broken.append(f"{out.node} holds {(out.rss_peak - out.rss_before) >> 20} MB more meanwhile")
    if out.logged > MAX_LOGGED_NBYTES:
        out.broken.append(f"{out.logged / 1e6:.1f} MB of log")
    out.broken += newcomer(arena) if timed else []  # else time counts, and the next one's is soon


def last_look(arena: Arena) -> list[str]:
    """End the training; say what is wrong with the values then, or who has ended before."""
    if not arena.dead:
        arena.stop_training()
    return arena.dead or [*arena.wrong_values(), *final_values(arena)]


def growth(before: Mapping[str, Held], after: Mapping[str, Held]) -> list[str]:
    """Say what nodes hold now that they did not hold before; those that have ended hold nothing."""
    found = []
    for node, then in before.items():
        now = after[node]
        if now.rss > KEPT_FACTOR * then.rss:
            found.append(f"{node}{KEEPS}{(now.rss - then.rss) / 1e6:.1f} MB")
        for what in ("descriptors", "threads", "files"):
            grown = getattr(now, what) - getattr(then, what)
            if grown > 0:
                kinds = f" ({dict(now.kinds - then.kinds)})" if what == "descriptors" else ""
                found.append(f"{node}{KEEPS}{grown} {what}{kinds}")
        if now.arenas > max(then.arenas, MAX_ARENAS):
            found.append(f"{node} has {now.arenas} descriptors of arenas")
    return found


def are_threads(found: Sequence[str]) -> bool:
    """Whether all that nodes keep are threads."""
    return all(text.endswith(" threads") for text in found)


def newcomer(arena: Arena) -> list[str]:
    """Say what keeps somebody who comes now from the status, and from the values."""
    command = [sys.executable, "-m", "zmqps", "status", "--coordinator", arena.cluster.address]
    try:
        shown = subprocess.run(command, capture_output=True, timeout=START_TIMEOUT, check=True).stdout.decode()
        with zmqps.connect(arena.cluster.address, observer=True, timeout=allow(10.0)) as observer:
            observer.pull(timeout=allow(10.0))
    except (zmqps.PSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        return [f"a newcomer: {type(error).__name__}: {getattr(error, 'stderr', '') or error}"[:300]]
    shown += "".join(path.read_text() for path in sorted((arena.directory / "logs").glob("*.log")))
    odd = sorted({char for char in shown if char != "\n" and not char.isprintable()})
    forged = [line for line in shown.splitlines() if line.startswith(FORGED_LINE)]
    return [f"{odd} in the status and the logs"] * bool(odd) + ["a forged line in the logs"] * bool(forged)


def final_values(arena: Arena) -> list[str]:
    """Compare what the servers have at the end with what the workers know was acknowledged."""
    tally = arena.tally
    try:
        with zmqps.connect(arena.cluster.address, observer=True, timeout=allow(15.0)) as observer:
            values = observer.pull(timeout=allow(15.0))
    except zmqps.PSError as error:
        return [f"no values at the end: {error}"[:200]]
    if arena.mode == "sync":
        right = bool((values["shared"] == -3.0 * values.version).all())
        return [] if right else [f"shared is {np.unique(values['shared'])[:5]} at version {values.version}"]
    wrong = []
    for index in range(CORE):
        expected = -float(training.OWN) * tally.get(index, "acknowledged")
        if not (values[f"own{index}"] == expected).all():
            wrong.append(f"own{index} is {np.unique(values[f'own{index}'])[:5]}, not {expected}")
    # of a push that a killed worker began each slice was applied, or was not
    past, unsure = arena.past, arena.unsure
    third, shared = training.SHARED[CORE], sum(training.SHARED[i] * tally.get(i, "acknowledged") for i in range(CORE))
    for name, amount, before in (("shared", third, shared), (f"own{CORE}", training.OWN, 0)):
        possible = [-float(before + amount * (past + more)) for more in range(unsure + 1)]
        if not np.isin(values[name], possible).all():
            wrong.append(f"{name} is {np.unique(values[name])[:5]}, not {possible[0]} to {possible[-1]}")
    return wrong


def main_environment() -> None:
    """Quiet maths libraries: one thread a process."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
