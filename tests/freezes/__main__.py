"""``python -m tests.freezes``: train while processes are stopped (SIGSTOP) and go on; say what was lost, and who."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.freezes.run import freezes, table


def main() -> int:
    """Run what the command line says; return 1 if a value is wrong or somebody was given up without reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.freezes", description=__doc__)
    parser.add_argument("--number", type=int, default=200, help="how many freezes, in each mode")
    parser.add_argument("--mode", default="async sync", help="async, sync or both, one after the other")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=2.0, help="the heartbeat timeout in seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", type=Path, help="keep the nodes' logs in this new directory")
    a = parser.parse_args()
    bad = 0
    for mode in a.mode.split():
        with tempfile.TemporaryDirectory(prefix="zmqps-freezes-") as temporary:
            directory = (a.logs or Path(temporary)) / mode
            directory.mkdir(parents=True)
            out = freezes(
                mode, a.number, directory, servers=a.servers, workers=a.workers, timeout=a.timeout, seed=a.seed,
                say=lambda line: print(line, flush=True),
            )  # fmt: skip
        print(table(out), flush=True)
        bad += bool(out.broken)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
