"""The texts of the project are plain English, and the lines of its documents end at 120 characters."""

from __future__ import annotations

import pytest

from tests.prose import TOPS, found, long_lines, places

pytestmark = pytest.mark.tree


@pytest.mark.parametrize("top", TOPS)
def test_texts_are_plain(top: str) -> None:
    wrong = found(top)
    assert not wrong, "\n".join(map(str, wrong))


def test_phrases_are_found_in_prose_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tests.prose.ROOT", tmp_path)
    module = tmp_path / "module.py"
    module.write_text(
        '"""Who comes in."""\n\nwho = {"who": 1}  # made anew\ntext = f"{who}: a user who asks for `anybody`"\n'
    )
    assert [(place.line, place.text) for place in places(module)] == [(1, '"""Who comes in."""'), (3, "# made anew")]


def test_long_lines_are_found_where_they_can_be_broken(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tests.prose.ROOT", tmp_path)
    document, long = tmp_path / "page.md", "word " * 30
    document.write_text(f"{long}\n| {long} |\n- `{long}`\n```\n{long}\n```\n- {long}\n")
    assert [place.line for place in long_lines(document)] == [1, 7]
    assert all(place.instead.startswith("lines of at most 120") for place in long_lines(document))
