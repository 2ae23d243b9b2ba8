"""How nodes and workers log: fields, repeats, and the user's own way of logging, which is left alone."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.tables import for_each
from zmqps.errors import DeadlineError
from zmqps.logs.handler import VARIABLE, About, NodeFormatter, NodeHandler, under_a_supervisor
from zmqps.logs.lines import Entry, read_entry


class Timers:
    """Timers that ring when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, seconds: float, ring: Callable[[], None]) -> Timers:
        self.due.append((self.now + seconds, ring))
        return self

    def start(self) -> None: ...

    def cancel(self) -> None:
        self.due.clear()

    def pass_to(self, now: float) -> None:
        self.now = now
        for at, ring in [one for one in self.due if one[0] <= now]:
            self.due.remove((at, ring))
            ring()


class Node:
    def __init__(self) -> None:
        self.stream, self.timers = io.StringIO(), Timers()
        formatter = NodeFormatter("server-0")
        self.handler = NodeHandler(self.stream, formatter, lambda: self.timers.now, self.timers)  # type: ignore[arg-type]
        self.log = logging.Logger("zmqps.server")
        self.log.addHandler(self.handler)

    def entries(self) -> list[Entry]:
        found = [read_entry(line) for line in self.stream.getvalue().splitlines()]
        assert None not in found
        return [entry for entry in found if entry is not None]


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.handler.close()


def test_a_record_says_what_it_is_about(node: Node) -> None:
    node.log.warning("lost %s", "it", extra={"job": "digits", "peer": "worker-2", "facts": {"step": 412}})
    (entry,) = node.entries()
    assert (entry.level, entry.message) == ("warning", "lost it")
    assert entry.fields == {"job": "digits", "peer": "worker-2", "step": 412}


def test_an_error_of_ours_has_its_number_in_the_log(node: Node) -> None:
    try:
        raise DeadlineError(operation="pull", seconds=2.0, waiting_for="server 1")
    except DeadlineError:
        node.log.exception("it failed")
    (entry,) = node.entries()
    assert entry.fields == {"error": "Z004"}
    assert "zmqps explain Z004" in entry.message


def test_a_fact_that_repeats_is_counted_and_told_of_when_its_time_is_over(node: Node) -> None:
    for i in range(44):
        node.timers.now = i / 10
        node.log.warning("no answer for %.1f s", i / 10, extra={"peer": "worker-2"})
    assert len(node.entries()) == 3
    node.timers.pass_to(14.3)  # nothing else is logged: a timer says it
    last = node.entries()[-1]
    assert last.message == "… 41 more in 10 s: no answer for 4.3 s"
    assert last.fields == {"peer": "worker-2", "repeats": 41}
    assert last.level == "warning"
    assert node.timers.due == []


def test_another_record_says_it_as_well(node: Node) -> None:
    for _ in range(5):
        node.log.info("the same")
    node.timers.now = 11.0
    node.log.info("another")
    assert [entry.message for entry in node.entries()][3:] == ["… 2 more in 10 s: the same", "another"]


def test_a_timer_goes_on_while_a_window_that_began_later_holds_something(node: Node) -> None:
    for _ in range(4):
        node.log.info("first")
    node.timers.now = 5.0
    for _ in range(4):
        node.log.info("second")
    node.timers.pass_to(10.0)
    node.timers.pass_to(20.0)
    assert [entry.message for entry in node.entries() if "more" in entry.message] == [
        "… 1 more in 10 s: first", "… 1 more in 10 s: second"
    ]  # fmt: skip


def test_the_end_of_a_node_tells_what_was_held_back(node: Node) -> None:
    for _ in range(9):
        node.log.error("disk full")
    node.handler.close()
    assert node.entries()[-1].message == "… 6 more in 10 s: disk full"


def test_peers_and_loggers_do_not_hold_each_other_back(node: Node) -> None:
    for number in range(5):
        node.log.info("hello", extra={"peer": f"worker-{number}"})
    other = logging.Logger("zmqps.net")
    other.addHandler(node.handler)
    for _ in range(3):
        other.info("hello")
    assert len(node.entries()) == 8


def test_a_traceback_that_was_held_back_is_not_kept(node: Node) -> None:
    for _ in range(5):
        try:
            raise ValueError("odd")
        except ValueError:
            node.log.exception("it broke")
    assert all(window.last.exc_info is None for window in node.handler._repeats._windows.values() if window.held)
    node.handler.close()
    last = node.entries()[-1]
    assert last.message == "… 2 more in 10 s: it broke"


def test_what_a_logger_is_about_gives_way_to_what_a_record_is_about(node: Node) -> None:
    about = About(node.log, {"job": "digits"})
    about.warning("a")
    about.warning("b", extra={"job": "other", "peer": "server-1"})
    assert [entry.fields for entry in node.entries()] == [{"job": "digits"}, {"job": "other", "peer": "server-1"}]


def test_without_a_supervisor_no_handler_is_added() -> None:
    before = list(logging.getLogger("zmqps").handlers)
    under_a_supervisor({})
    assert logging.getLogger("zmqps").handlers == before


#: A worker's script, which says something in the way zmqps does.
SCRIPT = """
import logging, sys
from zmqps.logs.handler import About, under_a_supervisor
import os
{before}
root = list(logging.getLogger().handlers)
under_a_supervisor(os.environ)
under_a_supervisor(os.environ)
assert logging.getLogger().handlers == root
{after}
log = About(logging.getLogger("zmqps.worker"), {{"job": "digits"}})
log.info("not shown")
log.warning("waited for %s", "it")
"""


def said(*, before: str = "", after: str = "", node: str = "worker-2") -> list[str]:
    program = SCRIPT.format(before=before, after=after)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={VARIABLE: node})
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_a_workers_warnings_reach_its_supervisor_with_their_level() -> None:
    (line,) = said()
    entry = read_entry(line)
    assert entry is not None
    assert (entry.node, entry.level, entry.message) == ("worker-2", "warning", "waited for it")
    assert entry.fields == {"job": "digits"}


@for_each("when", ["before", "after"])
def test_a_script_that_says_how_to_log_is_left_alone(when: str) -> None:
    assert said(**{when: "logging.basicConfig()"}) == ["WARNING:zmqps.worker:waited for it"]
    own = "logging.getLogger('zmqps').addHandler(logging.StreamHandler())"
    assert said(**{when: own}) == ["waited for it"]


def test_without_a_supervisor_python_says_it_in_its_own_way() -> None:
    assert said(node="") == ["waited for it"]
