"""Runs many seeds over all cores, says how far it is, and how to replay what failed."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tests.simulator.probes import watching
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.simulation import SimulationError

#: Seeds that a process runs before it says how they went.
CHUNK = 20
#: Seconds between two lines that say how far it is.
PROGRESS_S = 10.0

Failure = tuple[str, int, str]  # scenario, seed, what was violated


class SeedsRun(NamedTuple):
    """What has become of some seeds.

    ``reached``: by name of a `tests.simulator.probes.CodeProbe`, how many of them have.
    """

    failures: list[Failure]
    reached: Counter[str]


def run_seeds(names: Sequence[str], seeds: range, jobs: int) -> SeedsRun:
    """Run every seed in one of the scenarios, in turn; print progress and failures.

    Parameters
    ----------
    names
        Of scenarios; seed s runs ``names[s % len(names)]``.
    seeds, jobs
        Which seeds, over how many processes.
    """
    started = last = time.monotonic()
    done, failures, reached = 0, list[Failure](), Counter[str]()
    for number, (failed, probed) in _outcomes(names, seeds, jobs):
        done += number
        reached += probed
        for failure in failed:
            name, seed, text = failure
            failures.append(failure)
            print(f"{name}, seed {seed}: {text}\n    replay: {replay(name, seed)}", file=sys.stderr, flush=True)
        now = time.monotonic()
        if now - last >= PROGRESS_S:
            last = now
            rate = done / (now - started)
            left = (len(seeds) - done) / rate
            print(
                f"{done} of {len(seeds)} seeds, {len(failures)} failed, {rate:.0f} a second, {left:.0f} s left",
                flush=True,
            )
    print(f"{len(seeds) - len(failures)} of {len(seeds)} seeds passed in {time.monotonic() - started:.0f} s")
    return SeedsRun(failures, reached)


def replay(name: str, seed: int) -> str:
    """Return the command that runs one seed in the same way, and shows its last events."""
    return f"python -m tests.simulator.simulate --scenario {name} --seed {seed}"


def _outcomes(names: Sequence[str], seeds: range, jobs: int) -> Iterator[tuple[int, SeedsRun]]:
    chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        yield from (_run(names, chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_run, [names] * len(chunks), chunks)


def _run(names: Sequence[str], seeds: range) -> tuple[int, SeedsRun]:
    run, seen = SeedsRun([], Counter()), Counter[str]()
    with watching(seen):
        for seed in seeds:
            name = names[seed % len(names)]
            try:
                SCENARIOS[name].simulation(seed).run()
            except SimulationError as error:
                run.failures.append((name, seed, str(error.__cause__ or error).partition("\n")[0]))
            run.reached.update(seen.keys())
            seen.clear()
    return len(seeds), run
