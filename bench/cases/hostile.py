"""hostile: the longest that one message of a client keeps the coordinator busy, by kind, at the limits of each."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from bench.cases.members import identity
from bench.options import json_option
from bench.results import Row, write_rows
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.job.spec import MAX_NAME_CHARS, MAX_NBYTES, MAX_PARAMETERS, JobSpec, Parameter
from zmqps.core.job.tables import MAX_TABLE_NAME_CHARS, MAX_TABLES, TableSpec
from zmqps.core.protocol.events import Action, Peer, Received, Returned, Run, Send, Undecodable
from zmqps.core.protocol.messages import (
    Arrive,
    Checkpoint,
    Drain,
    EndJob,
    Enter,
    Examine,
    Exited,
    Farewell,
    Fetch,
    Followed,
    Heartbeat,
    Holding,
    Init,
    Leave,
    Message,
    Note,
    Piece,
    Probed,
    Ready,
    Resumed,
    Scale,
    SetRates,
    SpansRecorded,
    StatusRequest,
    Take,
    Trace,
    Watch,
    Withdraw,
)
from zmqps.core.protocol.messages.large import decode_small
from zmqps.core.protocol.messages.notes import MAX_ENTRIES
from zmqps.core.protocol.terms import MOST_NUMBERS
from zmqps.core.protocol.typed import pack
from zmqps.core.protocol.wire import (
    HEADER_NBYTES,
    MAX_LIST_HEADER_NBYTES,
    MAX_SHORT_HEADER_NBYTES,
    SCHEMAS,
    encode,
)
from zmqps.errors import PSError
from zmqps.optim import sgd
from zmqps.rows.initial import Initial

#: What a message may cost the coordinator.
MOST_S = 0.020
#: Of several runs the shortest counts: others use the machine meanwhile.
RUNS = 3
SERVERS = 2
SGD = sgd(0.1).to_wire()
HONEST = JobSpec(parameters=(Parameter("w", (8,), "float32"),), optimizer=SGD, mode="sync")
#: Room for what stands in an `Init` beside its job's largest part.
BESIDE_NBYTES = 1024
LARGEST = (1 << 64) - 1
Frames = list[Any]
Case = Callable[[], Iterable[Frames]]


class Cluster:
    """A coordinator's machine with servers and a worker that trains, and an attacker of the job ``mine``."""

    def __init__(self) -> None:
        self.machine = CoordinatorMachine(identity("coordinator", "c"), CoordinatorOptions(servers=SERVERS))
        self.machine.start(0.0)
        self.now = 1.0
        for number in range(SERVERS):
            self._join("server", f"s{number}")
        self._join("worker", "honest", "default")
        self.take(b"@honest", encode(Init(1, HONEST.to_wire())))
        for copy in list(self.machine.runs["default"].startup.copies):
            for loaded in (0, 1):
                self.take(copy.server.peer, encode(Ready(copy.epoch, loaded)))
        self._join("worker", "attacker", "mine")
        self._join("worker", "mate", "default")

    def _join(self, role: str, name: str, job: str = "") -> None:
        self.take(b"@" + name.encode(), encode(identity(role, name, job).hello()))

    def take(self, peer: Peer, frames: Frames) -> float:
        """Let a message come; return the seconds that the longest part took of what the coordinator does about it."""
        longest, work = self._timed(lambda: self.machine.handle(self._event(peer, frames), self.now))
        while work:
            run = work.pop()
            value = _outcome(run)  # aside, in another thread
            took, more = self._timed(
                lambda run=run, value=value: self.machine.handle(Returned(run.tag, value), self.now)
            )  # type: ignore[misc]
            longest = max(longest, took)
            work += more
        while (due := self.machine.next_deadline()) is not None and due <= self.now:
            took, _ = self._timed(lambda: self.machine.on_deadline(self.now))
            longest = max(longest, took)
        return longest

    def _event(self, peer: Peer, frames: Frames) -> Received | Undecodable:
        try:
            return Received(peer, decode_small(frames))
        except PSError as error:
            return Undecodable(peer, error)

    def _timed(self, do: Callable[[], list[Action]]) -> tuple[float, list[Run]]:
        began = time.thread_time()
        actions = do()
        for action in actions:
            if isinstance(action, Send):
                encode(action.message)
        return time.thread_time() - began, [action for action in actions if isinstance(action, Run)]


