"""``python -m zmqps.testing.simulate``: run seeds, or see how messages and time grow with the cluster's size."""

from __future__ import annotations

import argparse
import sys
import time

from zmqps.core.coordinator import CoordinatorOptions
from zmqps.testing.network import Faults
from zmqps.testing.simulation import Report, Simulation, SimulationError
from zmqps.testing.training import AsyncTraining

#: Faults of ``--faults``: enough that most runs see several kinds, few enough that most make progress.
SOME_FAULTS = Faults(
    delay=0.005, loss=0.002, duplication=0.03, reordering=0.03, partition=0.04, partition_s=6.0, crash=0.05
)


def simulate(arguments: argparse.Namespace, seed: int) -> Report:
    """Run one seed."""
    training = AsyncTraining(
        steps=arguments.steps,
        parameters=max(6, 3 * arguments.servers),
        size=max(40, 2 * arguments.workers),
        lives=2 * arguments.workers,
        slice_nbytes=arguments.slice_nbytes,
    )
    options = CoordinatorOptions(
        servers=arguments.servers,
        workers=arguments.workers,
        idle_timeout=0.0,
        slice_nbytes=arguments.slice_nbytes,
    )
    return Simulation(
        seed,
        arguments.servers,
        arguments.workers,
        SOME_FAULTS if arguments.faults else Faults(),
        training,
        options=options,
        validate=not arguments.no_checks,
    ).run()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser("python -m zmqps.testing.simulate", description=__doc__)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="of each worker")
    parser.add_argument("--slice-nbytes", type=int, default=4096, help="size of the slices that messages carry")
    parser.add_argument("--faults", action="store_true", help="delays, losses, duplicates, partitions, crashes")
    parser.add_argument("--no-checks", action="store_true", help="skip the invariants, to measure the core's speed")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, default=1)
    which.add_argument("--seeds", type=_range, metavar="FROM:TO", help="run all of these, TO excluded")
    return parser


def _range(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last))


def replay(arguments: argparse.Namespace, seed: int) -> str:
    """Return the command that runs one seed in the same way."""
    a = arguments
    flags = ("--faults",) if a.faults else ()
    sizes = f"--servers {a.servers} --workers {a.workers} --steps {a.steps} --slice-nbytes {a.slice_nbytes}"
    return " ".join(["python -m zmqps.testing.simulate", sizes, f"--seed {seed}", *flags])


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code: 1 when an invariant was violated."""
    arguments = parser().parse_args(argv)
    failed = 0
    seeds = arguments.seeds if arguments.seeds is not None else [arguments.seed]
    for seed in seeds:
        started = time.perf_counter()
        try:
            report = simulate(arguments, seed)
        except SimulationError as error:
            failed += 1
            print(f"{error}\nreplay: {replay(arguments, seed)}", file=sys.stderr)
            continue
        if arguments.seeds is None:
            show(report, time.perf_counter() - started)
    if arguments.seeds is not None:
        print(f"{len(seeds) - failed} of {len(seeds)} seeds passed")
    return 1 if failed else 0


def show(report: Report, wall_s: float) -> None:
    """Print what a run amounted to."""
    steps = max(1, report.steps)
    rows = {
        "steps": f"{report.steps}",
        "messages": f"{report.messages}, {report.messages / steps:.1f} a step, {report.lost} lost",
        "bytes": f"{report.nbytes}, {report.nbytes / steps:.0f} a step",
        "simulated seconds": f"{report.seconds:.3f}, {report.seconds / steps:.6f} a step",
        "wall seconds": f"{wall_s:.3f}, {report.messages / wall_s:.0f} messages a second",
        "outcomes": ", ".join(f"{name} {count}" for name, count in report.outcomes.items()),
    }
    for name, text in rows.items():
        print(f"{name:18} {text}")


if __name__ == "__main__":
    sys.exit(main())
