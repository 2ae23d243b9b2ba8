"""The kernel of the core: what one reads to understand training. Everything else of the core extends it.

A module of the kernel imports no extension. `python -m tests.kernel` prints which do, the modules of the kernel, and
the lines of each and of each room.
"""

from __future__ import annotations

from tests.imports import ROOT, module_graph, modules

#: Modules and folders of the core beside the kernel: replicas, moves, tables, checkpoints, data ranges, logs, traces,
#: what is watched.
EXTENSIONS = (
    "coordinator/machine.py",
    "coordinator/remembered.py",
    "coordinator/run.py",
    "coordinator/members/naming.py",
    "coordinator/placement/drains.py",
    "coordinator/placement/fallback.py",
    "coordinator/placement/endings.py",
    "coordinator/placement/replication.py",
    "coordinator/placement/scales.py",
    "coordinator/placement/shortages.py",
    "coordinator/placement/transitions.py",
    "coordinator/placement/views.py",
    "coordinator/saving/",
    "coordinator/training/data.py",
    "coordinator/watching/",
    "job/data.py",
    "job/recut.py",
    "job/tables.py",
    "node/clock.py",
    "node/inquiry.py",
    "node/measured.py",
    "node/tracing.py",
    "protocol/figures.py",
    "protocol/messages/notes.py",
    "protocol/messages/replication.py",
    "protocol/messages/resizing.py",
    "protocol/messages/rows.py",
    "protocol/messages/saving.py",
    "protocol/messages/tracing.py",
    "protocol/messages/watching.py",
    "protocol/parcel.py",
    "server/dense/recut.py",
    "server/dense/snapshot.py",
    "server/dense/stale.py",
    "server/extensions.py",
    "server/leaving.py",
    "server/measured.py",
    "server/recut.py",
    "server/replicas/",
    "server/saves.py",
    "server/tables/",
    "treatments/",
    "worker/early.py",
    "worker/extensions.py",
    "worker/layout/",
    "worker/notes.py",
    "worker/ranges.py",
    "worker/rows.py",
    "worker/statistics.py",
    "worker/views.py",
)
#: Lists of all that there is, of extensions, too: the messages, from which the wire makes its tables, and what may be
#: said of a job.
LISTS = (
    "zmqps/core/protocol/messages/__init__.py",
    "zmqps/core/job/keyspace.py",
    "zmqps/core/job/spec.py",
)


def is_extension(path: str) -> bool:
    """Whether a module of the core is one beside the kernel."""
    inner = path.removeprefix("zmqps/core/")
    return any(inner == place or (place.endswith("/") and inner.startswith(place)) for place in EXTENSIONS)


def kernel() -> list[str]:
    """Return the modules of the kernel, by their paths."""
    return [module.path for module in modules("zmqps/core/") if not is_extension(module.path)]


def arrows() -> list[str]:
    """Return what of the extensions modules of the kernel import, as ``server/builds -> server/saves``."""
    graph = module_graph()
    return [
        f"{_short(path)} -> {_short(to)}"
        for path in kernel()
        if path not in LISTS
        for to in sorted(graph[path])
        if to.startswith("zmqps/core/") and is_extension(to)
    ]


def _short(path: str) -> str:
    return path.removeprefix("zmqps/core/").removesuffix(".py").removesuffix("/__init__")


def lines(room: str = "") -> int:
    """Return the lines of the kernel, or of one room of it."""
    return sum((ROOT / path).read_bytes().count(b"\n") for path in kernel() if path.startswith(f"zmqps/core/{room}"))


def main() -> None:
    """Print what of the kernel imports an extension, what the kernel is, and how large."""
    print(*arrows(), sep="\n")
    for path in kernel():
        print(f"{path.removeprefix('zmqps/core/'):44} {lines(path.removeprefix('zmqps/core/')):6,}")
    for room in ("coordinator", "server", "worker", "protocol", "job", "node", ""):
        print(f"{room or 'all':12} {lines(room):6,}")


if __name__ == "__main__":
    main()
