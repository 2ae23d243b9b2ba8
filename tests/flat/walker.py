"""What a process holds: memory, descriptors, threads, and how much is in every container of zmqps' objects.

A node that is started as ``python -m tests.flat.walker role …`` is one of zmqps that answers for itself: whoever
connects to the socket that `SOCKET` names gets what it holds, as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from zmqps.net.system.memory import give_back_freed_memory

SOCKET = "FLAT_SOCKET"
CONTAINERS = (dict, list, set, frozenset, deque, bytearray)
#: Seconds that an answer may take, of a process that walks over all its objects.
PATIENCE = 60.0
MAX_ANSWER_NBYTES = 16 << 20


def attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, those in slots too."""
    yield from getattr(thing, "__dict__", {}).items()
    for owner in type(thing).__mro__:
        for name in owner.__dict__.get("__slots__", ()):
            if isinstance(name, str) and hasattr(thing, name):
                yield name, getattr(thing, name)


def containers() -> dict[str, int]:
    """Return how many objects of each class of zmqps there are, and how much is in their containers, by attribute."""
    gc.collect()
    found: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = type(thing)
        if not str(getattr(kind, "__module__", "")).startswith("zmqps"):
            continue
        name = f"{kind.__module__}.{kind.__qualname__}"
        found[name] += 1
        for attribute, value in attributes(thing):
            if isinstance(value, CONTAINERS):
                found[f"{name}.{attribute}"] += len(value)
    return dict(found)


def trimmed_kb(process: psutil.Process) -> int:
    """Return what this process has once malloc has given back what is free: the rest is in use, or lies beside it."""
    give_back_freed_memory()
    memory = process.memory_info()
    return int(memory.rss - memory.shared) >> 10


def held() -> dict[str, Any]:
    """Return what this process holds."""
    inside = containers()
    process = psutil.Process()
    memory = process.memory_info()
    return {
        "memory_kb": (memory.rss - memory.shared) >> 10,
        "trimmed_kb": trimmed_kb(process),
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "objects": len(gc.get_objects()),
        "inside": inside,
    }


def ask(path: Path) -> Any:
    """Return what a node holds that answers at a socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE)
        client.connect(str(path))
        data = b""
        while (chunk := client.recv(1 << 20)) and len(data) < MAX_ANSWER_NBYTES:
            data += chunk
    return json.loads(data)


def answer(listener: socket.socket) -> None:
    """Answer all who ask, one after the other."""
    while True:
        client, _ = listener.accept()
        with client:
            client.sendall(json.dumps(held()).encode())


def main() -> int:
    """Be a node, and answer for it."""
    from zmqps.cli.main import run

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.environ.pop(SOCKET))
    listener.listen(4)
    threading.Thread(target=answer, args=(listener,), daemon=True).start()
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
