"""What the nodes of a cluster hold: memory, descriptors, threads, files."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
#: What a descriptor of an arena is of.
ARENA = "/memfd:zmqps (deleted)"
#: Descriptors of the arenas of a server with one table, two for each: it gets the second one in the first update
#: that finds somebody still reading a slice of the first one, whenever that is, and keeps it (docs/lane.md).
MAX_ARENAS = 4


@dataclass(frozen=True, slots=True)
class Held:
    """What one node holds; ``files`` are those in shared memory, ``kinds`` says what the descriptors are of.

    Those of arenas are counted apart: there may be `MAX_ARENAS` of them, early or late.
    """

    rss: int
    descriptors: int
    arenas: int
    threads: int
    files: int
    kinds: Counter[str] = field(default_factory=Counter)


def held(pid: int) -> Held:
    """Return what a process holds; nothing where it has ended."""
    with contextlib.suppress(psutil.Error, FileNotFoundError):
        process = psutil.Process(pid)
        with process.oneshot():
            rss, threads = process.memory_info().rss, process.num_threads()
        files = len(list(SHARED_MEMORY.glob(f"zmqps-{pid}-*")))
        kinds = kinds_of_descriptors(pid)
        return Held(rss, kinds.total() - kinds[ARENA], kinds[ARENA], threads, files, kinds)
    return Held(0, 0, 0, 0, 0)


def kinds_of_descriptors(pid: int) -> Counter[str]:
    """Return how many descriptors a process has of each kind: sockets, files by name, events."""
    kinds: Counter[str] = Counter()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            kinds[re.sub(r":\[\d+\]", "", str(path.readlink()))] += 1
    return kinds


def held_by_all(pids: Mapping[str, int]) -> dict[str, Held]:
    """Return what each node holds, by name."""
    return {name: held(pid) for name, pid in pids.items()}


def most(looks: Sequence[Mapping[str, Held]]) -> dict[str, Held]:
    """Return the most that each node held of each in several looks: lanes come and go with those who train."""
    numbers = ("rss", "descriptors", "arenas", "threads", "files")
    return {
        node: Held(
            *(max(getattr(look[node], what) for look in looks) for what in numbers),
            kinds=reduce(or_, (look[node].kinds for look in looks)),
        )
        for node in looks[0]
    }


def logged_nbytes(directory: Path) -> int:
    """Return the size of the nodes' logs."""
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def lines_with(directory: Path, *words: str) -> list[str]:
    """Return the lines of the nodes' logs that hold one of these words, control characters shown."""
    found = []
    for path in sorted(directory.glob("*.log")):
        with path.open("rb") as file:
            for line in file:
                if any(word.encode() in line for word in words):
                    found.append(f"{path.name}: {line[:300]!r}")
    return found
