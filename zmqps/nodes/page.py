"""The page beside a coordinator: where it is, its token, and what of both is kept for the coordinator's next life."""

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

from zmqps.core.protocol.endpoints import MAX_PORT, host_of, is_loopback, is_wildcard, split
from zmqps.core.protocol.messages import Watch
from zmqps.errors import AddressInUseError, ConfigurationError, UnsafeFileError
from zmqps.folder import Folder
from zmqps.net.system.host import host_tag
from zmqps.nodes.journal import PAGE
from zmqps.page.app import serving, url_of
from zmqps.page.feed import asking
from zmqps.web.server import listen

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


def check_page(address: str, *, insecure: bool) -> tuple[str, int]:
    """Return host and port of a page's address, ``HOST:PORT``.

    Raises
    ------
    ConfigurationError
        It is invalid; or other hosts reach it, and the network was not said to be trusted.
    """
    try:
        host, port = split(f"tcp://{address.removeprefix('http://').rstrip('/')}")
    except ConfigurationError:
        raise ConfigurationError(
            f"the page's address {address!r:.100} cannot be used: write HOST:PORT, such as 127.0.0.1:5580, or port 0"
        ) from None
    if not is_loopback(host) and not insecure:
        raise ConfigurationError(
            f"the page at {address} can be reached from other hosts, and nothing of it is encrypted: any listener "
            "on the network sees its token. Keep it at 127.0.0.1 and come by `ssh -L`, or pass --insecure on a network "
            "that you trust"
        )
    return host, port


@contextlib.contextmanager
def page(
    address: str,
    view: Callable[[Watch, float], Mapping[str, Any]],
    *,
    endpoint: str,
    journal: str | os.PathLike[str] | None,
    keyed: bool,
    insecure: bool,
) -> Iterator[None]:
    """Serve the page of the coordinator whose loop this thread runs; nothing, where ``address`` is empty.

    Its token and port are those of the coordinator's life before this one, where there is a journal. Every client needs
    the token, except for a page on loopback of a cluster without keys: any process may ask for the status there.
    """
    if not address:
        yield
        return
    host, port = check_page(address, insecure=insecure)
    with _folder(journal) as folder:
        before = read_page(Path(journal)) if journal is not None else Kept()
        listener = _as_before(host, before.port) if not port and before.port else None
        listener = listener or listen(host, port, THE_PAGE)
        port = listener.getsockname()[1]
        token = (before.token or secrets.token_hex(TOKEN_NBYTES)) if keyed or not is_loopback(host) else ""
        shown = host_of(endpoint) if is_wildcard(host) and host_of(endpoint) else host
        kept = Kept(url_of(shown, port, token), port, token)
        name = PAGE if journal is not None else f"{host_tag(host)}-{port}.json"
        with folder.begin(name) as file:
            file.write(json.dumps({"url": kept.url, "port": kept.port, "token": kept.token}).encode())
        needs = f"; it needs the token that is in {folder.path / name}" if token else ""
        log.info("the page is at %s%s", url_of(shown, port, ""), needs)
        try:
            with serving(listener, asking(asyncio.get_running_loop(), view), token):
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
