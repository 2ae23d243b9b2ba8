"""Resources that run out: memory, descriptors, the disk of the logs, shared memory; and checkpoints that must stay.

All is done from outside.

``prlimit`` changes the limits of a process that runs, so a node needs no door for it. Disk and shared memory are small
file systems in a mount namespace of the whole run, which a file then fills.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.attack.arena import Arena
from tests.attack.doors import odd_files, slow_connections, with_checkpoints, with_doors
from tests.attack.nodes import SHARED_MEMORY
from zmqps.keys import Keys
from zmqps.nodes.inquiry import save_job
from zmqps.settings.saving import Saving

#: Memory that is left to a server that has none any more.
LEFT_NBYTES = 1 << 20
#: The directory of temporary files of a run that is set apart, and the size of its file systems.
DISK = Path(tempfile.gettempdir()) / "zmqps-attack-disk"
ROOM = "256m"
PIECE_NBYTES = 1 << 12
#: The variable that says that a run is set apart.
APART = "ZMQPS_ATTACK_APART"


@contextmanager
def limited(pids: list[int], what: int, choose: Callable[[psutil.Process], int]) -> Iterator[None]:
    """Limit a resource of some processes for a while."""
    before = {pid: resource.prlimit(pid, what) for pid in pids}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, what, (choose(psutil.Process(pid)), hard))
    try:
        yield
    finally:
        for pid, limits in before.items():
            if psutil.pid_exists(pid):
                resource.prlimit(pid, what, limits)


def servers(arena: Arena) -> list[int]:
    """Return the process ids of the servers."""
    return [pid for name, pid in arena.cluster.pids.items() if name.startswith("server")]


def no_memory(arena: Arena) -> AbstractContextManager[None]:
    """The servers get no more memory."""
    return limited(servers(arena), resource.RLIMIT_AS, lambda process: process.memory_info().vms + LEFT_NBYTES)


@contextmanager
def full(directory: Path) -> Iterator[None]:
    """Take all the room that a file system has left, for a while."""
    path = directory / "zmqps-attack-full"
    try:
        with path.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(PIECE_NBYTES)) == PIECE_NBYTES:
                pass
        yield
    finally:
        path.unlink(missing_ok=True)


def full_disk(arena: Arena) -> AbstractContextManager[None]:
    """No line of log can be written."""
    return full(arena.directory)


def full_shared_memory(arena: Arena) -> AbstractContextManager[None]:
    """No shared memory can be had."""
    return full(SHARED_MEMORY)


@contextmanager
def kept_checkpoints(arena: Arena) -> Iterator[None]:
    """Whoever runs the cluster saves the job as often as checkpoints are kept; these must be there afterwards."""
    for _ in range(Saving().keep):
        save_job(arena.cluster.address, "default", keys=Keys.load(arena.keys))
    good = sorted(arena.checkpoints.glob("*/*/manifest.json"))
    yield
    there = sorted(arena.checkpoints.glob("*/*/manifest.json"))
    assert there == good, f"checkpoints were {len(good)}, and are others now: {there}"


def set_apart() -> None:
    """Go on in a mount namespace where temporary files and shared memory have little room, and nobody else uses it.

    Where that is not permitted this raises `subprocess.CalledProcessError`.
    """
    apart = ["unshare", "--map-root-user", "--mount"]
    subprocess.run([*apart, "true"], check=True, capture_output=True)
    mounts = " && ".join(f"mount -t tmpfs -o size={ROOM} zmqps-attack {place}" for place in (SHARED_MEMORY, DISK))
    DISK.mkdir(exist_ok=True)
    again = [sys.executable, "-m", "tests.attack", *sys.argv[1:]]
    os.environ.update({APART: "1", "TMPDIR": str(DISK)})
    os.execvp(apart[0], [*apart, "sh", "-c", f'{mounts} && exec "$@"', "sh", *again])


class Fault(NamedTuple):
    """What runs out meanwhile, who attacks, and what the cluster has all the time: descriptors, or keys."""

    begin: Callable[[Arena], AbstractContextManager[None]]
    attacker: str
    descriptors: int | None = None
    keyed: bool = False
    more: Callable[[Path], Mapping[str, Any]] = lambda directory: {}  # options of the cluster, in whose directory


FAULTS = {
    "no-memory": Fault(no_memory, "deaf-puller"),
    "no-descriptors": Fault(lambda arena: nullcontext(), "connection-flood", descriptors=64),
    "observer-s-key": Fault(kept_checkpoints, "orders", keyed=True),
    "full-disk": Fault(full_disk, "refusals"),
    "full-shared-memory": Fault(full_shared_memory, "garbage"),
    "slow-connections": Fault(slow_connections, "garbage", more=with_doors),
    "odd-files": Fault(odd_files, "garbage", more=with_checkpoints),
}
#: Those that need a run that is set apart.
NEED_ROOM = ("full-disk", "full-shared-memory")
