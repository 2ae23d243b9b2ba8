"""The workers' processes, and whether what they have read agrees with what was acknowledged."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from types import TracebackType
from typing import Any, Self

from tests.freezes.worker import SHARED, STEP
from tests.pace import allow
from zmqps.launch.processes import node_environment

#: Seconds that any step may take before the training counts as broken.
PATIENCE = allow(60.0)


class Training:
    """Workers that push until they are told to stop; ends with the context.

    Attributes
    ----------
    processes
        By name.
    evictions
        How often each worker was told that the others went on without it.
    wrong
        What was not as it should be.
    """

    def __init__(self, address: str, mode: str, workers: int) -> None:
        self.mode = mode
        self.processes = {
            f"worker-{index}": subprocess.Popen(
                [
                    sys.executable, "-m", "tests.freezes.worker", address, "--mode", mode, "--index", str(index),
                    "--workers", str(workers), "--patience", str(PATIENCE),
                ],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=node_environment(), text=True,
            )
            for index in range(workers)
        }  # fmt: skip
        self.acknowledged = [0] * workers
        self.evictions = [0] * workers
        self.wrong: list[str] = []
        self._values: dict[int, dict[str, float]] = {}  # by version, in synchronous mode
        self._in: dict[int, set[int]] = defaultdict(set)  # whose pushes were acknowledged in the step
        self._final: dict[str, Any] = {}
        self._news = threading.Condition()
        self._told_at, self._longest_s = time.monotonic(), 0.0
        self._readers = [
            threading.Thread(target=self._read, args=(index, process), daemon=True)
            for index, process in enumerate(self.processes.values())
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, index: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        pushed = ended = False
        for line in process.stdout:
            told = json.loads(line)
            with self._news:
                if "acknowledged" in told:
                    now = time.monotonic()
                    self._longest_s, self._told_at = max(self._longest_s, now - self._told_at), now
                    self.acknowledged[index], pushed = told["acknowledged"], True
                elif "evicted" in told:
                    self.evictions[index] += 1
                    pushed = False  # of which step it was is not known
                elif "wrong" in told:
                    self.wrong.append(f"worker {index}: {told['wrong']}")
                elif "values" in told:
                    if pushed:
                        self._in[told["version"]].add(index)
                    self._note(told["version"], told["values"])
                elif "final" in told:
                    self._final = told
                ended |= "ended" in told
                self._news.notify_all()
        with self._news:
            if not ended:
                self.wrong.append(f"worker {index} has ended with {process.wait()}")
            self._news.notify_all()

    def _note(self, version: int, values: dict[str, float]) -> None:
        before = self._values.setdefault(version, values)
        if before != values:
            self.wrong.append(f"version {version} is {before} and {values}")

    # --- the tool's side ------------------------------------------------------------------------

    def wait_for(self, pushes: int, timeout: float = PATIENCE) -> None:
        """Wait until each worker has had so many more pushes acknowledged, or something is wrong."""
        goals = [done + pushes for done in self.acknowledged]
        with self._news:
            fine = self._news.wait_for(
                lambda: self.wrong or all(d >= g for d, g in zip(self.acknowledged, goals, strict=True)), timeout
            )
        assert not self.wrong, self.wrong
        assert fine, f"pushes stand still at {self.acknowledged}"

    def take_longest(self) -> float:
        """Return the longest time without an acknowledged push of anybody since this was asked before."""
        with self._news:
            longest_s, self._longest_s = max(self._longest_s, time.monotonic() - self._told_at), 0.0
            self._told_at = max(self._told_at, time.monotonic())
        return longest_s

    def finish(self) -> list[str]:
        """Let the workers stop; return what is not as it should be."""
        for process in self.processes.values():
            assert process.stdin is not None
            process.stdin.close()
        ends_at = time.monotonic() + 3 * PATIENCE
        for reader in self._readers:
            reader.join(max(0.0, ends_at - time.monotonic()))
        wrong = [*self.wrong[:10]]
        if not self._final:
            return [*wrong, "nobody has read the final values"]
        return wrong + (self._check_steps() if self.mode == "sync" else self._check_sums())

    def _check_sums(self) -> list[str]:
        """Each worker has checked its own sums; of the shared ones, what is in doubt may be in them or not."""
        found = {name: sorted(-value for value in values) for name, values in self._final["final"].items()}
        least = SHARED * sum(self.acknowledged)
        most = least + SHARED * sum(self.evictions)
        wrong = []
        if not least <= found["shared"][0] <= found["shared"][-1] <= most:
            wrong.append(f"'shared' is {found['shared'][:5]}, not between {least} and {most}")
        for index, done in enumerate(self.acknowledged):
            own = found[f"own{index}"]
            if not STEP * done <= own[0] <= own[-1] <= STEP * (done + self.evictions[index]):
                wrong.append(f"'own{index}' is {own[:5]}: {done} were acknowledged, {self.evictions[index]} in doubt")
        return wrong

    def _check_steps(self) -> list[str]:
        wrong: list[str] = []
        self._values[0] = dict.fromkeys(self._final["final"], 0.0)
        final = {name: values[0] for name, values in self._final["final"].items() if len(values) == 1}
        if len(final) < len(self._final["final"]):
            wrong.append(f"the final values are torn: {self._final['final']}")
        self._note(self._final["version"], final)
        for version, values in sorted(self._values.items()):
            if values["shared"] != -SHARED * version:
                wrong.append(f"'shared' is {values['shared']} at version {version}")
            before = self._values.get(version - 1)
            if before is not None:
                wrong += self._check_step(version, before, values)
        return wrong[:10]

    def _check_step(self, version: int, before: dict[str, float], values: dict[str, float]) -> list[str]:
        grown = {index: before[f"own{index}"] - values[f"own{index}"] for index in range(len(self.acknowledged))}
        inside = {index for index, amount in grown.items() if amount}
        lost = self._in[version] - inside
        wrong = [f"step {version} is without {sorted(lost)}, whose pushes were acknowledged"] if lost else []
        if any(grown[index] != STEP / len(inside) for index in inside):
            wrong.append(f"step {version} has grown by {grown}, which is no mean of {len(inside)}")
        return wrong

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for reader in self._readers:
            reader.join(PATIENCE)
        for process in self.processes.values():
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
