"""What every attacker is: one role, one process, one connection or a few, until it is told to stop.

``python -m tests.attack.attackers NAME COORDINATOR [INCARNATION ...]`` runs one; the incarnations are those of honest
workers, as if it had overheard them. For each line of its standard input, and at the end of it, which is its own end,
it says what it has done so far as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from tests.attack.stranger import Target, Until, scout

#: Where the attackers are.
MODULES = ("identities", "queues", "framing", "texts")


class Attacker(NamedTuple):
    """A kind of attack."""

    name: str
    about: str
    run: Callable[[Target, Until, Counter[str]], None]


ATTACKERS: dict[str, Attacker] = {}


def attacker(run: Callable[[Target, Until, Counter[str]], None]) -> Callable[[Target, Until, Counter[str]], None]:
    """Register a function as an attacker under its name; its docstring says what it does."""
    name = run.__name__.replace("_", "-")
    ATTACKERS[name] = Attacker(name, (run.__doc__ or "").splitlines()[0], run)
    return run


def all_attackers() -> dict[str, Attacker]:
    """Return the attackers by name."""
    for module in MODULES:
        import_module(f"tests.attack.{module}")
    return ATTACKERS


def main(name: str, coordinator: str, *insider: str) -> None:
    """Run one."""
    os.nice(19)
    until, counts = Until(), Counter[str]()

    def listen() -> None:
        for _ in sys.stdin:
            print(json.dumps(counts.copy()), flush=True)
        until.tell()

    target = scout(coordinator, [bytes.fromhex(text) for text in insider])
    print(json.dumps({"ready": True}), flush=True)
    threading.Thread(target=listen, daemon=True).start()
    all_attackers()[name].run(target, until, counts)
    print(json.dumps(counts), flush=True)
    os._exit(0)  # whatever it still holds goes with it


if __name__ == "__main__":
    from tests.attack.attackers import main as run_one  # not the copy of this module that is called __main__

    run_one(*sys.argv[1:])
