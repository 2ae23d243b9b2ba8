"""Which keys of a cluster a host or worker gets: those of a node only where nodes run; and how they get later ones."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from zmqps.errors import ConfigurationError, PSError
from zmqps.files import create, make_directory
from zmqps.keys.keyring import AUTHORIZED, CLUSTER_PUBLIC, CLUSTER_SECRET, version_of
from zmqps.launch.far import check_name, pack, unpack
from zmqps.launch.guard import Guard

#: Folders below that of the agent's files.
FOR_NODES, FOR_WORKERS = "keys", "worker-keys"
#: Between two looks at the keys here. Nodes look twice a second at what they got: a revoked key ends within a second.
LOOK_S = 0.25
#: In this order: a new key is in the list before it is used.
_OF_NODES = (AUTHORIZED, CLUSTER_PUBLIC, CLUSTER_SECRET, "node.key")
_OF_WORKERS = (CLUSTER_PUBLIC, "worker.key")

Version = tuple[tuple[int, ...], ...]


def key_files(keys: Path, *, has_nodes: bool) -> dict[str, str]:
    """Return the files that a host gets, by their names there.

    Parameters
    ----------
    keys
        The directory that `zmqps.keys.create` has made.
    has_nodes
        Whether the coordinator or a server runs there; its agent asks the coordinator, too.

    Raises
    ------
    ConfigurationError
        One of them cannot be read.
    """
    try:
        return {f"{folder}/{name}": pack(keys / name) for folder, name in _names(has_nodes)}
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {error.filename}, which is handed out ({error.strerror}): zmqps keys create makes all keys, "
            "and zmqps keys rotate those of a role"
        ) from None


def _names(has_nodes: bool) -> list[tuple[str, str]]:
    names = [(FOR_NODES, name) for name in _OF_NODES] if has_nodes else []
    return names + [(FOR_WORKERS, name) for name in _OF_WORKERS]


def write_files(folder: Path, files: Mapping[str, str], *, again: bool = False) -> None:
    """Write the files that a host got, such that only this user can read them.

    Parameters
    ----------
    folder
        Where.
    files
        What `key_files` has made.
    again
        Put them in the place of those that are there, each as a whole: they are read at any time. Otherwise none may
        be there yet.
    """
    for name, text in files.items():
        path = folder / check_name(name)
        make_directory(path.parent)
        new = path.with_name(f"{path.name}.new") if again else path
        if again:
            new.unlink(missing_ok=True)  # of a time when the disk was full
        with open(create(new), "wb") as file:
            file.write(unpack(text))
        if again:
            new.replace(path)


# --- keys that change ---------------------------------------------------------------------------


def version(keys: Path, *, has_nodes: bool) -> Version:
    """Return what is another one when a file that `key_files` reads has changed; to be asked for before that."""
    return tuple(version_of(keys / name) for _, name in _names(has_nodes))


async def changed(keys: Path, known: Version, *, has_nodes: bool) -> Version:
    """Wait until the keys have another version; return it."""
    while True:
        now = version(keys, has_nodes=has_nodes)
        if now != known:
            return now
        await asyncio.sleep(LOOK_S)  # a file does not announce its changes


@contextlib.asynccontextmanager
async def worker_keys(keys: Path, say: Callable[[str, str], None]) -> AsyncIterator[Path]:
    """Hold a directory of what a worker shows and nothing else, which follows the keys; yield it.

    Parameters
    ----------
    keys
        Those of the cluster's nodes.
    say
        Takes a level of the log and a text: that the worker's key has changed, or cannot be read any more.

    Raises
    ------
    ConfigurationError
        There is no key for workers.
    """
    guard = Guard()  # removes the folder when this process is killed
    folder = Path(tempfile.mkdtemp(prefix="zmqps-keys-"))
    guard.remove(folder)
    follow: asyncio.Task[None] | None = None
    try:
        known = version(keys, has_nodes=False)
        write_files(folder, key_files(keys, has_nodes=False))
        follow = asyncio.create_task(_follow(keys, known, folder, say))
        yield folder / FOR_WORKERS
    finally:
        if follow is not None:
            follow.cancel()
            await asyncio.gather(follow, return_exceptions=True)
        shutil.rmtree(folder, ignore_errors=True)
        guard.close()


async def _follow(keys: Path, known: Version, folder: Path, say: Callable[[str, str], None]) -> None:
    while True:
        known = await changed(keys, known, has_nodes=False)
        try:
            write_files(folder, key_files(keys, has_nodes=False), again=True)
        except (PSError, OSError) as error:
            say("error", f"the keys have changed, and workers have those of before: {error}")
        else:
            say("info", "the worker's key has changed, and workers have the new one")
