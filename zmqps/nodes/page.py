"""A coordinator's page: its address and token, also for the coordinator's next life."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zmqps.core.protocol.endpoints import MAX_PORT, host_of, is_loopback, is_wildcard
from zmqps.core.protocol.messages import Watch
from zmqps.errors import AddressInUseError, UnsafeFileError
from zmqps.folder import Folder
from zmqps.net.system.host import host_tag
from zmqps.nodes.journal import PAGE
from zmqps.page.app import serving, url_of
from zmqps.page.feed import asking
from zmqps.web.metrics import Figures, Source, check_installed
from zmqps.web.server import WebPlace, listen, url

TOKEN_NBYTES = 32
#: What errors call it.
THE_PAGE = "the page"
#: The file is some hundred bytes.
MAX_NBYTES = 4096

log = logging.getLogger("zmqps.coordinator")


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a page is, and its token."""

    url: str = ""
    port: int = 0
    token: str = field(default="", repr=False)  # asyncio logs what slow calls were given


@contextlib.contextmanager
def page(
    place: WebPlace,
    view: Callable[[Watch, float], Mapping[str, Any]],
    source: Source,
    *,
    endpoint: str,
    journal: str | os.PathLike[str] | None,
    keyed: bool,
) -> Iterator[None]:
    """Serve page and metrics of the coordinator whose loop this thread runs; nothing, where the address is empty.

    Port and token are those of the coordinator's life before this one, where there is a journal; the token, unless the
    user has given one. Every client needs it, except for a page on loopback of a cluster without keys: any process may
    ask for the status there.
    """
    place.check()
    if not place.address:
        yield
        return
    check_installed()
    host, port = place.host_and_port
    with _folder(journal) as folder:
        before = read_page(Path(journal)) if journal is not None else Kept()
        listener = _as_before(host, before.port) if not port and before.port else None
        listener = listener or listen(host, port, THE_PAGE)
        port = listener.getsockname()[1]
        given = place.secret.decode()
        token = given or before.token or secrets.token_hex(TOKEN_NBYTES)
        token = token if given or keyed or not is_loopback(host) else ""
        shown = host_of(endpoint) if is_wildcard(host) and host_of(endpoint) else host
        kept = Kept(url_of(shown, port, token), port, token)
        name = PAGE if journal is not None else f"{host_tag(host)}-{port}.json"
        with folder.begin(name) as file:
            file.write(json.dumps({"url": kept.url, "port": kept.port, "token": kept.token}).encode())
        needs = f"; it needs the token that is in {folder.path / name}" if token else ""
        log.info("the page is at %s%s", url_of(shown, port, ""), needs)
        log.info("metrics at %s", url(host, port))
        figures = Figures(source, "coordinator")
        try:
            with serving(listener, asking(asyncio.get_running_loop(), view), figures, token):
                yield
        finally:
            with contextlib.suppress(OSError):
                folder.remove(name)  # it is left behind by a coordinator that is killed, and comes back


def read_page(directory: Path) -> Kept:
    """Return what a coordinator with a journal in a directory has kept of its page; nothing where it has none."""
    try:
        with Folder(directory) as folder, open(folder.open(PAGE, os.O_RDONLY), "rb") as file:
            facts = json.loads(file.read(MAX_NBYTES))
            kept = Kept(facts["url"], facts["port"], facts["token"])
    except (OSError, UnsafeFileError, ValueError, KeyError, TypeError, RecursionError):
        return Kept()
    texts = type(kept.url) is str and type(kept.token) is str
    return kept if texts and type(kept.port) is int and 0 < kept.port <= MAX_PORT else Kept()


def _as_before(host: str, port: int) -> Any:
    """Return a socket at the port that browsers know; None if it is taken."""
    try:
        return listen(host, port, THE_PAGE)
    except AddressInUseError:
        return None


def _folder(journal: str | os.PathLike[str] | None) -> Folder:
    if journal is not None:
        place = Path(journal).absolute()
        return Folder(place.parent, place.name, make=True)
    return Folder(Path(tempfile.gettempdir()), f"zmqps-{os.geteuid()}", "pages", make=True)
