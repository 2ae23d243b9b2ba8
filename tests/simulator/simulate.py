"""``python -m tests.simulator.simulate``: run scenarios by their seeds, or see what a cluster of some size costs.

::

    python -m tests.simulator.simulate --scenario sync-crashes --seed 17      # replays one run exactly
    python -m tests.simulator.simulate --scenario all --seeds 0:100000        # as many as wished, on all cores
    python -m tests.simulator.simulate --workers 1000 --servers 32 --seed 1   # messages, bytes and time a step
    python -m tests.simulator.simulate --sweep runs/growth.png                # … as the cluster grows
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path

from tests.simulator.growth import MODES, Size, draw, measure, sweep, table
from tests.simulator.probes import ENOUGH_SEEDS, missed
from tests.simulator.probes import table as probed
from tests.simulator.scenarios import KINDS, SCENARIOS
from tests.simulator.seeds import run_seeds
from tests.simulator.simulation import Report, SimulationError


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    description, _, usage = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        "python -m tests.simulator.simulate",
        description=description.partition(": ")[2],
        epilog=usage.replace("::\n\n", ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, default=1)
    which.add_argument("--seeds", type=_range, metavar="FROM:TO", help="run all of these, TO excluded")
    which.add_argument("--sweep", type=Path, metavar="PNG", help="measure growing clusters up to --workers, plot them")
    scenarios = parser.add_argument_group("scenarios, with faults and invariants")
    scenarios.add_argument(
        "--scenario",
        type=_names,
        metavar="NAME",
        help=f"all (in turn), those of a pattern ('*-freezes'), or one of {', '.join(SCENARIOS)}",
    )
    scenarios.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that run --seeds")
    scenarios.add_argument(
        "--probes",
        action="store_true",
        help="say how many of --seeds reach each rare branch, and fail if none reaches one of them; "
        f"always with all scenarios and {ENOUGH_SEEDS:,} seeds",
    )
    cluster = parser.add_argument_group("a cluster of some size, without --scenario")
    cluster.add_argument("--mode", choices=MODES, default="sync")
    cluster.add_argument("--servers", type=int, default=2)
    cluster.add_argument("--workers", type=int, default=4)
    cluster.add_argument("--steps", type=int, default=3, help="of each worker")
    cluster.add_argument("--slice-nbytes", type=int, default=1 << 16, help="size of the slices that messages carry")
    cluster.add_argument("--faults", choices=KINDS, help="what goes wrong; by default nothing")
    cluster.add_argument("--checks", action="store_true", help="check the invariants, too, after every event; slow")
    return parser


def _names(text: str) -> list[str]:
    names = [name for name in SCENARIOS if text == "all" or fnmatchcase(name, text)]
    if not names:
        raise argparse.ArgumentTypeError(f"there is no scenario {text!r}; --help lists them")
    return names


def _range(text: str) -> range:
    first, colon, last = text.partition(":")
    try:
        seeds = range(int(first), int(last))
    except ValueError:
        seeds = range(0)
    if not colon or not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range FROM:TO of seeds, like 0:1000")
    return seeds


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code: 1 when an invariant was violated."""
    arguments = parser().parse_args(argv)
    a = arguments
    if a.sweep is not None:
        rows = sweep(a.workers)
        print(table(rows))
        draw(rows, a.sweep)
        return 0
    if a.seeds is not None:
        names = a.scenario or [*SCENARIOS]
        return run(names, a.seeds, a.jobs or 1, probes=a.probes or _is_enough(names, a.seeds))
    started = time.process_time()
    try:
        if a.scenario is not None:
            report = SCENARIOS[a.scenario[a.seed % len(a.scenario)]].simulation(a.seed).run()
        else:
            size = Size(a.mode, a.servers, a.workers, a.steps, a.slice_nbytes)
            report = measure(size, a.seed, KINDS[a.faults] if a.faults else None, validate=a.checks)
    except SimulationError as error:
        print(error, file=sys.stderr)
        return 1
    show(report, time.process_time() - started)
    return 0


def _is_enough(names: list[str], seeds: range) -> bool:
    return len(names) == len(SCENARIOS) and len(seeds) >= ENOUGH_SEEDS


def run(names: list[str], seeds: range, jobs: int, *, probes: bool) -> int:
    """Run seeds in scenarios; return the exit code. ``probes``: each must be reached."""
    failures, reached = run_seeds(names, seeds, jobs)
    if not probes:
        return 1 if failures else 0
    print(probed(reached))
    never = missed(reached)
    for name in never:
        print(f"never reached: {name}", file=sys.stderr)
    return 1 if failures or never else 0


def show(report: Report, processor_s: float) -> None:
    """Print what a run amounted to."""
    steps = max(1, report.steps)
    rows = {
        "steps": f"{report.steps}",
        "messages": f"{report.messages}, {report.messages / steps:.1f} a step, {report.lost} lost",
        "bytes": f"{report.nbytes}, {report.nbytes / steps:.0f} a step",
        "simulated seconds": f"{report.seconds:.3f}, {report.training_s:.3f} of them training, "
        f"{report.training_s / steps:.6f} a step",
        "processor seconds": f"{processor_s:.3f}, {processor_s / steps:.6f} a step, "
        f"{report.messages / processor_s:.0f} messages a second",
        "outcomes": ", ".join(f"{name} {count}" for name, count in report.outcomes.items()),
        "digest": f"{report.digest:08x}, of all events: equal digests, equal runs",
    }
    for name, text in rows.items():
        print(f"{name:18} {text}")


if __name__ == "__main__":
    sys.exit(main())