def _outcome(run: Run) -> Any:
    try:
        return run.work()
    except Exception as error:
        return error


# --- what they say ------------------------------------------------------------------------------


def raw(kind: type[Message], *fields: Any) -> Frames:
    """Return a message as it travels, whatever an honest sender would have noticed."""
    return [pack([kind.kind, *fields])]


def room(kind: type[Message]) -> int:
    """Return how many bytes the largest field of a message of a kind may take."""
    return HEADER_NBYTES.get(kind.kind, MAX_SHORT_HEADER_NBYTES) - BESIDE_NBYTES


def spec(**changes: Any) -> dict[str, Any]:
    """Return a job as it travels, with something else in it."""
    return {**HONEST.to_wire(), **changes}


def init(**changes: Any) -> Frames:
    """Return an `Init` of such a job."""
    return raw(Init, 1, spec(**changes))


def parameters(number: int, name_chars: int = 8, shape: Iterable[int] = (1,)) -> list[Any]:
    """Return so many parameters of a job, with names of so many characters, as far as an `Init` can hold them."""
    number = min(number, room(Init) // (name_chars + 9 + 3 + 9 * len(list(shape))))
    return [[f"{i:0{name_chars}d}", list(shape), "float32"] for i in range(number)]


def tables(number: int) -> list[Any]:
    """Return so many tables."""
    initial = Initial("normal", 0.0, 0.1).to_wire()
    one = TableSpec(name="t", dim=4096, optimizer=SGD, initial=initial).to_wire()
    return [{**one, "name": f"{i:0{MAX_TABLE_NAME_CHARS}d}"} for i in range(number)]


def plain(nbytes: int) -> Iterator[Any]:
    """Yield plain data of so many bytes, each of another kind."""
    yield [0] * nbytes
    yield [-1] * nbytes
    yield {f"{i:06x}": 0 for i in range(nbytes // 8)}
    yield [{}] * nbytes
    yield [[[[[[[]]]]]]] * (nbytes // 7)
    yield "x" * nbytes
    yield {"x" * (nbytes // 2): "y" * (nbytes // 2)}
    yield [0] * nbytes + [b""]
    yield [[f"{i:06x}", [], "float32"] for i in range(nbytes // 18)]


def wide(nbytes: int) -> Frames:
    """Return an `Init` whose map has as many names as fit."""
    return raw(Init, 1, {f"{i:06x}": 0 for i in range(nbytes // 8)})


def inits() -> Iterator[Frames]:
    """Yield jobs at their limits, and beyond them."""
    for number in (1 << 41, 1 << 44, 1 << 47, LARGEST, MAX_NBYTES // 4):
        yield init(parameters=[["w", [number], "float32"]])
    yield init(parameters=[[f"p{i}", [1 << 28], "float64"] for i in range(1000)])
    yield init(parameters=[["w", [1] * 32, "float32"], ["e", [0, LARGEST], "float32"]])
    for name_chars in (6, 40, MAX_NAME_CHARS):
        yield init(parameters=parameters(MAX_PARAMETERS, name_chars))
        yield init(parameters=parameters(MAX_PARAMETERS + 1, name_chars))
    yield init(parameters=parameters(MAX_PARAMETERS, 6, [1] * 32))
    many = parameters(MAX_PARAMETERS, 6)
    yield init(parameters=[*many[:-1], many[0]])
    yield init(parameters=[[name, shape, ("float32", "float64")[i % 2]] for i, (name, shape, _) in enumerate(many)])
    yield init(parameters=[[name, shape, "int8", 1] for name, shape, _ in many])
    yield init(tables=tables(MAX_TABLES))
    yield init(tables=tables(MAX_TABLES + 1), parameters=[])
    yield init(parameters=parameters(MAX_PARAMETERS // 2), tables=tables(MAX_TABLES))
    for nbytes in (MAX_SHORT_HEADER_NBYTES - BESIDE_NBYTES, room(Init)):
        yield init(parameters=parameters(nbytes // 30, 6))
        for value in plain(nbytes):
            for field in ("optimizer", "treatment"):
                yield init(**{field: {"name": "sgd", "x": value}})
        for field in ("parameters", "tables", "push_codec", "mode", "staleness"):
            yield init(**{field: [[f"{i:06x}", [], "float32"] for i in range(nbytes // 18)]})
            yield init(**{field: "x" * nbytes})
        yield wide(nbytes)
    yield init(workers=LARGEST, mode="bounded", staleness=LARGEST, retain=LARGEST)


def jobs_of_others() -> Iterator[Frames]:
    """Yield descriptions of the job that is trained here which differ from it."""
    yield init(parameters=parameters(MAX_PARAMETERS, 6))
    yield init(parameters=[["w", [8], "float32"], *parameters(MAX_PARAMETERS - 1, 6)])
    for value in plain(room(Init)):
        yield init(optimizer={"x": value})


def heartbeats() -> Iterator[Frames]:
    """Yield counters of every form."""
    for nbytes in (MAX_SHORT_HEADER_NBYTES - BESIDE_NBYTES, MAX_LIST_HEADER_NBYTES - BESIDE_NBYTES):
        for value in plain(nbytes):
            for name in ("x", "jobs", "unreached", "doing", "step_seconds", "staleness", "pushes"):
                yield raw(Heartbeat, {"rss_nbytes": 1, name: value})
            yield raw(Heartbeat, value)
            yield raw(Heartbeat, {"jobs": {"1": value}})


def checkpoints() -> Iterator[Frames]:
    """Yield requests to save whatever state."""
    for nbytes in (MAX_SHORT_HEADER_NBYTES - BESIDE_NBYTES, MAX_LIST_HEADER_NBYTES - BESIDE_NBYTES):
        for number, value in enumerate(plain(nbytes)):
            yield raw(Checkpoint, nbytes + number, "", 0, {"x": value}, b"", b"")


def takes() -> Iterator[Frames]:
    """Yield requests for ranges of data sets, many and large."""
    for number in range(70):
        name = f"{number:0200d}"
        yield raw(Take, 10 + number, name, (1 << 48) - 1, 1, (1 << 48) - 1, [LARGEST >> 1], [])
        yield raw(Take, 10 + number, name, 1, 1, 1, [], [0, 0])
    yield raw(Take, 100, "d", LARGEST, LARGEST, LARGEST, [LARGEST] * 6000, [LARGEST] * 600)


def notes() -> Iterator[Frames]:
    """Yield what scripts log, as much as a message takes."""
    entry = [0.0, 1, {f"{i:064d}": 0.5 for i in range(64)}]
    yield raw(Note, 0, [entry] * 9)
    yield raw(Note, 9, [[0.0, 1, {"x": 0.5}]] * MAX_ENTRIES)
    yield raw(Note, LARGEST, [[0.0, 1, {"x": 0.5}]] * MAX_ENTRIES)


def steps() -> Iterator[Frames]:
    """Yield arrivals with as many attempts as fit, for steps near and far."""
    for step in (0, 1, LARGEST):
        yield raw(Arrive, 20 + step % 5, step, [LARGEST] * 7000, LARGEST, 1)
        yield raw(Arrive, 30 + step % 5, step, list(range(20_000)), 1, 0)


def views() -> Iterator[Frames]:
    """Yield questions about all that there is."""
    yield raw(StatusRequest, 1)
    yield raw(Watch, 2, 1e9, (1 << 32) - 1, 0.0, "", "")
    yield raw(Watch, 3, 1e300, (1 << 32) - 1, 1e-300, "j" * 1000, "n" * 1000)


NONCE = bytes(range(16))
TEXT = "x" * 4096

#: Message -> its sender, of the job ``mine`` (which has not begun) or of ``default`` (which is trained).
CASES: dict[str, tuple[str, Case]] = {
    "Init": ("attacker", inits),
    "Init of a job that is trained": ("mate", jobs_of_others),
    "Heartbeat": ("mate", heartbeats),
    "Checkpoint": ("mate", checkpoints),
    "Take": ("mate", takes),
    "Note": ("mate", notes),
    "Arrive": ("mate", steps),
    "StatusRequest, Watch": ("mate", views),
    "Enter": ("mate", lambda: (raw(Enter, 50 + i, f"{i:0255d}") for i in range(1100))),
    "Withdraw": ("mate", lambda: [raw(Withdraw, LARGEST), raw(Withdraw, 50)]),
    "SetRates": ("honest", lambda: [raw(SetRates, 7, LARGEST, [1.0, float(MOST_NUMBERS), *[0.5] * MOST_NUMBERS])]),
    "Resumed": ("mate", lambda: [raw(Resumed, LARGEST)]),
    "Followed": ("mate", lambda: [raw(Followed, 1, LARGEST, 0), raw(Followed, 1, LARGEST, LARGEST)]),
    "Holding": ("mate", lambda: [raw(Holding, LARGEST)]),
    "Probed": ("mate", lambda: [raw(Probed, 1, 1, 0.0, ["x" * 4000] * 15), raw(Probed, 1, 1, 0.0, [""] * 60_000)]),
    "SpansRecorded, Piece": (
        "mate",
        lambda: [
            raw(SpansRecorded, 1, 1, 0.0, LARGEST, LARGEST, LARGEST, {f"{i}": TEXT for i in range(15)}),
            raw(Piece, 1, 1, NONCE, 0, LARGEST, bytes(48 << 10)),
        ],
    ),
    "Trace, Fetch": (
        "mate",
        lambda: [
            raw(Trace, 1, 1, "", 600.0, (1 << 32) - 1, 64 << 20, NONCE, b""),
            raw(Fetch, 2, LARGEST, NONCE, LARGEST, NONCE, b""),
        ],
    ),
    "Examine": ("mate", lambda: [raw(Examine, 1, TEXT[:3000], NONCE, b""), raw(Examine, 2, "", NONCE, b"")]),
    "Exited": ("mate", lambda: [raw(Exited, 1, NONCE, TEXT)]),
    "Drain, Scale, EndJob": (
        "mate",
        lambda: [
            raw(Drain, 1, TEXT, 0, NONCE, b""),
            raw(Scale, 2, (1 << 32) - 1, NONCE, b""),
            raw(Scale, 3, 4096, NONCE, b""),
            raw(EndJob, 4, "x" * 3000, NONCE, b""),
        ],
    ),
    "Leave, Farewell": ("mate", lambda: [raw(Farewell, NONCE, NONCE, TEXT), raw(Leave, TEXT)]),
    "any kind, with each field too long": ("mate", lambda: nonsense()),
}


def nonsense() -> Iterator[Frames]:
    """Yield messages of every kind that there is whose first field is plain data, as large as the kind may be."""
    for cls, schema in SCHEMAS.items():
        for value in ([0] * room(cls), {f"{i:06x}": 0 for i in range(room(cls) // 8)}):
            yield raw(cls, *([value] + [0] * (len(schema.names) + schema.has_payload - 1)))


def longest(name: str) -> tuple[float, int, float]:
    """Return the seconds that the costliest message of a case takes, which one that is, and the most of any run."""
    sender, case = CASES[name]
    best: dict[int, float] = {}
    most = 0.0
    for _ in range(RUNS):
        cluster = Cluster()
        for number, frames in enumerate(case()):
            cluster.now += 2.0
            has_begun = sender == "attacker" and cluster.machine.runs["mine"].startup.job is not None
            if has_begun or cluster.machine.membership.find(b"@" + sender.encode()) is None:
                cluster = Cluster()
            gc.unfreeze()
            gc.collect()
            gc.freeze()  # else its pauses are those of what is here to say
            took = cluster.take(b"@" + sender.encode(), frames)
            most = max(most, took)
            best[number] = min(took, best.get(number, took))
    costliest = max(best, key=lambda number: best[number])
    return best[costliest], costliest, most


@click.command("hostile")
@click.option("--only", default="", metavar="TEXT", help="Cases with this text in their names.")
@json_option
def command(only: str, json_path: Path | None) -> None:
    """What one message of a client costs the coordinator at most: decoded, taken, and its answers encoded.

    The coordinator's machine in one thread, with two servers, a job that is trained and members of it and of another
    one, which say everything that a client may say at its limits, and beyond. The number is that of the case's message.
    The exit status is 1 if one takes more than 20 ms in each of its runs.
    """
    rows = []
    for name in CASES:
        if only not in name:
            continue
        seconds, number, most = longest(name)
        verdict = "" if seconds <= MOST_S else f", more than {MOST_S * 1e3:.0f}"
        about = f"message {number}; {most * 1e3:.1f} in the longest of {RUNS} runs"
        click.echo(f"{name}: {seconds * 1e3:.1f} ms ({about}){verdict}")
        extra = {"message": number, "longest_s": most}
        rows.append(Row(case="hostile", model=name, min_s=seconds, steps=RUNS, extra=extra))
    if json_path is not None:
        write_rows(json_path, rows)
    if any(row.min_s > MOST_S for row in rows):
        raise SystemExit(1)
