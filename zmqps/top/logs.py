"""The end of a node's log, where it was started from this directory."""

from __future__ import annotations

import os
from pathlib import Path

from zmqps.errors import printable
from zmqps.folder import Folder
from zmqps.logs.lines import read_entry

#: What is read of the end of a log.
TAIL_NBYTES = 64 << 10
MOST_LINES = 400


def tail(directory: Path, cluster: str, node: str, host: str) -> list[str]:
    """Return the last lines of a node's log; else one that says where it may be.

    Parameters
    ----------
    directory
        Where runs/ is.
    cluster
        Its name.
    node
        As its log is called: ``worker-2``.
    host
        Where it runs.

    Raises
    ------
    UnsafeFileError
        The directory, or the log, is another user's.
    """
    elsewhere = f"the log of {node} is not here: look on {host}, or run this where the cluster was started"
    try:
        with Folder(directory, "runs", cluster, "logs") as folder:
            names = [name for name in os.listdir(folder.fd) if name == f"{node}.log" or name.startswith(f"{node}@")]
            if not names:
                return [elsewhere]
            with open(folder.open(names[0], os.O_RDONLY), "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - TAIL_NBYTES))
                text = file.read(TAIL_NBYTES).decode(errors="replace")
    except FileNotFoundError:
        return [elsewhere]
    said = [entry.text() if (entry := read_entry(line)) is not None else line for line in text.split("\n")[:-1]]
    lines = [printable(line) for text in said for line in text.split("\n")]
    return lines[-MOST_LINES:] or [f"the log of {node} is empty"]
