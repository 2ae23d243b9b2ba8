"""``python -m tests.durable``: train for minutes while nodes are killed, drained, added, stopped; say what was lost."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from tests.durable.soak import FAULTS, soak, table


def main() -> int:
    """Run what the command line says; return 1 if a value is wrong or somebody failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.durable", description=__doc__)
    faults = "; ".join(f"{name}, {str(do.__doc__).rstrip('.').lower()}" for name, do in FAULTS.items())
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--mode", default="async sync", help="async, bounded, sync or several, one after the other")
    parser.add_argument("--faults", default="server drain scale freeze", help=f"what happens in turn, of: {faults}")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", type=Path, help="keep the nodes' logs in this new directory")
    a = parser.parse_args()
    logging.getLogger("zmqps").setLevel(logging.ERROR)  # four workers tell each death
    bad = 0
    for mode in a.mode.split():
        with tempfile.TemporaryDirectory(prefix="zmqps-soak-") as temporary:
            directory = (a.logs or Path(temporary)) / mode
            directory.mkdir(parents=True)
            out = soak(
                mode, a.minutes, directory, servers=a.servers, workers=a.workers, replicas=a.replicas,
                faults=a.faults.split(), seed=a.seed, say=lambda line: print(line, flush=True),
            )  # fmt: skip
        print(table(out), flush=True)
        bad += bool(out.broken)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
