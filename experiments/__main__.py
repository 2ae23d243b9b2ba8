"""``python -m experiments``: run all, or those named; pictures and figures go into runs/experiments/."""

from __future__ import annotations

import argparse
import os
import time
from importlib import import_module
from pathlib import Path

#: In the order of docs/experiments.md.
EXPERIMENTS = ("past_the_minimum", "modes", "backup_workers", "treatments", "local_steps", "restore", "row_cache")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m experiments", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXPERIMENTS)}; default: all")
    parser.add_argument("--out", type=Path, default=Path("runs/experiments"), help="default: %(default)s")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(EXPERIMENTS):
        parser.error(f"no experiment is called {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    # before numpy is imported: its BLAS would start a thread for every core to multiply 64 × 32 numbers
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in arguments.names or EXPERIMENTS:
        began_at = time.perf_counter()
        outcome = import_module(f"experiments.{name}").run(arguments.out)
        outcome.save(arguments.out / f"{name}.json")
        outcome.show(f"{name} ({time.perf_counter() - began_at:.0f} s)")


if __name__ == "__main__":
    main()
