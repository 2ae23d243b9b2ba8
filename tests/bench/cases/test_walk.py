"""The way of a push through the code: short, and as docs/architecture.md tells it."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import pytest

from bench.cases.walk import Walk, walk

ARCHITECTURE = Path(__file__).resolve().parents[3] / "docs" / "architecture.md"
MOST_FILES, MOST_CHANGES = 25, 75


@pytest.fixture(scope="module")
def push_pull() -> Walk:
    return walk("async")


def told() -> list[tuple[str, str]]:
    """Return the files and functions that the document names, in its order."""
    (section,) = re.findall(r"^## The walk of a push\n(.*?)(?=^## |\Z)", ARCHITECTURE.read_text(), re.M | re.S)
    found, file = [], ""
    for name in re.findall(r"`([^`\n]+)`", section[section.index("\n1. ") :]):
        if name.endswith(".py"):
            file = f"zmqps/{name}"
        else:
            found.append((file, name))
    return found


def test_there_and_back_it_is_a_short_way(push_pull: Walk) -> None:
    assert len(push_pull.files) <= MOST_FILES, push_pull.files
    assert push_pull.changes <= MOST_CHANGES


def test_it_begins_and_ends_with_the_user_and_crosses_three_threads(push_pull: Walk) -> None:
    first, *_ = push_pull.calls
    assert (first.file, first.function) == ("zmqps/client/pusher.py", "Pusher.push_pull")
    assert [turn[0].function for turn in push_pull.turns] == [
        "Pusher.push_pull",
        "SessionThread._make_calls",
        "ZmqTransport._drain",
        "ZmqTransport._drain",
    ]


def test_it_goes_in_and_out_once_with_the_push_and_once_with_its_answer(push_pull: Walk) -> None:
    deciding = [f"zmqps/core/worker/{name}.py" for name in ("session", "transfers", "pace")]
    on_the_way = [call.file for call in push_pull.calls if call.file in deciding]
    session, transfers, _ = deciding
    assert [file for file, _ in groupby(on_the_way)] == [session, transfers, session, transfers, session]


def test_the_document_names_functions_on_the_way_in_their_order(push_pull: Walk) -> None:
    way = iter([(call.file, call.function) for call in push_pull.calls])
    names = told()
    assert len(names) > 40
    for name in names:
        assert name in way, f"{name} is not on the way, or not behind those named before it"


def test_the_document_names_every_file_on_the_way(push_pull: Walk) -> None:
    assert {file for file, _ in told()} == set(push_pull.files)
