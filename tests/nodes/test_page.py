"""The page beside a coordinator: its address, its token, and what the coordinator's next life has of both."""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.pace import allow
from tests.page.asked import live, series
from tests.ports import reserved_port
from zmqps.core.protocol.messages import Watch
from zmqps.errors import AddressInUseError, ConfigurationError
from zmqps.nodes.journal import PAGE
from zmqps.nodes.page import Kept, check_page, page, read_page
from zmqps.web.server import listen

PATIENCE = allow(20.0)


def view(asked: Watch, now: float) -> dict[str, Any]:
    """What a coordinator without jobs tells."""
    status = {"state": "ready", "jobs": {}, "members": [], "gone": [], "ended": [], "waiting": [], "left_out": []}
    told = {"now": now, "status": status, "series": [series("loss")], "happened": {}}
    return told | {name: live()[name] for name in ("events", "waits", "awaited_s", "slowest")}


def get(port: int, path: str) -> int:
    """Return the status of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def during(journal: Path | None, path: str = "/view.json", address: str = "127.0.0.1:0", keyed: bool = False) -> Any:
    """Open a page; return what was kept of it meanwhile, and the status of an answer."""

    async def coordinate() -> tuple[Kept, int]:
        options = {"endpoint": "tcp://127.0.0.1:5570", "journal": journal, "keyed": keyed, "insecure": False}
        with page(address, view, **options):  # type: ignore[arg-type]
            kept = read_page(journal) if journal is not None else Kept()
            return kept, await asyncio.to_thread(get, kept.port, path) if kept.port else 0

    return asyncio.run(coordinate())


def test_the_coordinator_s_view_is_served_and_nothing_is_left_of_the_page(tmp_path: Path) -> None:
    kept, status = during(tmp_path / "journal")
    assert (kept.url, status) == (f"http://127.0.0.1:{kept.port}/", 200)
    assert not (tmp_path / "journal" / PAGE).exists()
    assert read_page(tmp_path / "journal") == Kept()


def test_with_keys_it_needs_a_token_that_only_the_user_can_read(tmp_path: Path) -> None:
    modes = []

    async def coordinate() -> None:
        options = {"endpoint": "tcp://127.0.0.1:5570", "journal": tmp_path / "j", "keyed": True, "insecure": False}
        with page("127.0.0.1:0", view, **options):  # type: ignore[arg-type]
            kept = read_page(tmp_path / "j")
            modes.append((tmp_path / "j" / PAGE).stat().st_mode & 0o777)
            assert re.fullmatch(rf"http://127\.0\.0\.1:{kept.port}/\?token={kept.token}", kept.url)
            assert len(bytes.fromhex(kept.token)) == 32
            assert await asyncio.to_thread(get, kept.port, "/view.json") == 403
            assert await asyncio.to_thread(get, kept.port, f"/?token={kept.token}") == 303

    asyncio.run(coordinate())
    assert modes == [0o600]


def test_a_coordinator_that_was_killed_comes_back_with_its_port_and_token(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir(mode=0o700)
    with reserved_port() as port:
        text = f'{{"url": "http://127.0.0.1:{port}/", "port": {port}, "token": "{"5f" * 32}"}}'
        with open(folder / PAGE, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text)
        kept, status = during(folder, path=f"/?token={'5f' * 32}", keyed=True)
    assert (kept.port, kept.token, status) == (port, "5f" * 32, 303)


def test_a_port_that_was_taken_meanwhile_is_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir(mode=0o700)
    with listen("127.0.0.1", 0, "the page") as other:
        taken = other.getsockname()[1]
        with open(folder / PAGE, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f'{{"url": "", "port": {taken}, "token": ""}}')
        kept, status = during(folder)
        assert kept.port != taken
        assert status == 200
        with pytest.raises(AddressInUseError):
            during(folder, address=f"127.0.0.1:{taken}")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "[" * 3000, '{"url": 1, "port": 1, "token": ""}', '{"url": "", "port": 70000, "token": ""}'],
)
def test_what_is_no_page_s_file_is_none(tmp_path: Path, text: str) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / PAGE).write_text(text)
    (tmp_path / PAGE).chmod(0o600)
    assert read_page(tmp_path) == Kept()


def test_without_a_journal_the_token_is_in_a_file_that_the_log_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with caplog.at_level(logging.INFO, "zmqps.coordinator"):
        during(None, keyed=True)
    named = re.search(r"it needs the token that is in (\S+)", caplog.text)
    assert named is not None
    assert Path(named[1]).is_relative_to(tmp_path)
    assert "token=" not in caplog.text


@contextmanager
def refused(words: str) -> Iterator[None]:
    with pytest.raises(ConfigurationError, match=words):
        yield


def test_an_address_is_a_host_and_a_port_and_leads_beyond_this_host_only_where_that_is_said() -> None:
    assert check_page("127.0.0.1:0", insecure=False) == ("127.0.0.1", 0)
    assert check_page("http://localhost:8080/", insecure=False) == ("localhost", 8080)
    assert check_page("[::1]:80", insecure=False) == ("::1", 80)
    assert check_page("0.0.0.0:80", insecure=True) == ("0.0.0.0", 80)
    for wrong in ("", "5580", "127.0.0.1", "127.0.0.1:70000", "ipc://page"):
        with refused("write HOST:PORT"):
            check_page(wrong, insecure=False)
    for open_to_others in ("0.0.0.0:80", "10.0.0.1:80", "[::]:80", "node-a:80"):
        with refused("ssh -L"):
            check_page(open_to_others, insecure=False)


def test_without_an_address_there_is_none() -> None:
    with page("", view, endpoint="", journal=None, keyed=False, insecure=False):
        pass
