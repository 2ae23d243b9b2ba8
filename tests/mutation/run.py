"""Change the core in many small ways and say which changes no test notices: ``python -m tests.mutation.run``.

Each mutant is made in a copy of the repository and meets the tests of its own room first, its own file's before all, up
to the first failure; one that survives meets the simulated clusters. A hang is noticed too. A survivor is printed with
a name, and ``--only`` tries it again.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

from tests.mutation.listed import EQUIVALENT, WRITTEN, Equivalent, Written
from tests.mutation.mutants import Mutant, mutants

ROOT = Path(__file__).parents[2]
#: What survives its room meets whole clusters.
CLUSTERS = ["tests/simulation", "tests/fuzz/test_machines.py"]
#: There all modes are tried, as `make test-repeats` does.
PURE, ALL_MODES = ("tests/core", "tests/simulation"), ["-m", "not slow"]
#: A mutant may take so many times the unchanged tests' time, and seconds more, before it counts as hanging.
PATIENCE, SLACK_S = 4.0, 20.0
#: A loop that no longer ends may not take the whole machine's memory meanwhile. It is address space, so only pure tests
#: have this limit: each table of rows of a whole cluster reserves as much as there is free memory.
MEMORY_NBYTES = 8 << 30
ONE_TEST_S = 60  # for a test that is over in one or two
ALL_PASSED, ONE_FAILED, CANNOT_IMPORT = 0, 1, 2  # what pytest returns


def shuffled(found: Iterable[Mutant], seed: int) -> list[Mutant]:
    """Return mutants in an order of which any beginning has of every module its share."""
    by_path: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in found:
        by_path[mutant.path].append(mutant)
    ranked: list[tuple[float, Mutant]] = []
    for path, those in sorted(by_path.items()):
        rng = random.Random(f"{seed} {path}")  # its own, so that a change of one module changes no other's mutants
        rng.shuffle(those)
        offset = rng.random()
        ranked += [((i + offset) / len(those), mutant) for i, mutant in enumerate(those)]
    return [mutant for _, mutant in sorted(ranked, key=lambda pair: pair[0])]


def modules(under: str) -> dict[str, str]:
    """Return the text of all modules under a path."""
    start = ROOT / under
    files = [start] if start.is_file() else sorted(start.rglob("*.py"))
    return {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}


def sample(sources: dict[str, str], number: int, seed: int) -> list[Mutant]:
    """Return some mutants of modules, but none that is known to change nothing."""
    known = {(entry.path, entry.old, entry.new) for entry in EQUIVALENT}
    order = shuffled((mutant for path, source in sources.items() for mutant in mutants(path, source)), seed)
    worth = (mutant for mutant in order if (mutant.path, *mutant.changed(sources[mutant.path])) not in known)
    return list(islice(worth, number))


def named(sources: dict[str, str], names: Sequence[str]) -> list[Mutant]:
    """Return the mutants of these names; raise `SystemExit` for a name that none has."""
    found = {mutant.name(source): mutant for path, source in sources.items() for mutant in mutants(path, source)}
    if missing := [name for name in names if name not in found]:
        raise SystemExit(f"no mutant has this name, its lines may have changed: {', '.join(missing)}")
    return [found[name] for name in names]


def is_outdated(entry: Equivalent) -> bool:
    """Tell whether the lines that a mutant known to change nothing would change are no longer there."""
    file = ROOT / entry.path
    return not file.exists() or not all(line in file.read_text() for line in entry.old.splitlines())


def room_of(path: str) -> str:
    """Return the folder of tests of a module's room."""
    parts = Path(path).parts[1:]
    return "/".join(("tests", *parts[: 2 if parts[0] == "core" else 1]))


def files_for(path: str, root: Path = ROOT) -> list[str]:
    """Return the files of tests of a module's room, those of the module itself first."""
    files = sorted(file.relative_to(root).as_posix() for file in (root / room_of(path)).rglob("test_*.py"))
    own = f"test_{Path(path).stem}"
    return sorted(files, key=lambda file: (Path(file).stem != own, not Path(file).stem.startswith(f"{own}_")))


