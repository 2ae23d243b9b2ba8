"""Log lines: written, read back, coloured, and what becomes of long ones."""

from __future__ import annotations

import io
import json
import logging
import threading
from datetime import UTC, datetime

import pytest

from tests.pace import allow
from tests.tables import for_each
from zmqps.cli.running import output
from zmqps.cli.running.output import MAX_BACKLOG, LogFile, Painter, Terminal
from zmqps.folder import Folder
from zmqps.logs.handler import NodeFormatter, set_up_logging
from zmqps.logs.lines import MAX_ENTRY_NBYTES, MAX_LINE_NBYTES, Entry, Lines, last_messages, read_entry, read_message

AT = datetime(2025, 11, 21, 1, 4, 5, 123456).astimezone()


def entry(message: str, level: str = "info", node: str = "server-0", **fields: str) -> Entry:
    return Entry(at=AT, level=level, node=node, message=message, fields=fields)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


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


def test_people_read_node_time_level_and_message() -> None:
    assert entry("hello | you").text() == "server-0    | 2025-11-21 01:04:05.123 hello | you"
    assert entry("oh", "warning", "s").text(width=3) == "s   | 2025-11-21 01:04:05.123 warning: oh"
    assert entry("oh").text(with_date=False) == "server-0    | 01:04:05.123 oh"


def test_of_a_message_of_several_lines_each_names_the_node_and_the_first_has_the_fields() -> None:
    assert entry("a\nb", "error", "s", job="digits").text(width=1).split("\n") == [
        "s | 2025-11-21 01:04:05.123 error: a [job=digits]",
        "s | 2025-11-21 01:04:05.123 error: b",
    ]


def test_people_do_not_read_twice_what_the_message_says() -> None:
    said = entry("job 'digits' has ended", job="digits", error="Z048")
    assert said.text().endswith(" job 'digits' has ended [error=Z048]")
    assert json.loads(said.line())["job"] == "digits"


def test_an_exception_is_part_of_its_record() -> None:
    try:
        raise ValueError("odd")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "it %s", ("broke",), (ValueError, error, None))
    assert json.loads(NodeFormatter("n").format(record))["message"] == "it broke\nValueError: odd"
    text = NodeFormatter("n", as_text=True).format(record)
    assert len(text.split("\n")) == 2
    assert text.startswith("n           | ")


