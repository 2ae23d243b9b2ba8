"""Log lines: written, read back, coloured, and what becomes of long ones."""

from __future__ import annotations

import io
import json
import logging
import threading
from datetime import UTC, datetime

import pytest

from tests.pace import allow
from zmqps.cli.running.output import MAX_BACKLOG, LogFile, Painter, Terminal
from zmqps.folder import Folder
from zmqps.logs.handler import NodeFormatter, set_up_logging
from zmqps.logs.lines import read_line, read_message, without_date, write_line

AT = datetime(2025, 11, 21, 1, 4, 5, 123456, UTC)
LINE = "server-0    | 2025-11-21 01:04:05.123 hello | you"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_says_who_and_when() -> None:
    assert write_line("server-0", "info", "hello | you", AT, as_json=False) == LINE
    assert write_line("s", "warning", "oh", AT, as_json=False) == "s           | 2025-11-21 01:04:05.123 warning: oh"
    assert json.loads(write_line("s", "info", "a\nb", AT, as_json=True)) == {
        "time": "2025-11-21T01:04:05.123+00:00", "level": "info", "node": "s", "message": "a\nb"
    }  # fmt: skip


def test_debug_is_what_zmqps_has_to_say_and_not_how_numba_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    root, numba = logging.getLogger(), logging.getLogger("numba")
    for logger, name in ((root, "handlers"), (root, "level"), (numba, "level"), (logging, "raiseExceptions")):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    screen = Screen()
    set_up_logging("server-0", level="debug", stream=screen)
    logging.getLogger("zmqps.net").debug("a route")
    logging.getLogger("numba.core.ssa").debug("on stmt: x = 1")
    logging.getLogger("numba.core").warning("slow")
    assert [line.rsplit(None, 1)[-1] for line in screen.getvalue().splitlines()] == ["route", "slow"]


def test_of_a_message_of_several_lines_each_says_who() -> None:
    lines = write_line("server-0", "error", "a\nb", AT, as_json=False).split("\n")
    assert [read_line(line) for line in lines] == [("server-0", "2025-11-21 01:04:05.123")] * 2


def test_lines_are_read_back() -> None:
    for as_json in (False, True):
        line = write_line("server-0", "info", "hello | you", AT, as_json=as_json)
        assert read_message(line) == "hello | you"
        entry = read_line(line)
        assert entry is not None
        assert entry[0] == "server-0"
    for other in ("", "{", "{}", "[]", "Traceback (most recent call last):", "a | b"):
        assert read_line(other) is None
        assert read_message(other) == other
        assert without_date(other) == other


def test_an_exception_is_part_of_its_record() -> None:
    try:
        raise ValueError("odd")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "it %s", ("broke",), (ValueError, error, None))
    assert json.loads(NodeFormatter("n", as_json=True).format(record))["message"] == "it broke\nValueError: odd"
    assert len(NodeFormatter("n").format(record).split("\n")) == 2
    assert NodeFormatter("n", with_date=False).format(record).startswith("n           | ")


def test_a_terminal_sees_a_colour_a_node_and_no_date(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Screen()
    painter = Painter(screen)
    for line in (LINE, LINE.replace("server-0", "server-1"), LINE):
        painter.print(line)
    first, second, third = screen.getvalue().splitlines()
    assert first == third
    assert first.startswith("\x1b[36mserver-0    |")
    assert second.startswith("\x1b[32mserver-1    |")
    assert first.endswith("01:04:05.123 hello | you")
    assert "2025" not in first


def test_a_paused_terminal_holds_nobody_up(tmp_path) -> None:
    go_on = threading.Event()

    class Paused(io.StringIO):
        def write(self, text: str) -> int:
            assert go_on.wait(allow(30.0))
            return super().write(text)

    screen = Paused()
    terminal = Terminal(screen)
    with Folder(tmp_path) as folder:
        log = LogFile("n", folder, "n.log", terminal, as_json=False)
    log.take(["x"] * 2 * MAX_BACKLOG)
    log.close()
    assert (tmp_path / "n.log").read_text().count("\n") == 2 * MAX_BACKLOG
    go_on.set()
    terminal.close(30.0)
    assert "lines left out here" in screen.getvalue()


def test_a_terminal_that_is_gone_holds_nobody_up() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    terminal = Terminal(Gone())
    for _ in range(2 * MAX_BACKLOG):
        terminal.show("x")
    terminal.close(0.1)


def test_what_a_process_says_becomes_entries_of_its_own(tmp_path) -> None:
    with Folder(tmp_path) as folder:
        log = LogFile("server-0", folder, "n.log", None, as_json=False)
    log.take([LINE, "Fatal Python error: Aborted", LINE.replace("server-0", "server-1")])
    log.close()
    lines = (tmp_path / "n.log").read_text().splitlines()
    assert lines[0] == LINE
    assert [read_line(line)[0] for line in lines] == ["server-0"] * 3  # type: ignore[index]


#: What a peer may call itself: a line end and a line of its own, the start of the line, the terminal's title,
#: "clear the screen" in one byte, a change of the direction of writing, and markup.
NASTY = "a\nserver-0    | 2025-11-21 01:04:05.123 forged\rX\x1b]0;title\x07\x1b[2J\x9b2J\u202egnp[red]\u2028"


@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_peer_says_is_one_line_of_printable_characters(as_json: bool) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(NodeFormatter("coordinator", as_json=as_json))
    logger = logging.Logger("nasty")
    logger.addHandler(handler)
    logger.warning("%s joined", NASTY)
    (line,) = stream.getvalue().split("\n")[:-1]
    assert line.isprintable()
    assert read_line(line) is not None
    assert r"forged\rX\x1b]0;title\x07\x1b[2J\x9b2J\u202egnp[red]\u2028 joined" in read_message(line)
    try:
        raise ValueError(NASTY)
    except ValueError:
        logger.exception("oh")
    lines = stream.getvalue().split("\n")[1:-1]
    assert all(line.isprintable() for line in lines)
    assert not any((entry := read_line(line)) and entry[0] != "coordinator" for line in lines)


def test_what_a_process_prints_keeps_its_colours_and_moves_nothing(tmp_path) -> None:
    with Folder(tmp_path) as folder:
        log = LogFile("worker-0", folder, "worker-0.log", None, as_json=False)
        log.take(["\x1b[1;31mloss\x1b[0m\t0.5", "\x1b[2J\x1b]0;title\x07\x08\x9b2J", "a\u202eb\u2028c"])
        log.close()
    lines = (tmp_path / "worker-0.log").read_text().split("\n")
    assert [read_message(line) for line in lines[:-1]] == [
        "\x1b[1;31mloss\x1b[0m\t0.5", r"\x1b[2J\x1b]0;title\x07\x08\x9b2J", r"a\u202eb\u2028c"
    ]  # fmt: skip


def test_a_terminal_sees_levels_in_colour_and_only_what_the_message_does_not_say(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Screen()
    line = write_line(
        "coordinator", "warning", "lost worker-2", AT, as_json=False, fields={"peer": "worker-2", "error": "Z006"}
    )
    Painter(screen).print(line)
    (shown,) = screen.getvalue().splitlines()
    assert "\x1b[33mwarning\x1b[0m: lost worker-2\x1b[2m [error=Z006]\x1b[0m" in shown
