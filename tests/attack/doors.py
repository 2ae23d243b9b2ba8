"""Attacks on what is beside training: the port of the page and metrics, and the directory of checkpoints.

Whoever is there meanwhile as honest guests has to be served: a scraper and a browser, and the cluster's own saves.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import zmqps
from tests.attack.arena import Arena
from tests.pace import allow
from tests.ports import free_port
from zmqps.checkpoint import open_checkpoint
from zmqps.errors import CheckpointError

#: More than each listener takes.
SLOW = 80
#: Between two bytes of a slow connection, and between two scrapes.
BYTE_S, SCRAPE_S = 0.5, 0.2
#: How often the cluster saves, and how many saves have to be good that were made during an attack.
SAVE_S, GOOD = 1, 2


@contextmanager
def working(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Let some work be done on threads until the end of the block."""
    over = threading.Event()
    threads = [threading.Thread(target=work, args=(over,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


# --- connections --------------------------------------------------------------------------------


def with_doors(directory: Path) -> Mapping[str, Any]:
    """Open the port, which is noted for the attack."""
    page = free_port()
    (directory / "doors").write_text(f"{page}")
    return {"page": f"127.0.0.1:{page}"}


@contextmanager
def slow_connections(arena: Arena) -> Iterator[None]:
    """Connections to the page and its metrics send a byte now and then, and come again when they are shut."""
    page = int((arena.directory / "doors").read_text())

    def scrape(over: threading.Event) -> None:
        while not over.wait(SCRAPE_S):
            for what, path in ("scrapes", "metrics"), ("looks", ""):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{page}/{path}", timeout=allow(5.0)) as answer:
                        answer.read()
                    arena.counted[what] += 1
                except OSError as error:
                    arena.noticed.append(f"{what} fail: {error}"[:200])

    with working(scrape, lambda over: dawdle(page, over, arena)):
        yield
    if min(arena.counted["scrapes"], arena.counted["looks"]) == 0:
        arena.noticed.append("nobody was served")


def dawdle(port: int, over: threading.Event, arena: Arena) -> None:
    """Hold connections to a port, and send a byte of a request on each now and then."""
    peers: list[socket.socket] = []
    while not over.wait(BYTE_S):
        for peer in [*peers]:
            try:
                peer.send(b"G")
            except OSError:
                peers.remove(peer)
                peer.close()
        while len(peers) < SLOW:
            with suppress(OSError):
                peers.append(socket.create_connection(("127.0.0.1", port), timeout=1.0))
                peers[-1].setblocking(False)
                arena.counted["connections"] += 1
    for peer in peers:
        peer.close()


# --- files --------------------------------------------------------------------------------------


def with_checkpoints(directory: Path) -> Mapping[str, Any]:
    """Let jobs be saved every second."""
    saving = zmqps.Saving(checkpoint=directory / "checkpoints", every=f"{SAVE_S}s", at_end=False)
    return {"saving": saving}


def put_odd(path: Path, number: int) -> None:
    """Put something in the place of a file that nobody should wait for, or read to its end."""
    with suppress(FileNotFoundError):
        path.unlink()
    kinds: list[Callable[[], object]] = [
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to("/dev/tty"),
        lambda: path.symlink_to(path.name),
        lambda: path.mkdir(),
        lambda: (path.touch(), os.truncate(path, 1 << 40)),
        lambda: path.write_bytes(bytes(1 << 20)),
    ]
    kinds[number % len(kinds)]()


@contextmanager
def odd_files(arena: Arena) -> Iterator[None]:
    """FIFOs, devices, links, directories and sparse files come into the directory of checkpoints, and into old ones."""
    job = arena.directory / "checkpoints" / "default"

    def spoil(over: threading.Event) -> None:
        number = 0
        while not over.wait(0.1):
            number += 1
            stem = f"000000000000-{number:04}"
            with suppress(OSError):
                put_odd(arena.directory / "checkpoints" / f"odd-{number}", number)
                put_odd(job / f"ckpt-{stem}", number)
                (job / f"tmp-{stem}-other").mkdir()
                put_odd(job / f"tmp-{stem}-other" / "manifest.json", number)
            with suppress(OSError):  # of all but the latest, which has to be good
                for old in sorted(job.glob("ckpt-*"), key=lambda path: path.name.rpartition("-")[2])[:-2]:
                    if (old / "manifest.json").is_file():
                        for inner in list(old.iterdir()):
                            put_odd(inner, number)
            arena.counted["odd files"] += 1

    def look(over: threading.Event) -> None:
        seen: set[str] = set()
        while not over.wait(0.2):
            with suppress(CheckpointError):
                began = time.monotonic()
                seen.add(open_checkpoint(str(arena.directory / "checkpoints"), "default").path)
                if time.monotonic() - began > allow(2.0):
                    arena.noticed.append(f"it took {time.monotonic() - began:.1f} s to find the latest checkpoint")
            arena.counted["good checkpoints"] = len(seen)

    with working(spoil, look):
        yield
    if arena.counted["good checkpoints"] < GOOD:
        arena.noticed.append(f"only {arena.counted['good checkpoints']} good checkpoints were seen")
    for odd in job.parent.glob("odd-*"):
        shutil.rmtree(odd) if odd.is_dir() and not odd.is_symlink() else odd.unlink()
