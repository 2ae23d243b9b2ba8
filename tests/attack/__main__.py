"""``python -m tests.attack``: attackers beside honest training, and a table of what they did; or a soak.

Without ``--minutes`` each attacker works for a few seconds beside the training of a fresh cluster. With it, one cluster
trains for so long in each mode, side by side, while a worker is killed every five seconds and the attackers take turns.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.attack.arena import SLOW, Outcome, main_environment, try_attack
from tests.attack.attackers import all_attackers
from tests.attack.faults import APART, FAULTS, NEED_ROOM, set_apart
from tests.attack.soak import Soak, soak, table

#: How often an attack is tried before it counts as one that slows training down.
ATTEMPTS = 3
HEAD = ["attack", "mode", "steps/s before", "during", "after", "longest stall", "0.9 after", "MB before, peak, after",
        "log MB", "tries", "rounds", "invariants", "the attacker"]  # fmt: skip


def row(out: Outcome) -> list[str]:
    """Return one line of the table."""
    mb = f"{out.rss_before >> 20}, {out.rss_peak >> 20}, {out.rss_after >> 20} ({out.node})"
    recovered = "never" if out.recovered_s is None else f"{out.recovered_s:.1f} s"
    return [
        out.attack, out.mode, f"{out.before:.0f}", f"{out.during:.0f}", f"{out.after:.0f}", f"{out.stall_s:.1f} s",
        recovered, mb, f"{out.logged / 1e6:.2f}", str(out.tries), str(out.rounds), "; ".join(out.broken) or "all hold",
        ", ".join(f"{name} {count}" for name, count in out.counts.items()),
    ]  # fmt: skip


def attack(name: str, mode: str, seconds: float, tries: int = 1, *, timed: bool = True) -> Outcome:
    """Run an attack; where nothing but the speed was wrong, once more, for others may be busy on this machine."""
    how: dict[str, Any] = {"during_s": seconds}
    fault, options = FAULTS.get(name), dict[str, Any]()
    if fault is not None:
        how |= {"attacker": fault.attacker, "fault": fault.begin}
        options = {"descriptors": fault.descriptors, "keyed": fault.keyed, "more": fault.more}
    try:
        out = try_attack(name, mode, timed=timed, attack=how, **options)
    except Exception as error:  # of the run itself: no invariant can be said to hold
        return Outcome(name, mode, broken=[f"{type(error).__name__}: {error}"[:200]])
    out.tries = tries
    only_slow = out.broken and all(text.startswith(SLOW) for text in out.broken)
    return attack(name, mode, seconds, tries + 1, timed=timed) if only_slow and tries < ATTEMPTS else out


def soaks(arguments: argparse.Namespace) -> int:
    """Soak in all modes at the same time; return 1 if an invariant was violated."""

    def run(mode: str) -> Soak:
        try:
            return soak(mode, arguments.minutes, arguments.attack.split(), arguments.seed)
        except Exception as error:  # of the run itself: no invariant can be said to hold
            return Soak(mode, broken=[f"{type(error).__name__}: {error}"[:300]])

    with ThreadPoolExecutor() as pool:
        ended = list(pool.map(run, arguments.mode.split()))
    text = "\n".join(map(table, ended))
    print(text, flush=True)
    if arguments.output:
        arguments.output.write_text(text + "\n")
    return int(any(out.broken for out in ended))


def main() -> int:
    """Run what the command line says; return 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--attack", default="", help="names, separated by spaces; by default all of them")
    parser.add_argument("--mode", default="async sync", help="async, sync or both")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each attack lasts")
    parser.add_argument("--untimed", action="store_true", help="let the speed not count: others use this machine")
    parser.add_argument("--minutes", type=float, default=0.0, help="soak for so long instead")
    parser.add_argument("--seed", type=int, default=0, help="of the order of attackers in a soak")
    parser.add_argument("--output", type=Path, help="a file for the table: appended to, or of a soak written")
    arguments = parser.parse_args()
    main_environment()
    names = arguments.attack.split() or [*all_attackers(), *FAULTS]
    if set(names) & set(NEED_ROOM) and APART not in os.environ and not arguments.minutes:
        set_apart()
    if arguments.minutes:
        return soaks(arguments)
    bad = 0
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|", flush=True)
    for name in names:
        for mode in arguments.mode.split():
            began = time.monotonic()
            outcome = attack(name, mode, arguments.seconds, timed=not arguments.untimed)
            bad += bool(outcome.broken)
            line = "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in row(outcome)) + " |"
            print(line, f"({time.monotonic() - began:.0f} s)", flush=True)
            if arguments.output:
                with arguments.output.open("a") as file:
                    print(line, file=file)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
