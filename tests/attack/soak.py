"""Training for many minutes while a worker is killed every few seconds and attackers take turns."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.attack.arena import DEFECTS, Arena, final_values, growth, limits, newcomer, speed
from tests.attack.attackers import all_attackers
from tests.attack.nodes import Held, lines_with, logged_nbytes, most
from tests.attack.training import CORE

#: A worker is killed so often.
KILL_S = 5.0
#: So long after the last attacker has gone the nodes hold what they are going to hold.
SETTLE_S = 5.0
QUIET_S = 1.0
#: A killed worker delays a synchronous step by that much.
HEARTBEAT_TIMEOUT = 2.5


@dataclass(slots=True)
class Soak:
    """What became of it."""

    mode: str
    minutes: float = 0.0
    steps: float = 0.0
    killed: int = 0
    attacks: Counter[str] = field(default_factory=Counter)
    held: list[dict[str, Held]] = field(default_factory=list)  # after the warm-up, and in a quiet second of each minute
    logged: int = 0
    broken: list[str] = field(default_factory=list)


def soak(
    mode: str,
    minutes: float,
    names: Sequence[str] = (),
    seed: int = 0,
    say: Callable[[str], None] = lambda line: print(line, flush=True),
) -> Soak:
    """Run it; say a line a minute.

    Parameters
    ----------
    mode
        ``async`` or ``sync``.
    minutes
        How long.
    names
        Of the attackers, who come in a random order; by default all of them.
    seed
        Of that order.
    say
        Takes the lines.
    """
    out, rng = Soak(mode), random.Random(seed)
    names = list(names or all_attackers())
    turns: list[str] = []
    with Arena(mode, expected=CORE + 1, limits=limits(0.25, HEARTBEAT_TIMEOUT)) as arena:
        arena.replace_victim()
        arena.warm_up()
        arena.watch(KILL_S, {})
        out.held.append(quiet(arena))
        began = time.monotonic()
        minute, steps, peaks = began, arena.num_steps, dict[str, int]()
        steady = 0  # in what was held: after a round of all attackers all that a node needs was used once
        while not out.broken and time.monotonic() < began + 60 * minutes:
            turns = turns or rng.sample(names, len(names))
            name = turns.pop()
            with arena.attacked(name) as attack:
                for _ in range(2):
                    arena.replace_victim()
                    arena.watch(KILL_S, peaks)
            out.attacks[name] += 1
            if "attacker" in attack.counts:
                say(f"  {name}: {attack.counts['attacker']}")
            out.broken += [f"{text}, beside {name}" for text in (*arena.dead, *arena.wrong_values())]
            if out.broken:
                say(f"BROKEN {mode}: {out.broken}")
            if time.monotonic() >= minute + 60:
                out.held.append(quiet(arena))
                if not steady and out.attacks.total() >= len(names):
                    steady = len(out.held) - 1
                now = time.monotonic()
                rate = speed([(minute, steps), (now, arena.num_steps)])
                say(line(out, arena, (now - began) / 60, rate, peaks))
                minute, steps, peaks = now, arena.num_steps, {}
        out.held.append(quiet(arena))
        out.minutes, out.steps, out.killed = (time.monotonic() - began) / 60, arena.num_steps, arena.num_killed
        out.logged = logged_nbytes(arena.directory / "logs")
        steady = steady or min(1, len(out.held) - 1)  # too short for all of them: after the first minute
        out.broken += [*arena.dead, *arena.victims_failed[:3], *growth(out.held[steady], out.held[-1])]
        out.broken += lines_with(arena.directory / "logs", *DEFECTS)[:3]
        if not arena.dead:
            out.broken += newcomer(arena)
            arena.stop_training()
            out.broken += [*arena.wrong_values(), *final_values(arena)]
    return out


def quiet(arena: Arena) -> dict[str, Held]:
    """Return what the nodes hold when nobody is there but those who train from the beginning."""
    arena.end_victim()
    arena.watch(SETTLE_S, {})
    arena.watch(QUIET_S, {})
    return most(arena.held)


def line(out: Soak, arena: Arena, minutes: float, rate: float, peaks: dict[str, int]) -> str:
    """Return what is said each minute."""
    nodes = "; ".join(
        f"{name} {held.rss >> 20} MB (peak {peaks.get(name, 0) >> 20}), "
        f"{held.descriptors} fd and {held.arenas} of arenas, {held.threads} threads, {held.files} files"
        for name, held in out.held[-1].items()
    )
    return f"{minutes:5.1f} min {out.mode}: {rate:.0f} steps/s, {arena.num_killed} killed; {nodes}"


def table(out: Soak) -> str:
    """Return the final words."""
    first, last = (out.held[0], out.held[-1]) if out.held else ({}, {})  # it may have ended before it had begun
    lines = [
        f"{out.minutes:.1f} minutes {out.mode}: {out.steps:.0f} steps, {out.killed} workers killed, "
        f"{out.attacks.total()} attacks of {len(out.attacks)} kinds, {out.logged / 1e6:.2f} MB of log"
    ]
    for name in last:
        a, b = first[name], last[name]
        lines.append(
            f"  {name}: {a.rss >> 20} -> {b.rss >> 20} MB, {a.descriptors} -> {b.descriptors} descriptors, "
            f"{a.arenas} -> {b.arenas} of arenas, {a.threads} -> {b.threads} threads, {a.files} -> {b.files} files"
        )
    lines += [f"  BROKEN: {text}" for text in out.broken] or ["  every invariant held, every value is exact"]
    return "\n".join(lines)
