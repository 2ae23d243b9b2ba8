"""One row a measurement; a file of rows says on what machine and by what versions it was made."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
import psutil

from bench.limits import Copy
from bench.stats import Times, percentile, ratio_spread

REPOSITORY = Path(__file__).resolve().parent.parent
ENVIRONMENT = ("machine", "versions", "commit")
#: The tensors of ResNet-50. Most of what zmqps does with a model costs a part of such a copy, or a few.
COPIED_NBYTES = 102_228_128
COPIES = 15
PACKAGES = ("numba", "numpy", "pyzmq", "msgpack")
KEY = ("case", "model", "servers", "workers", "transport", "optimizer", "codec", "kernels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one case measured.

    Attributes
    ----------
    case, model, servers, workers, transport, optimizer, codec, kernels
        What was done; None where it plays no part.
    median_s, p90_s, min_s, steps
        Seconds of a step, and how many were measured (of all workers together).
    goodput_gb_s
        Payload bytes moved (or touched) both ways, in 10⁹ bytes a second, at the median.
    limit_s
        Median of the same bytes over plain sockets, or through a memory copy, in the same run.
    ratio_to_limit, ratio_low, ratio_high
        ``median_s / limit_s``, and the quartiles of that ratio over interleaved neighbours.
    bound_s
        What a network of the measured link speed would allow (`bench.stats.network_bound`).
    extra
        Numbers that only this case has.
    """

    case: str
    model: str | None = None
    servers: int | None = None
    workers: int | None = None
    transport: str | None = None
    optimizer: str | None = None
    codec: str | None = None
    kernels: str | None = None
    median_s: float | None = None
    p90_s: float | None = None
    min_s: float | None = None
    steps: int = 0
    goodput_gb_s: float | None = None
    limit_s: float | None = None
    ratio_to_limit: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    bound_s: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from other rows, and makes it one with the same row of another file."""
        return tuple(getattr(self, name) for name in KEY)

    @property
    def title(self) -> str:
        """The key as text, say ``push_pull resnet50 1×1 tcp sgd``: servers × workers, and raw goes without saying."""
        nodes = f"{self.servers}×{self.workers}" if self.servers and self.workers else None
        codec = self.codec if self.codec != "raw" else None
        parts = (self.case, self.model, nodes, self.transport, self.optimizer, codec, self.kernels)
        return " ".join(part for part in parts if part)

    def flat(self) -> dict[str, Any]:
        """Return it as it is written."""
        fields = asdict(self)
        extra = fields.pop("extra")
        return fields | extra

    @classmethod
    def from_flat(cls, flat: dict[str, Any]) -> Row:
        """Return the row of what was read."""
        known = {name: flat[name] for name in cls.__dataclass_fields__ if name in flat}
        extra = {name: value for name, value in flat.items() if name not in known and name not in ENVIRONMENT}
        return cls(**known, extra=extra)


def timed(ours: Times, limit: Times, nbytes: int) -> dict[str, Any]:
    """Return the fields of a row that follow from the times."""
    low, high = ratio_spread(ours.seconds, limit.seconds)
    return {
        "median_s": ours.median,
        "p90_s": ours.p90,
        "min_s": ours.minimum,
        "steps": len(ours.seconds),
        "goodput_gb_s": nbytes / ours.median / 1e9,
        "limit_s": limit.median,
        "ratio_to_limit": ours.median / limit.median,
        "ratio_low": low,
        "ratio_high": high,
    }


@cache
def environment() -> dict[str, Any]:
    """Return machine, versions and commit."""
    return {"machine": _machine(), "versions": _versions(), "commit": _commit()}


def _machine() -> dict[str, Any]:
    cpu = Path("/proc/cpuinfo")  # psutil counts processors and does not name them
    models = [line for line in cpu.read_text().splitlines() if line.startswith("model name")] if cpu.exists() else []
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "copy_ms": round(1e3 * _copy_s(), 1),
        "system": platform.platform(),
        "load": round(os.getloadavg()[0], 2),  # other work on the host, if high before the run
    }


def _copy_s() -> float:
    """Return the processor time of copying `COPIED_NBYTES`, which waiting for a core does not lengthen."""
    copy, seconds = Copy(COPIED_NBYTES), []
    for _ in range(COPIES):
        started = time.thread_time()
        copy.step()
        seconds.append(time.thread_time() - started)
    return percentile(seconds, 50)


def _versions() -> dict[str, str]:
    import zmq

    import zmqps

    versions = {"python": platform.python_version(), "zmqps": zmqps.__version__, "libzmq": zmq.zmq_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _commit() -> str:
    """Return the commit of this checkout, with a plus behind it where the package differs from it."""
    try:
        commit = _git("rev-parse", "HEAD").strip()
        return commit + "+" * bool(_git("status", "--porcelain", "--", "zmqps").strip())
    except (OSError, subprocess.SubprocessError):
        return "unknown"  # not a checkout


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout


def check_environment(path: Path, found: dict[str, Any]) -> None:
    """Refuse to go on with a file's results unless they are of this very commit and machine."""
    here = environment()
    for what, old, new in (
        ("commit", found["commit"], here["commit"]),
        ("machine", found["machine"]["cpu"], here["machine"]["cpu"]),
    ):
        if old != new:
            raise click.ClickException(f"{path} is of {what} {old}, this is {new}: run without --resume")


def write_row(path: Path, row: Row) -> None:
    """Write the result of one case: its row and the environment, side by side."""
    _write(path, {**row.flat(), **environment()})


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write the results of a suite: the environment, and ``rows``."""
    _write(path, {**environment(), "rows": [row.flat() for row in rows]})


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def read_rows(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows of a result file, of one case or of a suite, and its environment."""
    content = json.loads(path.read_text())
    environment = {name: content.get(name) for name in ENVIRONMENT}
    rows = content["rows"] if "rows" in content else [content]
    return [Row.from_flat(row) for row in rows], environment
