"""gate: this checkout beside an earlier version, in turns; the exit code says whether a case has become slower."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import click

from bench.children import ChildError
from bench.gate.cases import CASES
from bench.gate.judge import CLOCK, FEWEST_ROUNDS, PROCESSOR, PROCESSOR_THRESHOLD, THRESHOLD, Verdict, judge
from bench.peers.process import PeerError, PeerProcess
from bench.processes import BusyTime
from bench.results import REPOSITORY, environment
from bench.stats import percentile
from bench.tables import console, machine_text, new_table, seconds

#: Turns of each version in a round, and before those that count.
TURNS, WARM_UP = 10, 3


class Sample(NamedTuple):
    """What a version took for a step in a round: medians of its turns.

    Attributes
    ----------
    clock_s
        Of a worker's step.
    processor_s
        Of all processes together, for a step of all workers.
    """

    clock_s: float
    processor_s: float


def find_base() -> str:
    """Return what to compare with where nothing was named: the last release's tag, or without one what is committed.

    The latter is the last commit, if the package here differs from it, else the one before.

    Raises
    ------
    click.ClickException
        There is no earlier version.
    """
    last_release = ("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*")  # other tags are not of releases
    for command in (last_release, ("status", "--porcelain", "--", "zmqps")):
        try:
            found = _git(*command).decode().strip()
        except (OSError, subprocess.SubprocessError):
            continue
        if command[0] == "describe":
            return found
        base = "HEAD" if found else "HEAD~1"
        with suppress(subprocess.SubprocessError):
            named = _git("log", "-1", "--format=%h (%s)", base).decode().strip()
            console.print(f"there is no tag: comparing with {base}, {named}; make bench-gate BASE=COMMIT names another")
            return base
    words = "there is no earlier version here to compare with: name a commit, as in make bench-gate BASE=main~20"
    raise click.ClickException(words)


def _git(*arguments: str) -> bytes:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout


def unpack(commit: str, root: Path) -> None:
    """Put the package of a commit into a directory.

    Raises
    ------
    click.ClickException
        There is no such commit.
    """
    try:
        archive = _git("archive", commit, "zmqps")
    except subprocess.CalledProcessError as error:
        raise click.ClickException(f"no package in {commit!r}: {error.stderr.decode().strip()}") from None
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(root, filter="data")


def measure_round(case: str, roots: Sequence[Path], turns: int, number: int) -> list[Sample]:
    """Let fresh processes of each version take turns; return what each took."""
    flags = [f"--case={case}"]
    with ExitStack() as stack:
        versions = [
            stack.enter_context(PeerProcess(Path(sys.executable), "bench.gate.version", flags, r)) for r in roots
        ]
        busy = [BusyTime(version.pids) for version in versions]
        clock: list[list[float]] = [[] for _ in roots]
        processor: list[list[float]] = [[] for _ in roots]
        for turn in range(WARM_UP + turns):
            order = range(len(roots)) if (turn + number) % 2 else reversed(range(len(roots)))
            for index in order:  # neither is always the first
                busy[index].restart()
                taken = versions[index].steps(1)
                if turn >= WARM_UP:
                    clock[index] += taken
                    processor[index].append(busy[index].seconds() / CASES[case].batch)
    return [
        Sample(*(percentile(times, 50) for times in of_version)) for of_version in zip(clock, processor, strict=True)
    ]


def judge_case(case: str, rounds: Sequence[Sequence[Sample]], threshold: float, processor: float) -> list[Verdict]:
    """Judge by the clock and by processor time, each with its own threshold."""
    found = []
    for place, (time, limit) in enumerate(((CLOCK, threshold), (PROCESSOR, processor))):
        old, new = zip(*([sample[place] for sample in both] for both in rounds), strict=True)
        found.append(judge(case, old, new, limit, time))
    return found


def print_verdicts(found: Sequence[Verdict], base: str) -> None:
    """Print how each case has changed."""
    table = new_table("case", "time", base, "here", "ratio", "quartiles", "")
    colours = {"faster": "green", "slower": "red", "same": "dim"}
    for v in found:
        quartiles = f"{v.low:.3f}–{v.high:.3f}"
        word = f"[{colours[v.word]}]{v.word}[/]"
        table.add_row(v.case, v.time, seconds(v.old_s), seconds(v.new_s), f"{v.ratio:.3f}", quartiles, word)
    console.print(machine_text(environment()["machine"]), highlight=False)
    console.print(table)


@click.command("gate")
@click.option("--base", metavar="COMMIT", help="The earlier version.  [default: the last tag, or what is committed]")
@click.option("--only", metavar="TEXT", multiple=True, help=f"Only cases whose name holds this, of {', '.join(CASES)}.")
@click.option(
    "--rounds",
    type=click.IntRange(FEWEST_ROUNDS),
    default=5,
    show_default=True,
    help="Each with fresh processes of both versions.",
)
@click.option("--turns", type=click.IntRange(1), default=TURNS, show_default=True, help="Of each version in a round.")
@click.option(
    "--threshold",
    type=click.FloatRange(0.0),
    default=THRESHOLD,
    show_default=True,
    help="A case is slower if the lower quartile of new over old is above one by more than this.",
)
@click.option(
    "--processor-threshold",
    type=click.FloatRange(0.0),
    default=PROCESSOR_THRESHOLD,
    show_default=True,
    help="The same for the processor time of all processes.",
)
@click.option(
    "--json",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("runs/bench/gate.json"),
    show_default=True,
    help="Where the result goes.",
)
def command(
    base: str | None,
    only: tuple[str, ...],
    rounds: int,
    turns: int,
    threshold: float,
    processor_threshold: float,
    path: Path,
) -> None:
    """Say which cases are slower or faster than in an earlier version; the exit code is 1 if any is slower.

    Both versions run at the same time, each as fresh processes in each round, and take turns (A B A B); a round gives
    one ratio of their medians, and the quartiles of the rounds decide: of the clock, and of the processor time of all
    processes, which also counts what other cores did meanwhile. What is not committed here counts as this
    version.
    """
    base = base or find_base()
    cases = [case for case in CASES if not only or any(text in case for text in only)]
    if not cases:
        raise click.ClickException(f"no case holds {' or '.join(only)}")
    found: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="zmqps-gate-") as directory:
        roots = [Path(directory).resolve() / name for name in ("old", "new")]
        unpack(base, roots[0])
        shutil.copytree(REPOSITORY / "zmqps", roots[1] / "zmqps", ignore=shutil.ignore_patterns("__pycache__"))
        measured: dict[str, list[list[Sample]]] = {case: [] for case in cases}
        for number in range(rounds):  # all cases in each: a machine is as it is for minutes
            for case in cases:
                console.print(f"round {number + 1}/{rounds} {case}", style="dim", highlight=False)
                try:
                    measured[case].append(measure_round(case, roots, turns, number))
                except (PeerError, ChildError) as error:
                    raise click.ClickException(f"{case}: {error}") from None
        for case, samples in measured.items():
            found += judge_case(case, samples, threshold, processor_threshold)
    print_verdicts(found, base)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(verdict), "verdict": verdict.word, "rounds": measured[verdict.case]} for verdict in found]
    path.write_text(json.dumps({**environment(), "base": base, "rows": rows}, indent=1) + "\n")
    if slower := [f"{v.case} by {v.ratio - 1:.0%} ({v.time})" for v in found if v.word == "slower"]:
        raise click.ClickException(f"slower than {base}: {', '.join(slower)}")


if __name__ == "__main__":
    command()
