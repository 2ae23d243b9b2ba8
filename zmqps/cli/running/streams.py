"""The standard streams of a command: open, and able to take every character that is written to them."""

from __future__ import annotations

import codecs
import os
import sys
from typing import Any

#: How an encoding error is dealt with: what a terminal lacks has a form that it has.
LEGIBLE = "zmqps.legible"
#: The characters of tables, bars and sentences, in ASCII. Accents and the like become question marks.
FORMS = str.maketrans(
    {
        "…": "...", "·": ".", "•": "*", "µ": "u", "×": "x", "−": "-", "–": "-", "—": "-", "±": "+-", "→": "->",
        "⇄": "<->", "─": "-", "━": "-", "│": "|", "┃": "|", **dict.fromkeys("├└┌┐┘┤┬┴┼╭╮╯╰╞╡╪", "+"),
        **dict.fromkeys("█▇▆▅", "#"), **dict.fromkeys("▄▃", "="), "▂": "-", "▁": "_", "✓": "v", "✗": "x",
    }
)  # fmt: skip


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(FORMS)
    return text.encode("ascii", "replace").decode(), error.end


codecs.register_error(LEGIBLE, _in_ascii)


def make_legible(stream: Any) -> None:
    """Let a text stream take every character, if its encoding lacks some."""
    if hasattr(stream, "reconfigure"):  # a substitute, as in tests, takes any text
        stream.reconfigure(errors=LEGIBLE)


def open_streams() -> None:
    """Open the standard streams that the parent has closed, on nothing, and make what is written legible.

    A file or socket that is opened later would have the number of a closed one, and get what children print.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))
    make_legible(sys.stdout)
    make_legible(sys.stderr)
