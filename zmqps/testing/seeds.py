"""Runs many seeds over all cores, says how far it is, and how to replay what failed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from zmqps.testing.scenarios import SCENARIOS
from zmqps.testing.simulation import SimulationError

#: Seeds that a process runs before it says how they went.
CHUNK = 20
#: Seconds between two lines that say how far it is.
PROGRESS_S = 10.0

Failure = tuple[str, int, str]  # scenario, seed, what was violated


def run_seeds(names: Sequence[str], seeds: range, jobs: int) -> list[Failure]:
    """Run every seed in one of the scenarios, in turn; print progress and failures, return the failures.

    Parameters
    ----------
    names
        Of scenarios; seed s runs ``names[s % len(names)]``.
    seeds, jobs
        Which seeds, over how many processes.
    """
    started = last = time.monotonic()
    done, failures = 0, list[Failure]()
    for number, failed in _outcomes(names, seeds, jobs):
        done += number
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
    return failures


def replay(name: str, seed: int) -> str:
    """Return the command that runs one seed in the same way, and shows its last events."""
    return f"python -m zmqps.testing.simulate --scenario {name} --seed {seed}"


def _outcomes(names: Sequence[str], seeds: range, jobs: int) -> Iterator[tuple[int, list[Failure]]]:
    chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        yield from (_run(names, chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_run, [names] * len(chunks), chunks)


def _run(names: Sequence[str], seeds: range) -> tuple[int, list[Failure]]:
    failures = []
    for seed in seeds:
        name = names[seed % len(names)]
        try:
            SCENARIOS[name].simulation(seed).run()
        except SimulationError as error:
            failures.append((name, seed, str(error.__cause__ or error).partition("\n")[0]))
    return len(seeds), failures
