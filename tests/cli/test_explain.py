"""The numbers of errors, and a page for each: printed, and in docs/errors.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.tables import for_each
from zmqps.cli.explain import SECTION, document, explain, page, summary
from zmqps.cli.main import run
from zmqps.core.protocol import exits
from zmqps.errors import BY_CODE, PSError

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
every_class = for_each("cls", BY_CODE.values())


def test_the_document_is_what_the_docstrings_say() -> None:
    assert DOCUMENT.read_text() == document(), "run `make errors`"


def test_each_number_is_an_anchor_of_the_document() -> None:
    assert re.findall(r"^## (.*)$", DOCUMENT.read_text(), re.MULTILINE) == [
        BY_CODE[code].number for code in sorted(BY_CODE)
    ]


@every_class
def test_each_error_says_what_happened_and_what_to_do_next(cls: type[PSError]) -> None:
    assert "__doc__" in vars(cls)
    assert summary(cls).endswith(".")
    _, _, todo = page(cls).partition(f"{SECTION}:\n\n")
    assert todo.startswith("- ")
    assert "Attributes" not in page(cls)


def test_an_error_is_found_by_its_number_or_name() -> None:
    pages = {
        CliRunner().invoke(explain, [name]).output for name in ("Z006", "z6", "6", "PeerLostError", "peerlosterror")
    }
    assert len(pages) == 1
    (shown,) = pages
    assert shown.startswith("## Z006\n\n**`PeerLostError`**, a kind of `ConnectionError`. It says:\n")
    assert "lost <name>: last sign of life <silent_s> s ago; <advice>" in shown
    listed = CliRunner().invoke(explain, []).output.splitlines()
    assert len(listed) == len(BY_CODE)
    assert CliRunner().invoke(explain, ["Z999"]).exit_code == exits.USAGE


def test_what_fails_says_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--config", "/nowhere/zmqps.toml", "status"]) == exits.USAGE
    text = capsys.readouterr().err
    assert text.startswith("zmqps: cannot read /nowhere/zmqps.toml")
    assert text.endswith(" [Z002]\n"), "one line, where no person looks on"


def test_what_has_no_page_of_its_own_has_no_number(zmqps) -> None:
    assert "Z001" not in zmqps("logs").stderr
