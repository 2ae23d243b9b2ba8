"""What a host says of itself: versions, cores, memory, interfaces, GPUs, names that it can resolve."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from zmqps.core.protocol.messages import PROTOCOL_VERSION
from zmqps.doctor.facts import CodeFacts, HostFacts, Interface, KeyFile
from zmqps.errors import DeviceError, UnsafeFileError
from zmqps.files import TEXT_NBYTES, open_file, read_file
from zmqps.gpu.device import open_device
from zmqps.gpu.pinning import visible_gpus
from zmqps.keys.keyring import AUTHORIZED, CLUSTER_PUBLIC, MAX_FILE_NBYTES
from zmqps.net.gauge import library
from zmqps.net.system.memory import available_nbytes

PACKAGES = ("pyzmq", "numpy", "msgpack", "numba")
SHARED_MEMORY = Path("/dev/shm")
#: Seconds that names may take to be resolved, all together: a resolver without an answer takes 5 or more for each.
RESOLVE_S = 3.0
#: … and rsync, to say which one it is.
RSYNC_S = 5.0
#: A cluster's keys are a handful of files; more are not looked at.
MAX_KEY_FILES = 1000
#: Of these all hosts with nodes have copies. They hold no secret, so a digest may be sent.
COMPARED = (CLUSTER_PUBLIC, AUTHORIZED)


def look(version: str, names: Sequence[str], keys: str = "", directory: str = "", script: str = "") -> HostFacts:
    """Return the facts about this host.

    Parameters
    ----------
    version
        Of zmqps.
    names
        What to resolve.
    keys
        A directory of keys to look at, if it exists; empty for none.
    directory, script
        Those of a launch, to be looked for; empty for none.
    """
    import psutil

    process = psutil.Process()
    cores = len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count()
    shm = psutil.disk_usage(str(SHARED_MEMORY)) if SHARED_MEMORY.is_dir() else None
    gpus, gpu_problem = _gpus()
    libzmq, encrypts = library()
    return HostFacts(
        hostname=socket.gethostname(),
        versions=_versions(version, libzmq),
        cores=cores or 1,
        load=psutil.getloadavg()[0],
        memory_nbytes=psutil.virtual_memory().total,
        available_nbytes=available_nbytes(),
        shm_nbytes=shm.total if shm else 0,
        shm_free_nbytes=shm.free if shm else 0,
        open_files=process.rlimit(psutil.RLIMIT_NOFILE)[0] if hasattr(process, "rlimit") else 0,
        encrypts=encrypts,
        gpus=gpus,
        gpu_problem=gpu_problem,
        interfaces=_interfaces(),
        names=resolve(names, RESOLVE_S),
        reached_at=_reached_at(),
        keys=_key_files(Path(keys)) if keys else [],
        code=look_for_code(directory, script) if directory else CodeFacts(),
    )


def _versions(own: str, libzmq: str) -> dict[str, str]:
    found = {"zmqps": own, "protocol": str(PROTOCOL_VERSION), "source": source_hash()}
    found |= {"Python": platform.python_version(), "libzmq": libzmq}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def source_hash() -> str:
    """Return what tells zmqps's files from those of another copy that has the same version number."""
    folder = Path(__file__).parents[1]
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(f"{path.relative_to(folder)}\0".encode() + read_file(path, TEXT_NBYTES) + b"\0")
    return found.hexdigest()[:12]


def _interfaces() -> dict[str, Interface]:
    import psutil

    addresses = psutil.net_if_addrs()
    families = {socket.AF_INET, socket.AF_INET6}
    return {
        name: Interface(
            addresses=[entry.address for entry in addresses.get(name, ()) if entry.family in families],
            speed_mbit=found.speed,
            mtu=found.mtu,
            up=found.isup,
        )
        for name, found in psutil.net_if_stats().items()
    }


def _gpus() -> tuple[list[str], str]:
    names = []
    for number, seen in enumerate(visible_gpus()):
        try:
            device = open_device(f"cuda:{number}")
            names.append(device.name if device else seen)
        except DeviceError as error:
            return [*visible_gpus()], str(error)
    return names, ""


def _reached_at() -> str:
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else ""


def resolve(names: Iterable[str], timeout: float) -> dict[str, list[str]]:
    """Return the addresses of each name; none for one that has none, or none after ``timeout`` seconds."""
    found: dict[str, list[str]] = {name: [] for name in names}
    threads = [threading.Thread(target=_resolve, args=(name, found), daemon=True) for name in found]
    for thread in threads:
        thread.start()
    ends_at = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, ends_at - time.monotonic()))
    return dict(found)


def _resolve(name: str, found: dict[str, list[str]]) -> None:
    with suppress(OSError, UnicodeError):  # UnicodeError: a part of the name is too long
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        found[name] = list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def local_address_towards(host: str) -> str:
    """Return the address by which this host reaches another one, as the routing table has it; empty if it has none."""
    with suppress(OSError, UnicodeError):
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as way:
            way.connect(address)  # nothing is sent
            return str(way.getsockname()[0])
    return ""


def look_for_code(directory: str, script: str = "") -> CodeFacts:
    """Return what there is here of what a launch runs; of an empty script there is nothing."""
    return CodeFacts(problem=_problem_of(directory), script=_whole_digest(script) if script else "", rsync=_rsync())


def _problem_of(directory: str) -> str:
    try:
        os.close(os.open(f"{directory}/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        return str(error.strerror)
    return "" if os.access(directory, os.X_OK) else "it may not be entered"


def _whole_digest(script: str) -> str:
    with suppress(OSError, UnsafeFileError), open_file(script) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


def _rsync() -> str:
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["rsync", "--version"]
        said = subprocess.run(command, capture_output=True, timeout=RSYNC_S, stdin=subprocess.DEVNULL).stdout
        found = re.search(r"version v?(\d+(?:\.\d+)*)", said.decode(errors="replace"))
        return found[1] if found else "0"
    return ""


def _key_files(folder: Path) -> list[KeyFile]:
    found = []
    for path in [folder, *sorted(folder.rglob("*"))[:MAX_KEY_FILES]]:
        with suppress(OSError):
            facts = path.stat()  # of a link, which a mounted secret is, what it leads to
            found.append(
                KeyFile(
                    path=str(path),
                    folder=stat.S_ISDIR(facts.st_mode),
                    mode=stat.S_IMODE(facts.st_mode),
                    own=facts.st_uid == os.getuid(),
                    roots=facts.st_uid == 0,
                    digest=_digest(path) if path.parent == folder and path.name in COMPARED else "",
                )
            )
    return found


def _digest(path: Path) -> str:
    """Return what tells a file from another copy; empty if it cannot be read, or is not a plain file of that size."""
    with suppress(OSError, UnsafeFileError):
        return hashlib.sha256(read_file(path, MAX_FILE_NBYTES)).hexdigest()
    return ""
