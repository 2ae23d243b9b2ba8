"""``python -m tests.torch.conformance``: run the suite, or a part of it, and print what became of each combination."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from tests.torch.conformance.cases import CROSSES, Case, covering, everything  # noqa: E402
from tests.torch.conformance.run import run_all, say, say_nothing, table  # noqa: E402


def main() -> int:
    """Return how the process exits: 0 if nothing has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torch.conformance", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the covering, and of the sample")
    parser.add_argument("--strength", type=int, default=2, help="2: each pair of values is in a case; 3: each three")
    parser.add_argument("--part", choices=["all", "covering", *CROSSES], default="all", help="which combinations")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="those that have this value, such as overlap or model=qat; may be given again",
    )
    parser.add_argument("--mode", help="those of one mode")
    parser.add_argument("--sample", type=int, help="as many, by chance")
    parser.add_argument("--case", action="append", default=[], help="this combination, as a table names it")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="name the combinations, and run none")
    parser.add_argument("--verbose", action="store_true", help="name each as it ends")
    arguments = parser.parse_args()
    cases = chosen(arguments)
    if arguments.list:
        print(*cases, sep="\n")
        return 0
    begun, tell = time.perf_counter(), say if arguments.verbose else say_nothing
    if arguments.processes > 1:
        shares = [cases[first :: arguments.processes] for first in range(arguments.processes)]
        with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
            verdicts = [verdict for found in pool.map(partial(run_all, tell=tell), shares) for verdict in found]
    else:
        verdicts = run_all(cases, tell)
    print(table(verdicts))
    print(f"{len(verdicts)} combinations in {time.perf_counter() - begun:.0f} s")
    return any(verdict.kind == "failed" for verdict in verdicts)


def chosen(arguments: argparse.Namespace) -> list[Case]:
    """Return the cases that the command line asks for."""
    if arguments.case:
        return [Case.parse(text) for text in arguments.case]
    if arguments.part == "all":
        cases = everything(arguments.seed, arguments.strength)
    elif arguments.part == "covering":
        cases = covering(arguments.seed, arguments.strength)
    else:
        cases = list(CROSSES[arguments.part]())
    wanted = [*arguments.only, *([f"mode={arguments.mode}"] if arguments.mode else [])]
    for text in wanted:
        axis, equals, value = text.rpartition("=")
        cases = [c for c in cases if (str(getattr(c, axis)) == value if equals else value in str(c).split("/"))]
    if arguments.sample is not None and arguments.sample < len(cases):
        cases = random.Random(arguments.seed).sample(cases, arguments.sample)
    return cases


if __name__ == "__main__":
    sys.exit(main())
