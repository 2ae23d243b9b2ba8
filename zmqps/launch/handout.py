"""Which keys of a cluster a host gets: those of a node only where nodes run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from zmqps.launch.far import check_name, pack, unpack
from zmqps.net.keyring import AUTHORIZED, CLUSTER_PUBLIC, CLUSTER_SECRET

#: Folders below that of the agent's files.
FOR_NODES, FOR_WORKERS = "keys", "worker-keys"


def key_files(keys: Path, *, has_nodes: bool) -> dict[str, str]:
    """Return the files that a host gets, by their names there.

    Parameters
    ----------
    keys
        The directory that `zmqps.keys.create` has made.
    has_nodes
        Whether the coordinator or a server runs there; its agent asks the coordinator, too.
    """
    names = [f"{FOR_WORKERS}/{name}" for name in (CLUSTER_PUBLIC, "worker.key")]
    if has_nodes:
        names += [f"{FOR_NODES}/{name}" for name in (CLUSTER_PUBLIC, CLUSTER_SECRET, AUTHORIZED, "node.key")]
    return {name: pack(keys / name.partition("/")[2]) for name in names}


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files that a host got, such that only this user can read them; none may be there yet."""
    for name, text in files.items():
        path = folder / check_name(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(unpack(text))