def copy_of_repository(to: Path) -> None:
    """Copy what git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    # by the text and not by its time: two mutants of the same length can be made within one second
    compile_all = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "zmqps", "tests"]
    subprocess.run(compile_all, cwd=to, check=True)


def run_tests(where: Path, tests: Sequence[str], timeout: float, *, keep: bool = False) -> str:
    """Run tests in a copy up to the first failure; return "passed", "failed" or "hung"."""
    environment = {**os.environ, "PYTHONPATH": str(where)}
    if not keep:
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    options = ["-x", "-q", "--no-header", "--tb=no", f"--timeout={ONE_TEST_S}", "--noconftest"]
    options += ALL_MODES if tests[0].startswith(PURE) else []
    plugins = ["-p", "tests.mutation.plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *plugins, *tests],
            cwd=where, env=environment, timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=_limit_memory if tests[0].startswith(PURE) else None, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "hung"
    code = done.returncode  # below zero: ended by a signal, which is a crash unless somebody else sent it
    if code == -signal.SIGKILL or (code >= 0 and code not in (ALL_PASSED, ONE_FAILED, CANNOT_IMPORT)):
        raise SystemExit(f"pytest could not run in {where}, returned {code}:\n{done.stdout}")
    return "passed" if code == ALL_PASSED else "hung" if "Timeout (>" in done.stdout else "failed"


def _limit(where: Path, tests: Sequence[str]) -> float:
    """Return how long tests may take, from how long they take unchanged."""
    began = time.monotonic()
    if run_tests(where, tests, 1800.0, keep=True) != "passed":
        raise SystemExit(f"the tests fail before anything is changed: {' '.join(tests)}")
    return PATIENCE * (time.monotonic() - began) + SLACK_S


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_NBYTES, MEMORY_NBYTES))


class Bench:
    """Copies of the repository, and how long its tests take unchanged."""

    def __init__(self, folder: Path, jobs: int, rooms: Iterable[str], *, room_only: bool) -> None:
        first = folder / "0"
        copy_of_repository(first)
        suites = {room: [room] for room in rooms} | ({} if room_only else {"clusters": CLUSTERS})
        with ThreadPoolExecutor(jobs) as pool:
            limits = pool.map(lambda tests: _limit(first, tests), suites.values())
            self._limits = dict(zip(suites, limits, strict=True))
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._free.put(first)
        for i in range(1, jobs):
            shutil.copytree(first, folder / str(i))
            self._free.put(folder / str(i))

    def fate(self, path: str, changed: str) -> str:
        """Return what becomes of a changed module: noticed by "its room" or "clusters", "hung", or "survived"."""
        where = self._free.get()
        original = (where / path).read_text()
        suites = {"its room": (room_of(path), files_for(path, where)), "clusters": ("clusters", CLUSTERS)}
        try:
            (where / path).write_text(changed)
            for who, (suite, tests) in suites.items():
                if suite in self._limits and (outcome := run_tests(where, tests, self._limits[suite])) != "passed":
                    return "hung" if outcome == "hung" else who
            return "survived"
        finally:
            (where / path).write_text(original)
            self._free.put(where)


def try_written(bench: Bench, written: Written) -> str:
    """Return nothing, or how a mutation written by hand went unnoticed."""
    source = (ROOT / written.path).read_text()
    title = f"{written.path}: {written.old.strip()!r} -> {written.new.strip()!r} ({written.harm})"
    if source.count(written.old) != 1:
        return f"no longer applies: {title}"
    fate = bench.fate(written.path, source.replace(written.old, written.new))
    return f"survived: {title}" if fate == "survived" else ""


def main() -> int:
    """Run; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=200, help="how many, of every module its share")
    parser.add_argument("--seed", type=int, default=0, help="which")
    parser.add_argument("--only", default="", help="try no sample but the mutants of these names, commas between")
    parser.add_argument("--under", default="zmqps/core", help="a folder or a module of the core")
    parser.add_argument("--bar", type=float, default=95.0, help="percent that must be noticed")
    parser.add_argument("--room-only", action="store_true", help="let no cluster try what survives its room")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()

    sources = modules(options.under)
    if options.only:
        chosen, written = named(sources, options.only.split(",")), []
    else:
        chosen = sample(sources, options.mutants, options.seed)
        written = [w for w in WRITTEN if w.path.startswith(options.under) or options.under == "zmqps/core"]
    print(f"{len(chosen)} mutants of {options.under}, and {len(written)} written by hand", flush=True)
    for entry in filter(is_outdated, EQUIVALENT):
        print(f"strike it off the list, its lines have changed: {entry.path}: {entry.old!r}")
    began = time.monotonic()
    fates: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        rooms = dict.fromkeys(room_of(each.path) for each in (*chosen, *written))
        bench = Bench(Path(folder), options.jobs, rooms, room_only=options.room_only)
        print(f"all tests pass unchanged ({time.monotonic() - began:.0f} s)", flush=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            unnoticed = [text for text in pool.map(lambda w: try_written(bench, w), written) if text]
            found = pool.map(lambda m: bench.fate(m.path, m.apply(sources[m.path])), chosen)
            for mutant, fate in zip(chosen, found, strict=True):
                fates[fate] += 1
                if fate == "survived":
                    source = sources[mutant.path]
                    title = f"[{fates.total()}] {mutant.name(source)}: {mutant.kind}"
                    print(f"\n{title}\n{mutant.diff(source)}\n", flush=True)
                elif fates.total() % 20 == 0:
                    print(
                        f"{fates.total()} tried, {fates['survived']} survived, {time.monotonic() - began:.0f} s",
                        flush=True,
                    )
    noticed = fates.total() - fates["survived"]
    percent = 100.0 * noticed / max(1, fates.total())
    print(
        f"noticed: {noticed} of {fates.total()} mutants = {percent:.1f} %: {fates['its room']} by their room, "
        f"{fates['clusters']} by clusters, {fates['hung']} hung; seed {options.seed}, {time.monotonic() - began:.0f} s"
    )
    print(f"written by hand: {len(written) - len(unnoticed)} of {len(written)} noticed", *unnoticed, sep="\n  ")
    return int(percent < options.bar or bool(unnoticed))


if __name__ == "__main__":
    sys.exit(main())
