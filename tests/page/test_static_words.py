"""The page's words are those of zmqps/words.py, run by Node where it is installed, else by a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.imports import ROOT
from tests.pace import allow
from tests.page.browser import Browser, missing
from tests.test_words import CALLS, SAID

#: What the page calls them.
NAMES = {"seconds": "seconds", "ago": "ago", "num_bytes": "nbytes"}
WORDS = ROOT / "zmqps" / "page" / "static" / "words.js"


def run(expression: str) -> Any:
    """Return the value of an expression of JavaScript that uses the page's words."""
    if node := shutil.which("node"):
        program = f"{WORDS.read_text()}\nconsole.log(JSON.stringify({expression}));"
        done = subprocess.run([node, "-e", program], capture_output=True, text=True, timeout=allow(60), check=True)
        return json.loads(done.stdout)
    if missing():
        pytest.skip(missing())
    with Browser() as browser:
        return browser.find(f"(() => {{ {WORDS.read_text()}\nreturn {expression}; }})()")


def test_the_page_says_numbers_as_everything_else_does() -> None:
    numbers = [10.0**power * digit for power in range(-7, 13) for digit in (1.0, 1.2346, 3.0, 5.997, 9.9961)]
    cases = {name: [*(value for value, _ in SAID[name]), *numbers] for name in SAID}
    calls = ", ".join(f"{name}: {json.dumps(cases[name])}.map(Words.{NAMES[name]})" for name in cases)
    found = run(f"({{ {calls} }})")
    for name, values in cases.items():
        assert dict(zip(values, found[name], strict=True)) == {value: CALLS[name](value) for value in values}, name
    assert run("[NaN, Infinity, null, undefined].map(Words.seconds)") == [""] * 4
