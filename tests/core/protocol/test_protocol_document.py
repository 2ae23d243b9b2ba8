"""docs/protocol.md says what the source does: its tables and examples are compared with it."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import fields
from pathlib import Path

from tests.data.make_wire_vectors import PATH as VECTORS
from tests.tables import for_each
from zmqps.core.job.spec import OPTIONS
from zmqps.core.protocol.messages import BY_KIND, PROTOCOL_VERSION
from zmqps.core.protocol.wire import CHECKS

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the text below a heading of the second level."""
    assert f"\n## {title}\n" in DOCUMENT
    return DOCUMENT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_version_is_the_one_spoken() -> None:
    assert DOCUMENT.startswith(f"# The zmqps protocol, version {PROTOCOL_VERSION}\n")


def test_every_message_is_there_with_its_number_and_fields() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|([^|]*)\|", section("Messages"), re.MULTILINE)
    documented = {int(kind): (name, re.findall(r"`(\w+)` (\w+)", text)) for kind, name, text in rows}
    real = {
        kind: (cls.__name__, [(field.name, str(field.type)) for field in fields(cls)])  # type: ignore[arg-type]
        for kind, cls in BY_KIND.items()
    }
    assert documented == real


def test_every_entry_of_a_job_is_there() -> None:
    table = (
        section("Starting the job")
        .partition("The **job** map has exactly these entries:")[2]
        .partition("In the other")[0]
    )
    cells = re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE)
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == {
        "parameters",
        "optimizer",
        "tables",
        *OPTIONS,
    }


def test_every_type_of_a_field_is_explained() -> None:
    rows = re.findall(r"^\| ([\w, ]+) \| [^|]+ \|", section("Frames"), re.MULTILINE)
    explained = {name for row in rows for name in row.split(", ")} - {"type"}
    assert explained == {*CHECKS, "Payload"}


def test_every_limit_is_the_one_in_force() -> None:
    rows = re.findall(r"^\| [^|]+ \| ([\d,]+) \| `([\w.]+)\.(\w+)` \|", section("Limits"), re.MULTILINE)
    lines = [line for line in section("Limits").splitlines() if line.startswith("| ")]
    assert len(rows) == len(lines) - 1, "every row but the head says where its constant is"
    for value, module, name in rows:
        assert getattr(importlib.import_module(f"zmqps.core.{module}"), name) == int(value.replace(",", "")), name


@for_each("number", range(3))
def test_the_examples_are_test_vectors(number: int) -> None:
    found = re.findall(r"\(\*([^*]+)\*\):\n\n```\n(.*?)```", section("Examples"), re.DOTALL)
    assert len(found) == 3
    name, dump = found[number]
    frames = {v["name"]: v["frames"] for v in json.loads(VECTORS.read_text(encoding="utf-8"))["messages"]}
    assert [dump.replace(" ", "").replace("\n", "")] == frames[name]
