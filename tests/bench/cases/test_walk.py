"""The way of a push through the code: short, and as docs/architecture.md tells it."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from bench.cases.walk import CONFIRMS, Walk, walk
from tests.tables import for_each

ARCHITECTURE = Path(__file__).resolve().parents[3] / "docs" / "architecture.md"
#: Files, and changes from file to file, of each walk as it is today: they may only become fewer. Where messages are
#: taken one by one that come together at other times, a replicated push is a turn longer, a synchronous step a little.
MOST: dict[str, tuple[dict[str, Any], int, int]] = {
    "async": ({"mode": "async"}, 22, 67),
    "sync": ({"mode": "sync"}, 48, 256),
    "replicated": ({"mode": "async", "replicas": 1}, 33, 150),
    "rows": ({"mode": "async", "rows": True}, 41, 140),
}


@pytest.fixture(scope="module")
def walks() -> dict[str, Walk]:
    return {name: walk(**options) for name, (options, _, _) in MOST.items()}


@pytest.fixture(scope="module")
def push_pull(walks: dict[str, Walk]) -> Walk:
    return walks["async"]


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


@for_each("name", MOST)
def test_there_and_back_it_is_no_longer_way_than_it_was(walks: dict[str, Walk], name: str) -> None:
    _, most_files, most_changes = MOST[name]
    assert len(walks[name].files) <= most_files, walks[name].files
    assert walks[name].changes <= most_changes


@for_each(
    "name, through",
    [
        ("sync", ("zmqps/core/coordinator/training/steps.py", "Steps.arrive")),
        ("replicated", CONFIRMS),
        ("replicated", ("zmqps/core/server/replicas/stream.py", "Stream.release")),
        ("rows", ("zmqps/core/server/tables/table.py", "RowTable.update")),
    ],
)
def test_each_walk_goes_through_what_it_is_of(walks: dict[str, Walk], name: str, through: tuple[str, str]) -> None:
    assert through in [(call.file, call.function) for call in walks[name].calls]


def test_it_begins_and_ends_with_the_user_and_crosses_three_threads(push_pull: Walk) -> None:
    first, *_ = push_pull.calls
    assert (first.file, first.function) == ("zmqps/worker.py", "Worker.push_pull")
    assert [turn[0].function for turn in push_pull.turns] == [
        "Worker.push_pull",
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
