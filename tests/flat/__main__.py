"""``python -m tests.flat``: 500 jobs, 2,000 connections and 1,000 checkpoints on one cluster; say what has grown."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path

from tests.flat.flat import in_directory, table


def main() -> int:
    """Run what the command line says; return 1 if anything grows."""
    parser = argparse.ArgumentParser(prog="python -m tests.flat", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=25, help="at least 3, each of 20 jobs, 80 connections and 40 checkpoints"
    )
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write all that was seen there")
    parser.add_argument("--no-keys", action="store_true", help="nodes have no keys")
    a = parser.parse_args()
    logging.getLogger("zmqps").setLevel(logging.ERROR)
    out = in_directory(a.rounds, servers=a.servers, keyed=not a.no_keys, say=lambda line: print(line, flush=True))
    if a.json is not None:
        a.json.write_text(json.dumps([asdict(held) for held in out.seen]))
    print(table(out), flush=True)
    return int(bool(out.grown))


if __name__ == "__main__":
    sys.exit(main())