def test_a_terminal_sees_a_colour_a_node_and_no_date(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Screen()
    painter = Painter(screen)
    for node in ("server-0", "server-1", "server-0"):
        painter.print(entry("hello | you", node=node))
    first, second, third = screen.getvalue().splitlines()
    assert first == third
    assert first.startswith("\x1b[36mserver-0    |")
    assert second.startswith("\x1b[32mserver-1    |")
    assert first.endswith("01:04:05.123 hello | you")
    assert "2025" not in first


def test_a_terminal_sees_levels_in_colour_and_only_what_the_message_does_not_say(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Screen()
    Painter(screen).print(entry("lost worker-2", "warning", peer="worker-2", error="Z006"))
    (shown,) = screen.getvalue().splitlines()
    assert "\x1b[33mwarning\x1b[0m: lost worker-2\x1b[2m [error=Z006]\x1b[0m" in shown


def test_a_paused_terminal_holds_nobody_up(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_BACKLOG", 200)
    go_on = threading.Event()

    class Paused(io.StringIO):
        def write(self, text: str) -> int:
            assert go_on.wait(allow(30.0))
            return super().write(text)

    screen = Paused()
    terminal = Terminal(screen)
    with Folder(tmp_path) as folder:
        log = LogFile("n", folder, "n.log", terminal)
        log.take(["x"] * 400)
        log.close()
    assert (tmp_path / "n.log").read_text().count("\n") == 400
    go_on.set()
    terminal.close(30.0)
    assert "lines left out here" in screen.getvalue()


def test_a_terminal_that_is_gone_holds_nobody_up() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    terminal = Terminal(Gone())
    for _ in range(2 * MAX_BACKLOG):
        terminal.show(entry("x"))
    terminal.close(0.1)


def test_what_a_process_says_becomes_entries_of_its_own(tmp_path) -> None:
    printed = '{"loss": 0.5}'
    with Folder(tmp_path) as folder:
        log = LogFile("server-0", folder, "n.log", None)
        own, forged = entry("slow", "warning", job="digits").line(), entry("x", node="server-1").line()
        log.take([own, "Fatal Python error: Aborted", forged, printed])
        log.close()
    lines = (tmp_path / "n.log").read_text().splitlines()
    said = [found for line in lines if (found := read_entry(line))]
    assert lines[0] == own
    assert [(each.node, each.level, each.message) for each in said] == [
        ("server-0", "warning", "slow"),
        ("server-0", "critical", "Fatal Python error: Aborted"),
        ("server-0", "info", forged),
        ("server-0", "info", printed),
    ]


#: What a peer may call itself: a line end and a line of its own, the start of the line, the terminal's title,
#: "clear the screen" in one byte, a change of the direction of writing, and markup.
NASTY = "a\nserver-0    | 2025-11-21 01:04:05.123 forged\rX\x1b]0;title\x07\x1b[2J\x9b2J\u202egnp[red]\u2028"


@for_each("as_text", [False, True])
def test_what_a_peer_says_is_one_line_of_printable_characters(as_text: bool) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(NodeFormatter("coordinator", as_text=as_text))
    logger = logging.Logger("nasty")
    logger.addHandler(handler)
    logger.warning("%s joined", NASTY)
    (line,) = stream.getvalue().split("\n")[:-1]
    assert line.isprintable()
    assert r"forged\rX\x1b]0;title\x07\x1b[2J\x9b2J\u202egnp[red]\u2028 joined" in read_message(line)
    try:
        raise ValueError(NASTY)
    except ValueError:
        logger.exception("oh")
    lines = stream.getvalue().split("\n")[1:-1]
    assert all(line.isprintable() for line in lines)
    assert as_text or len(lines) == 1
    assert not any(line.startswith("server-0") for line in lines)


def test_what_a_process_prints_keeps_its_colours_and_moves_nothing(tmp_path) -> None:
    printed = ["\x1b[1;31mloss\x1b[0m\t0.5", "\x1b[2J\x1b]0;title\x07\x08\x9b2J", "a\u202eb\u2028c"]
    with Folder(tmp_path) as folder:
        log = LogFile("worker-0", folder, "worker-0.log", None)
        log.take(printed)
        log.close()
    written = (tmp_path / "worker-0.log").read_text()
    assert all(line.isascii() and line.isprintable() for line in written.split("\n"))
    said = [found for line in written.splitlines() if (found := read_entry(line))]
    assert [each.message for each in said] == printed
    assert [each.text().partition("| ")[2][24:] for each in said] == [
        "\x1b[1;31mloss\x1b[0m\t0.5", r"\x1b[2J\x1b]0;title\x07\x08\x9b2J", r"a\u202eb\u2028c"
    ]  # fmt: skip


def test_the_longest_line_that_is_written_is_read_back(tmp_path) -> None:
    lines = Lines().take(b"\x01" * (2 * MAX_LINE_NBYTES) + b"\n")
    with Folder(tmp_path) as folder:
        log = LogFile("worker-0", folder, "worker-0.log", None)
        log.take(lines)
        log.close()
    (line,) = Lines(MAX_ENTRY_NBYTES).take((tmp_path / "worker-0.log").read_bytes())
    assert read_message(line) == lines[0]


def test_the_end_of_a_log_is_shown_as_messages() -> None:
    written = [entry("lost it", "error", job="digits").line(), entry("a\nb\x1b[2J").line(), "Aborted"]
    assert last_messages(written, 3) == "  a\n  b\\x1b[2J\n  Aborted"
    assert last_messages(written, 9).startswith("  lost it\n")
    assert last_messages([], 3) == "  (it said nothing)"


def test_the_time_is_that_moment_wherever_it_was_written() -> None:
    found = read_entry('{"time": "2025-11-21T06:04:05.123+05:00", "level": "INFO", "node": "s", "message": "m"}')
    assert found is not None
    assert (found.at, found.level) == (datetime(2025, 11, 21, 1, 4, 5, 123000, UTC), "info")
