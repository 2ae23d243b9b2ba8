"""The page beside a coordinator: its address, its token, and what the coordinator's next life has of both."""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.pace import allow
from tests.page.asked import live, series
from tests.ports import reserved_port
from tests.tables import for_each
from zmqps.core.protocol.messages import Watch
from zmqps.errors import AddressInUseError
from zmqps.nodes.journal import PAGE
from zmqps.nodes.page import Kept, page, read_page
from zmqps.web.metrics import Source
from zmqps.web.server import WebPlace, listen

PATIENCE = allow(20.0)


def view(asked: Watch, now: float) -> dict[str, Any]:
    """What a coordinator without jobs tells."""
    status = {"state": "ready", "jobs": {}, "members": [], "gone": [], "ended": [], "waiting": [], "left_out": []}
    told = {"now": now, "status": status, "series": [series("loss")], "happened": {}}
    return told | {name: live()[name] for name in ("events", "waits", "awaited_s", "slowest")}


def source() -> Source:
    """Return what asks a coordinator that has counted nothing."""
    return Source(asyncio.get_running_loop())


def get(port: int, path: str, **headers: str) -> int:
    """Return the status of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def during(journal: Path | None, path: str = "/view.json", address: str = "127.0.0.1:0", keyed: bool = False) -> Any:
    """Open a page; return what was kept of it meanwhile, and the status of an answer."""

    async def coordinate() -> tuple[Kept, int]:
        options = {"endpoint": "tcp://127.0.0.1:5570", "journal": journal, "keyed": keyed}
        with page(WebPlace(address), view, source(), **options):  # type: ignore[arg-type]
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
        options = {"endpoint": "tcp://127.0.0.1:5570", "journal": tmp_path / "j", "keyed": True}
        with page(WebPlace("127.0.0.1:0"), view, source(), **options):  # type: ignore[arg-type]
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


@for_each(
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


def test_a_scraper_and_a_browser_show_the_token_that_the_user_has_given(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789+abcdef\n")
    shown = {"Authorization": "Bearer 0123456789+abcdef"}

    async def coordinate() -> None:
        place = WebPlace("127.0.0.1:0", tmp_path / "token", option="page")
        with page(place, view, source(), endpoint="", journal=tmp_path / "j", keyed=False):
            kept = read_page(tmp_path / "j")
            assert kept.url.endswith("/?token=0123456789%2Babcdef")
            for path in ("/metrics", "/metrics/own", "/now.json"):
                assert await asyncio.to_thread(get, kept.port, path) == 403
                assert await asyncio.to_thread(partial(get, kept.port, path, **shown)) == 200
            assert await asyncio.to_thread(get, kept.port, "/?token=0123456789%2Babcdef") == 303

    asyncio.run(coordinate())


def test_without_an_address_there_is_none() -> None:
    async def coordinate() -> None:
        with page(WebPlace(), view, source(), endpoint="", journal=None, keyed=False):
            pass

    asyncio.run(coordinate())
